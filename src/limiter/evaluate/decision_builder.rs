//! A decision under construction.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    decision::{Decision, DecisionKind, PermitHandle, PolicyEntry},
    limiter::{core::LimiterRef, overrides::CheckOverrides},
    store::{DecisionSource, Op},
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
    pub(crate) admitted: u64,
    pub(crate) permit: Option<Arc<dyn PermitHandle>>,
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

    /// Sets the result of a request that the store does not decide.
    #[cold]
    pub(crate) fn decide_without_store(&mut self, kind: DecisionKind, source: DecisionSource) {
        self.entries.clear();
        self.kind = kind;
        self.source = source;
    }

    /// The decision.
    #[inline(always)]
    pub(crate) fn finish(self, limiter: Arc<LimiterRef>) -> Decision {
        Decision {
            backend: limiter,
            kind: self.kind,
            source: self.source,
            admitted: self.admitted,
            entries: self.entries,
            permit: self.permit.into(),
        }
    }
}
