//! From the store's response to a decision: the decision under construction, and while it is pending.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{
    core::LimiterRef,
    decision::{Decision, DecisionKind},
    entry::{PolicyEntry, PolicyRole, longest_wait},
    mode::Mode,
    permits::HeldPermits,
};
use crate::{
    error::StoreError,
    store::{
        CounterMode, CounterResult, DecisionSource, Op, OpResult, PendingResponse, TOO_FEW_RESULTS,
    },
    strategy::{ChargeReceipt, LazyStatus, RetryAfter},
};

/// One entry for each policy that applies.
pub(crate) type Entries = SmallVec<[PolicyEntry; 1]>;

/// A decision under construction: the operation, and what is known of its result. It is changed in place and moved once, when
/// it is finished, since it is large.
pub(crate) struct DecisionBuilder {
    pub(crate) op: Op,
    pub(crate) mode: Mode,
    /// One for each policy that applies. The store's response sets their statuses and receipts.
    pub(crate) entries: Entries,
    pub(crate) kind: DecisionKind,
    pub(crate) source: DecisionSource,
    pub(crate) allow_listed: bool,
    /// How many of its requests were admitted, as a store counted them: 0 if none did.
    pub(crate) admitted: u64,
    pub(crate) permit: Option<Arc<HeldPermits>>,
}

/// A decision that needs no store.
pub(crate) struct EarlyDecision {
    pub(crate) kind: DecisionKind,
    pub(crate) allow_listed: bool,
}

impl From<DecisionKind> for EarlyDecision {
    fn from(kind: DecisionKind) -> Self {
        Self {
            kind,
            allow_listed: false,
        }
    }
}

impl DecisionBuilder {
    /// The check of one request.
    #[inline]
    pub(crate) fn check() -> Self {
        Self::new(Op::Acquire(1), Mode::CHECK)
    }

    /// A call with this operation.
    #[inline]
    pub(crate) fn new(op: Op, mode: Mode) -> Self {
        Self {
            op,
            mode,
            entries: Entries::new(),
            kind: DecisionKind::Admitted,
            source: DecisionSource::NotChecked,
            allow_listed: false,
            admitted: 0,
            permit: None,
        }
    }

    pub(crate) fn is_admitted(&self) -> bool {
        matches!(self.kind, DecisionKind::Admitted)
    }

    /// Whether it is reported to observers: a request, or a charge by hand.
    pub(crate) fn is_reported(&self) -> bool {
        matches!(self.op, Op::Acquire(_)) || self.is_charge_by_hand()
    }

    /// Whether it charges units that no request costs, or that are known only afterwards.
    pub(crate) fn is_charge_by_hand(&self) -> bool {
        self.op == Op::Adjust
    }

    /// The number of requests that it decides.
    pub(crate) fn requests(&self) -> u64 {
        match self.op {
            Op::Acquire(requests) => requests.into(),
            _ => 0,
        }
    }

    /// Sets the result of a request that the store does not decide.
    #[cold]
    pub(crate) fn decide_without_store(&mut self, kind: DecisionKind, source: DecisionSource) {
        self.entries.clear();
        self.kind = kind;
        self.source = source;
    }

    /// Sets the result of a request that needs no store.
    #[cold]
    pub(crate) fn decide_early(&mut self, early: EarlyDecision) {
        self.allow_listed = early.allow_listed;
        self.decide_without_store(early.kind, DecisionSource::NotChecked);
    }

    /// The decision.
    #[inline(always)]
    pub(crate) fn finish(self, limiter: Arc<LimiterRef>) -> Decision {
        Decision {
            limiter,
            kind: self.kind,
            source: self.source,
            allow_listed: self.allow_listed,
            admitted: self.admitted,
            entries: self.entries,
            permit: self.permit.into(),
        }
    }
}

/// The future of a decision that may be ready.
pub(crate) enum MaybePending {
    Ready(Option<Decision>),
    Pending(PendingDecision),
}

impl Future for MaybePending {
    type Output = Decision;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        match self.get_mut() {
            Self::Ready(decision) => decision.take().map_or(Poll::Pending, Poll::Ready),
            Self::Pending(pending) => Pin::new(pending).poll(cx),
        }
    }
}

