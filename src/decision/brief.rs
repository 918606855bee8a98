//! What most decisions are, in few words.

use std::sync::Arc;

use super::{Books, Counted, Decision, DecisionKind, DecisionPermit, Part, Standing};
use crate::{
    clock::Timestamp,
    key::Key,
    store::DecisionSource,
    strategy::{ChargeReceipt, Snapshot},
};

/// That a request was admitted by the store, under the first policy, which is enforced and charges on arrival. It is a third of
/// the decision, which most never look at.
pub(crate) struct Brief {
    pub(crate) books: Arc<dyn Books>,
    pub(crate) key: Key,
    pub(crate) cost: u64,
    pub(crate) at: Timestamp,
    pub(crate) snapshot: Snapshot,
    /// Of the receipt.
    pub(crate) window_id: i64,
}

impl Brief {
    /// In full.
    pub(crate) fn decision(self) -> Decision {
        let Self {
            cost,
            at,
            window_id,
            ..
        } = self;
        let counted = Counted {
            standing: Standing::Snapshot(self.snapshot),
            receipts: ChargeReceipt {
                charged_at: at,
                remaining: cost,
                window_id,
            }
            .into(),
            ..Counted::unasked((0, Part::Live), self.key, cost, None, None)
        };
        Decision {
            books: self.books,
            kind: DecisionKind::Admitted,
            source: DecisionSource::Store,
            admitted: 1,
            counted: [counted].into(),
            permit: DecisionPermit::default(),
        }
    }
}
