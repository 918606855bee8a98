//! Sends one batch to Redis, follows redirects, and completes the batch's requests with the reply.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use redis::{RedisError, Value};
use tokio::time::{Instant, sleep};

use super::{Worker, probe};
use crate::{
    clock::Clock as _,
    error::StoreError,
    observe::{BreakerState, StoreCallEvent, StoreCallResult},
    redis::{
        batch::{Batch, wire},
        breaker::confirmation::{Confirmation, Verdict, is_moved},
        cluster::node::Redirect,
        connection::{
            pool::query,
            shared::{Closer, ConnectionRef},
        },
        error_class::{self, ErrorAction, Retry},
        request::{PendingRequest, Sent},
        state::StoreState,
        topology::Route,
    },
};

/// Pause before a batch is sent again after TRYAGAIN, on a route that follows no redirects.
const TRYAGAIN_DELAY: Duration = Duration::from_millis(10);

/// Pause before a redirect is followed, once [`MAX_IMMEDIATE_REDIRECTS`] were, for nodes that redirect to each other; and before a
/// batch is sent again after TRYAGAIN, on a route that follows redirects.
const REDIRECT_DELAY: Duration = Duration::from_millis(5);

/// Redirects that are followed without a pause.
const MAX_IMMEDIATE_REDIRECTS: usize = 3;

/// How long the reply to a late batch is awaited: its requests have timed out, and it must not be sent again.
const MAX_LATE_REPLY: Duration = Duration::from_secs(60);

/// How often such a batch looks whether its worker has ended.
const CLOSED_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Sends a batch and completes all of its requests, each by its deadline. Returns the emptied batch and the requests to retry.
pub(crate) async fn send_batch(
    worker: Arc<Worker>,
    route: Arc<Route>,
    mut batch: Batch,
) -> (Batch, Vec<PendingRequest>) {
    let (shared, tag) = (&worker.shared, worker.tag);
    let now = Instant::now();
    batch.begin(now, shared.timeout, |deadline| {
        worker.awaited_until(deadline, now)
    });
    let mut call = None;
    let executed = execute(&worker, &route, &mut batch, &mut call).await;
    let ended_at = Instant::now();
    batch.ended_at = Some(ended_at);
    if let Some(due) = batch.due() {
        // A reply that was there when the process went on: requests that are still queued are late, too.
        worker.note_if_held_up(due, ended_at);
    }
    let mut outcome = match executed {
        Ok((reply, connection)) => {
            let call = call.map(StoreCall::ended);
            handle_reply(shared, tag, &mut batch, reply, connection, call)
        }
        Err(outcome) => {
            report_failed_call(shared, &route, call, &outcome);
            outcome
        }
    };
    if batch.awaited_until.is_some() && outcome.answered {
        shared.note_extended_call();
    }
    // The failure of a batch that is late was counted when it timed out.
    outcome.action.counts_as_failure &= !batch.is_late;
    if outcome.timed_out {
        outcome.action.counts_as_failure = counts_as_failure(&worker, &batch);
    }
    if outcome.action.counts_as_failure {
        probe::note_failure(shared, tag, || outcome.error());
    } else if outcome.answered {
        if worker.breaker.on_success() {
            shared.report_breaker(tag, BreakerState::Closed);
        }
        shared.pending_refunds.resend(tag);
    }
    if outcome.error.is_some() || outcome.timed_out || outcome.action.reconnect {
        route.schedule_refresh();
    }
    if let Some(mut connection) = outcome.connection.filter(|_| outcome.action.reconnect) {
        connection.close();
    }
    let error = outcome.error.unwrap_or(StoreError::timeout());
    let refunds = &shared.pending_refunds;
    let unanswered = batch.drain();
    unanswered.for_each(|request| {
        refunds.fail_and_keep(tag, request, error.clone(), outcome.sent);
    });
    if batch.is_late {
        // The worker has given it up.
        for request in outcome.retry.drain(..) {
            refunds.fail_and_keep(tag, request, StoreError::timeout(), Sent::No);
        }
    }
    batch.clear();
    (batch, outcome.retry)
}

/// Whether a batch that has timed out counts as a failure. One whose requests had too little time left for a probe of its own
/// counts by the last one, or has the next one sent: where more requests come than a silent server's batches hold, no later batch
/// has the time.
fn counts_as_failure(worker: &Worker, batch: &Batch) -> bool {
    if let Some(confirmation) = &batch.confirmation {
        return confirmation.count_if_unanswered();
    }
    let (breaker, timeout) = (&worker.breaker, worker.shared.timeout);
    let counts = breaker.count_last_if_unanswered(std::time::Instant::now(), 2 * timeout);
    if !counts && !breaker.is_open() {
        drop(probe::request_confirmation(
            &worker.shared,
            worker.tag,
            timeout / 2,
        ));
    }
    counts
}

