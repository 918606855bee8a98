//! Probing a store whose breaker is open, so that no request has to find out by its own deadline.

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
        breaker::{Breaker, ProbeLease},
        connection::RunError,
        error_class, key_names,
        state::StoreState,
        topology::Topology,
    },
};

/// The next probe waits for no longer than this, so that one which is never answered doesn't keep a store that is back from
/// being found: it goes beside this one.
const QUICK: Duration = Duration::from_millis(500);

/// A server that is far away has longer than that to answer: as long as requests give it, but no longer than this. As
/// pauses grow, no more than a handful are under way.
const LONGEST: Duration = Duration::from_secs(3);

/// Has this runtime see to the probes until the breaker closes, unless somebody does. Should the runtime end before, the next
/// question has another one do it.
pub(crate) fn start(shared: &Arc<StoreState>, breaker: &Arc<Breaker>, tag: usize) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    let Some(watch) = breaker.watch(Instant::now()) else {
        return;
    };
    let shared = Arc::downgrade(shared);
    drop(runtime.spawn(async move {
        run_probes(&watch, &shared, tag).await;
        if !watch.is_over() {
            return;
        }
        drop(watch);
        if let Some(shared) = shared.upgrade() {
            shared.closed.then(|suppressed| {
                tracing::info!(
                    suppressed,
                    "circuit breaker closed: the store answers again"
                );
            });
            shared.answers_again(tag);
        }
    }));
}

async fn run_probes(watch: &ProbeLease, shared: &Weak<StoreState>, tag: usize) {
    let mut asked = JoinSet::new();
    while let Some(due) = watch.due() {
        let since = Instant::now();
        let late = await_healthy(&mut asked, due).await;
        if late {
            watch.end(true, Instant::now());
            continue;
        }
        tokio::time::sleep_until(due).await;
        // A store that nobody has any more needs no probe.
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let until = Instant::now() + shared.deadline.min(QUICK);
        if watch.begin(until) {
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
                // The keys may be elsewhere by now.
                shared.topology.schedule_refresh();
            }
            watch.end(well, Instant::now());
        }
    }
}

/// Whether one of those that are under way finds the server well, by then.
async fn await_healthy(asked: &mut JoinSet<bool>, until: Instant) -> bool {
    while let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await {
        if answer.unwrap_or(false) {
            return true;
        }
    }
    false
}

/// Whether the server of a hash tag's keys counts: what lives and can't be written to, such as a replica or a server that is
/// paused, is of no use. A cluster's node that is probed for another tag, or was since, and has not
/// answered, isn't asked once more.
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
            // Another may have taken its place. If nobody tells, it is asked itself.
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
                // What is wrong may be wrong with this slot.
                probing.answered();
            }
            is_healthy(answer, &breaker)
        }
    }
}

/// Whether a probe's answer closes the breaker. An error reply that doesn't open a breaker doesn't keep it open either: a server
/// that is full still rejects keys whose quota is used up. A server that lets no connection be set up has failed, whatever its
/// error is.
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
    /// What is asked.
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

    /// A server that was at fault counts again: what was kept for it is sent. On a cluster that holds for all tags of the node.
    fn answers_again(&self, tag: usize) {
        self.pending_refunds.send(tag);
        for other in self.topology.tags_on_same_node(tag) {
            if other != tag && self.breaker(other).lift() {
                self.pending_refunds.send(other);
            }
        }
    }
}
