//! Errors of calls by hand.

use std::sync::Arc;

use super::{StoreError, UnknownPolicy};

/// The error of a call by hand, such as [`Limiter::reset`](crate::Limiter::reset). That of an invalid check is in
/// [`DecisionKind::Invalid`](crate::limiter::DecisionKind::Invalid).
///
/// As a response it is a 503 Service Unavailable without details. Its text, for logs and operators, names what failed and what
/// to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The store failed. [`StoreError::may_have_run`] says whether the operation may have been done; it is never done in process
    /// instead.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The call names a policy that the limiter does not have; the store was not called.
    #[error(transparent)]
    UnknownPolicy(#[from] UnknownPolicy),
    /// The call names a policy twice, or has two quotas for one key of a policy; the store was not called.
    #[error(
        "policy {policy:?} is named twice; expected one key for each policy, or entries that set one quota for each key"
    )]
    #[non_exhaustive]
    DuplicatePolicy {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// The call has too many [entries](crate::limiter::CallEntry); the store was not called.
    #[error("a call has {entries} entries; expected at most 128")]
    #[non_exhaustive]
    TooManyEntries {
        /// How many it has.
        entries: usize,
    },
    /// The policy takes its quota, its cost or its conditions from requests, and the call has neither a request, by
    /// [`Check::parts`](crate::limiter::Check::parts), nor settings of its own. The store was not called.
    #[error("policy {policy:?} takes {lacks}")]
    #[non_exhaustive]
    PartsRequired {
        /// The policy's name.
        policy: Arc<str>,
        /// What the call lacks, and which calls supply it: ``its cost from a request: call `parts`, `cost` or `cost_for` ``.
        lacks: &'static str,
    },
    /// The policy is an [in-flight limit](crate::Concurrency), whose permit a [check](crate::Limiter::check) does not hold; the store was
    /// not called.
    #[error(
        "policy {policy:?} is an in-flight limit: call `admit` or `wait`, and keep the admission while the work runs"
    )]
    #[non_exhaustive]
    AdmitRequired {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// The policy's strategy can't credit units: see [`PolicyHandle::credit`](crate::limiter::PolicyHandle::credit).
    #[error(
        "policy {policy:?} can't be credited: its strategy stores each charge separately; use `reset` to return all units"
    )]
    #[non_exhaustive]
    CreditUnsupported {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// What a provider's response says blocks a key, and there is no block list to write it to, or no key for it: see
    /// [`Provider::heed`](crate::provider::Provider::heed). The store was not called.
    #[error(
        "the provider's refusal can't be written to a block list; expected a policy that is one, such as Policy::block_list(\"refused\"), the name of one of several by Provider::block_list, and a key for it if there is one for each policy"
    )]
    #[non_exhaustive]
    NoBlockList,
    /// The call blocks or unblocks keys, and none of its policies is a [ban](crate::Ban). The store was not called.
    #[error(
        "none of the policies {policies:?} is a ban: block and unblock require one, such as Policy::block_list(\"blocked\")"
    )]
    #[non_exhaustive]
    NotABan {
        /// The policies' names.
        policies: Vec<Arc<str>>,
    },
}

/// The error of [`Check::now`](crate::limiter::Check::now): the call can't be decided without waiting. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotNow {
    /// The store has to be called, since this process holds no lease, and no rejection, that decides the call.
    #[error("the store has to be called: await the call, or use `blocking`")]
    Store,
}