/// The result of sending a batch.
#[derive(Default)]
struct BatchOutcome {
    action: ErrorAction,
    /// Whether the server replied in a way that closes the circuit breaker.
    answered: bool,
    /// Whether all deadlines have passed.
    timed_out: bool,
    connection: Option<ConnectionRef>,
    sent: Sent,
    /// The error of the requests that are left in the batch.
    error: Option<StoreError>,
    retry: Vec<PendingRequest>,
}

/// A round trip, if there are observers of it.
#[derive(Clone, Copy)]
struct StoreCall {
    since: Instant,
    /// Zero until the reply is there.
    elapsed: Duration,
    requests: usize,
    counter_ops: usize,
}

impl StoreCall {
    fn begin(shared: &StoreState, batch: &Batch) -> Option<Self> {
        (!shared.observers.is_empty()).then(|| Self {
            since: Instant::now(),
            elapsed: Duration::ZERO,
            requests: batch.checks(),
            counter_ops: batch.keys(),
        })
    }

    /// This call, whose time ends now.
    fn ended(mut self) -> Self {
        self.elapsed = self.since.elapsed();
        self
    }

    #[cold]
    fn report(self, shared: &StoreState, node: &str, result: StoreCallResult<'_>) {
        let event = StoreCallEvent::new(node, self.elapsed);
        let event = event.with_ops(self.requests, self.counter_ops);
        let event = match result {
            StoreCallResult::Ok => event,
            StoreCallResult::Repeated(reply) => event.repeated(reply),
            StoreCallResult::Failed(error) => event.with_error(error),
        };
        shared
            .observers
            .notify(|observer| observer.on_store_call(&event));
    }
}

impl BatchOutcome {
    /// The error of its requests.
    fn error(&self) -> StoreError {
        self.error.clone().unwrap_or(StoreError::timeout())
    }

    /// No connection could be opened; nothing was sent.
    fn not_connected(error: StoreError) -> Self {
        Self {
            action: error_class::CONNECTION_LOST,
            error: Some(error),
            ..Self::default()
        }
    }

    /// No reply before the deadlines; it may have run.
    fn timed_out(connection: Option<ConnectionRef>) -> Self {
        Self {
            action: error_class::CONNECTION_LOST,
            timed_out: true,
            sent: match connection {
                Some(_) => Sent::Maybe,
                None => Sent::No,
            },
            connection,
            ..Self::default()
        }
    }

    /// An error reply, or a broken connection.
    fn failed(error: &RedisError, connection: ConnectionRef) -> Self {
        Self {
            action: error_class::classify(error),
            connection: Some(connection),
            // An error reply proves that the script did not run.
            sent: match error.code() {
                Some(_) => Sent::No,
                None => Sent::Maybe,
            },
            error: Some(error_class::to_store_error(error)),
            ..Self::default()
        }
    }

    /// The slot is migrating and its keys are on two nodes (TRYAGAIN); nothing ran. Each request is sent on its own.
    fn split_batch(batch: &mut Batch) -> Self {
        let mut retry: Vec<_> = batch.drain().collect();
        retry
            .iter_mut()
            .for_each(|request| request.send_alone = true);
        Self {
            answered: true,
            retry,
            ..Self::default()
        }
    }
}

/// Completes the requests of a batch with the reply.
fn handle_reply(
    shared: &StoreState,
    tag: usize,
    batch: &mut Batch,
    reply: Value,
    connection: ConnectionRef,
    call: Option<StoreCall>,
) -> BatchOutcome {
    let report = |error: Option<&StoreError>| {
        if let Some(call) = call {
            let result = error.map_or(StoreCallResult::Ok, StoreCallResult::Failed);
            call.report(shared, connection.server(), result);
        }
    };
    // Once more, before the waiters are woken: a rejection decided before this batch may have been cached since it was sent.
    shared.rejection_cache.invalidate(batch.invalidated());
    match wire::decode_and_complete(batch, reply) {
        Ok(mut reply) => {
            report(reply.error.as_ref());
            shared.server_clock.set(reply.at);
            if reply.action.is_unwritable && !reply.failed.is_empty() {
                shared.pending_refunds.pause();
            }
            for (request, error) in reply.failed.drain(..) {
                shared.pending_refunds.fail_in_call(tag, request, error);
            }
            BatchOutcome {
                action: reply.action,
                answered: true,
                connection: Some(connection),
                retry: reply.retry,
                ..BatchOutcome::default()
            }
        }
        Err(malformed) => {
            report(Some(&malformed));
            BatchOutcome {
                action: error_class::CONNECTION_LOST,
                connection: Some(connection),
                sent: Sent::Maybe,
                error: Some(malformed),
                ..BatchOutcome::default()
            }
        }
    }
}

