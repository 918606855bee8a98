//! A decision in the making.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    decision::{Counted, Decision, DecisionKind, Permit},
    limiter::{Desk, Pending},
    store::{DecisionSource, Op},
};

/// What a request is counted by: one item for each policy that applies.
pub(crate) type Items = SmallVec<[Counted; 1]>;

/// A decision in the making: what is asked, and as much of the answer as is known. It stays where it is until it is made,
/// since it is large and requests are many.
pub(crate) struct Draft {
    pub(crate) ask: Op,
    /// Whether it's asked again if it is refused, so that a refusal is none to be counted yet.
    pub(crate) retries: bool,
    /// Whether it may wait for a store that failed.
    pub(crate) waits: bool,
    /// Whether it is a request's check, or a part of one: a failed store is answered as the policies say.
    pub(crate) in_check: bool,
    /// What is known of them once the store has answered is not, before that.
    pub(crate) items: Items,
    pub(crate) kind: DecisionKind,
    pub(crate) source: DecisionSource,
    pub(crate) admitted: u64,
    pub(crate) permit: Option<Arc<dyn Permit>>,
}

/// A decision, at once or later.
pub(crate) enum Judged {
    Now(Decision),
    Later(Pending),
}

impl Draft {
    #[inline]
    pub(crate) fn new(ask: Op, retries: bool) -> Self {
        Self {
            ask,
            retries,
            waits: false,
            in_check: matches!(ask, Op::Acquire(_)),
            items: Items::new(),
            kind: DecisionKind::Admitted,
            source: DecisionSource::NotChecked,
            admitted: 0,
            permit: None,
        }
    }

    /// Rules without the store.
    #[cold]
    pub(crate) fn rule(&mut self, kind: DecisionKind, source: DecisionSource) {
        self.items.clear();
        self.kind = kind;
        self.source = source;
    }

    /// Its decision.
    #[inline]
    pub(crate) fn finish(self, desk: Arc<Desk>) -> Decision {
        Decision {
            books: desk,
            kind: self.kind,
            source: self.source,
            admitted: self.admitted,
            counted: self.items,
            permit: self.permit.into(),
        }
    }
}