/// A decision that waits for the store. Dropping it cancels the request: the store refunds what it
/// charges for it (on Redis, `ResponseHandle`).
pub(crate) struct PendingDecision {
    /// Dropped before the limiter, whose store refunds what is charged.
    response: PendingResponse,
    /// Taken when the decision is made.
    state: Option<(Arc<LimiterRef>, DecisionBuilder)>,
    /// When it began, if it is reported to observers.
    reported_since: Option<Instant>,
}

impl PendingDecision {
    /// A request's decision, which is reported to observers.
    pub(crate) fn new(
        limiter: Arc<LimiterRef>,
        builder: DecisionBuilder,
        response: PendingResponse,
    ) -> Self {
        let reported = limiter.observers.is_some() && builder.is_reported();
        let mut pending = Self::unreported(limiter, builder, response);
        pending.reported_since = reported.then(Instant::now);
        pending
    }

    /// A part of a decision, which is reported as a whole, or not at all.
    fn unreported(
        limiter: Arc<LimiterRef>,
        builder: DecisionBuilder,
        response: PendingResponse,
    ) -> Self {
        Self {
            response,
            state: Some((limiter, builder)),
            reported_since: None,
        }
    }
}

impl Future for PendingDecision {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        // Polled again after it was ready, which is a mistake: pending for ever.
        let Some((limiter, builder)) = &mut this.state else {
            return Poll::Pending;
        };
        let response = ready!(Pin::new(&mut this.response).poll(cx));
        limiter.apply_response(builder, response);
        if let Some(since) = this.reported_since {
            limiter.report(builder, Some(since.elapsed()));
        }
        match this.state.take() {
            Some((limiter, builder)) => Poll::Ready(builder.finish(limiter)),
            None => Poll::Pending,
        }
    }
}

impl Drop for PendingDecision {
    fn drop(&mut self) {
        if let (Some(since), Some((limiter, builder))) = (self.reported_since, &self.state) {
            limiter.report_dropped(builder, since.elapsed());
        }
    }
}

impl LimiterRef {
    /// Calls the store, and doesn't report the decision to observers: it is a part of a
    /// [`Limiter::wait`](crate::Limiter::wait), which is reported as a whole.
    pub(crate) fn decide_unreported(self: Arc<Self>, mut builder: DecisionBuilder) -> MaybePending {
        match self.call_store(&mut builder) {
            None => MaybePending::Ready(Some(builder.finish(self))),
            Some(response) => {
                MaybePending::Pending(PendingDecision::unreported(self, builder, response))
            }
        }
    }

    /// Applies the store's response.
    #[inline(always)]
    pub(crate) fn apply_response(
        &self,
        builder: &mut DecisionBuilder,
        response: Result<OpResult, StoreError>,
    ) {
        match response {
            Ok(result) if result.counters.len() < builder.entries.len() => {
                self.handle_store_error(builder, TOO_FEW_RESULTS);
            }
            Ok(result) => {
                if builder.op == Op::Reset {
                    self.clear_local_state(builder);
                }
                if self.apply_result(builder, &result) {
                    self.log_rejected(builder);
                }
            }
            Err(error) => self.handle_store_error(builder, error),
        }
    }

    /// Clears what this process keeps of keys that the store has reset.
    #[cold]
    fn clear_local_state(&self, builder: &DecisionBuilder) {
        let entries = builder.entries.iter();
        let keys = entries.map(|entry| (entry.policy, entry.key));
        self.wait_queues
            .clear_rejections(self.generation, &keys.collect::<SmallVec<[_; 1]>>());
        self.reset_local_shares(&builder.entries);
    }

    /// Applies a result; returns whether it rejects the request.
    #[inline(always)]
    pub(crate) fn apply_result(&self, builder: &mut DecisionBuilder, result: &OpResult) -> bool {
        let entries = &mut builder.entries[..];
        // Entries are ordered by role: bans follow live policies, and shadows bans.
        let has_bans_or_shadows = entries
            .last()
            .is_some_and(|last| last.role != PolicyRole::Live);
        for (entry, counter) in entries.iter_mut().zip(&result.counters[..]) {
            self.apply_counter(entry, counter, result);
        }
        builder.source = result.source;
        builder.admitted = result.admitted;
        let acquires = matches!(builder.op, Op::Acquire(_));
        let rejected = acquires && result.admitted == 0;
        if rejected {
            self.mark_rejected(builder);
        }
        if !acquires || has_bans_or_shadows || self.has_permits {
            self.apply_rare_cases(builder, result);
        }
        rejected
    }

