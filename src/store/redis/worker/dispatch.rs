//! Sends one batch to Redis, follows redirects, and completes the batch's requests with the reply.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use redis::{RedisError, Value};
use tokio::time::{Instant, sleep};

use super::probe;
use crate::{
    error::StoreError,
    observe::{BreakerState, StoreCallEvent, StoreCallResult},
    store::redis::{
        batch::{Batch, wire},
        breaker::Breaker,
        cluster::node::Redirect,
        connection::shared::ConnectionRef,
        error_class::{self, ErrorAction, Retry},
        rejection_cache::epoch::EpochKey,
        request::{PendingRequest, Sent},
        state::StoreState,
        topology::Route,
    },
};

/// Pause before a batch is sent again after TRYAGAIN, on a route that follows no redirects.
const TRYAGAIN_DELAY: Duration = Duration::from_millis(10);

/// Pause between redirects once [`IMMEDIATE_REDIRECTS`] were followed, for nodes that redirect to each other.
const REDIRECT_DELAY: Duration = Duration::from_millis(5);

/// Redirects that are followed without a pause.
const IMMEDIATE_REDIRECTS: usize = 3;

/// Sends a batch and completes all of its requests, each by its deadline. Returns the emptied batch and the requests to retry.
pub(crate) async fn send_batch(
    shared: Arc<StoreState>,
    route: Arc<Route>,
    breaker: Arc<Breaker>,
    mut batch: Batch,
) -> (Batch, Vec<PendingRequest>) {
    let start = Instant::now();
    let mut call = None;
    let mut outcome = match execute(&shared, &route, &mut batch, &mut call).await {
        Ok((reply, connection)) => {
            let call = call.map(StoreCall::ended);
            handle_reply(&shared, route.tag(), &mut batch, reply, connection, call)
        }
        Err(outcome) => {
            report_failed_call(&shared, &route, call, &outcome);
            outcome
        }
    };
    if outcome.timed_out && start.elapsed() < shared.timeout / 2 {
        // The requests had little time left when they were sent: no evidence against the server.
        outcome.action.counts_as_failure = false;
    }
    if outcome.action.counts_as_failure {
        let error = || outcome.error.clone().unwrap_or(StoreError::Timeout);
        if breaker.on_failure(Instant::now(), error) {
            shared.report_breaker(route.tag(), BreakerState::Open);
            let error = error();
            shared.opened.log_with(|suppressed| {
                tracing::warn!(%error, suppressed, "circuit breaker opened after failed calls to the store; probing in the background");
            });
            probe::start(&shared, &breaker, route.tag());
        }
    } else if outcome.answered {
        if breaker.on_success() {
            shared.report_breaker(route.tag(), BreakerState::Closed);
        }
        shared.pending_refunds.resend(route.tag());
    }
    if outcome.error.is_some() || outcome.timed_out || outcome.action.reconnect {
        route.schedule_refresh();
    }
    if let Some(connection) = outcome.connection.filter(|_| outcome.action.reconnect) {
        connection.close();
    }
    let error = outcome.error.unwrap_or(StoreError::Timeout);
    let unanswered = batch.drain();
    let fail = |request| {
        shared
            .pending_refunds
            .fail_and_keep(route.tag(), request, error.clone(), outcome.sent)
    };
    unanswered.for_each(fail);
    batch.clear();
    (batch, outcome.retry)
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
        self.error.clone().unwrap_or(StoreError::Timeout)
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
            shared.update_clock_offset(reply.at);
            for (request, error) in reply.failed.drain(..) {
                shared
                    .pending_refunds
                    .fail_and_keep(tag, request, error, Sent::No);
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

/// Reports the last call of a batch that has failed. One that was split was repeated.
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
/// `call` is the call that is not reported yet: on return the last one, if it has to be.
async fn execute(
    shared: &StoreState,
    route: &Route,
    batch: &mut Batch,
    call: &mut Option<StoreCall>,
) -> Result<(Value, ConnectionRef), BatchOutcome> {
    *call = StoreCall::begin(shared, batch);
    let mut connection = connect(batch, route.connect()).await?;
    let script = shared.script();
    let (mut with_text, mut asking, mut redirects) = (false, false, 0);
    loop {
        // Connecting and redirects take time.
        batch.remove_overdue();
        let now = shared.server_time();
        let epoch = shared.epoch.as_ref().map(EpochKey::name);
        let command = batch.call(&script, with_text, now, epoch);
        *call = StoreCall::begin(shared, batch);
        let reply = match asking {
            false => with_deadlines(batch, connection.query(&command)).await,
            true => with_deadlines(batch, connection.query_with_asking(&command)).await,
        };
        let error = match reply {
            None => return Err(BatchOutcome::timed_out(Some(connection))),
            Some(Ok(reply)) => return Ok((reply, connection)),
            Some(Err(error)) => error,
        };
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
            if redirects > IMMEDIATE_REDIRECTS || matches!(redirect, Redirect::TryAgain) {
                let pause = with_deadlines(batch, sleep(REDIRECT_DELAY)).await;
                pause.ok_or_else(|| BatchOutcome::timed_out(None))?;
            }
            asking = matches!(redirect, Redirect::Ask(_));
            connection = match redirect {
                Redirect::Ask(node) => connect(batch, route.connect_to(&node)).await?,
                Redirect::Moved | Redirect::TryAgain => connect(batch, route.connect()).await?,
            };
        } else if retry == Some(Retry::AfterDelay)
            && with_deadlines(batch, sleep(TRYAGAIN_DELAY)).await.is_some()
        {
            report_repeated(&connection);
        } else {
            return Err(BatchOutcome::failed(&error, connection));
        }
    }
}

/// Awaits a connection for a batch.
async fn connect<T>(
    batch: &mut Batch,
    part: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, BatchOutcome> {
    let connected = with_deadlines(batch, part).await;
    connected
        .ok_or_else(|| BatchOutcome::timed_out(None))?
        .map_err(BatchOutcome::not_connected)
}

/// Awaits `part`, failing the requests whose deadline passes meanwhile; `None` once all deadlines have passed.
async fn with_deadlines<T>(batch: &mut Batch, part: impl Future<Output = T>) -> Option<T> {
    let mut part = std::pin::pin!(part);
    poll_fn(|cx| {
        if batch.next_deadline().is_none() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(result) = part.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        while let Some(deadline) = batch.next_deadline() {
            ready!(batch.timer.poll(deadline, cx));
            batch.fail_overdue(Instant::now());
        }
        Poll::Ready(None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RedisStore;

    /// The future is allocated for each batch.
    #[test]
    fn rare_branches_do_not_enlarge_the_future_of_a_batch() {
        let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
        let shared = store.inner.shared.clone();
        let routes = shared.topology.routes(1);
        let route = Arc::new(routes.into_iter().next().expect("a route"));
        let breaker = shared.breaker(0).clone();
        let sending = send_batch(shared, route, breaker, Batch::default());
        let size = size_of_val(&sending);
        assert!(size <= 3_072, "{size} bytes");
    }
}
