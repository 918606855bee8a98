//! A decision in the making.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Desk, Pending};
use crate::{
    decision::{Counted, Decision, DecisionKind, Permit},
    store::{DecisionSource, Op},
};

/// What a request is counted by: one item for each policy that applies.
pub(super) type Items = SmallVec<[Counted; 1]>;

/// A decision in the making: what is asked, and as much of the answer as is known. It stays where it is until it is made,
/// since it is large and requests are many.
pub(super) struct Draft {
    pub(super) ask: Op,
    /// Whether it's asked again if it is refused, so that a refusal is none to be counted yet.
    pub(super) retries: bool,
    /// Whether it may wait for a store that failed.
    pub(super) waits: bool,
    /// Whether it is a request's check, or a part of one: a failed store is answered as the policies say.
    pub(super) in_check: bool,
    /// What is known of them once the store has answered is not, before that.
    pub(super) items: Items,
    pub(super) kind: DecisionKind,
    pub(super) source: DecisionSource,
    pub(super) admitted: u64,
    pub(super) permit: Option<Arc<dyn Permit>>,
}

/// A decision, at once or later.
pub(crate) enum Judged {
    Now(Decision),
    Later(Pending),
}

impl Draft {
    #[inline]
    pub(super) fn new(ask: Op, retries: bool) -> Self {
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
    pub(super) fn rule(&mut self, kind: DecisionKind, source: DecisionSource) {
        self.items.clear();
        self.kind = kind;
        self.source = source;
    }

    /// Its decision.
    #[inline]
    pub(super) fn finish(self, desk: Arc<Desk>) -> Decision {
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
