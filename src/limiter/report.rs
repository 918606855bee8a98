//! What is reported to observers: decisions, units that are charged or refunded later, and the state of the limiter; and the log
//! event of a rejection.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use http::request::Parts;
use smallvec::SmallVec;

use super::{
    Limiter,
    adjust::Adjustment,
    bound_policy::{BoundPolicy, Enforcement},
    check::CheckOverrides,
    core::{LimiterCore, LimiterRef},
    decide::{DecisionBuilder, PendingStage},
    decision::{Decision, DecisionKind},
    entry::{PolicyEntry, PolicyRole, longest_wait},
    keys::Keys,
};
#[cfg(any(feature = "admin", feature = "metrics"))]
use crate::observe::{PolicyResult, counts::PolicyCount};
use crate::{
    error::StoreError,
    key::Key,
    observe::{
        DecisionEvent, DecisionOutcome, DecisionSource, Event, EventStatus, LimiterStats,
        Observers, PolicyEvent, PolicyEvents, PolicyKind, PolicyStats, UnitsEvent, UnitsKind,
    },
    store::{Op, OpResult},
};

/// Each thread times one in this many of the decisions that are ready at once.
const TIMED_DECISIONS: u64 = 64;

/// A request of `Limiter::wait`, from its first poll until it is decided or dropped.
pub(super) struct WaitReport {
    limiter: Arc<LimiterRef>,
    since: Option<Instant>,
}

/// Requests while they are evaluated. Those that are left when it is dropped have ended by a panic of the application's code.
struct Undecided<'a> {
    limiter: &'a LimiterRef,
    requests: u64,
}

/// What is reported of a decision beside its policies.
struct Summary<'a> {
    kind: &'a DecisionKind,
    source: DecisionSource,
    allow_listed: bool,
    requests: u64,
    /// As a store counted them: 0 if none did.
    admitted: u64,
    waits: bool,
    elapsed: Option<Duration>,
}

impl LimiterRef {
    /// [Evaluates](Self::evaluate_request) an HTTP request, and reports a decision that is ready.
    #[inline]
    pub(crate) fn decide_request(
        &self,
        builder: &mut DecisionBuilder,
        parts: &Parts,
    ) -> Option<PendingStage> {
        match self.observers {
            None => self.evaluate_request(builder, parts),
            Some(_) => {
                self.decide_reported(builder, |builder| self.evaluate_request(builder, parts))
            }
        }
    }

    /// [Evaluates](Self::evaluate_keys) a call with its own keys, and reports a decision that is ready.
    #[inline]
    pub(crate) fn decide_call(
        &self,
        builder: &mut DecisionBuilder,
        keys: &Keys,
        overrides: Option<&CheckOverrides>,
    ) -> Option<PendingStage> {
        match self.observers {
            None => self.evaluate_keys(builder, keys, overrides),
            Some(_) => self.decide_reported(builder, |builder| {
                self.evaluate_keys(builder, keys, overrides)
            }),
        }
    }

    #[inline(never)]
    fn decide_reported(
        &self,
        builder: &mut DecisionBuilder,
        evaluate: impl FnOnce(&mut DecisionBuilder) -> Option<PendingStage>,
    ) -> Option<PendingStage> {
        if !builder.is_reported() {
            return evaluate(builder);
        }
        let since = is_timed().then(Instant::now);
        let mut undecided = Undecided {
            limiter: self,
            requests: builder.requests(),
        };
        let pending = evaluate(builder);
        undecided.requests = 0;
        if pending.is_none() {
            match since {
                #[cfg(any(feature = "admin", feature = "metrics"))]
                None if self.count_admission(builder) => {}
                _ => self.report(builder, since.map(|since| since.elapsed())),
            }
        }
        pending
    }

    /// Reports the decision of a request, or a charge by hand.
    pub(crate) fn report(&self, builder: &DecisionBuilder, elapsed: Option<Duration>) {
        if builder.op == Op::ForceAcquire {
            return self.report_charge_by_hand(builder, true);
        }
        let summary = Summary {
            kind: &builder.kind,
            source: builder.source,
            allow_listed: builder.allow_listed,
            requests: builder.requests(),
            admitted: builder.admitted,
            waits: false,
            elapsed,
        };
        self.report_summary(summary, &builder.entries);
    }

