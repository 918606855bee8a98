//! A quota that applies in place of a policy's own.

use std::sync::Arc;

use crate::{quota::Quota, store::LimitHandle};

/// A quota that applies in place of a policy's own: a request's, or this process's share.
pub(crate) type QuotaOverride = Arc<OverridingQuota>;

/// A quota, and its limit in a store.
#[derive(Debug)]
pub(crate) struct OverridingQuota {
    pub(crate) quota: Quota,
    pub(crate) limit: LimitHandle,
    /// The capacity of the full quota, if this is the share of it that limits requests in process while the store fails.
    pub(crate) full_capacity: Option<u64>,
}
