//! Probes a store whose circuit breaker is open, so that no request has to wait for its timeout to find out, and one whose replies
//! are late, to find out why. Probes are sent by the background thread, on connections of their own: those of the
//! application's runtimes stand still with these.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use redis::{Cmd, Value};
use tokio::{
    task::JoinSet,
    time::{self, sleep_until, timeout, timeout_at},
};
use tracing::instrument::WithSubscriber;

use crate::{
    error::StoreError,
    observe::BreakerState,
    redis::{
        breaker::{
            Breaker, ProbingGuard,
            confirmation::{Confirmation, MAX_REPEATS, TIMER_GRANULARITY},
        },
        connection::RunError,
        error_class, key_names,
        state::StoreState,
        topology::Topology,
    },
    runtime::background_or_current,
};

/// The next probe waits for no longer than this for the one before, so that a probe without a response does not delay
/// recovery.
const MAX_PROBE_WAIT: Duration = Duration::from_millis(500);

/// A probe itself has the store's timeout, for servers that are far away, but at most this. As pauses grow, no more than
/// a handful are in flight.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Has the server of a hash tag probed, since a batch has had no reply for half of its time. `probe_timeout` is how long
/// each probe may take.
#[cold]
pub(crate) fn request_confirmation(
    shared: &Arc<StoreState>,
    tag: usize,
    probe_timeout: Duration,
) -> Arc<Confirmation> {
    let breaker = shared.breaker(tag);
    let (confirmation, is_new) = breaker.join_confirmation(Instant::now(), probe_timeout);
    if is_new {
        let result = ProbeResult::new(&confirmation, shared, tag);
        let topology = shared.topology.clone();
        let confirming =
            confirm_by_probes(result, topology, shared.probe_command(tag), probe_timeout);
        if let Some(runtime) = background_or_current() {
            drop(runtime.spawn(confirming.with_current_subscriber()));
        }
    }
    confirmation
}

/// Decides a confirmation by a probe. A probe without an answer that ended late is repeated: its own thread was held up.
async fn confirm_by_probes(
    mut result: ProbeResult,
    topology: Topology,
    probe: Cmd,
    probe_timeout: Duration,
) {
    for _ in 0..=MAX_REPEATS {
        let begun = Instant::now();
        let reply = timeout(
            probe_timeout,
            topology.run_on_new_connection(result.tag, &probe),
        )
        .await;
        match reply {
            Ok(reply) => {
                result.is_answered = check_reply(reply).is_ok();
                return;
            }
            Err(_) if is_late(begun.elapsed(), probe_timeout) => {}
            Err(_) => return,
        }
    }
}

/// Decides a confirmation when it is dropped: also if its task has ended before its time, since its runtime is shut down, or the
/// look-up of a host name panics because no thread can be started.
struct ProbeResult {
    confirmation: Arc<Confirmation>,
    is_answered: bool,
    store: Weak<StoreState>,
    tag: usize,
}

impl ProbeResult {
    fn new(confirmation: &Arc<Confirmation>, store: &Arc<StoreState>, tag: usize) -> Self {
        Self {
            confirmation: confirmation.clone(),
            is_answered: false,
            store: Arc::downgrade(store),
            tag,
        }
    }
}

impl Drop for ProbeResult {
    fn drop(&mut self) {
        let is_failure = self.confirmation.decide(self.is_answered);
        if is_failure && let Some(store) = self.store.upgrade() {
            note_failure(&store, self.tag, StoreError::timeout);
        }
    }
}

/// Counts a failure, which may open the circuit breaker.
#[cold]
pub(crate) fn note_failure(shared: &Arc<StoreState>, tag: usize, error: impl Fn() -> StoreError) {
    if shared.breaker(tag).on_failure(Instant::now(), &error) {
        shared.report_breaker(tag, BreakerState::Open);
        let error = error();
        shared.opened.log_with(|suppressed| {
            tracing::warn!(%error, suppressed, "circuit breaker opened after failed calls to the store; probing in the background");
        });
        start(shared, tag);
    }
}

/// Whether a probe without an answer ended so late that its thread was held up.
fn is_late(took: Duration, probe_timeout: Duration) -> bool {
    took >= probe_timeout + probe_timeout / 4 + TIMER_GRANULARITY
}