    /// Reports a call that was dropped before it was decided, and before or after it was sent to the store.
    pub(crate) fn report_dropped(&self, builder: &DecisionBuilder, sent: bool, elapsed: Duration) {
        match builder.op {
            Op::ForceAcquire if !sent => {}
            Op::ForceAcquire => self.report_charge_by_hand(builder, false),
            _ => self.report_cancelled(builder.requests(), false, Some(elapsed)),
        }
    }

    /// Reports requests that were dropped before they were decided.
    #[cold]
    fn report_cancelled(&self, requests: u64, waits: bool, elapsed: Option<Duration>) {
        let Some(observers) = &self.observers else {
            return;
        };
        let event = DecisionEvent {
            generation: self.generation,
            outcome: DecisionOutcome::Cancelled,
            source: DecisionSource::NotChecked,
            requests,
            admitted: 0,
            uncounted: false,
            waits,
            elapsed,
            error: None,
            policies: PolicyEvents::new(&[]),
        };
        observers.notify(|observer| observer.on_decision(&event));
    }

    fn report_summary(&self, summary: Summary<'_>, entries: &[PolicyEntry]) {
        let Some(observers) = &self.observers else {
            return;
        };
        let nothing_counted = entries.is_empty();
        let (outcome, admitted) = summary.outcome(nothing_counted);
        // By any policy.
        let rejected = match outcome {
            DecisionOutcome::Admitted | DecisionOutcome::Rejected => summary.requests - admitted,
            _ => 0,
        };
        let policies = entries
            .iter()
            .map(|entry| self.policy_event(entry, summary.requests, rejected));
        let policies: SmallVec<[PolicyEvent<'_>; 4]> = policies.collect();
        let event = DecisionEvent {
            generation: self.generation,
            outcome,
            source: summary.source,
            requests: summary.requests,
            admitted,
            uncounted: outcome == DecisionOutcome::Admitted && summary.admitted == 0,
            waits: summary.waits,
            elapsed: summary.elapsed,
            error: match summary.kind {
                DecisionKind::StoreFailed(error) => Some(error),
                _ => None,
            },
            policies: PolicyEvents::new(&policies),
        };
        observers.notify(|observer| observer.on_decision(&event));
    }

    /// The result under one policy of so many requests, of which `rejected` were rejected by any policy.
    fn policy_event<'a>(
        &'a self,
        entry: &'a PolicyEntry,
        requests: u64,
        rejected: u64,
    ) -> PolicyEvent<'a> {
        let charged = entry.receipts.first().remaining;
        PolicyEvent {
            index: entry.policy as usize,
            policy: self.bound(entry.policy).policy.name(),
            kind: entry.role.into(),
            key: &entry.key,
            cost: entry.cost,
            charged,
            requests,
            over: match entry.role {
                PolicyRole::Live | PolicyRole::Ban if rejected > 0 && entry.rejects(self) => {
                    rejected
                }
                PolicyRole::Live | PolicyRole::Ban => 0,
                PolicyRole::Shadow { rejects: true } => requests,
                PolicyRole::Shadow { rejects: false } => {
                    match charged.checked_div(entry.cost) {
                        // It charges those that it would have admitted, if it charges on arrival.
                        Some(admitted) if admitted > 0 => requests.saturating_sub(admitted),
                        _ => 0,
                    }
                }
            },
            status: self.event_status(entry),
        }
    }

    #[inline]
    fn event_status<'a>(&'a self, entry: &'a PolicyEntry) -> EventStatus<'a> {
        let limit = self.limit(entry);
        EventStatus {
            limit: limit.info().capacity,
            rule: limit.rule(),
            status: &entry.lazy_status,
            decided_at: entry.receipts.first().charged_at,
            units: entry.units().get(),
        }
    }

    /// Counts an admitted request without an event, if that is all that the observers would do with one. Most requests are such.
    /// False if the request is to be [reported](Self::report).
    ///
    /// Measured on one thread with [`Metrics`](crate::metrics::Metrics): a decision in process takes 6 % longer than without
    /// observers, and 20 % with an event.
    #[cfg(any(feature = "admin", feature = "metrics"))]
    #[inline]
    pub(super) fn count_admission(&self, builder: &DecisionBuilder) -> bool {
        let last = builder.entries.last().map(|entry| entry.role);
        // Shadows and bans are the last entries.
        let is_plain =
            builder.is_admitted() && builder.op == Op::Acquire(1) && last == Some(PolicyRole::Live);
        let observers = self.observers.as_ref().filter(|_| is_plain);
        let Some(counts) = observers.and_then(|observers| observers.counts()) else {
            return false;
        };
        for counts in counts {
            let near_percent = counts.near_percent();
            let policies = builder.entries.iter().map(|entry| {
                let within = PolicyResult::within(self.event_status(entry).is_near(near_percent));
                PolicyCount {
                    index: entry.policy as usize,
                    name: self.bound(entry.policy).policy.name(),
                    results: [(within, 1), (PolicyResult::Over, 0)],
                    charged: entry.receipts.first().remaining,
                }
            });
            let admitted = [(DecisionOutcome::Admitted, 1)];
            counts.count(builder.source, admitted, 0, policies);
        }
        true
    }

    /// Logs a request that was rejected. One that waits is logged when it is rejected finally.
    #[cold]
    pub(crate) fn log_rejected(&self, builder: &DecisionBuilder) {
        if matches!(builder.op, Op::Acquire(_)) && !builder.will_retry && !builder.is_admitted() {
            self.log_rejection(&builder.kind, &builder.entries);
        }
    }

    /// Logs a rejection, with the first policy that rejected, and the longest wait.
    #[cold]
    pub(crate) fn log_rejection(&self, kind: &DecisionKind, entries: &[PolicyEntry]) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let mut enforced = entries.iter().filter(|entry| !entry.is_shadow());
        let by = enforced
            .find(|entry| entry.rejects(self))
            .filter(|_| matches!(kind, DecisionKind::Rejected));
        let by_policy = by.map(|entry| (&self.bound(entry.policy).policy, entry));
        let policy = by_policy.map(|(policy, _)| policy.name());
        // In the form that the admin API and key lists read.
        let key = by_policy.map(|(policy, entry)| policy.key_text(&entry.key));
        let key = key.as_deref().map(tracing::field::display);
        let retry_after = by.and_then(|_| longest_wait(self, entries).duration());
        let outcome = kind.outcome(false, false).as_str();
        tracing::debug!(
            outcome,
            policy,
            key,
            retry_after = retry_after.map(tracing::field::debug),
            "a request was rejected"
        );
    }

    /// Reports a charge by hand that failed, if it may be made nevertheless.
    pub(crate) fn report_failed_charge(&self, builder: &DecisionBuilder, error: &StoreError) {
        let is_by_hand = builder.op == Op::ForceAcquire && !builder.in_check;
        if is_by_hand && !error.had_no_effect() {
            self.report_charge_by_hand(builder, false);
        }
    }

    /// Reports a charge by hand, as the store made it. One whose result is not known may be made.
    pub(super) fn report_charge_by_hand(&self, builder: &DecisionBuilder, confirmed: bool) {
        // Without entries the call has failed.
        for entry in &builder.entries {
            let units = match confirmed {
                true => entry.receipts.first().remaining,
                false => entry.cost,
            };
            self.report_units(entry, UnitsKind::Charged, units, confirmed);
        }
    }

    /// Reports the bans that began with a request, or with a charge of rejections.
    pub(crate) fn report_bans_begun(&self, builder: &DecisionBuilder, result: &OpResult) {
        let Some(observers) = &self.observers else {
            return;
        };
        if !matches!(builder.op, Op::Acquire(_) | Op::ForceAcquire)
            || result.source != DecisionSource::Store
        {
            return;
        }
        let counted = builder.entries.iter().zip(&result.counters);
        for (entry, counter) in counted.filter(|(entry, _)| entry.role == PolicyRole::Ban) {
            let (bound, at) = (self.bound(entry.policy), result.time_of(counter));
            let begun = self.limit(entry).rule().ban_begun(&counter.snapshot, at);
            if let Some(lasts) = begun.filter(|_| bound.bans_begun.add(entry.key, at)) {
                observers.on_event(&Event::BanBegan {
                    policy: bound.policy.name(),
                    key: &entry.key,
                    lasts,
                    by_hand: false,
                });
            }
        }
    }

    /// Reports bans that were begun by hand.
    pub(crate) fn report_manual_bans(&self, bans: &[(u32, Key)], lasts: Duration) {
        let Some(observers) = &self.observers else {
            return;
        };
        for (policy, key) in bans {
            observers.on_event(&Event::BanBegan {
                policy: self.bound(*policy).policy.name(),
                key,
                lasts,
                by_hand: true,
            });
        }
    }
}

