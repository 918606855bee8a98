//! A quota other than a policy's own, and where it is counted.

use std::sync::Arc;

use crate::{quota::Quota, store::LimitHandle};

/// What a request is counted by under a policy, in place of the policy's own quota in the limiter's store.
pub(crate) type Tier = Arc<Terms>;

/// A quota, and its limit.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) quota: Quota,
    pub(crate) limit: LimitHandle,
    /// The capacity of the whole quota, if this is one process's share of it, which is counted in process while the store is
    /// at fault.
    pub(crate) share_of: Option<u64>,
}
