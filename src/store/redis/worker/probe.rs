//! Probes a store whose circuit breaker is open, so that no request has to wait for its timeout to find out.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    error::StoreError,
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
const QUICK: Duration = Duration::from_millis(500);

/// A probe itself has the store's timeout, for servers that are far away, but at most this. As pauses grow, no more than
/// a handful are in flight.
const LONGEST: Duration = Duration::from_secs(3);

/// Has this runtime probe until the breaker closes, unless another task does. If the runtime ends before, the next
/// request has another one do it.
pub(crate) fn start(shared: &Arc<StoreState>, breaker: &Arc<Breaker>, tag: usize) {
    let Ok(runtime) = Handle::try_current() else {
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
            shared.answers_again(tag);
        }
    }));
}

async fn run_probes(lease: &ProbeLease, shared: &Weak<StoreState>, tag: usize) {
    let mut asked = JoinSet::new();
    while let Some(due) = lease.due() {
        let since = Instant::now();
        let late = await_healthy(&mut asked, due).await;
        if late {
            lease.end(true, Instant::now());
            continue;
        }
        tokio::time::sleep_until(due).await;
        // A store that was dropped needs no probe.
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let until = Instant::now() + shared.deadline.min(QUICK);
        if lease.begin(until) {
            let patience = shared.deadline.min(LONGEST);
            let breaker = shared.breaker(tag).clone();
            let probe = ask(
                shared.topology.clone(),
                breaker,
                tag,
                shared.probe(tag),
                since,
            );
            asked.spawn(async move { timeout(patience, probe).await.unwrap_or(false) });
            let well = await_healthy(&mut asked, until).await;
            if !well {
                // The keys may have moved.
                shared.topology.schedule_refresh();
            }
            lease.end(well, Instant::now());
        }
    }
}

/// Whether one of the probes in flight finds the server healthy before a deadline.
async fn await_healthy(asked: &mut JoinSet<bool>, until: Instant) -> bool {
    while let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await {
        if answer.unwrap_or(false) {
            return true;
        }
    }
    false
}

/// Whether the server of a hash tag's keys counts: a replica or a paused server responds, and is of no use. A cluster's
/// node that was probed for another tag since, without a response, is not probed again.
async fn ask(
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
            let _ = timeout(QUICK / 2, cluster.read()).await;
            let node = match cluster.owner(tag).await {
                Ok(node) => node,
                Err(error) => {
                    breaker.note_cause(error);
                    return false;
                }
            };
            let Some(probing) = node.begin_probe(since, QUICK) else {
                return false;
            };
            let answer = cluster.run::<Value>(tag, &probe).await;
            if matches!(
                answer,
                Ok(_) | Err(RunError::Failed(StoreError::Server { .. }))
            ) {
                // The error may concern this slot only.
                probing.answered();
            }
            is_healthy(answer, &breaker)
        }
    }
}

/// Whether a probe's result closes the breaker. An error reply that does not open a breaker does not keep it open
/// either: a full server still rejects keys whose quota is used up. A server with which no connection can be set up has
/// failed, whatever the error is.
fn is_healthy(answer: Result<Value, RunError>, breaker: &Breaker) -> bool {
    let (error, is_healthy) = match answer {
        Ok(_) => return true,
        Err(RunError::NotConnected(error)) => (error, false),
        Err(RunError::Failed(error)) => {
            let counts = |code: &str| error_class::classify_code(code).counts;
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

    /// The server counts again: sends the refunds that were kept for it. On a cluster that holds for all tags of the
    /// node.
    fn answers_again(&self, tag: usize) {
        self.pending_refunds.send(tag);
        for other in self.topology.tags_on_same_node(tag) {
            if other != tag && self.breaker(other).close_after_probe() {
                self.pending_refunds.send(other);
            }
        }
    }
}
