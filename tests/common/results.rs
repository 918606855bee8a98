//! What a call returns.

use std::fmt::Debug;

use tollgate::{CallError, Decision, DecisionKind, DecisionSource, LimitStatus, StoreError};

/// A decision, or how keys stand.
pub(crate) trait Answer: Debug {
    /// The kind and the source of the result.
    fn outcome(&self) -> (DecisionKind, DecisionSource);
}

impl<T: Answer> Answer for &T {
    fn outcome(&self) -> (DecisionKind, DecisionSource) {
        (**self).outcome()
    }
}

impl Answer for Decision {
    fn outcome(&self) -> (DecisionKind, DecisionSource) {
        (self.kind().clone(), self.source())
    }
}

/// A direct call that was carried out; whether a request would be admitted is [`LimitStatus::would_admit`].
impl Answer for LimitStatus {
    fn outcome(&self) -> (DecisionKind, DecisionSource) {
        (DecisionKind::Admitted, self.source())
    }
}

impl Answer for Result<LimitStatus, CallError> {
    fn outcome(&self) -> (DecisionKind, DecisionSource) {
        match self {
            Ok(status) => status.outcome(),
            Err(CallError::Store(error)) => {
                let kind = DecisionKind::StoreFailed(error.clone());
                (kind, DecisionSource::Fallback)
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether it was admitted, by the store itself.
#[track_caller]
pub(crate) fn counted(answer: &impl Answer) -> bool {
    let (kind, source) = answer.outcome();
    assert_eq!(source, DecisionSource::Store, "{answer:?}");
    matches!(kind, DecisionKind::Admitted)
}

/// The store error that a call failed with.
#[track_caller]
pub(crate) fn fault(answer: &impl Answer) -> StoreError {
    match answer.outcome() {
        (DecisionKind::StoreFailed(error), _) => error,
        other => panic!("{other:?} in place of a fault"),
    }
}