/// Spawns a task that probes until the breaker closes, unless there is one already.
pub(crate) fn start(shared: &Arc<StoreState>, tag: usize) {
    let Some(probing) = shared.breaker(tag).begin_probing() else {
        return;
    };
    let Some(runtime) = background_or_current() else {
        return;
    };
    let shared = Arc::downgrade(shared);
    let probes = async move {
        run_probes(&probing, &shared, tag).await;
        drop(probing);
        if let Some(shared) = shared.upgrade() {
            shared.closed.log_with(|suppressed| {
                tracing::info!(
                    suppressed,
                    "circuit breaker closed: the store responds again"
                );
            });
            shared.on_recovery(tag);
        }
    };
    drop(runtime.spawn(probes.with_current_subscriber()));
}

/// Sends probes until the breaker is closed or the store is dropped, which it does not hold while it waits.
async fn run_probes(probing: &ProbingGuard, store: &Weak<StoreState>, tag: usize) {
    let report = |state| {
        if let Some(shared) = store.upgrade() {
            shared.report_breaker(tag, state);
        }
    };
    let mut probes = JoinSet::new();
    while let Some(due) = probing.due() {
        let since = time::Instant::now();
        let has_late_response = await_healthy(&mut probes, due).await;
        if has_late_response {
            if probing.end_probe(true, Instant::now()) {
                report(BreakerState::Closed);
            }
            continue;
        }
        sleep_until(due.into()).await;
        let Some(until) = send_probe(&mut probes, probing, store, tag, since) else {
            return;
        };
        let healthy = await_healthy(&mut probes, until).await;
        // The keys may have moved.
        if !healthy && let Some(shared) = store.upgrade() {
            shared.topology.schedule_refresh();
        }
        if probing.end_probe(healthy, Instant::now()) {
            report(if healthy {
                BreakerState::Closed
            } else {
                BreakerState::Open
            });
        }
    }
}

/// Sends the next probe. Returns until when the one after it waits for it; `None` if no probe is needed, since the breaker is
/// closed or the store was dropped.
fn send_probe(
    probes: &mut JoinSet<bool>,
    probing: &ProbingGuard,
    store: &Weak<StoreState>,
    tag: usize,
    since: time::Instant,
) -> Option<Instant> {
    let shared = store.upgrade()?;
    let until = Instant::now() + shared.timeout.min(MAX_PROBE_WAIT);
    if !probing.begin_probe() {
        return None;
    }
    shared.report_breaker(tag, BreakerState::HalfOpen);
    let probe_timeout = shared.timeout.min(MAX_PROBE_TIMEOUT);
    let breaker = shared.breaker(tag).clone();
    let probe = probe(
        shared.topology.clone(),
        breaker,
        tag,
        shared.probe_command(tag),
        since,
    );
    probes.spawn(async move { timeout(probe_timeout, probe).await.unwrap_or(false) });
    Some(until)
}

/// Whether one of the probes in flight finds the server healthy before a deadline.
async fn await_healthy(probes: &mut JoinSet<bool>, until: Instant) -> bool {
    while let Ok(Some(reply)) = timeout_at(until.into(), probes.join_next()).await {
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
    since: time::Instant,
) -> bool {
    let reply = match &topology {
        Topology::One(_) => topology.run_on_new_connection(tag, &probe).await,
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
            let reply = topology.run_on_new_connection(tag, &probe).await;
            if matches!(
                reply,
                Ok(_) | Err(RunError::Failed(StoreError::Server { .. }))
            ) {
                // The error may concern this slot only.
                probing.succeed();
            }
            reply
        }
    };
    let checked = check_reply(reply);
    checked.map_err(|error| breaker.note_cause(error)).is_ok()
}

/// Returns the error of a probe whose server cannot count. An error reply that does not open a breaker does not keep it open
/// either: a full server still rejects keys whose quota is used up. A server with which no connection can be set up has
/// failed, whatever the error is.
fn check_reply(reply: Result<Value, RunError>) -> Result<(), StoreError> {
    let counts = |code: &str| error_class::classify_code(code).counts_as_failure;
    match reply {
        Ok(_) => Ok(()),
        Err(RunError::Failed(StoreError::Server { code, .. })) if !counts(&code) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl StoreState {
    /// The probe's command.
    fn probe_command(&self, tag: usize) -> Cmd {
        let mut eval = redis::cmd("EVAL");
        eval.arg(include_str!("probe.lua")).arg(1);
        eval.arg(key_names::probe_key(
            &self.prefix,
            self.topology.tags(),
            tag,
        ));
        eval
    }

    /// Sends the server's pending refunds, now that it counts again. On a cluster it also closes the breakers of the node's other tags.
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