impl LimiterCore {
    /// Reports an operation that was sent, or queued, without waiting for its result. Permits that are released are reported as
    /// such.
    pub(crate) fn report_detached(&self, entry: &PolicyEntry, kind: UnitsKind, units: u64) {
        if !self.bound(entry.policy).is_permit() {
            self.report_units(entry, kind, units, false);
        }
    }

    pub(crate) fn report_units(
        &self,
        entry: &PolicyEntry,
        kind: UnitsKind,
        units: u64,
        confirmed: bool,
    ) {
        let Some(observers) = &self.observers else {
            return;
        };
        let event = UnitsEvent {
            generation: self.generation,
            index: entry.policy as usize,
            policy: self.bound(entry.policy).policy.name(),
            key: &entry.key,
            kind,
            units,
            confirmed,
        };
        notify(observers, &event);
    }

    /// The state of the limiter and its store in this process.
    pub(super) fn stats(&self) -> LimiterStats {
        let mut waiters = vec![0; self.policies.len()];
        self.wait_queues
            .count_waiters(self.generation, &mut waiters);
        let policies = self.policies.iter().zip(waiters);
        let shares = self.local_shares.as_deref();
        LimiterStats {
            generation: self.generation,
            policies: policies
                .map(|(bound, waiters)| bound.stats(waiters))
                .collect(),
            queued_write_backs: shares.map_or(0, |shares| shares.unwritten_keys() as u64),
            dropped_write_backs: shares.map_or(0, |shares| shares.dropped()),
            store: self.store.stats(),
        }
    }

