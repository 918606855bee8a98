//! The nodes' connections, and the probes of those whose circuit breaker is open.

use std::{mem, sync::Arc, time::Duration};

use redis::Value;
use tokio::time::{Instant, timeout};

use super::{
    OpenBreaker,
    actor::{Actor, Done},
    breaker::Breaker,
    calls::CallResult,
    lane::MIN_CALL_TIMEOUT,
    node::{ConnectionId, Node, NodeId},
    server::{Address, Server},
    wire::{CallError, Wire},
};
use crate::{
    error::StoreError,
    log::LogThrottle,
    observe::{BreakerState, Event, NodeStats},
    redis::{error_class, key_names, request::Sent},
    sync::lock,
};

/// Opening a connection takes no longer than this, or the store's timeout if that is longer.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Upper bound of both timeouts of a probe, which are those of a request: to open its connection, and for the reply.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(3);

impl<W: Wire> Actor<W> {
    pub(super) fn add_node(&mut self, server: Server, address: Option<Address>) -> NodeId {
        let id = self.next_id();
        let breaker = Breaker::new(self.io.settings.breaker_threshold);
        self.nodes.insert(id, Node::new(server, address, breaker));
        id
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.io.timeout().max(MIN_CONNECT_TIMEOUT)
    }

    /// Opens a connection to a node, unless one is being opened.
    pub(super) fn connect(&mut self, id: NodeId) {
        let within = self.connect_timeout();
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.is_connecting) else {
            return;
        };
        node.is_connecting = true;
        node.is_silence_counted = false;
        let connected = self.wire.connect(&node.server, within);
        self.start(async move {
            Done::Connected {
                node: id,
                result: connected.await,
            }
        });
    }

    pub(super) fn end_connect(&mut self, id: NodeId, result: Result<W::Connection, StoreError>) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.is_connecting = false;
        match result {
            Ok(_) if node.breaker.is_open() => {}
            Ok(connection) => self.set_current(id, connection),
            Err(error) => {
                let is_failure = node.restart_silence();
                self.report_call(
                    id,
                    Duration::ZERO,
                    (0, 0),
                    CallResult::Failed(error.clone()),
                );
                // The requests that wait for the connection fail. A later request has another one opened.
                let error = error.sent(false);
                let mut waiting = Vec::new();
                for (index, lane) in self.lanes.iter_mut().enumerate() {
                    if lane.node == Some(id) {
                        let requests = lane.take_waiting().into_iter();
                        waiting.extend(requests.map(|request| (index, request)));
                    }
                }
                // Before the callers wake: each of them finds the circuit breaker open.
                if is_failure {
                    self.note_failure(id, &error);
                }
                for (lane, request) in waiting {
                    self.fail(lane, request, error.clone(), Sent::No);
                }
                self.want_slots(self.now());
            }
        }
    }

    pub(super) fn set_current(&mut self, id: NodeId, connection: W::Connection) {
        let (now, connection_id) = (self.now(), self.next_id());
        if let Some(node) = self.nodes.get_mut(&id) {
            let closed = node.set_current(connection_id, connection, now);
            self.abort_calls(closed);
        }
        self.publish(id);
    }

    /// Has no more calls sent on the current connection.
    pub(super) fn retire_connection(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            let closed = node.retire();
            self.abort_calls(closed);
        }
        self.publish(id);
    }

    /// Aborts the calls of a connection that is closed.
    pub(super) fn abort_calls(&self, closed: Option<ConnectionId>) {
        let Some(closed) = closed else {
            return;
        };
        let calls = self.lanes.iter().flat_map(|lane| &lane.calls);
        let calls = calls.filter(|call| call.connection == closed);
        calls.for_each(|call| call.abort.abort());
    }

    /// Drops a connection that broke. With an `error`, its first call to find out counts as a failure.
    pub(super) fn lose_connection(
        &mut self,
        id: NodeId,
        connection: ConnectionId,
        error: Option<&StoreError>,
    ) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.lose(connection) {
            self.publish(id);
            if let Some(error) = error {
                self.note_failure(id, error);
            }
        }
    }

    /// Replaces the connection of a silent node, and counts a failure. The calls in flight may still have a reply.
    pub(super) fn replace_silent(&mut self, id: NodeId, now: Instant) {
        let error = StoreError::timeout();
        for lane in 0..self.lanes.len() {
            let mut calls = mem::take(&mut self.lanes[lane].calls);
            for call in calls.iter_mut().filter(|call| call.node == id) {
                if now >= call.sent_at + self.io.timeout() {
                    self.report(call, CallResult::Failed(error.clone()));
                    call.observed = None;
                }
            }
            self.lanes[lane].calls = calls;
        }
        self.retire_connection(id);
        self.note_failure(id, &error);
        self.want_slots(now);
        if self
            .nodes
            .get(&id)
            .is_some_and(|node| !node.breaker.is_open())
        {
            self.connect(id);
        }
    }

    pub(super) fn note_failure(&mut self, id: NodeId, error: &StoreError) {
        let now = self.now();
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let has_opened = node.breaker.on_failure(now, error);
        if has_opened {
            static OPENED: LogThrottle = LogThrottle::new();
            OPENED.log_with(|suppressed| {
                let error = error.clone();
                self.io.defer(move || {
                    tracing::warn!(%error, suppressed, "circuit breaker opened after failed calls to the store; probing in the background");
                });
            });
            let closed = node.retire();
            self.abort_calls(closed);
            self.report_breaker(id, BreakerState::Open);
        }
        self.publish(id);
        for lane in 0..self.lanes.len() {
            if has_opened && self.lanes[lane].node == Some(id) {
                self.fail_waiting(lane);
            }
        }
    }

    pub(super) fn note_success(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node.breaker.on_success()
        {
            self.note_closed(id);
        }
    }

    /// Reports that a circuit breaker closed, and sends the node's kept adjustments.
    pub(super) fn note_closed(&mut self, id: NodeId) {
        static CLOSED: LogThrottle = LogThrottle::new();
        CLOSED.log_with(|suppressed| {
            self.io.defer(move || {
                tracing::info!(
                    suppressed,
                    "circuit breaker closed: the store responds again"
                );
            });
        });
        self.report_breaker(id, BreakerState::Closed);
        self.publish(id);
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].node == Some(id) {
                self.lanes[lane].is_kept_paused = false;
                self.send_kept(lane);
            }
        }
    }

    pub(super) fn report_breaker(&self, id: NodeId, state: BreakerState) {
        if let Some(node) = self.nodes.get(&id) {
            let node = node.server.name.clone();
            self.io.report(move |observer| {
                let node = &*node;
                observer.on_event(&Event::BreakerChanged { node, state });
            });
        }
    }

    /// Publishes the state of a node: to the lanes that it serves, and for operators.
    pub(super) fn publish(&self, id: NodeId) {
        let node = self.nodes.get(&id);
        let open = node.and_then(|node| node.breaker.next_probe());
        let open = open.map(|(next_probe, cause)| Arc::new(OpenBreaker { next_probe, cause }));
        for (inbox, lane) in self.io.inboxes.iter().zip(&self.lanes) {
            if lane.node == Some(id) {
                inbox.open.store(open.clone());
            }
        }
        let served = |id: &NodeId| self.lanes.iter().any(|lane| lane.node == Some(*id));
        let nodes = self.nodes.iter().filter(|(id, _)| served(id));
        let stats = nodes.map(|(_, node)| {
            let name = node.server.name.clone();
            NodeStats::new(name, node.breaker.observed(), node.connections() as u64)
        });
        *lock(&self.io.nodes) = stats.collect();
    }

    /// Sends a `PING` on a connection that was idle for long.
    pub(super) fn send_ping(&mut self, id: NodeId, now: Instant) {
        let within = MIN_CALL_TIMEOUT.max(self.io.timeout());
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.begin_call(now);
        if let Some(current) = &node.current {
            let connection = current.id;
            let reply = self.wire.call(&current.wire, redis::cmd("PING"), false);
            self.start(async move {
                let reply = timeout(within, reply).await;
                Done::Pinged {
                    node: id,
                    connection,
                    result: reply.unwrap_or(Err(CallError::Aborted)),
                }
            });
        }
    }

    pub(super) fn end_ping(
        &mut self,
        id: NodeId,
        connection: ConnectionId,
        result: Result<Value, CallError>,
    ) {
        let is_lost = match result {
            // An error reply is a reply, such as that of a server that runs another client's script.
            Ok(_) => false,
            Err(CallError::Failed(error)) => error_class::classify(&error).reconnect,
            Err(CallError::NotTaken | CallError::Aborted) => true,
        };
        if let Some(node) = self.nodes.get_mut(&id) {
            node.end_call(connection, (!is_lost).then_some(Duration::MAX));
        }
        if is_lost {
            self.lose_connection(id, connection, None);
        }
    }

    /// Sends a probe on a connection of its own: it proves that connections can be opened, too.
    pub(super) fn send_probe(&mut self, id: NodeId) {
        let tag = self.lanes.iter().position(|lane| lane.node == Some(id));
        let key = key_names::probe_key(self.io.prefix(), self.io.tags(), tag.unwrap_or(0));
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(include_str!("probe.lua")).arg(1).arg(key);
        // Bounded, since a limited number of probes is in flight: while all of them hang, none finds that the server is back.
        let connect_timeout = self.connect_timeout().min(MAX_PROBE_TIMEOUT);
        let reply_timeout = self.io.timeout().min(MAX_PROBE_TIMEOUT);
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let connected = self.wire.connect(&node.server, connect_timeout);
        let wire = self.wire.clone();
        self.start(async move {
            let probe = async {
                let connection = connected.await?;
                let reply = timeout(reply_timeout, wire.call(&connection, cmd, false)).await;
                check_probe(reply.map_err(|_| StoreError::timeout())?)?;
                Ok(connection)
            };
            Done::Probed {
                node: id,
                result: probe.await,
            }
        });
        self.report_breaker(id, BreakerState::HalfOpen);
        self.publish(id);
    }

    pub(super) fn end_probe(&mut self, id: NodeId, result: Result<W::Connection, StoreError>) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let was_open = node.breaker.is_open();
        let (connection, checked) = match result {
            Ok(connection) => (Some(connection), Ok(())),
            Err(error) => (None, Err(error)),
        };
        if node.breaker.end_probe(checked) {
            if let Some(connection) = connection {
                self.set_current(id, connection);
            }
            self.note_closed(id);
        } else if was_open && node.breaker.observed() == BreakerState::Open {
            self.report_breaker(id, BreakerState::Open);
            self.publish(id);
        }
    }
}

/// Returns the error of a probe if it shows that the server can't count. An error reply that is no failure of a call is none of a probe
/// either: a full server still rejects keys whose quota is used up.
fn check_probe(reply: Result<Value, CallError>) -> Result<(), StoreError> {
    match reply {
        Ok(_) => Ok(()),
        Err(CallError::Failed(error)) if !error_class::classify(&error).counts_as_failure => Ok(()),
        Err(CallError::Failed(error)) => Err(error_class::to_store_error(&error)),
        Err(CallError::NotTaken | CallError::Aborted) => {
            Err(StoreError::connection("the connection was closed"))
        }
    }
}
