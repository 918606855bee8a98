//! A server with its connections and its circuit breaker.
//!
//! A server is *silent* if calls, or requests that wait for a connection, have had no reply for one timeout. That is a failure for the circuit
//! breaker, and the connection is replaced.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use super::{
    breaker::Breaker,
    server::{Address, Server},
};

/// Most connections of a node: the current one, and silent ones whose calls may still have a reply.
const MAX_CONNECTIONS: usize = 4;

/// A connection that was idle for this long is tried by a `PING`: it may have been closed unnoticed.
const MAX_IDLE: Duration = Duration::from_secs(30);

/// Over a link with a longer round trip a batch does not wait for the one in flight.
const MIN_DISTANT_TRIP: Duration = Duration::from_micros(300);

pub(super) type NodeId = u64;
pub(super) type ConnectionId = u64;

/// A server that has keys, or had.
pub(super) struct Node<C> {
    pub(super) server: Server,
    /// The host and port, of a cluster's node.
    pub(super) address: Option<Address>,
    pub(super) breaker: Breaker,
    pub(super) is_connecting: bool,
    /// Whether silence was counted as a failure since the last connection began to be opened.
    pub(super) is_silence_counted: bool,
    /// The connection that calls are sent on.
    pub(super) current: Option<Connection<C>>,
    /// Connections that were replaced, and have calls without a reply. The oldest first.
    replaced: Vec<Connection<C>>,
    /// Since when a reply is awaited and none has come.
    silent_since: Option<Instant>,
    /// The connection for commands, once one was run.
    pub(super) command_connection: Arc<Mutex<Option<C>>>,
}

pub(super) struct Connection<C> {
    pub(super) id: ConnectionId,
    pub(super) wire: C,
    calls: usize,
    /// The shortest round trip; `Duration::MAX` before the first.
    trip: Duration,
    used_at: Instant,
}

impl<C> Node<C> {
    pub(super) fn new(server: Server, address: Option<Address>, breaker: Breaker) -> Self {
        Self {
            server,
            address,
            breaker,
            is_connecting: false,
            is_silence_counted: false,
            current: None,
            replaced: Vec::new(),
            silent_since: None,
            command_connection: Arc::default(),
        }
    }

    /// The number of open connections of the lanes.
    pub(super) fn connections(&self) -> usize {
        self.replaced.len() + usize::from(self.current.is_some())
    }

    pub(super) fn has_address(&self, host: &str, port: u16) -> bool {
        self.address
            .as_ref()
            .is_some_and(|(own, own_port)| own == host && *own_port == port)
    }

    /// Has calls sent on a new connection. Returns the one to close, if there are too many: its calls end.
    pub(super) fn set_current(
        &mut self,
        id: ConnectionId,
        wire: C,
        now: Instant,
    ) -> Option<ConnectionId> {
        let closed = self.retire();
        self.silent_since = None;
        self.current = Some(Connection {
            id,
            wire,
            calls: 0,
            trip: Duration::MAX,
            used_at: now,
        });
        closed
    }

    /// Has no more calls sent on the current connection; it stays open while it has some. Returns the connection to close, if there are
    /// too many.
    pub(super) fn retire(&mut self) -> Option<ConnectionId> {
        let current = self.current.take().filter(|current| current.calls > 0);
        self.replaced.extend(current);
        let closed = (self.replaced.len() >= MAX_CONNECTIONS).then(|| self.replaced.remove(0));
        closed.map(|closed| closed.id)
    }

    /// Whether calls are sent on this connection.
    pub(super) fn is_current(&self, id: ConnectionId) -> bool {
        self.current
            .as_ref()
            .is_some_and(|current| current.id == id)
    }

    /// Drops a connection that broke. Returns whether it was open: several calls find out.
    pub(super) fn lose(&mut self, id: ConnectionId) -> bool {
        let before = self.connections();
        self.current.take_if(|current| current.id == id);
        self.replaced.retain(|replaced| replaced.id != id);
        self.connections() < before
    }

    /// Counts a call on the current connection.
    pub(super) fn begin_call(&mut self, now: Instant) {
        if let Some(current) = &mut self.current {
            current.calls += 1;
            current.used_at = now;
        }
    }

    /// Ends a call. `trip`: its round trip, if it has a reply; `Duration::MAX` if that is not to be measured.
    pub(super) fn end_call(&mut self, id: ConnectionId, trip: Option<Duration>) {
        if trip.is_some() {
            self.silent_since = None;
        }
        let connections = self.replaced.iter_mut().chain(&mut self.current);
        for connection in connections.filter(|connection| connection.id == id) {
            connection.calls = connection.calls.saturating_sub(1);
            connection.trip = connection.trip.min(trip.unwrap_or(Duration::MAX));
        }
        self.replaced.retain(|replaced| replaced.calls > 0);
    }

    /// Whether the round trip to the server is long.
    pub(super) fn is_distant(&self) -> bool {
        let trip = self.current.as_ref().map(|current| current.trip);
        trip.is_some_and(|trip| (MIN_DISTANT_TRIP..Duration::MAX).contains(&trip))
    }

    /// Notes at the end of a turn whether something waits for a reply of the server. `has_waiting`: requests wait for a connection.
    pub(super) fn note_silence(&mut self, now: Instant, has_waiting: bool) {
        let awaits_reply = match &self.current {
            Some(current) => current.calls > 0,
            None => has_waiting || !self.replaced.is_empty(),
        };
        if !awaits_reply || self.breaker.is_open() {
            self.silent_since = None;
        } else {
            self.silent_since.get_or_insert(now);
        }
    }

    /// Whether the server is silent. If so, the next timeout begins.
    pub(super) fn take_silence(&mut self, now: Instant, timeout: Duration) -> bool {
        let silent = self.silent_since.take_if(|since| *since + timeout <= now);
        self.is_silence_counted |= silent.is_some();
        silent.is_some()
    }

    /// Begins the timeout of silence anew after a connection could not be opened. Returns whether that counts as a failure: not if silence
    /// was counted since opening it began.
    pub(super) fn restart_silence(&mut self) -> bool {
        self.silent_since = None;
        !self.is_silence_counted
    }

    /// When the next of these happens: the server has been silent for a timeout, an idle connection is to be tried, or a probe is due.
    pub(super) fn next_due(&self, timeout: Duration) -> Option<Instant> {
        let silent = self.silent_since.map(|since| since + timeout);
        let idle = self.idle().map(|idle| idle.used_at + MAX_IDLE);
        let probe = self.breaker.next_probe().map(|(at, _)| at);
        [silent, idle, probe].into_iter().flatten().min()
    }

    /// Whether the current connection has been idle for too long.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.idle()
            .is_some_and(|idle| idle.used_at + MAX_IDLE <= now)
    }

    fn idle(&self) -> Option<&Connection<C>> {
        self.current.as_ref().filter(|current| current.calls == 0)
    }
}
