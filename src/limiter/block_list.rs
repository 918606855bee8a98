//! The block list that a provider's refusals are written to.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    bans::{BlockEnd, block},
    current::Limiter,
    keys::Keys,
    policy_set::{BoundPolicy, PolicySet},
};
use crate::{error::CallError, quota::Quota};

/// The shortest block.
const MIN_BLOCK: Duration = Duration::from_millis(1);

impl Limiter {
    /// Blocks a key in a block list for at least `time`, and returns for how long it is blocked.
    pub(crate) fn prolong_in_block_list(
        &self,
        list: Option<&str>,
        keys: &Keys,
        time: Duration,
    ) -> impl Future<Output = Result<Duration, CallError>> + Send + use<> {
        let set = self.policy_set();
        let keys = keys_to_block(&set, list, keys);
        let time = time.max(MIN_BLOCK);
        async move {
            block(&set, &keys?, time, BlockEnd::Prolong).await?;
            Ok(time)
        }
    }

    /// The block list of that name, or the only one.
    pub(crate) fn block_list(&self, name: Option<&str>) -> Option<Arc<str>> {
        let set = self.policy_set();
        block_list(&set, name).map(|list| list.policy.shared_name())
    }

    /// The quota of a policy, if the limiter has it.
    pub(crate) fn quota_of(&self, policy: &str) -> Option<Quota> {
        let set = self.policy_set();
        Some(set.named(policy).ok()?.policy.quota())
    }
}

fn block_list<'a>(set: &'a PolicySet, name: Option<&str>) -> Option<&'a BoundPolicy> {
    let mut lists = set.policies.iter().filter(|bound| {
        bound.policy.is_block_list() && name.is_none_or(|name| name == bound.policy.name())
    });
    let list = lists.next()?;
    lists.next().is_none().then_some(list)
}

/// The key under a block list.
fn keys_to_block(set: &PolicySet, list: Option<&str>, keys: &Keys) -> Result<Keys, CallError> {
    let list = block_list(set, list).ok_or(CallError::NoBlockList)?;
    let key = list.key_of(keys).ok_or(CallError::NoBlockList)?;
    Ok((list.policy.name(), *key).into())
}
