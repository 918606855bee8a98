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
    pub(crate) seen: Snapshot,
    /// Of the receipt.
    pub(crate) mark: i64,
}

impl Brief {
    /// In full.
    pub(crate) fn decision(self) -> Decision {
        let Self { cost, at, mark, .. } = self;
        let counted = Counted {
            standing: Standing::Snapshot(self.seen),
            receipts: ChargeReceipt {
                at,
                left: cost,
                mark,
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
