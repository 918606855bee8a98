//! The slot map of a cluster: which node serves the slot of each hash tag.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::{
    server::{ClusterConfig, Server},
    wire::{CallError, Wire},
};
use crate::{error::StoreError, redis::error_class};

/// Nodes asked at a time for the slot map. The first reply counts.
const REFRESH_FANOUT: usize = 6;

/// Timeout of a refresh.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between the beginnings of refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// A range of slots, and the address of the node that serves it.
pub(crate) type SlotRange = (u16, u16, String, u16);

/// When the slot map is read.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) config: ClusterConfig,
    /// Whether a refresh was asked for since the last one began.
    pub(super) is_wanted: bool,
    pub(super) is_refreshing: bool,
    next_at: Option<Instant>,
    /// Other nodes are asked first each time, so that unreachable ones do not block a refresh for ever.
    rotation: usize,
}

/// Where a call is sent next, after an error which proves that nothing ran.
#[derive(Debug)]
pub(super) enum Redirect {
    /// To the node that now serves the slot.
    Moved(String, u16),
    /// To the node that is importing the slot, and has the keys.
    Ask(String, u16),
    /// To the same node, once the keys have moved.
    TryAgain,
}

impl Slots {
    pub(super) fn new(config: ClusterConfig) -> Self {
        Self {
            config,
            is_wanted: false,
            is_refreshing: false,
            next_at: None,
            rotation: 0,
        }
    }

    /// Begins a refresh if one is wanted and due. Returns how far to rotate the nodes.
    pub(super) fn begin_refresh(&mut self, now: Instant) -> Option<usize> {
        let is_early = self.next_at.is_some_and(|at| now < at);
        if !self.is_wanted || self.is_refreshing || is_early {
            return None;
        }
        (self.is_wanted, self.is_refreshing) = (false, true);
        self.next_at = Some(now + REFRESH_INTERVAL);
        self.rotation = self.rotation.wrapping_add(1);
        Some(self.rotation)
    }

    /// When the next refresh is due, if one is wanted.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.next_at
            .filter(|_| self.is_wanted && !self.is_refreshing)
    }
}

/// The redirect in an error; `None` if it is none. Without a host in it, it is to the host of the node that replied.
pub(super) fn redirect(error: &RedisError, replied: &str) -> Option<Redirect> {
    let ErrorKind::Server(kind) = error.kind() else {
        return None;
    };
    let address = || {
        let (address, _) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = if host.is_empty() { replied } else { host };
        Some((host.to_owned(), port.parse().ok()?))
    };
    match kind {
        ServerErrorKind::Moved => address().map(|(host, port)| Redirect::Moved(host, port)),
        ServerErrorKind::Ask => address().map(|(host, port)| Redirect::Ask(host, port)),
        ServerErrorKind::TryAgain => Some(Redirect::TryAgain),
        _ => None,
    }
}

/// A server that is asked for the slot map, and its connection for commands.
pub(super) struct Asked<C> {
    pub(super) host: String,
    pub(super) server: Server,
    pub(super) side: Arc<Mutex<Option<C>>>,
}

/// Reads the slot map from the first node that replies.
pub(super) async fn read_from_any<W: Wire>(
    wire: Arc<W>,
    nodes: Vec<Asked<W::Connection>>,
) -> Result<Vec<SlotRange>, StoreError> {
    let read = async {
        let mut nodes = nodes.iter();
        let mut replies = FuturesUnordered::new();
        replies.extend(
            nodes
                .by_ref()
                .take(REFRESH_FANOUT)
                .map(|node| read_from(&*wire, node)),
        );
        let mut error = StoreError::connection("no node of the cluster answers").sent(false);
        while let Some(reply) = replies.next().await {
            match reply {
                Ok(slots) => return Ok(slots),
                Err(failed) => error = failed,
            }
            replies.extend(nodes.next().map(|node| read_from(&*wire, node)));
        }
        Err(error)
    };
    let read = timeout(REFRESH_TIMEOUT, read).await;
    read.unwrap_or(Err(StoreError::timeout().sent(false)))
}

async fn read_from<W: Wire>(
    wire: &W,
    node: &Asked<W::Connection>,
) -> Result<Vec<SlotRange>, StoreError> {
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg("SLOTS");
    let reply = run_beside(wire, &node.server, &node.side, &cmd, false, REFRESH_TIMEOUT).await?;
    let ranges = read_slots(
        reply.map_err(|error| error_class::to_store_error(&error))?,
        &node.host,
    );
    if ranges.is_empty() {
        Err(StoreError::Server {
            code: "CLUSTERDOWN".into(),
            message: "no slot is served".into(),
        })
    } else {
        Ok(ranges)
    }
}

/// Runs an idempotent command on a node's connection for commands, which is opened if there is none. A connection without a reply is
/// not used again.
pub(super) async fn run_beside<W: Wire>(
    wire: &W,
    server: &Server,
    side: &Mutex<Option<W::Connection>>,
    cmd: &Cmd,
    asking: bool,
    within: Duration,
) -> Result<Result<Value, RedisError>, StoreError> {
    let run = async {
        loop {
            let mut open = side.lock().await;
            let (connection, is_new) = match &*open {
                Some(connection) => (connection.clone(), false),
                None => (wire.connect(server, within).await?, true),
            };
            if is_new {
                *open = Some(connection.clone());
            }
            drop(open);
            match wire.call(&connection, cmd.clone(), asking).await {
                Ok(value) => return Ok(Ok(value)),
                Err(CallError::Failed(error)) if error.code().is_some() => return Ok(Err(error)),
                // It was closed while it was idle.
                Err(_) if !is_new => drop(side.lock().await.take()),
                Err(CallError::Failed(error)) => {
                    side.lock().await.take();
                    return Ok(Err(error));
                }
                Err(CallError::NotTaken | CallError::Aborted) => {
                    side.lock().await.take();
                    return Err(StoreError::connection("the connection was closed"));
                }
            }
        }
    };
    match timeout(within, run).await {
        Ok(ran) => ran,
        Err(_) => {
            if let Ok(mut open) = side.try_lock() {
                open.take();
            }
            Err(StoreError::timeout())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_without_a_host_is_to_the_host_that_replied() {
        let kind = ErrorKind::Server(ServerErrorKind::Ask);
        for (address, host) in [("1 :7001", "10.0.0.2"), ("1 10.0.0.3:7001", "10.0.0.3")] {
            let error = RedisError::from((kind, "ASK", address.to_owned()));
            let redirect = redirect(&error, "10.0.0.2");
            assert!(matches!(redirect, Some(Redirect::Ask(to, 7001)) if to == host));
        }
    }
}