/// Reports the last call of a batch that has failed. That of a batch that was split has been reported as repeated.
#[cold]
fn report_failed_call(
    shared: &StoreState,
    route: &Route,
    call: Option<StoreCall>,
    outcome: &BatchOutcome,
) {
    let Some(call) = call else { return };
    let server = match &outcome.connection {
        Some(connection) => connection.server().clone(),
        None => shared.topology.server(route.tag()),
    };
    call.ended()
        .report(shared, &server, StoreCallResult::Failed(&outcome.error()));
}

/// Sends the call and awaits its reply, retrying where nothing ran. Fails the requests whose deadline passes meanwhile.
///
/// `call` is the last round trip; on return it is `None` if that was reported.
async fn execute(
    worker: &Worker,
    route: &Route,
    batch: &mut Batch,
    call: &mut Option<StoreCall>,
) -> Result<(Value, ConnectionRef), BatchOutcome> {
    let shared = &*worker.shared;
    *call = StoreCall::begin(shared, batch);
    let mut connection = connect(worker, batch, route.connect()).await?;
    let script = shared.script();
    let (mut with_text, mut asking, mut redirects) = (false, false, 0);
    loop {
        // Connecting and redirects take time.
        batch.remove_overdue();
        if batch.next_deadline().is_none() {
            return Err(BatchOutcome::timed_out(None));
        }
        let now = shared.server_clock.now();
        let command = batch.call(&script, with_text, now);
        *call = StoreCall::begin(shared, batch);
        batch.is_sent = true;
        let (connected, closer) = connection.split();
        let reply = query(connected, &command, asking);
        let error = match reply_of(worker, batch, closer, reply).await {
            None => return Err(BatchOutcome::timed_out(Some(connection))),
            Some(Ok(reply)) => return Ok((reply, connection)),
            Some(Err(error)) if batch.is_late => {
                return Err(BatchOutcome::failed(&error, connection));
            }
            Some(Err(error)) => error,
        };
        // An error reply proves that nothing ran; a broken connection does not.
        batch.is_sent = error.code().is_none();
        let replied = call.map(StoreCall::ended);
        let report_repeated = |connection: &ConnectionRef| {
            if let Some(call) = replied {
                let reply = error_class::to_store_error(&error);
                call.report(
                    shared,
                    connection.server(),
                    StoreCallResult::Repeated(&reply),
                );
            }
        };
        let retry = error_class::classify(&error).retry;
        if retry == Some(Retry::WithScriptText) && !with_text {
            report_repeated(&connection);
            with_text = true;
        } else if let Some(redirect) = route.redirect(&error) {
            report_repeated(&connection);
            if matches!(redirect, Redirect::TryAgain) && batch.entries().nth(1).is_some() {
                *call = None;
                return Err(BatchOutcome::split_batch(batch));
            }
            *call = StoreCall::begin(shared, batch);
            redirects += 1;
            if redirects > MAX_IMMEDIATE_REDIRECTS || matches!(redirect, Redirect::TryAgain) {
                let pause = with_deadlines(worker, batch, sleep(REDIRECT_DELAY)).await;
                pause.ok_or_else(|| BatchOutcome::timed_out(None))?;
            }
            asking = matches!(redirect, Redirect::Ask(_));
            connection = match redirect {
                Redirect::Ask(node) => connect(worker, batch, route.connect_to(&node)).await?,
                Redirect::Moved | Redirect::TryAgain => {
                    connect(worker, batch, route.connect()).await?
                }
            };
        } else if retry == Some(Retry::AfterDelay)
            && with_deadlines(worker, batch, sleep(TRYAGAIN_DELAY))
                .await
                .is_some()
        {
            report_repeated(&connection);
        } else {
            return Err(BatchOutcome::failed(&error, connection));
        }
    }
}

