//! A decision in the making.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Desk, Pending};
use crate::{
    decision::{Counted, Decision, Permit, Ruling},
    store::{Ask, Source},
};

/// What a request is counted by: one item for each policy that applies.
pub(super) type Items = SmallVec<[Counted; 1]>;

/// A decision in the making: what is asked, and as much of the answer as is known. It stays where it is until it is made,
/// since it is large and requests are many.
pub(super) struct Draft {
    pub(super) ask: Ask,
    /// Whether it's asked again if it is refused, so that a refusal is none to be counted yet.
    pub(super) retries: bool,
    /// What is known of them once the store has answered is not, before that.
    pub(super) items: Items,
    pub(super) ruling: Ruling,
    pub(super) source: Source,
    pub(super) admitted: u64,
    pub(super) permit: Option<Arc<dyn Permit>>,
}

/// A decision, at once or later.
pub(super) enum Judged {
    Now(Decision),
    Later(Pending),
}

impl Draft {
    #[inline]
    pub(super) fn new(ask: Ask, retries: bool) -> Self {
        Self {
            ask,
            retries,
            items: Items::new(),
            ruling: Ruling::Admitted,
            source: Source::Unasked,
            admitted: 0,
            permit: None,
        }
    }

    /// Rules without the store.
    #[cold]
    pub(super) fn rule(&mut self, ruling: Ruling, source: Source) {
        self.items.clear();
        self.ruling = ruling;
        self.source = source;
    }

    /// Its decision.
    #[inline]
    pub(super) fn finish(self, desk: Arc<Desk>) -> Decision {
        Decision {
            books: desk,
            ruling: self.ruling,
            source: self.source,
            admitted: self.admitted,
            counted: self.items,
            permit: self.permit,
        }
    }
}
