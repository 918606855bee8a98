//! The state that the workers of a store share.

use std::sync::{
    Arc, RwLock,
    atomic::{AtomicI64, AtomicU64, Ordering},
};
use std::time::Duration;

use super::{
    breaker::Breaker,
    pending_refunds::PendingRefunds,
    rejection_cache::RejectionCache,
    script::{Script, ScriptRegistry},
    topology::Topology,
};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    log::LogThrottle,
    observe::{BreakerState, Event, NodeStats, SharedObservers, StoreStats},
    store::health::HELD_UP_REMEDY,
    sync::read,
};

/// An estimate of the server's clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    /// How far it is ahead of this machine's, in microseconds.
    offset_us: AtomicI64,
}

impl ServerClock {
    /// Notes what the server's clock shows now.
    pub(super) fn set(&self, now: Timestamp) {
        let offset = now
            .as_micros()
            .saturating_sub(SystemClock.now().as_micros());
        self.offset_us.store(offset, Ordering::Relaxed);
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        SystemClock
            .now()
            .shifted(self.offset_us.load(Ordering::Relaxed))
    }
}

/// The state that the workers of a store share.
#[derive(Debug)]
pub(crate) struct StoreState {
    pub(super) topology: Topology,
    pub(super) prefix: String,
    pub(super) scripts: RwLock<ScriptRegistry>,
    pub(super) timeout: Duration,
    /// One for each hash tag: one in all, except on a cluster, whose masters fail independently.
    pub(super) breakers: Box<[Arc<Breaker>]>,
    pub(super) pending_refunds: PendingRefunds,
    pub(super) rejection_cache: RejectionCache,
    pub(super) server_clock: Arc<ServerClock>,
    /// Logs that a breaker opened: a cluster has one for each hash tag.
    pub(super) opened: LogThrottle,
    pub(super) closed: LogThrottle,
    /// Batches whose reply came after their deadline, while the server answered a probe.
    pub(super) extended_calls: AtomicU64,
    /// The value of `extended_calls` at the last health check.
    pub(super) reported_calls: AtomicU64,
    pub(super) observers: Arc<SharedObservers>,
}

impl StoreState {
    /// The circuit breaker of the server that has the keys of a hash tag.
    pub(super) fn breaker(&self, tag: usize) -> &Arc<Breaker> {
        &self.breakers[tag % self.breakers.len()]
    }

    /// Sends pending refunds. A server that is probed gets them once it has responded to the probe.
    pub(super) fn resend_refunds(&self) {
        for tag in self.pending_refunds.tags() {
            if !self.breaker(tag).is_open() {
                self.pending_refunds.resend(tag);
            }
        }
    }

    /// Notes that a call's reply came after its deadline, while the server answered a probe.
    #[cold]
    pub(super) fn note_extended_call(&self) {
        static LATE: LogThrottle = LogThrottle::new();
        self.extended_calls.fetch_add(1, Ordering::Relaxed);
        LATE.log_with(|suppressed| {
            tracing::warn!(
                timeout = ?self.timeout,
                remedy = HELD_UP_REMEDY,
                suppressed,
                "a reply of the store came after the timeout, although its server answered a probe: the process, a connection or a script is held up"
            );
        });
    }

    /// The number of such calls since this was called last.
    pub(super) fn take_extended_calls(&self) -> u64 {
        let calls = self.extended_calls.load(Ordering::Relaxed);
        calls.saturating_sub(self.reported_calls.swap(calls, Ordering::Relaxed))
    }

    /// Reports the new state of the circuit breaker of a hash tag's server.
    pub(super) fn report_breaker(&self, tag: usize, state: BreakerState) {
        if self.observers.is_empty() {
            return;
        }
        let node = &*self.topology.server(tag);
        self.observers
            .on_event(&Event::BreakerChanged { node, state });
    }

    /// The state of the caches, queues and servers.
    pub(super) fn stats(&self) -> StoreStats {
        let mut nodes: Vec<NodeStats> = Vec::new();
        for (tag, breaker) in self.breakers.iter().enumerate() {
            let (source, state) = (self.topology.source(tag), breaker.observed());
            if source.is_none() && state == BreakerState::Closed {
                // The nodes of the cluster are not known yet.
                continue;
            }
            let node = self.topology.server(tag);
            // Of the breakers of a cluster's node, which has several hash tags, the one that is open.
            match nodes.iter_mut().find(|known| known.node == node) {
                Some(known) => known.breaker = known.breaker.max(state),
                None => {
                    let open = source.map_or(0, |source| source.open_connections());
                    nodes.push(NodeStats::new(node, state, open as u64));
                }
            }
        }
        StoreStats {
            rejection_cache_entries: Some(self.rejection_cache.len()),
            nodes,
            queued_refunds: self.pending_refunds.queued() as u64,
            dropped_refunds: self.pending_refunds.dropped(),
            unconfirmed_refunds: self.pending_refunds.unconfirmed(),
            ..StoreStats::default()
        }
    }

    pub(super) fn script(&self) -> Arc<Script> {
        read(&self.scripts).current()
    }
}