/// Awaits a connection for a batch.
async fn connect<T>(
    worker: &Worker,
    batch: &mut Batch,
    part: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, BatchOutcome> {
    let connected = with_deadlines(worker, batch, part).await;
    connected
        .ok_or_else(|| BatchOutcome::timed_out(None))?
        .map_err(BatchOutcome::not_connected)
}

/// Awaits `part`, failing the requests whose deadline passes meanwhile; `None` once all deadlines have passed.
async fn with_deadlines<T>(
    worker: &Worker,
    batch: &mut Batch,
    part: impl Future<Output = T>,
) -> Option<T> {
    let mut part = std::pin::pin!(part);
    poll_fn(|cx| {
        if batch.next_deadline().is_none() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(result) = part.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        poll_deadlines(worker, batch, cx).map(|()| None)
    })
    .await
}

/// Awaits the reply to a batch, as [`with_deadlines`] does. If it has requests that must not be lost, and can't be sent again, it
/// is late once all deadlines have passed: it leaves the worker, and its reply is awaited for [`MAX_LATE_REPLY`] at most.
/// Dropping the future instead would cancel a command that redis-rs has not written yet.
async fn reply_of<T>(
    worker: &Worker,
    batch: &mut Batch,
    closer: Closer<'_>,
    reply: impl Future<Output = T>,
) -> Option<T> {
    let mut reply = std::pin::pin!(reply);
    let mut until = None;
    poll_fn(|cx| {
        if let Poll::Ready(reply) = reply.as_mut().poll(cx) {
            return Poll::Ready(Some(reply));
        }
        let until = match until {
            Some(until) => until,
            None => {
                ready!(poll_deadlines(worker, batch, cx));
                if !worker.begin_late(batch) {
                    return Poll::Ready(None);
                }
                if counts_as_failure(worker, batch) {
                    let error = || StoreError::timeout();
                    probe::note_failure(&worker.shared, worker.tag, error);
                }
                closer.close();
                *until.insert(Instant::now() + MAX_LATE_REPLY)
            }
        };
        loop {
            let now = Instant::now();
            if now >= until || worker.is_closed() {
                return Poll::Ready(None);
            }
            ready!(batch.timer.poll(until.min(now + CLOSED_CHECK_INTERVAL), cx));
        }
    })
    .await
}

/// Fails the requests whose deadline has passed; ready once all have. After half of the batch's time the server is probed; if it
/// answers, the requests are awaited for one more timeout.
fn poll_deadlines(worker: &Worker, batch: &mut Batch, cx: &mut Context<'_>) -> Poll<()> {
    while let Some(deadline) = batch.next_deadline() {
        if let Some(confirm_at) = batch.confirm_at {
            ready!(batch.poll_timer(confirm_at.min(deadline), cx));
            let now = Instant::now();
            if now >= confirm_at {
                batch.confirm_at = None;
                batch.is_held_up = worker.note_if_held_up(confirm_at, now);
                begin_confirmation(worker, batch, confirm_at, now);
            }
        }
        let confirmation = batch.confirmation.clone();
        let verdict = confirmation
            .as_ref()
            .map(|confirmation| confirmation.poll_verdict(cx));
        let is_prober_late = || {
            confirmation
                .as_ref()
                .is_some_and(|confirmation| confirmation.is_overdue())
        };
        let is_unanswered = verdict == Some(Verdict::Unanswered);
        if is_unanswered {
            batch.awaited_until = None;
        }
        let Some(deadline) = batch.next_deadline() else {
            break;
        };
        ready!(batch.poll_timer(deadline, cx));
        let now = Instant::now();
        // Once, and once more each time that this process was held up.
        let may_extend = !is_unanswered
            && (worker.note_if_held_up(deadline, now) || batch.awaited_until.is_none());
        let until = match verdict {
            _ if !may_extend => now,
            Some(Verdict::Answered) => now + worker.shared.timeout,
            Some(Verdict::Pending) if batch.is_held_up || is_prober_late() => {
                now + worker.shared.timeout
            }
            Some(Verdict::Pending | Verdict::Unanswered) => now,
            None => worker.awaited_until(deadline, now),
        };
        if until > now {
            batch.awaited_until = Some(until);
        } else {
            batch.fail_overdue(now);
        }
    }
    Poll::Ready(())
}

/// Has the server probed, since a batch has no reply: so soon that there is a result before its last deadline, or later if `due` is
/// noticed late. Not if there is too little time left for a probe, or the circuit breaker is open.
#[cold]
fn begin_confirmation(worker: &Worker, batch: &mut Batch, due: Instant, now: Instant) {
    let timeout = worker.shared.timeout;
    let left = batch.last_deadline();
    let left = left.map_or(Duration::ZERO, |last| last - now);
    // Also by as much as timers are: with a timeout of a few milliseconds no time is left then.
    let limit = if now - due > timeout / 8 {
        timeout / 2
    } else {
        left - left / 8
    };
    if worker.breaker.is_open() || limit < timeout / 4 {
        return;
    }
    batch.confirmation = Some(if is_moved(now) {
        // There was no time for a reply or a probe.
        Confirmation::unanswered()
    } else {
        probe::request_confirmation(&worker.shared, worker.tag, limit)
    });
}
