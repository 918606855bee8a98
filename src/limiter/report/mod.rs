//! What is reported to observers: decisions here, units in `units`, and the state of the limiter in `state`.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use http::request::Parts;

use self::results::EntryResults;
use super::{
    Limiter,
    core::LimiterRef,
    evaluate::decision_builder::{DecisionBuilder, PendingStage},
    keys::Keys,
    overrides::CheckOverrides,
};
use crate::{
    decision::{Decision, DecisionKind, PolicyEntry},
    observe::{DecisionEvent, DecisionOutcome, DecisionSource, Observers, PolicyEvents},
    store::Op,
};

#[cfg(any(feature = "admin", feature = "metrics"))]
mod counts;
mod rejection;
mod results;
mod state;
pub(super) mod units;

/// Of the decisions that are ready at once, each thread times one in so many.
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
        observers.decided(&DecisionEvent {
            generation: self.generation,
            outcome: DecisionOutcome::Cancelled,
            source: DecisionSource::NotChecked,
            requests,
            admitted: 0,
            uncounted: false,
            waits,
            elapsed,
            error: None,
            policies: PolicyEvents::new(&EntryResults {
                limiter: self,
                entries: &[],
                requests,
                rejected: 0,
            }),
        });
    }

    fn report_summary(&self, summary: Summary<'_>, entries: &[PolicyEntry]) {
        let Some(observers) = &self.observers else {
            return;
        };
        let nothing_counted = entries.is_empty();
        let (outcome, admitted) = summary.outcome(nothing_counted);
        let results = EntryResults {
            limiter: self,
            entries,
            requests: summary.requests,
            rejected: match outcome {
                DecisionOutcome::Admitted | DecisionOutcome::Rejected => {
                    summary.requests - admitted
                }
                _ => 0,
            },
        };
        observers.decided(&DecisionEvent {
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
            policies: PolicyEvents::new(&results),
        });
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

impl Observers {
    #[inline]
    fn decided(&self, event: &DecisionEvent<'_>) {
        self.notify(|observer| observer.on_decision(event));
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