    /// Reports that permits are held or released.
    pub(crate) fn report_permits(
        &self,
        entries: &[PolicyEntry],
        event: impl for<'a> Fn(&'a str, &'a Key, u64) -> Event<'a>,
    ) {
        let Some(observers) = &self.observers else {
            return;
        };
        for entry in entries {
            let policy = self.bound(entry.policy).policy.name();
            observers.on_event(&event(policy, &entry.key, entry.receipts.first().remaining));
        }
    }
}

impl Summary<'_> {
    /// The outcome, and the number of requests that were let through.
    fn outcome(&self, nothing_counted: bool) -> (DecisionOutcome, u64) {
        let not_checked = nothing_counted && self.source == DecisionSource::NotChecked;
        let outcome = self.kind.outcome(self.allow_listed, not_checked);
        let admitted = match outcome {
            DecisionOutcome::Admitted if !nothing_counted => self.admitted.min(self.requests),
            _ if matches!(self.kind, DecisionKind::Admitted) => self.requests,
            _ => 0,
        };
        (outcome, admitted)
    }
}

impl WaitReport {
    /// `None` without observers.
    pub(super) fn begin(limiter: &Limiter) -> Option<Self> {
        let limiter = limiter.local_ref();
        limiter.observers.is_some().then(|| Self {
            limiter,
            since: Some(Instant::now()),
        })
    }

    /// Reports the decision, which was made under these policies.
    pub(super) fn finish(mut self, limiter: &LimiterRef, decision: &Decision) {
        let since = self.since.take();
        let summary = Summary {
            kind: &decision.kind,
            source: decision.source,
            allow_listed: decision.allow_listed,
            requests: 1,
            admitted: decision.admitted,
            waits: true,
            elapsed: since.map(|since| since.elapsed()),
        };
        limiter.report_summary(summary, &decision.entries);
    }
}

impl Drop for WaitReport {
    fn drop(&mut self) {
        if let Some(since) = self.since.take() {
            self.limiter
                .report_cancelled(1, true, Some(since.elapsed()));
        }
    }
}

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        if self.requests > 0 {
            self.limiter.report_cancelled(self.requests, false, None);
        }
    }
}

/// Whether this thread times this decision. Chosen at random: of limiters that decide in turns, a counter would choose the same one
/// each time.
fn is_timed() -> bool {
    thread_local! {
        static RANDOM: Cell<u64> = const { Cell::new(0) };
    }
    // A linear congruential generator, of which the highest bits are the most random.
    let next = |random: &Cell<u64>| {
        let state = random.get().wrapping_mul(6_364_136_223_846_793_005);
        random.set(state.wrapping_add(1_442_695_040_888_963_407));
        random.get() < u64::MAX / TIMED_DECISIONS
    };
    RANDOM.try_with(next).unwrap_or(false)
}

