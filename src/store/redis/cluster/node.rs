//! The nodes of a cluster, and the redirects in their errors.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::{
    error::StoreError,
    store::redis::{connection::ConnectionSource, error_class},
    sync::lock,
};

/// A node that serves slots, or did.
#[derive(Debug)]
pub(crate) struct ClusterNode {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) source: ConnectionSource,
    probed: Mutex<ProbeState>,
}

/// The last probe of a node, unless it had a response.
#[derive(Debug, Default)]
struct ProbeState {
    begun: Option<Instant>,
    ended: Option<Instant>,
}

/// A probe of a node in flight.
pub(crate) struct ProbeGuard {
    node: Arc<ClusterNode>,
    begun: Instant,
}

/// A range of slots, and the address of the node that serves it.
pub(crate) type SlotRange = (u16, u16, String, u16);

/// Where a batch is sent next, after an error which proves that nothing ran.
#[derive(Debug)]
pub(crate) enum Redirect {
    /// To the node that now serves the slot.
    Moved,
    /// To the node that is importing the slot, and has the keys.
    Ask(Arc<ClusterNode>),
    /// To the same node, once the keys have moved.
    TryAgain,
}

impl ClusterNode {
    /// A node at this address, by which its connections are named.
    pub(crate) fn new(host: String, port: u16, source: ConnectionSource) -> Self {
        Self {
            source: source.named(format!("{host}:{port}")),
            host,
            port,
            probed: Mutex::default(),
        }
    }

    /// Begins a probe, unless one began or ended since then without a response, or is in flight and not overdue.
    pub(crate) fn begin_probe(
        self: &Arc<Self>,
        since: Instant,
        timeout: Duration,
    ) -> Option<ProbeGuard> {
        let (mut probed, now) = (lock(&self.probed), Instant::now());
        let was_probed = probed.begun.max(probed.ended).is_some_and(|at| at > since);
        let is_in_flight =
            probed.ended.is_none() && probed.begun.is_some_and(|at| now < at + timeout);
        if was_probed || is_in_flight {
            return None;
        }
        *probed = ProbeState {
            begun: Some(now),
            ended: None,
        };
        Some(ProbeGuard {
            node: self.clone(),
            begun: now,
        })
    }

    pub(crate) fn has_address(&self, host: &str, port: u16) -> bool {
        self.host == host && self.port == port
    }

    /// Its view of the slot map.
    pub(crate) async fn slots(&self) -> Result<Vec<SlotRange>, StoreError> {
        let connection = self.source.checkout().await?;
        let slots = connection
            .query(redis::cmd("CLUSTER").arg("SLOTS"), false)
            .await;
        let slots = slots.map_err(|error| error_class::to_store_error(&error))?;
        let ranges = read_slots(slots, &self.host);
        if ranges.is_empty() {
            Err(StoreError::Server {
                code: "CLUSTERDOWN".into(),
                message: "no slot is served".into(),
            })
        } else {
            Ok(ranges)
        }
    }
}

impl ProbeGuard {
    pub(crate) fn succeed(self) {
        *lock(&self.node.probed) = ProbeState::default();
    }
}

/// The probe is over, with a response or without.
impl Drop for ProbeGuard {
    fn drop(&mut self) {
        let mut probed = lock(&self.node.probed);
        if probed.begun == Some(self.begun) {
            probed.ended = Some(Instant::now());
        }
    }
}

/// The masters in the reply to `CLUSTER SLOTS`. A node without a host has that of the node that replied.
pub(crate) fn read_slots(reply: Value, queried: &str) -> Vec<SlotRange> {
    let Value::Array(ranges) = reply else {
        return Vec::new();
    };
    let range = |range: Value| {
        let Value::Array(range) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(master),
            ..,
        ] = &range[..]
        else {
            return None;
        };
        let [host, Value::Int(port), ..] = &master[..] else {
            return None;
        };
        let host = Option::<String>::from_redis_value(host.clone()).ok()?;
        let host = host.filter(|host| !host.is_empty());
        let host = host.unwrap_or_else(|| queried.to_owned());
        let known = host != "?";
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        known.then_some((first, last, host, u16::try_from(*port).ok()?))
    };
    ranges.into_iter().filter_map(range).collect()
}

/// The kind of redirect in an error of a cluster's node.
pub(crate) fn redirect_kind(error: &RedisError) -> Option<ServerErrorKind> {
    match error.kind() {
        ErrorKind::Server(kind) => Some(kind),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(500);

    const MOMENT: Duration = Duration::from_millis(1);

    /// Nothing connects to it.
    fn node() -> Arc<ClusterNode> {
        let config = deadpool_redis::Config::from_url("redis://127.0.0.1:1");
        let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1));
        let source = ConnectionSource::new(pool.expect("a pool"), 1);
        Arc::new(ClusterNode::new("127.0.0.1".into(), 1, source))
    }

    /// A moment later.
    async fn later() -> Instant {
        tokio::time::advance(MOMENT).await;
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_serves_all_that_wait_for_it() {
        let (node, since) = (node(), Instant::now());
        later().await;
        let probing = node.begin_probe(since, LONG).expect("the first");
        assert!(node.begin_probe(since, LONG).is_none(), "begun since");
        let begun = later().await;
        assert!(node.begin_probe(begun, LONG).is_none(), "in flight");
        drop(probing);
        assert!(node.begin_probe(since, LONG).is_none(), "begun since");
        let ended = later().await;
        assert!(node.begin_probe(ended, LONG).is_some(), "it is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_ended_during_a_pause_counts_for_the_pausing_task() {
        let node = node();
        let probing = node.begin_probe(Instant::now(), LONG).expect("the first");
        // A pause that begins while the probe is in flight ends when it has failed.
        let since = later().await;
        later().await;
        drop(probing);
        later().await;
        assert!(node.begin_probe(since, LONG).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_without_a_reply_is_waited_for_only_so_long() {
        let (node, start) = (node(), Instant::now());
        let silent = node.begin_probe(start, LONG).expect("the first");
        tokio::time::advance(LONG - MOMENT).await;
        assert!(node.begin_probe(Instant::now(), LONG).is_none());
        let since = later().await;
        let second = node.begin_probe(since, LONG).expect("beside the first");
        // The end of the first says nothing about the second.
        later().await;
        drop(silent);
        let since = later().await;
        assert!(node.begin_probe(since, LONG).is_none(), "it is in flight");
        drop(second);
        let since = later().await;
        assert!(node.begin_probe(since, LONG).is_some());
    }

    /// A response to one tag may not hold for another: each of the node's tags probes for itself.
    #[tokio::test(start_paused = true)]
    async fn a_probe_with_a_response_is_not_shared() {
        let (node, since) = (node(), Instant::now());
        later().await;
        let probing = node.begin_probe(since, LONG).expect("the first");
        probing.succeed();
        assert!(node.begin_probe(since, LONG).is_some());
    }
}
