//! Metrics of the store's calls, by server.

use std::sync::{
    Arc, RwLock,
    atomic::{AtomicU64, Ordering},
};

use metrics::{Histogram, SharedString};

use super::{
    recorder::LimiterRecorder,
    table::{
        BATCH_REQUESTS, CIRCUIT_BREAKER_STATE, STORE_CALL_SECONDS, STORE_CALLS, STORE_CONNECTIONS,
        STORE_ERRORS,
    },
};
use crate::{
    error::StoreError,
    observe::{BreakerState, NodeStats, StoreCallEvent, StoreCallResult},
    sync::{read, write},
};

/// Servers with metrics of their own. The addresses of a cluster's nodes may change again and again; those beyond share one label.
const MAX_NODES: usize = 64;

/// The label of the servers beyond [`MAX_NODES`].
const OTHER_NODES: &str = "other";

/// The servers that were called.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: RwLock<Vec<Node>>,
    /// Calls that failed, by the index of their code.
    errors: Box<[AtomicU64]>,
}

#[derive(Debug)]
struct Node {
    name: Arc<str>,
    calls: AtomicU64,
    repeated_calls: AtomicU64,
    failed_calls: AtomicU64,
    seconds: Histogram,
    requests: Histogram,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            nodes: RwLock::default(),
            errors: StoreError::CODES
                .iter()
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }
}

impl Nodes {
    /// Records a call.
    pub(super) fn record(&self, recorder: &LimiterRecorder, call: &StoreCallEvent<'_>) {
        let known = self.with_node(call.node, |node| node.record(call));
        if known.is_none() {
            self.add(recorder, call.node);
            self.with_node(call.node, |node| node.record(call));
        }
        let Some(error) = call.result.error() else {
            return;
        };
        let code = error.code();
        let code = StoreError::CODES.iter().position(|known| *known == code);
        if let Some(errors) = code.and_then(|code| self.errors.get(code)) {
            errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the counters and the gauges; the histograms are recorded at each call.
    pub(super) fn collect(&self, recorder: &LimiterRecorder, servers: &[NodeStats]) {
        for server in servers {
            self.add(recorder, &server.node);
        }
        let nodes = read(&self.nodes);
        for (index, node) in nodes.iter().enumerate() {
            let of_node = servers
                .iter()
                .filter(|server| index_of(&nodes, &server.node) == index);
            node.collect(recorder, &of_node.collect::<Vec<_>>());
        }
        for (code, errors) in StoreError::CODES.iter().zip(&self.errors) {
            let counter = recorder.counter(&STORE_ERRORS, [(*code).into()]);
            counter.absolute(errors.load(Ordering::Relaxed));
        }
    }

    /// Calls `call` with the metrics of a server; `None` if they are still to be [added](Self::add).
    fn with_node<T>(&self, name: &str, call: impl FnOnce(&Node) -> T) -> Option<T> {
        let nodes = read(&self.nodes);
        nodes.get(index_of(&nodes, name)).map(call)
    }

    /// Adds a server, if it is new.
    fn add(&self, recorder: &LimiterRecorder, name: &str) {
        if self.with_node(name, |_| ()).is_some() {
            return;
        }
        let mut nodes = write(&self.nodes);
        let name = match nodes.len() {
            ..MAX_NODES => name,
            _ => OTHER_NODES,
        };
        if !nodes.iter().any(|node| *node.name == *name) {
            nodes.push(Node::new(recorder, name.into()));
        }
    }
}

/// The index of a server's metrics: its own, or those that all servers beyond the first [`MAX_NODES`] share.
fn index_of(nodes: &[Node], name: &str) -> usize {
    let own = nodes.iter().position(|node| *node.name == *name);
    own.unwrap_or(MAX_NODES)
}

impl Node {
    fn new(recorder: &LimiterRecorder, name: Arc<str>) -> Self {
        let label = || SharedString::from(name.clone());
        Self {
            seconds: recorder.histogram(&STORE_CALL_SECONDS, [label()]),
            requests: recorder.histogram(&BATCH_REQUESTS, [label()]),
            calls: AtomicU64::new(0),
            repeated_calls: AtomicU64::new(0),
            failed_calls: AtomicU64::new(0),
            name,
        }
    }

    fn record(&self, call: &StoreCallEvent<'_>) {
        let (calls, is_last) = match call.result {
            StoreCallResult::Ok => (&self.calls, true),
            StoreCallResult::Repeated(_) => (&self.repeated_calls, false),
            StoreCallResult::Failed(_) => (&self.failed_calls, true),
        };
        calls.fetch_add(1, Ordering::Relaxed);
        self.seconds.record(call.elapsed);
        if is_last && call.requests > 0 {
            self.requests.record(call.requests as f64);
        }
    }

    /// Sets the counters, and the gauges by the state of the servers with this label.
    fn collect(&self, recorder: &LimiterRecorder, servers: &[&NodeStats]) {
        let label = || SharedString::from(self.name.clone());
        for (result, calls) in [
            ("ok", &self.calls),
            ("repeated", &self.repeated_calls),
            ("error", &self.failed_calls),
        ] {
            let counter = recorder.counter(&STORE_CALLS, [label(), result.into()]);
            counter.absolute(calls.load(Ordering::Relaxed));
        }
        let state = servers.iter().map(|server| server.breaker).max();
        let state = match state.unwrap_or_default() {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        };
        let gauge = recorder.gauge(&CIRCUIT_BREAKER_STATE, [label()]);
        gauge.set(f64::from(state));
        let connections: u64 = servers.iter().map(|server| server.connections).sum();
        let gauge = recorder.gauge(&STORE_CONNECTIONS, [label()]);
        gauge.set(connections as f64);
    }
}
