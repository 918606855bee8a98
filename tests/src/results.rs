//! What a call returns.

use std::fmt::Debug;

use tollgate::{
    Admission, CallError, Decision, Rejected, StoreError,
    limiter::{DecisionKind, LimitStatus, PolicyDecision},
    observe::DecisionSource,
};

/// A decision, or how keys stand.
pub trait CallResult: Debug {
    /// The kind and the source of the result.
    fn outcome(&self) -> (DecisionKind, DecisionSource);
}

impl<T: CallResult> CallResult for &T {
    fn outcome(&self) -> (DecisionKind, DecisionSource) {
        (**self).outcome()
    }
}

impl CallResult for Decision {
    fn outcome(&self) -> (DecisionKind, DecisionSource) {
        (self.kind().clone(), self.source())
    }
}

/// A direct call that was carried out; whether a request would be admitted is [`LimitStatus::would_admit`].
impl CallResult for LimitStatus {
    fn outcome(&self) -> (DecisionKind, DecisionSource) {
        (DecisionKind::Admitted, self.source())
    }
}

impl CallResult for Result<LimitStatus, CallError> {
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

impl CallResult for Result<Admission, Rejected> {
    fn outcome(&self) -> (DecisionKind, DecisionSource) {
        self.decision().outcome()
    }
}

/// A request that was admitted or rejected.
pub trait Decided {
    /// The decision on it, with its present status.
    fn decision(&self) -> Decision;
}

impl Decided for Admission {
    fn decision(&self) -> Decision {
        self.decisions().remove(0)
    }
}

impl Decided for Result<Admission, Rejected> {
    fn decision(&self) -> Decision {
        match self {
            Ok(admission) => admission.decision(),
            Err(rejected) => rejected.decision().clone(),
        }
    }
}

/// Whether it was admitted, by the store itself.
#[track_caller]
pub fn admitted_by_store(result: &impl CallResult) -> bool {
    let (kind, source) = result.outcome();
    assert_eq!(source, DecisionSource::Store, "{result:?}");
    matches!(kind, DecisionKind::Admitted)
}

/// The store error that a call failed with.
#[track_caller]
pub fn store_error(result: &impl CallResult) -> StoreError {
    match result.outcome() {
        (DecisionKind::StoreFailed(error), _) => error,
        other => panic!("{other:?} in place of a fault"),
    }
}

/// The counts of a result.
pub trait Counts {
    /// The count under this policy.
    fn count(&self, policy: &str) -> PolicyDecision<'_>;

    /// What is left under this policy.
    #[track_caller]
    fn left(&self, policy: &str) -> u64 {
        self.count(policy).remaining()
    }

    /// What is used under this policy.
    #[track_caller]
    fn used(&self, policy: &str) -> u64 {
        let count = self.count(policy);
        count.limit() - count.remaining()
    }
}

impl Counts for Decision {
    #[track_caller]
    fn count(&self, policy: &str) -> PolicyDecision<'_> {
        self.policy(policy).expect(policy)
    }
}

impl Counts for LimitStatus {
    #[track_caller]
    fn count(&self, policy: &str) -> PolicyDecision<'_> {
        self.policy(policy).expect(policy)
    }
}
