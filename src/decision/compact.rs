//! The compact form of most decisions.

use std::sync::Arc;

use super::{
    Decision, DecisionKind, DecisionPermit, LazyStatus, LimiterBackend, PolicyEntry, PolicyRole,
};
use crate::{
    clock::Timestamp,
    key::Key,
    store::DecisionSource,
    strategy::{ChargeReceipt, Snapshot},
};

/// That a request was admitted by the store, under the first policy, which is enforced and charges on arrival. It is a third of
/// the decision, which most never look at.
pub(crate) struct CompactDecision {
    pub(crate) backend: Arc<dyn LimiterBackend>,
    pub(crate) key: Key,
    pub(crate) cost: u64,
    pub(crate) at: Timestamp,
    pub(crate) snapshot: Snapshot,
    /// Of the receipt.
    pub(crate) window_id: i64,
}

impl CompactDecision {
    /// In full.
    pub(crate) fn decision(self) -> Decision {
        let Self {
            cost,
            at,
            window_id,
            ..
        } = self;
        let entry = PolicyEntry {
            lazy_status: LazyStatus::Snapshot(self.snapshot),
            receipts: ChargeReceipt {
                charged_at: at,
                remaining: cost,
                window_id,
            }
            .into(),
            ..PolicyEntry::new((0, PolicyRole::Live), self.key, cost, None, None)
        };
        Decision {
            backend: self.backend,
            kind: DecisionKind::Admitted,
            source: DecisionSource::Store,
            admitted: 1,
            entries: [entry].into(),
            permit: DecisionPermit::default(),
        }
    }
}
