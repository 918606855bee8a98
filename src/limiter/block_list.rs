//! Blocks in a block list that is found by its name, or without one where there is one alone.

use std::{future::Future, sync::Arc, time::Duration};

use super::{Limiter, bans::BlockEnd, bound_policy::BoundPolicy, core::LimiterRef, keys::Keys};
use crate::{error::CallError, key::Key, quota::Quota};

/// The shortest block: less is rounded up.
const MIN_BLOCK: Duration = Duration::from_millis(1);

impl Limiter {
    /// Blocks a key in a block list for at least `time`, and returns for how long it is blocked.
    pub(crate) fn prolong_in_block_list(
        &self,
        list: Option<&str>,
        keys: &Keys,
        time: Duration,
    ) -> impl Future<Output = Result<Duration, CallError>> + Send + use<> {
        let limiter = self.local_ref();
        let keys = limiter.keys_to_block(list, keys);
        let time = time.max(MIN_BLOCK);
        async move {
            limiter.block(keys?, time, BlockEnd::Prolong).await?;
            Ok(time)
        }
    }

    /// The block list of that name, or the only one.
    pub(crate) fn block_list(&self, name: Option<&str>) -> Option<Arc<str>> {
        let limiter = self.local_ref();
        limiter
            .block_list(name)
            .map(|list| list.policy.shared_name())
    }

    /// The quota of a policy, if the limiter has it.
    pub(crate) fn quota_of(&self, policy: &str) -> Option<Quota> {
        let limiter = self.local_ref();
        let index = limiter.find(policy).ok()?;
        Some(limiter.policies[index].policy.quota())
    }
}

impl LimiterRef {
    fn block_list(&self, name: Option<&str>) -> Option<&BoundPolicy> {
        let mut lists = self.policies.iter().filter(|bound| {
            bound.policy.is_block_list() && name.is_none_or(|name| name == bound.policy.name())
        });
        let list = lists.next()?;
        lists.next().is_none().then_some(list)
    }

    /// The key under a block list.
    fn keys_to_block(&self, list: Option<&str>, keys: &Keys) -> Result<Keys, CallError> {
        let list = self.block_list(list);
        let named = list.and_then(|list| Some((list.policy.name(), list.key_of(keys)?)));
        named.map(Keys::from).ok_or(CallError::NoBlockList)
    }
}

impl BoundPolicy {
    /// The key that a call with these keys counts by under this policy.
    fn key_of(&self, keys: &Keys) -> Option<Key> {
        match keys.all() {
            Some(key) => Some(self.fixed_key.unwrap_or(*key)),
            None => keys.of(self.policy.name()).copied(),
        }
    }
}
