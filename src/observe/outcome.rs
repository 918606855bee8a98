//! How requests are decided, and by what.

/// How a request ended for a limiter. Each request has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DecisionOutcome {
    /// Its policies admitted it, or the store failed and it was admitted nevertheless.
    Admitted,
    /// A policy or a ban rejected it.
    Rejected,
    /// It was on a [deny list](crate::limiter::LimiterBuilder::deny).
    DenyListed,
    /// It was on an [allow list](crate::limiter::LimiterBuilder::allow), and admitted.
    AllowListed,
    /// It was admitted since no policy applied to it: it is [skipped](crate::limiter::LimiterBuilder::skip_path), a preflight, or has no
    /// key under policies that exempt such requests.
    Skipped,
    /// It had no key under a policy that [rejects](crate::extract::MissingKey::Reject) such requests.
    MissingKey,
    /// The store failed, and it was rejected for that.
    StoreFailed,
    /// It ended before it was decided: the client has disconnected, a timeout has passed, or code of the application has
    /// panicked. What it was charged is refunded.
    Cancelled,
    /// A mistake in a call by hand: it names a policy that the limiter doesn't have, or lacks the request that a policy reads.
    Invalid,
}

impl DecisionOutcome {
    /// All outcomes.
    pub const ALL: [Self; 9] = [
        Self::Admitted,
        Self::Rejected,
        Self::DenyListed,
        Self::AllowListed,
        Self::Skipped,
        Self::MissingKey,
        Self::StoreFailed,
        Self::Cancelled,
        Self::Invalid,
    ];

    /// Its name in metrics: `admitted`, `rejected`, `deny_listed`, `allow_listed`, `skipped`, `missing_key`, `store_failed`,
    /// `cancelled` or `invalid`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Rejected => "rejected",
            Self::DenyListed => "deny_listed",
            Self::AllowListed => "allow_listed",
            Self::Skipped => "skipped",
            Self::MissingKey => "missing_key",
            Self::StoreFailed => "store_failed",
            Self::Cancelled => "cancelled",
            Self::Invalid => "invalid",
        }
    }

    /// Whether the request was let through.
    pub const fn is_admission(self) -> bool {
        matches!(self, Self::Admitted | Self::AllowListed | Self::Skipped)
    }
}

/// The source of a decision, or of the result of an operation.
///
/// ```
/// use tollgate::{Limiter, Policy, Quota, observe::DecisionSource};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::ConfigError> {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("api", Quota::requests(10).per_minute()))
///     .build()?;
/// // Counts in process have neither cached rejections nor leases.
/// assert_eq!(limiter.check("alice").await.source(), DecisionSource::Store);
/// assert_eq!(DecisionSource::Lease.as_str(), "lease");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The store counted the request.
    Store,
    /// A cached rejection of the store, which still holds.
    RejectionCache,
    /// Units that this process holds in a [lease](crate::Policy::lease) admitted the request, without a call of the store. A lease
    /// rejects no request.
    Lease,
    /// The store failed, and the request was handled as [`OnStoreError`](crate::OnStoreError) says.
    Fallback,
    /// Nothing was counted: no policy applied, one found no key, or an access list allowed or denied the request.
    NotChecked,
}

impl DecisionSource {
    /// All sources.
    pub const ALL: [Self; 5] = [
        Self::Store,
        Self::RejectionCache,
        Self::Lease,
        Self::Fallback,
        Self::NotChecked,
    ];

    /// Its name in metrics: `store`, `rejection_cache`, `lease`, `fallback` or `not_checked`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::RejectionCache => "rejection_cache",
            Self::Lease => "lease",
            Self::Fallback => "fallback",
            Self::NotChecked => "not_checked",
        }
    }
}
