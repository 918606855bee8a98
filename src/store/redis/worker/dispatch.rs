//! A trip: takes a batch to the server, and hands the answers out.

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
        rejection_cache::epoch_key::EpochKey,
        request::PendingRequest,
        state::StoreState,
        topology::Route,
    },
};

/// How long a lane waits before it asks again what could not be asked just now.
const TRYAGAIN_DELAY: Duration = Duration::from_millis(10);

/// Nodes of a cluster that point to each other are not asked faster than this.
const REDIRECT_DELAY: Duration = Duration::from_millis(5);

/// How often a node's word is followed without a pause.
const IMMEDIATE_REDIRECTS: usize = 3;

/// Takes a batch to the server, and hands its answers out, or tells everybody why not. No one waits past his deadline.
/// Brings the empty batch back, and questions that are to be asked again.
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
        // They had little time left when they were sent: nothing is to be learned from that.
        outcome.fault.counts = false;
    }
    if outcome.fault.counts {
        let error = || outcome.error.clone().unwrap_or(StoreError::Timeout);
        if breaker.on_failure(Instant::now(), error) {
            let error = error();
            shared.opened.then(|suppressed| {
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

/// How a trip ended.
#[derive(Default)]
struct BatchOutcome {
    fault: ErrorAction,
    /// Whether the script answered.
    answered: bool,
    /// Whether everybody's deadline has passed.
    timed_out: bool,
    connection: Option<ConnectionRef>,
    /// Whether something may have come of it.
    sent: bool,
    /// Why those who are left in the batch have no answer.
    error: Option<StoreError>,
    again: Vec<PendingRequest>,
}

impl BatchOutcome {
    /// There is no connection to be had; nothing was sent.
    fn not_connected(error: StoreError) -> Self {
        Self {
            fault: error_class::BROKEN,
            error: Some(error),
            ..Self::default()
        }
    }

    /// It may never be answered.
    fn timed_out(connection: Option<ConnectionRef>) -> Self {
        Self {
            fault: error_class::BROKEN,
            timed_out: true,
            sent: connection.is_some(),
            connection,
            ..Self::default()
        }
    }

    /// The server's own error, or a broken connection.
    fn failed(error: &RedisError, connection: ConnectionRef) -> Self {
        Self {
            fault: error_class::classify(error),
            connection: Some(connection),
            // The server's own errors prove that nothing ran.
            sent: error.code().is_none(),
            error: Some(error_class::of(error)),
            ..Self::default()
        }
    }

    /// Some of the keys are here and some elsewhere; nothing ran. Each is to be asked about by itself.
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

/// Hands a reply out.
fn handle_reply(
    shared: &StoreState,
    tag: usize,
    batch: &mut Batch,
    reply: Value,
    connection: ConnectionRef,
) -> BatchOutcome {
    let connection = Some(connection);
    // Once more, and before anybody is told: those who were judged before it may have asked since it was asked for.
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

/// There and back. While it is under way, those whose deadline passes are told so.
async fn execute(
    shared: &StoreState,
    route: &Route,
    batch: &mut Batch,
) -> Result<(Value, ConnectionRef), BatchOutcome> {
    let mut connection = connect(batch, route.way()).await?;
    let script = shared.script();
    let (mut whole, mut asking, mut redirects) = (false, false, 0);
    loop {
        // To be there, and to be turned away, takes time.
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

/// Awaits what leads to a connection.
async fn connect<T>(
    batch: &mut Batch,
    part: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, BatchOutcome> {
    let gone = with_deadlines(batch, part).await;
    gone.ok_or_else(|| BatchOutcome::timed_out(None))?
        .map_err(BatchOutcome::not_connected)
}

/// Awaits a part of a trip, telling those whose deadline passes meanwhile; `None` once it has passed for all.
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

    /// It is put on the heap for each trip.
    #[test]
    fn what_a_trip_seldom_does_makes_none_of_them_larger() {
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
