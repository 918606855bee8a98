//! The slot map of a cluster: which node serves the slot of each hash tag.

use std::{mem, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use redis::{ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::{
    actor::{Actor, Done},
    breaker::Breaker,
    commands::run_on_node,
    node::NodeId,
    server::{ClusterConfig, Server},
    wire::Wire,
};
use crate::{
    error::StoreError,
    redis::{error_class, request::Sent},
};

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
    /// Whether a refresh was wanted since the last one began.
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

/// A node that the slot map is read from.
pub(super) struct SlotSource<C> {
    pub(super) host: String,
    pub(super) server: Server,
    pub(super) command_connection: Arc<Mutex<Option<C>>>,
}

/// Reads the slot map from the first node that replies.
pub(super) async fn read_from_any<W: Wire>(
    wire: Arc<W>,
    nodes: Vec<SlotSource<W::Connection>>,
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
    node: &SlotSource<W::Connection>,
) -> Result<Vec<SlotRange>, StoreError> {
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg("SLOTS");
    let reply = run_on_node(
        wire,
        &node.server,
        &node.command_connection,
        &cmd,
        false,
        REFRESH_TIMEOUT,
    )
    .await?;
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

pub(super) fn no_owner() -> StoreError {
    StoreError::Server {
        code: "CLUSTERDOWN".into(),
        message: "no node serves the slot".into(),
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

impl<W: Wire> Actor<W> {
    /// Has the slot map read again: a server may no longer serve its keys.
    pub(super) fn want_slots(&mut self, now: Instant) {
        if let Some(slots) = &mut self.slots {
            slots.is_wanted = true;
            self.refresh_slots(now);
        }
    }

    pub(super) fn refresh_slots(&mut self, now: Instant) {
        let Some(rotation) = self
            .slots
            .as_mut()
            .and_then(|slots| slots.begin_refresh(now))
        else {
            return;
        };
        let asked = self.nodes.values().filter_map(|node| {
            Some(SlotSource {
                host: node.address.as_ref()?.0.clone(),
                server: node.server.clone(),
                command_connection: node.command_connection.clone(),
            })
        });
        let mut asked: Vec<_> = asked.collect();
        let first = rotation % asked.len().max(1);
        asked.rotate_left(first);
        let read = read_from_any(self.wire.clone(), asked);
        self.start(async move { Done::Slots(read.await) });
    }

    pub(super) fn apply_slots(&mut self, read: Result<Vec<SlotRange>, StoreError>) {
        let Some(slots) = &mut self.slots else {
            return;
        };
        slots.is_refreshing = false;
        let parked = mem::take(&mut self.parked);
        let ranges = match read {
            Ok(ranges) => ranges,
            Err(error) => {
                self.fail_without_owner(&error);
                return parked
                    .into_iter()
                    .for_each(|command| command.fail(error.clone()));
            }
        };
        let mut owners = vec![None; self.lanes.len()];
        let mut named = Vec::new();
        for (first, last, host, port) in &ranges {
            let node = self.node_at(host, *port);
            named.extend(node);
            for (tag, owner) in owners.iter_mut().enumerate() {
                let slot = self.io.tags().map(|tags| tags.slot(tag));
                if slot.is_some_and(|slot| (*first..=*last).contains(&slot)) {
                    *owner = node;
                }
            }
        }
        for (lane, owner) in owners.into_iter().enumerate() {
            self.set_owner(lane, owner);
        }
        self.remove_unused_nodes(&named);
        self.fail_without_owner(&no_owner());
        parked
            .into_iter()
            .for_each(|command| self.start_routed(command));
    }

    /// Fails the requests of lanes whose slot no node serves.
    pub(super) fn fail_without_owner(&mut self, error: &StoreError) {
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].node.is_none() {
                for request in self.lanes[lane].take_waiting() {
                    self.fail(lane, request, error.clone(), Sent::No);
                }
            }
        }
    }

    pub(super) fn set_owner(&mut self, lane: usize, owner: Option<NodeId>) {
        if self.lanes[lane].node == owner {
            return;
        }
        self.lanes[lane].node = owner;
        match owner {
            Some(node) => self.publish(node),
            None => self.io.inboxes[lane].open.store(None),
        }
    }

    /// The node at an address, which may be new.
    pub(super) fn node_at(&mut self, host: &str, port: u16) -> Option<NodeId> {
        let mut nodes = self.nodes.iter();
        if let Some((id, _)) = nodes.find(|(_, node)| node.has_address(host, port)) {
            return Some(*id);
        }
        let server = self.slots.as_ref()?.config.server_at(host, port)?;
        Some(self.add_node(server, Some((host.to_owned(), port))))
    }

    /// Removes the nodes that serve no slot and have no calls. A configured one stays, since the slot map is read from it, but with a closed
    /// circuit breaker, so that it is not probed.
    pub(super) fn remove_unused_nodes(&mut self, named: &[NodeId]) {
        let Some(slots) = &self.slots else {
            return;
        };
        let (lanes, threshold) = (&self.lanes, self.io.settings.breaker_threshold);
        self.nodes.retain(|id, node| {
            let mut calls = lanes.iter().flat_map(|lane| &lane.calls);
            if named.contains(id) || node.is_connecting || calls.any(|call| call.node == *id) {
                return true;
            }
            node.breaker = Breaker::new(threshold);
            let mut seeds = slots.config.seeds.iter();
            seeds.any(|(address, _)| node.address.as_ref() == Some(address))
        });
    }
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
