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
    /// Of this process's share of a quota, which limits requests in process while the store fails: the capacity of the full
    /// quota.
    pub(crate) full_capacity: Option<u64>,
}
