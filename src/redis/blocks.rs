//! Lists the keys that bans block, by `SCAN`. Nothing else scans.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use redis::cmd;

use super::{
    RedisStore,
    health::RESPONSE_TIMEOUT,
    io::ServerRef,
    key_names::{KeyNames, scan_pattern},
    request::limit::RedisLimit,
};
use crate::{
    error::StoreError,
    key::Key,
    store::{BlockedKey, BlockedKeys, CounterOp, Incomplete, LimitHandle, Op, Store, Units},
    strategy::RetryAfter,
};

/// How many keys a server looks at in one call, during which it serves no other: less than a millisecond.
const SCAN_COUNT: usize = 1_000;

/// How many keys are read at a time, beside other requests.
const MAX_INSPECTED_KEYS: usize = 64;

/// How long to search at most.
const MAX_SCAN_TIME: Duration = Duration::from_secs(10);

/// A server's reply to a `SCAN`: where to go on, zero at the end, and names of keys.
type ScanReply = (u64, Vec<Vec<u8>>);

impl RedisStore {
    /// The keys that these limits block, up to `max`.
    pub(super) async fn find_blocked_keys(
        &self,
        limits: &[LimitHandle],
        max: usize,
    ) -> Result<BlockedKeys, StoreError> {
        let mut found = BlockedKeys::new(Vec::new(), None);
        let contexts = limits.iter().map(LimitHandle::context::<RedisLimit>);
        let Some(contexts) = contexts.collect::<Option<Vec<_>>>() else {
            return Err(StoreError::Unsupported("a limit of another store"));
        };
        let names: Vec<&KeyNames> = contexts.iter().map(|context| &context.names).collect();
        let Some(pattern) = scan_pattern(&names) else {
            return Ok(found);
        };
        let (begun, mut listed) = (Instant::now(), HashSet::new());
        let io = &self.inner.io;
        let servers = self.servers_by_name().await?;
        for server in &servers {
            let mut cursor = 0;
            loop {
                let mut scan = cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(&pattern);
                scan.arg("COUNT").arg(SCAN_COUNT);
                let reply = io.run_on_server::<ScanReply>(server, scan, RESPONSE_TIMEOUT);
                let (next, keys) = reply.await?;
                let keys = keys.iter().filter_map(|name| parse(&names, name));
                let keys: Vec<_> = keys.collect();
                let mut blocked = self.blocked_of(limits, &keys).await?;
                // A scan may return a key twice.
                blocked.retain(|blocked| listed.insert((blocked.limit, blocked.key)));
                found.keys.append(&mut blocked);
                if found.keys.len() > max {
                    found.keys.truncate(max);
                    found.incomplete = Some(Incomplete::Limit);
                    return Ok(found);
                }
                if next == 0 {
                    break;
                }
                if begun.elapsed() > MAX_SCAN_TIME {
                    found.incomplete = Some(Incomplete::Timeout);
                    return Ok(found);
                }
                cursor = next;
            }
        }
        // Keys that moved to another node meanwhile may have been missed.
        let after = self.servers_by_name().await?;
        let names = |servers: &[ServerRef]| {
            let names = servers.iter().map(|server| server.name.clone());
            names.collect::<Vec<_>>()
        };
        if names(&servers) != names(&after) {
            found.incomplete = Some(Incomplete::KeysMoved);
        }
        Ok(found)
    }

    /// The servers that have keys, by name.
    async fn servers_by_name(&self) -> Result<Vec<ServerRef>, StoreError> {
        let mut servers = self.inner.io.servers().await?;
        servers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(servers)
    }

    /// Reads these keys, each with the index of its limit, and returns those that are blocked.
    async fn blocked_of(
        &self,
        limits: &[LimitHandle],
        keys: &[(usize, Key)],
    ) -> Result<Vec<BlockedKey>, StoreError> {
        let mut blocked = Vec::new();
        for keys in keys.chunks(MAX_INSPECTED_KEYS) {
            // One call each, so that a corrupt key fails alone; they are sent as one batch.
            let calls = keys.iter().map(|(limit, key)| {
                let counter = CounterOp::new(&limits[*limit], *key);
                (*limit, *key, self.execute(Op::Peek, &[counter]))
            });
            let calls: Vec<_> = calls.collect();
            for (index, key, response) in calls {
                let result = match response.result().await {
                    Err(StoreError::CorruptKey { .. }) => continue,
                    result => result?,
                };
                let Some(counter) = result.counters.first() else {
                    continue;
                };
                let at = result.time_of(counter);
                let status = limits[index].status(&counter.snapshot, at, Units::ONE);
                if let RetryAfter::In(ends_in) = status.retry_after {
                    blocked.push(BlockedKey::new(index, key, at, ends_in));
                }
            }
        }
        Ok(blocked)
    }
}

/// The key in a name, and the index of its limit.
fn parse(names: &[&KeyNames], name: &[u8]) -> Option<(usize, Key)> {
    let mut limits = names.iter().enumerate();
    limits.find_map(|(index, names)| Some((index, names.parse(name)?)))
}
