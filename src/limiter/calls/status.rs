//! How keys stand with a limiter's policies.

use std::fmt;

use crate::{
    decision::{Decision, DecisionKind, PolicyDecision},
    error::CallError,
    limiter::check::CheckOutput,
    store::DecisionSource,
    strategy::RetryAfter,
};

/// How keys stand with each policy: what [`Limiter::peek`](crate::Limiter::peek),
/// [`Limiter::charge`](crate::Limiter::charge) and [`Limiter::reset`](crate::Limiter::reset) return, and what a
/// [`Credited`](crate::Credited) holds.
///
/// It is nothing that admits a request: it holds no charge, and can't become an [`Admission`](crate::Admission).
#[derive(Clone)]
pub struct LimitStatus(Decision);

impl LimitStatus {
    pub(crate) fn new(decision: Decision) -> Self {
        Self(decision)
    }

    pub(crate) fn into_decision(self) -> Decision {
        self.0
    }

    /// Whether a request of the cost that the call gave, or else of each policy's own, would be admitted now; of a [reset](crate::Limiter::reset), before it.
    pub fn would_admit(&self) -> bool {
        self.0.is_admitted() && self.0.retry_after() == RetryAfter::Now
    }

    /// When a request of that cost would be admitted: the longest wait of any policy.
    pub fn retry_after(&self) -> RetryAfter {
        self.0.retry_after()
    }

    /// What would become of a request: [`Rejected`](DecisionKind::Rejected) wherever it [would not be
    /// admitted](LimitStatus::would_admit) under its policies. Lists decide before policies do: a request on one has no policies.
    pub fn kind(&self) -> &DecisionKind {
        self.0.kind()
    }

    /// Where the answer came from.
    pub fn source(&self) -> DecisionSource {
        self.0.source()
    }

    /// The status under each policy that is enforced and that the call is about, in the order the policies were given in.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        self.0.policies()
    }

    /// The status under each policy [in the shadow](crate::Policy::shadow) that the call is about.
    pub fn shadows(&self) -> impl ExactSizeIterator<Item = PolicyDecision<'_>> {
        self.0.shadows()
    }

    /// The status under the policy of that name, if the call is about it: enforced or not.
    pub fn policy(&self, policy: &str) -> Option<PolicyDecision<'_>> {
        self.0.policy(policy)
    }
}

impl CheckOutput for Result<LimitStatus, CallError> {
    fn from_decision(decision: Decision) -> Self {
        match decision.kind {
            DecisionKind::StoreFailed(error) => Err(error.into()),
            DecisionKind::UnknownPolicy(error) => Err(error.into()),
            DecisionKind::PartsRequired { policy } => Err(CallError::PartsRequired { policy }),
            _ => Ok(LimitStatus(decision)),
        }
    }
}

impl fmt::Debug for LimitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitStatus")
            .field("kind", self.kind())
            .field("source", &self.source())
            .field("policies", &self.policies().collect::<Vec<_>>())
            .field("shadows", &self.shadows().collect::<Vec<_>>())
            .finish()
    }
}
