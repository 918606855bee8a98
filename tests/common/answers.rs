//! What a decision says.

use tollgate::{Decision, DecisionKind, DecisionSource, StoreError};

/// Whether it was admitted, by the store itself.
#[track_caller]
pub(crate) fn counted(decision: &Decision) -> bool {
    assert_eq!(decision.source(), DecisionSource::Store, "{decision:?}");
    decision.is_admitted()
}

/// The store error that a request was refused for.
#[track_caller]
pub(crate) fn fault(decision: &Decision) -> StoreError {
    match decision.kind() {
        DecisionKind::StoreFailed(error) => error.clone(),
        other => panic!("{other:?} in place of a fault"),
    }
}
