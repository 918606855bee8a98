//! What the evaluation of a request reports of itself: for an explanation, and for nothing else.

use std::{fmt, sync::Arc};

use crate::{
    access::MatchedList, extract::Extracted, extract::MissingKey, key::Key,
    limiter::core::BoundPolicy, limiter::core::request_head::RequestHead,
    policy::skip::exemption::Exemption,
};

/// Why a policy does not apply to a request: from [`ExplainedPolicy::not_applied`](crate::explain::ExplainedPolicy::not_applied).
/// Displayed as a clause: `skip_path /static/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotApplied {
    /// It applies to calls only: [`Policy::by_hand`](crate::Policy::by_hand).
    ByHand,
    /// One of its conditions exempts the request.
    Exempt(Exemption),
    /// The request has no key for it.
    #[non_exhaustive]
    NoKey {
        /// What the request lacks: `the header x-api-key`.
        missing: Arc<str>,
        /// Whether the request is rejected for that, rather than exempt.
        rejects: bool,
    },
    /// The request is decided without any policy: by an access list, a condition of the limiter, or because another policy
    /// finds no key.
    NotEvaluated,
}

impl fmt::Display for NotApplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByHand => f.write_str("by hand"),
            Self::Exempt(exemption) => exemption.fmt(f),
            Self::NoKey { missing, rejects } => {
                let action = if *rejects { "rejected" } else { "exempt" };
                write!(f, "{action} without {missing}")
            }
            Self::NotEvaluated => f.write_str("not evaluated"),
        }
    }
}

/// Receives what the evaluation of a request finds before its policies are evaluated.
pub(crate) trait EvaluationTrace {
    /// Finds a policy's key in a request.
    fn find_key(&mut self, bound: &BoundPolicy, head: &RequestHead<'_>) -> Extracted;

    /// The request is on an access list.
    fn on_list(&mut self, list: impl FnOnce() -> Option<MatchedList>) {
        let _ = list;
    }

    /// A condition of the limiter exempts the request from all policies.
    fn on_exempt(&mut self, exemption: impl FnOnce() -> Exemption) {
        let _ = exemption;
    }

    /// The policy of this index does not apply.
    fn on_not_applied(&mut self, policy: usize, reason: impl FnOnce() -> NotApplied) {
        let _ = (policy, reason);
    }
}

/// A request that is made: nothing is traced, and a missing key is logged.
pub(crate) struct Untraced;

impl EvaluationTrace for Untraced {
    #[inline(always)]
    fn find_key(&mut self, bound: &BoundPolicy, head: &RequestHead<'_>) -> Extracted {
        let found = bound.find_key(head);
        found.or_else(|| bound.shared_missing_key().into())
    }
}

/// The trace of a request that is not made.
#[derive(Debug, Default)]
pub(crate) struct RecordedTrace {
    pub(crate) list: Option<MatchedList>,
    pub(crate) exemption: Option<Exemption>,
    /// By the index of the policy.
    pub(crate) not_applied: Vec<(usize, NotApplied)>,
}

impl EvaluationTrace for RecordedTrace {
    fn find_key(&mut self, bound: &BoundPolicy, head: &RequestHead<'_>) -> Extracted {
        bound.peek_key(head)
    }

    fn on_list(&mut self, list: impl FnOnce() -> Option<MatchedList>) {
        self.list = list();
    }

    fn on_exempt(&mut self, exemption: impl FnOnce() -> Exemption) {
        self.exemption = Some(exemption());
    }

    fn on_not_applied(&mut self, policy: usize, reason: impl FnOnce() -> NotApplied) {
        self.not_applied.push((policy, reason()));
    }
}

impl BoundPolicy {
    /// The key that a request would be counted by, without recording whether requests have keys.
    pub(crate) fn peek_key(&self, head: &RequestHead<'_>) -> Extracted {
        let is_shared = || self.policy.on_missing_key() == MissingKey::Shared;
        let shared = || is_shared().then(Key::missing).into();
        self.extract(head).or_else(shared)
    }
}