impl From<PolicyRole> for PolicyKind {
    fn from(role: PolicyRole) -> Self {
        match role {
            PolicyRole::Live => Self::Live,
            PolicyRole::Ban => Self::Ban,
            PolicyRole::Shadow { .. } => Self::Shadow,
        }
    }
}

/// The report of adjustments in flight. It is made when their result is known, or when this is dropped without one.
pub(crate) struct UnitsReport {
    observers: Arc<Observers>,
    generation: u64,
    units: SmallVec<[PendingUnits; 1]>,
    /// Whether the store repeats what has failed.
    is_detached: bool,
}

/// One adjustment.
struct PendingUnits {
    index: u32,
    policy: Arc<str>,
    key: Key,
    kind: UnitsKind,
    /// The units of the adjustment, before its result is known.
    units: u64,
}

impl UnitsReport {
    /// `None` without observers, or without adjustments.
    pub(crate) fn begin(
        limiter: &LimiterCore,
        op: Op,
        adjustments: &[Adjustment<'_>],
    ) -> Option<Self> {
        let observers = limiter.observers.as_ref()?;
        let units = adjustments.iter().map(|adjustment| {
            let entry = adjustment.entry;
            PendingUnits {
                index: entry.policy,
                policy: limiter.bound(entry.policy).policy.shared_name(),
                key: entry.key,
                kind: match op {
                    Op::Refund => UnitsKind::Refunded,
                    Op::Settle if adjustment.receipt.remaining > 0 => UnitsKind::SettledLess,
                    Op::Settle => UnitsKind::SettledMore,
                    _ => UnitsKind::Charged,
                },
                units: adjustment.units,
            }
        });
        Some(Self {
            observers: observers.clone(),
            generation: limiter.generation,
            units: units.collect(),
            is_detached: false,
        })
    }

    /// The same, of another kind.
    pub(crate) fn of_kind(mut self, kind: UnitsKind) -> Self {
        self.units.iter_mut().for_each(|units| units.kind = kind);
        self
    }

    /// The same, of operations that the store repeats if they fail.
    pub(crate) fn detached(mut self) -> Self {
        self.is_detached = true;
        self
    }

    /// Reports the result. After an error nothing was done, or that is not known.
    pub(crate) fn finish(mut self, result: Result<&OpResult, &StoreError>) {
        match result {
            Ok(result) => {
                let units = std::mem::take(&mut self.units);
                for (units, counter) in units.iter().zip(&result.counters) {
                    self.report(units, counter.units, true);
                }
            }
            Err(error) if error.had_no_effect() && !self.is_detached => self.units.clear(),
            Err(_) => {}
        }
    }

    fn report(&self, of: &PendingUnits, units: u64, confirmed: bool) {
        let event = UnitsEvent {
            generation: self.generation,
            index: of.index as usize,
            policy: &of.policy,
            key: &of.key,
            kind: of.kind,
            units,
            confirmed,
        };
        notify(&self.observers, &event);
    }
}

/// What has no result by now may be done.
impl Drop for UnitsReport {
    fn drop(&mut self) {
        for units in &self.units {
            self.report(units, units.units, false);
        }
    }
}

/// Reports units, unless they are zero.
fn notify(observers: &Observers, event: &UnitsEvent<'_>) {
    if event.units > 0 {
        observers.notify(|observer| observer.on_units(event));
    }
}

impl BoundPolicy {
    fn stats(&self, waiters: u64) -> PolicyStats {
        let has_quota = !self.policy.is_block_list();
        PolicyStats {
            policy: self.policy.shared_name(),
            kind: self.role.into(),
            quota: has_quota.then(|| self.policy.quota()),
            limit: match has_quota {
                true => self.limit.info().capacity,
                false => 0,
            },
            permits: self.permits_held.load(Ordering::Relaxed),
            waiters,
            shadow: match &self.enforcement {
                Enforcement::Shadow { counters, .. } => Some(counters.stats()),
                Enforcement::Live | Enforcement::Ban => None,
            },
        }
    }
}
