//! A decision under construction, and while it is pending.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use smallvec::SmallVec;

use super::quota_lookup::QuotaLookups;
use crate::{
    decision::{Decision, DecisionKind, PermitHandle, PolicyEntry},
    limiter::{core::LimiterRef, keys::Keys, overrides::CheckOverrides},
    store::{DecisionSource, Op, PendingResponse, StoreResponse},
};

/// One entry for each policy that applies.
pub(crate) type Entries = SmallVec<[PolicyEntry; 1]>;

/// A decision under construction: the operation, and what is known of its result. It is changed in place and moved once, when
/// it is finished, since it is large.
pub(crate) struct DecisionBuilder {
    pub(crate) op: Op,
    /// Whether a rejection is followed by another attempt, so that bans and shadows don't count it yet.
    pub(crate) will_retry: bool,
    /// Whether it may wait for a store that failed.
    pub(crate) may_wait: bool,
    /// Whether it is a request's check or part of one, so that a store failure is handled as configured.
    pub(crate) in_check: bool,
    /// Their status and receipts are set by the store's response.
    pub(crate) entries: Entries,
    pub(crate) kind: DecisionKind,
    pub(crate) source: DecisionSource,
    pub(crate) allow_listed: bool,
    pub(crate) admitted: u64,
    pub(crate) permit: Option<Arc<dyn PermitHandle>>,
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
    /// A request's check.
    #[inline]
    pub(crate) fn new() -> Self {
        Self::of_call(Op::Acquire(1), None)
    }

    /// A call with settings of its own.
    #[inline]
    pub(crate) fn of_call(op: Op, overrides: Option<&CheckOverrides>) -> Self {
        let mut builder = Self {
            op,
            will_retry: false,
            may_wait: false,
            in_check: matches!(op, Op::Acquire(_)),
            entries: Entries::new(),
            kind: DecisionKind::Admitted,
            source: DecisionSource::NotChecked,
            allow_listed: false,
            admitted: 0,
            permit: None,
        };
        if let Some(overrides) = overrides {
            builder.will_retry = overrides.will_retry;
            builder.may_wait = overrides.may_wait;
            builder.in_check |= overrides.in_check;
        }
        builder
    }

    pub(crate) fn is_admitted(&self) -> bool {
        matches!(self.kind, DecisionKind::Admitted)
    }

    /// Whether it is reported to observers: a request, or a charge by hand.
    pub(crate) fn is_reported(&self) -> bool {
        matches!(self.op, Op::Acquire(_) | Op::ForceAcquire)
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
            backend: limiter,
            kind: self.kind,
            source: self.source,
            allow_listed: self.allow_listed,
            admitted: self.admitted,
            entries: self.entries,
            permit: self.permit.into(),
        }
    }
}

/// A decision, ready or not.
pub(crate) enum MaybePending {
    Ready(Decision),
    Pending(PendingDecision),
}

/// A decision that waits for the store, or for quotas to be looked up. Dropping it cancels the request: the store refunds what it
/// charges for it (on Redis, `ResponseHandle`).
pub(crate) struct PendingDecision {
    /// Taken when the decision is made.
    state: Option<(Arc<LimiterRef>, DecisionBuilder)>,
    stage: PendingStage,
    /// When it began, if it is reported to observers.
    reported_since: Option<Instant>,
}

/// What a pending decision waits for.
pub(crate) enum PendingStage {
    QuotaLookups(QuotaLookups),
    Store(PendingResponse),
}

impl LimiterRef {
    /// Decides a call with its own keys.
    pub(crate) fn decide_keys(
        self: Arc<Self>,
        op: Op,
        keys: &Keys,
        overrides: &CheckOverrides,
    ) -> MaybePending {
        let mut builder = DecisionBuilder::of_call(op, Some(overrides));
        match self.evaluate_keys(&mut builder, keys, Some(overrides)) {
            None => MaybePending::Ready(builder.finish(self)),
            Some(stage) => MaybePending::Pending(PendingDecision::unreported(self, builder, stage)),
        }
    }
}

impl PendingDecision {
    /// A request's decision, which is reported to observers.
    pub(crate) fn new(
        limiter: Arc<LimiterRef>,
        builder: DecisionBuilder,
        stage: PendingStage,
    ) -> Self {
        let reported = limiter.observers.is_some() && builder.is_reported();
        let mut pending = Self::unreported(limiter, builder, stage);
        pending.reported_since = reported.then(Instant::now);
        pending
    }

    /// A part of a decision, which is reported as a whole, or not at all.
    fn unreported(limiter: Arc<LimiterRef>, builder: DecisionBuilder, stage: PendingStage) -> Self {
        let state = Some((limiter, builder));
        Self {
            state,
            stage,
            reported_since: None,
        }
    }
}

impl Future for PendingDecision {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        loop {
            // Polled again after it was ready, which is a mistake: pending for ever.
            let Some((limiter, builder)) = &mut this.state else {
                return Poll::Pending;
            };
            match &mut this.stage {
                PendingStage::QuotaLookups(lookups) => {
                    let quotas = ready!(lookups.as_mut().poll(cx));
                    limiter.set_quotas(builder, quotas);
                    this.stage = PendingStage::Store(match limiter.execute(builder) {
                        StoreResponse::Ready(response) => PendingResponse::ready(response),
                        StoreResponse::Pending(response) => response,
                    });
                }
                PendingStage::Store(response) => {
                    let response = ready!(Pin::new(response).poll(cx));
                    limiter.apply_response(builder, response);
                    if let Some(since) = this.reported_since {
                        limiter.report(builder, Some(since.elapsed()));
                    }
                    return match this.state.take() {
                        Some((limiter, builder)) => Poll::Ready(builder.finish(limiter)),
                        None => Poll::Pending,
                    };
                }
            }
        }
    }
}

impl Drop for PendingDecision {
    fn drop(&mut self) {
        if let (Some(since), Some((limiter, builder))) = (self.reported_since, &self.state) {
            let sent = matches!(self.stage, PendingStage::Store(_));
            limiter.report_dropped(builder, sent, since.elapsed());
        }
    }
}
