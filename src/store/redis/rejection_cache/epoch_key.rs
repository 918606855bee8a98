//! The store's epoch in Redis, which changes when a cached rejection may no longer be what the store would decide.

use redis::cmd;

use crate::{
    clock::Timestamp,
    error::StoreError,
    key::Key,
    store::redis::{hash_tags::HashTags, topology::Topology},
};

/// The TTL of the key. When it expires, the epoch is another one.
const EPOCH_TTL_MS: u64 = 86_400_000;

/// Reads the epoch.
const SCRIPT: &str = include_str!("epoch.lua");

/// The key whose value is one half of the epoch. The other half is the server's replication id, which changes with a
/// restart or a failover, since those may bring older counts back.
///
/// A call that refunds, resets or charges past the quota deletes the key, and the next process that reads the epoch sets
/// a value that no key ever had. So a server that was flushed, or came back empty, has another epoch, too.
///
/// A cluster has none: a call deletes keys of one slot only, and while a slot migrates it cannot touch both the key that
/// it counts by and one that may not exist. There rejections are cached for the bound, and no longer.
#[derive(Debug)]
pub(crate) struct EpochKey(String);

impl EpochKey {
    pub(crate) fn new(prefix: &str, tags: Option<&HashTags>) -> Option<Self> {
        tags.is_none().then(|| Self(format!("{prefix}gen")))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The epoch, and the server's time. `None` from a server that does not report it.
    pub(crate) async fn read(
        &self,
        topology: &Topology,
    ) -> Result<Option<(String, Timestamp)>, StoreError> {
        let mut eval = cmd("EVAL");
        eval.arg(SCRIPT).arg(1).arg(&self.0);
        eval.arg(Key::unique().as_str()).arg(EPOCH_TTL_MS);
        let answer: Option<String> = topology.run(0, &eval).await?;
        Ok(answer.and_then(|answer| {
            let (time, epoch) = answer.split_once(' ')?;
            Some((epoch.to_owned(), Timestamp::from_micros(time.parse().ok()?)))
        }))
    }
}
