//! Errors of overrides.

use super::{ConfigError, StoreError, UnknownPolicy};

/// The error of a call that sets, removes or lists [overrides](crate::limiter::Override). Nothing was changed, unless it is a
/// [`Store`](Self::Store) error: after a timeout the change may have been made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// The store failed, or has no overrides ([`StoreError::Unsupported`]).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The limiter does not have the policy.
    #[error(transparent)]
    UnknownPolicy(#[from] UnknownPolicy),
    /// The policy can't count the quota: it would not be a [tier](crate::Policy::tier_quotas) either.
    #[error(transparent)]
    Uncountable(ConfigError),
    /// The store has as many overrides as it may have.
    #[error("the store has {max} overrides, and may have no more: remove some")]
    #[non_exhaustive]
    TooMany {
        /// The most that the store may have.
        max: usize,
    },
    /// A text of the override is too long.
    #[error("the {field} of an override has {bytes} bytes; expected at most {max}")]
    #[non_exhaustive]
    TooLong {
        /// `note` or `set_by`.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest.
        max: usize,
    },
    /// The override's end has passed, by the store's clock.
    #[error("the override has ended already, by the store's clock")]
    Ended,
}
