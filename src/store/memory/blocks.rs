//! Lists the keys that bans block.

use super::shards::{Shards, now_of};
use crate::{
    error::StoreError,
    store::{BlockedKey, BlockedKeys, Incomplete, LimitHandle, Units},
    strategy::RetryAfter,
    sync::lock,
};

impl Shards {
    /// The keys that these limits block, up to `max`. Each shard is locked while it is looked through.
    pub(super) fn blocked_keys(
        &self,
        limits: &[LimitHandle],
        max: usize,
    ) -> Result<BlockedKeys, StoreError> {
        let mut found = BlockedKeys::new(Vec::new(), None);
        for (index, limit) in limits.iter().enumerate() {
            let table = self.table_index(limit);
            let rule = limit.rule().local_rule().map(|rule| rule.0);
            let (Some(table), Some(rule)) = (table, rule) else {
                return Err(StoreError::Unsupported("a limit of another store"));
            };
            for shard in &self.shards {
                let (mut shard, now) = (lock(shard), now_of(&*self.clock, limit));
                let Some(states) = shard.table(table) else {
                    continue;
                };
                states.for_each(&mut |key, state| {
                    let snapshot = rule.snapshot(Some(state), now, 1);
                    let status = limit.status(&snapshot, now, Units::ONE);
                    match status.retry_after {
                        RetryAfter::In(ends_in) if found.keys.len() < max => {
                            found.keys.push(BlockedKey::new(index, *key, now, ends_in));
                        }
                        RetryAfter::In(_) => found.incomplete = Some(Incomplete::Limit),
                        _ => {}
                    }
                });
            }
        }
        Ok(found)
    }
}
