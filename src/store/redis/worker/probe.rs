//! Probes a store whose circuit breaker is open, so that no request has to wait for its timeout to find out.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    error::StoreError,
    observe::BreakerState,
    runtime::runtime_with_io,
    store::redis::{
        breaker::{Breaker, probe_lease::ProbeLease},
        connection::RunError,
        error_class, key_names,
        state::StoreState,
        topology::Topology,
    },
};

/// The next probe waits for no longer than this for the one before, so that a probe without a response does not delay
/// recovery.
const MAX_PROBE_WAIT: Duration = Duration::from_millis(500);

/// A probe itself has the store's timeout, for servers that are far away, but at most this. As pauses grow, no more than
/// a handful are in flight.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Spawns a task on this runtime that probes until the breaker closes, unless there is one already. If the runtime ends first,
/// the next request spawns another one.
pub(crate) fn start(shared: &Arc<StoreState>, breaker: &Arc<Breaker>, tag: usize) {
    let Some(runtime) = runtime_with_io() else {
        return;
    };
    let Some(lease) = breaker.lease(Instant::now()) else {
        return;
    };
    let shared = Arc::downgrade(shared);
    drop(runtime.spawn(async move {
        run_probes(&lease, &shared, tag).await;
        if !lease.is_over() {
            return;
        }
        drop(lease);
        if let Some(shared) = shared.upgrade() {
            shared.closed.log_with(|suppressed| {
                tracing::info!(
                    suppressed,
                    "circuit breaker closed: the store responds again"
                );
            });
            shared.on_recovery(tag);
        }
    }));
}

async fn run_probes(lease: &ProbeLease, shared: &Weak<StoreState>, tag: usize) {
    let mut probes = JoinSet::new();
    while let Some(due) = lease.due() {
        let since = Instant::now();
        let was_late = await_healthy(&mut probes, due).await;
        if was_late {
            if lease.end(true, Instant::now())
                && let Some(shared) = shared.upgrade()
            {
                shared.report_breaker(tag, BreakerState::Closed);
            }
            continue;
        }
        tokio::time::sleep_until(due).await;
        // A store that was dropped needs no probe.
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let until = Instant::now() + shared.timeout.min(MAX_PROBE_WAIT);
        if lease.begin(until) {
            shared.report_breaker(tag, BreakerState::HalfOpen);
            let probe_timeout = shared.timeout.min(MAX_PROBE_TIMEOUT);
            let breaker = shared.breaker(tag).clone();
            let probe = probe(
                shared.topology.clone(),
                breaker,
                tag,
                shared.probe(tag),
                since,
            );
            probes.spawn(async move { timeout(probe_timeout, probe).await.unwrap_or(false) });
            let healthy = await_healthy(&mut probes, until).await;
            if !healthy {
                // The keys may have moved.
                shared.topology.schedule_refresh();
            }
            if lease.end(healthy, Instant::now()) {
                let state = match healthy {
                    true => BreakerState::Closed,
                    false => BreakerState::Open,
                };
                shared.report_breaker(tag, state);
            }
        }
    }
}

/// Whether one of the probes in flight finds the server healthy before a deadline.
async fn await_healthy(probes: &mut JoinSet<bool>, until: Instant) -> bool {
    while let Ok(Some(reply)) = timeout_at(until, probes.join_next()).await {
        if reply.unwrap_or(false) {
            return true;
        }
    }
    false
}

/// Whether the server of a hash tag's keys can count: a replica or a paused server responds to other commands, too. A cluster's
/// node that was probed for another tag since, without a response, is not probed again.
async fn probe(
    topology: Topology,
    breaker: Arc<Breaker>,
    tag: usize,
    probe: Cmd,
    since: Instant,
) -> bool {
    match &topology {
        Topology::One(_) => is_healthy(topology.run::<Value>(tag, &probe).await, &breaker),
        Topology::Cluster(cluster) => {
            // Another node may serve the slot. If no node replies, the old one is probed itself.
            let _ = timeout(MAX_PROBE_WAIT / 2, cluster.refresh()).await;
            let node = match cluster.slot_owner(tag).await {
                Ok(node) => node,
                Err(error) => {
                    breaker.note_cause(error);
                    return false;
                }
            };
            let Some(probing) = node.begin_probe(since, MAX_PROBE_WAIT) else {
                return false;
            };
            let reply = cluster.run::<Value>(tag, &probe).await;
            if matches!(
                reply,
                Ok(_) | Err(RunError::Failed(StoreError::Server { .. }))
            ) {
                // The error may concern this slot only.
                probing.succeed();
            }
            is_healthy(reply, &breaker)
        }
    }
}

/// Whether a probe's result closes the breaker. An error reply that does not open a breaker does not keep it open
/// either: a full server still rejects keys whose quota is used up. A server with which no connection can be set up has
/// failed, whatever the error is.
fn is_healthy(reply: Result<Value, RunError>, breaker: &Breaker) -> bool {
    let (error, is_healthy) = match reply {
        Ok(_) => return true,
        Err(RunError::NotConnected(error)) => (error, false),
        Err(RunError::Failed(error)) => {
            let counts = |code: &str| error_class::classify_code(code).counts_as_failure;
            let is_healthy = matches!(&error, StoreError::Server { code, .. } if !counts(code));
            (error, is_healthy)
        }
    };
    if !is_healthy {
        breaker.note_cause(error);
    }
    is_healthy
}

impl StoreState {
    /// The probe's command.
    fn probe(&self, tag: usize) -> Cmd {
        let mut eval = redis::cmd("EVAL");
        eval.arg(include_str!("probe.lua")).arg(1);
        eval.arg(key_names::probe_key(
            &self.prefix,
            self.topology.tags(),
            tag,
        ));
        eval
    }

    /// Sends the server's pending refunds, now that it counts again. On a cluster that is so for all tags of the node.
    fn on_recovery(&self, tag: usize) {
        self.pending_refunds.resend(tag);
        for other in self.topology.tags_on_same_node(tag) {
            if other != tag && self.breaker(other).close_after_probe() {
                self.report_breaker(other, BreakerState::Closed);
                self.pending_refunds.resend(other);
            }
        }
    }
}