    /// Sets one policy's status and receipt.
    #[inline(always)]
    fn apply_counter(&self, entry: &mut PolicyEntry, counter: &CounterResult, result: &OpResult) {
        let at = result.time_of(counter);
        entry.lazy_status = LazyStatus::Snapshot(counter.snapshot);
        let bound = self.bound(entry.policy);
        let rule = bound.limit_of(entry).rule();
        entry.receipts.set_first(ChargeReceipt {
            charged_at: at,
            remaining: counter.units,
            window_id: rule.window_id(&counter.snapshot, at),
        });
        // `admitted_after` is 0 for a rejected one of equal requests.
        if result.admitted_after > 0 && entry.role == PolicyRole::Live {
            // Equal requests were admitted after this one, so their units were still available.
            let later = match bound.policy.counter_mode() {
                CounterMode::Check => 0,
                _ => entry.units().of(result.admitted_after),
            };
            entry.update_status(self, |status| {
                status.remaining = status.remaining.saturating_add(later);
                status.retry_after = RetryAfter::Now;
            });
        }
        if result.source == DecisionSource::Lease {
            self.apply_lease(entry, counter, result.age);
        } else if !result.age.is_zero() {
            // The wait for a permit is a hint, which does not age.
            if self.limit(entry).info().permit_ttl.is_none() {
                let cost = entry.cost;
                entry.update_status(self, |status| status.advance(result.age, cost));
            }
            entry.receipts.age_by(result.age);
        }
    }

    /// Sets the status and the receipt of a request that a lease admitted: the status follows from the store's last response and
    /// the units that are held, and the units may have been charged before that response.
    fn apply_lease(&self, entry: &mut PolicyEntry, counter: &CounterResult, age: Duration) {
        let (cost, held, charged_before) = (entry.cost, counter.held, counter.charged_before);
        // Held units may have refilled in the store.
        let capacity = self.limit(entry).info().capacity;
        entry.update_status(self, |status| {
            status.remaining = status.remaining.saturating_add(held).min(capacity);
            if held >= cost {
                status.retry_after = RetryAfter::Now;
            }
            // The date of the reset is that long after the charge.
            let reset_after = status.reset_after.saturating_add(charged_before);
            status.advance(age, cost);
            status.reset_after = reset_after;
        });
        let latest = entry.receipts.first();
        entry.receipts.set_first(ChargeReceipt {
            charged_at: latest.charged_at - charged_before,
            ..latest
        });
    }

    fn mark_rejected(&self, builder: &mut DecisionBuilder) {
        builder.kind = DecisionKind::Rejected;
        for entry in &mut builder.entries {
            // Resolved now, since a rejection reads it several times.
            entry.lazy_status = LazyStatus::Resolved(entry.status(self));
        }
    }

    /// Applies what only peeks, bans, shadows and permits need.
    #[cold]
    fn apply_rare_cases(&self, builder: &mut DecisionBuilder, result: &OpResult) {
        let acquires = matches!(builder.op, Op::Acquire(_));
        if !acquires && longest_wait(self, &builder.entries) != RetryAfter::Now {
            builder.kind = DecisionKind::Rejected;
        }
        let last = builder.entries.last().map(|last| last.role);
        if let Some(PolicyRole::Ban | PolicyRole::Shadow { .. }) = last {
            self.report_bans_begun(builder, result);
            self.apply_bans_and_shadows(builder);
        }
        let admitted = matches!(builder.kind, DecisionKind::Admitted);
        if acquires && admitted && self.has_permits {
            let entries = builder.entries.iter();
            let permits = entries.filter(|entry| self.bound(entry.policy).is_permit());
            // With receipts of their own. A permit that is refunded by its holder and by the decision is refunded once, since its
            // caller identifies it in the store.
            let permits = permits.filter_map(|entry| {
                let units = entry.receipts.first().remaining;
                (units > 0).then(|| entry.with_receipts(entry.receipts.split(units)))
            });
            builder.permit = HeldPermits::hold(self.core(), permits.collect());
        }
    }

    fn apply_bans_and_shadows(&self, builder: &mut DecisionBuilder) {
        if matches!(builder.op, Op::Acquire(_) | Op::Peek) {
            self.record_shadows(builder);
        }
        if matches!(builder.op, Op::Acquire(_)) {
            // A ban that does not block is not part of the decision.
            builder.entries.retain(|entry| {
                entry.role != PolicyRole::Ban || entry.status(self).retry_after != RetryAfter::Now
            });
        }
    }
}
