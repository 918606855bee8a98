//! Sends one batch to Redis, follows redirects, and completes the batch's requests with the reply.

use std::{
    future::poll_fn,
    mem,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use redis::{RedisError, Value};
use tokio::time::{Instant, sleep};

use super::probe;
use crate::{
    error::StoreError,
    store::redis::{
        batch::{Batch, decode},
        breaker::Breaker,
        cluster::node::Redirect,
        connection::ConnectionRef,
        error_class::{self, Again, ErrorAction},
        rejection_cache::epoch::EpochKey,
        request::PendingRequest,
        state::StoreState,
        topology::Route,
    },
};

/// Pause before a batch is sent again that the server could not execute yet (LOADING, BUSY and the like).
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
    let mut outcome = match execute(&shared, &route, &mut batch).await {
        Ok((reply, connection)) => {
            handle_reply(&shared, route.tag(), &mut batch, reply, connection)
        }
        Err(outcome) => outcome,
    };
    if outcome.timed_out && start.elapsed() < shared.deadline / 2 {
        // The requests had little time left when they were sent: no evidence against the server.
        outcome.fault.counts = false;
    }
    if outcome.fault.counts {
        let error = || outcome.error.clone().unwrap_or(StoreError::Timeout);
        if breaker.on_failure(Instant::now(), error) {
            let error = error();
            shared.opened.log_with(|suppressed| {
                tracing::warn!(%error, suppressed, "circuit breaker opened after failed calls to the store; probing in the background");
            });
            probe::start(&shared, &breaker, route.tag());
        }
    } else if outcome.answered {
        breaker.on_success();
        shared.pending_refunds.send(route.tag());
    }
    if outcome.error.is_some() || outcome.timed_out || outcome.fault.reconnect {
        route.schedule_refresh();
    }
    if let Some(connection) = outcome.connection.filter(|_| outcome.fault.reconnect) {
        connection.close();
    }
    let error = outcome.error.unwrap_or(StoreError::Timeout);
    let left = batch.drain();
    let kept = |request| {
        shared
            .pending_refunds
            .fail(route.tag(), request, error.clone(), outcome.sent)
    };
    left.for_each(kept);
    batch.clear();
    (batch, outcome.again)
}

/// The result of sending a batch.
#[derive(Default)]
struct BatchOutcome {
    fault: ErrorAction,
    /// Whether the script answered.
    answered: bool,
    /// Whether all deadlines have passed.
    timed_out: bool,
    connection: Option<ConnectionRef>,
    /// Whether the script may have run.
    sent: bool,
    /// The error of the requests that are left in the batch.
    error: Option<StoreError>,
    again: Vec<PendingRequest>,
}

impl BatchOutcome {
    /// No connection could be opened; nothing was sent.
    fn not_connected(error: StoreError) -> Self {
        Self {
            fault: error_class::BROKEN,
            error: Some(error),
            ..Self::default()
        }
    }

    /// No reply before the deadlines; it may have run.
    fn timed_out(connection: Option<ConnectionRef>) -> Self {
        Self {
            fault: error_class::BROKEN,
            timed_out: true,
            sent: connection.is_some(),
            connection,
            ..Self::default()
        }
    }

    /// An error reply, or a broken connection.
    fn failed(error: &RedisError, connection: ConnectionRef) -> Self {
        Self {
            fault: error_class::classify(error),
            connection: Some(connection),
            // An error reply proves that the script did not run.
            sent: error.code().is_none(),
            error: Some(error_class::of(error)),
            ..Self::default()
        }
    }

    /// The slot is migrating and its keys are on two nodes (TRYAGAIN); nothing ran. Each request is sent on its own.
    fn split_batch(batch: &mut Batch) -> Self {
        let mut again: Vec<_> = batch.drain().collect();
        again
            .iter_mut()
            .for_each(|request| request.send_alone = true);
        Self {
            answered: true,
            again,
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
) -> BatchOutcome {
    let connection = Some(connection);
    // Once more, before the waiters are woken: a rejection decided before this batch may have been cached since it was sent.
    shared.rejection_cache.end(batch.lifted());
    match decode::decode_and_complete(batch, reply) {
        Ok(mut delivered) => {
            shared.update_clock_offset(delivered.at);
            for (request, error) in delivered.failed.drain(..) {
                shared.pending_refunds.fail(tag, request, error, false);
            }
            let stale = delivered.stale.iter_mut();
            stale.for_each(|request| request.time_synced = true);
            BatchOutcome {
                fault: delivered.fault,
                answered: true,
                connection,
                again: mem::take(&mut delivered.stale),
                ..BatchOutcome::default()
            }
        }
        Err(malformed) => BatchOutcome {
            fault: error_class::BROKEN,
            connection,
            sent: true,
            error: Some(malformed),
            ..BatchOutcome::default()
        },
    }
}

/// Sends the call and awaits its reply, retrying where nothing ran. Fails the requests whose deadline passes meanwhile.
async fn execute(
    shared: &StoreState,
    route: &Route,
    batch: &mut Batch,
) -> Result<(Value, ConnectionRef), BatchOutcome> {
    let mut connection = connect(batch, route.way()).await?;
    let script = shared.script();
    let (mut whole, mut asking, mut redirects) = (false, false, 0);
    loop {
        // Connecting and redirects take time.
        batch.expire_overdue();
        let now = shared.server_time();
        let epoch = shared.epoch.as_ref().map(EpochKey::name);
        let call = batch.call(&script, whole, now, epoch);
        let reply = match asking {
            false => with_deadlines(batch, connection.query(&call)).await,
            true => with_deadlines(batch, connection.query_with_asking(&call)).await,
        };
        let error = match reply {
            None => return Err(BatchOutcome::timed_out(Some(connection))),
            Some(Ok(reply)) => return Ok((reply, connection)),
            Some(Err(error)) => error,
        };
        let again = error_class::classify(&error).again;
        if again == Some(Again::Whole) && !whole {
            whole = true;
        } else if let Some(redirect) = route.detour(&error) {
            if matches!(redirect, Redirect::Again) && batch.entries().nth(1).is_some() {
                return Err(BatchOutcome::split_batch(batch));
            }
            redirects += 1;
            if redirects > IMMEDIATE_REDIRECTS || matches!(redirect, Redirect::Again) {
                let pause = with_deadlines(batch, sleep(REDIRECT_DELAY)).await;
                pause.ok_or_else(|| BatchOutcome::timed_out(None))?;
            }
            asking = matches!(redirect, Redirect::Asking(_));
            connection = match redirect {
                Redirect::Asking(node) => connect(batch, route.way_to(&node)).await?,
                Redirect::Moved | Redirect::Again => connect(batch, route.way()).await?,
            };
        } else if again == Some(Again::Soon) {
            if with_deadlines(batch, sleep(TRYAGAIN_DELAY)).await.is_none() {
                return Err(BatchOutcome::failed(&error, connection));
            }
        } else {
            return Err(BatchOutcome::failed(&error, connection));
        }
    }
}

/// Awaits a connection.
async fn connect<T>(
    batch: &mut Batch,
    part: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, BatchOutcome> {
    let gone = with_deadlines(batch, part).await;
    gone.ok_or_else(|| BatchOutcome::timed_out(None))?
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
            ready!(batch.alarm.poll(deadline, cx));
            batch.time_out(Instant::now());
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
        let trip = send_batch(shared, route, breaker, Batch::default());
        let size = size_of_val(&trip);
        assert!(size <= 3_072, "{size} bytes");
    }
}
