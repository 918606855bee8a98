//! The nodes of a cluster, and the redirects in their errors.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::{
    error::StoreError,
    redis::{connection::ConnectionSource, error_class},
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
