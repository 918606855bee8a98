//! Reports of decisions to observers.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{
    Limiter,
    core::LimiterRef,
    decide::DecisionBuilder,
    decision::{Decision, DecisionKind},
    entry::{PolicyEntry, PolicyRole},
};
#[cfg(any(feature = "admin", feature = "metrics"))]
use crate::observe::{PolicyResult, counts::PolicyCount};
use crate::{
    observe::{
        DecisionEvent, DecisionOutcome, DecisionSource, EventStatus, PolicyEvent, PolicyEvents,
    },
    store::Op,
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
    /// Calls `evaluate`, and reports the decision if there is one. Returns what `evaluate` does: `None` if it is decided, else why not
    /// yet.
    #[inline]
    pub(crate) fn decide<P>(
        &self,
        builder: &mut DecisionBuilder,
        evaluate: impl FnOnce(&mut DecisionBuilder) -> Option<P>,
    ) -> Option<P> {
        match self.observers {
            None => evaluate(builder),
            Some(_) => self.decide_and_report(builder, evaluate),
        }
    }

    /// As [`decide`](Self::decide), for a limiter with observers.
    #[inline(never)]
    fn decide_and_report<P>(
        &self,
        builder: &mut DecisionBuilder,
        evaluate: impl FnOnce(&mut DecisionBuilder) -> Option<P>,
    ) -> Option<P> {
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
        if builder.is_charge_by_hand() {
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

    /// Reports a call that was dropped before it was decided, and after it was sent to the store.
    pub(crate) fn report_dropped(&self, builder: &DecisionBuilder, elapsed: Duration) {
        match builder.op {
            Op::Adjust => self.report_charge_by_hand(builder, false),
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
                // A shadow is evaluated for what the others admitted.
                PolicyRole::Shadow { rejects: true } => requests.saturating_sub(rejected),
                PolicyRole::Shadow { rejects: false } => {
                    match charged.checked_div(entry.cost) {
                        // It charges those that it would have admitted, if it charges on arrival.
                        Some(fitting) if fitting > 0 => {
                            requests.saturating_sub(rejected).saturating_sub(fitting)
                        }
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
    /// An event costs more than the counts, as the benchmark `metrics` shows.
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
