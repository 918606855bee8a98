//! The run: a layer with the document's policies, on a clock that shows the time of the log.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::{Future, pending, poll_fn},
    num::NonZeroUsize,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use http_body_util::Empty;
use tollgate::{
    Admission, ConfigError, Decision, Limiter, ManualClock, MemoryStore, Policy, RateLimitLayer,
    clock::Timestamp, layer::ResponseBody, limiter::LimiterBuilder,
};
use tower::{Layer, Service, service_fn, util::BoxService};

use super::request::{Entry, Request};

type LoggedResponse = Response<ResponseBody<Empty<Bytes>>>;

/// The layer, and the requests in flight.
pub(super) struct Simulation {
    clock: ManualClock,
    store: MemoryStore,
    limiter: Limiter,
    service: BoxService<Request, LoggedResponse, Infallible>,
    decided: Decided,
    /// By their end, and the number of the request.
    in_flight: BTreeMap<(i64, u64), InFlight>,
    count: u64,
}

/// Where the layer puts the decision on the request that it is called with.
type Decided = Arc<Mutex<Option<Decision>>>;

type InFlight = Pin<Box<dyn Future<Output = Result<LoggedResponse, Infallible>> + Send>>;

impl Simulation {
    /// A layer of these policies.
    pub(super) fn new(
        builder: LimiterBuilder,
        max_keys: NonZeroUsize,
    ) -> Result<Self, ConfigError> {
        let clock = ManualClock::default();
        let store = MemoryStore::builder()
            .max_keys(max_keys)
            .clock(clock.clone())
            .build();
        let limiter = builder.store(store.clone()).build()?;
        let decided = Decided::default();
        let (rejected, admitted) = (decided.clone(), decided.clone());
        let layer = RateLimitLayer::new(limiter.clone()).on_rejection(move |rejection, _| {
            set(&rejected, rejection.decision());
            let mut response = Response::new(Empty::<Bytes>::new());
            *response.status_mut() = rejection.status();
            response
        });
        let backend = service_fn(move |request: Request| {
            let admission = request.extensions().get::<Admission>();
            for decision in admission.iter().flat_map(|admission| admission.decisions()) {
                set(&admitted, &decision);
            }
            respond(*request.body())
        });
        Ok(Self {
            clock,
            store,
            limiter,
            service: BoxService::new(layer.layer(backend)),
            decided,
            in_flight: BTreeMap::new(),
            count: 0,
        })
    }

    pub(super) fn policies(&self) -> Vec<Policy> {
        self.limiter.policies()
    }

    /// The number of keys that the store has evicted.
    pub(super) fn evicted(&self) -> u64 {
        self.store.dropped()
    }

    /// Replays a request, after the ends of requests before it. Returns the decision; `None` if no policy applied.
    pub(super) fn replay(&mut self, entry: Entry) -> Option<Decision> {
        while let Some(first) = self.in_flight.first_entry()
            && first.key().0 <= entry.arrived_us
        {
            self.clock.set(Timestamp::from_micros(first.key().0));
            end(first.remove());
        }
        self.clock.set(Timestamp::from_micros(entry.arrived_us));
        let mut response = self.service.call(entry.request);
        if poll(response.as_mut()).is_pending() {
            self.count += 1;
            let ends_us = entry.arrived_us.saturating_add(entry.duration_us);
            self.in_flight.insert((ends_us, self.count), response);
        }
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        decided.take()
    }
}

fn set(decided: &Decided, decision: &Decision) {
    let mut decided = decided.lock().unwrap_or_else(PoisonError::into_inner);
    *decided = Some(decision.clone());
}

/// The service behind the layer: pending when it is first polled, on arrival, and ready with the logged status when the request
/// has ended. Without a status it is never ready.
async fn respond(status: Option<StatusCode>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let mut has_arrived = false;
    poll_fn(|_| {
        if std::mem::replace(&mut has_arrived, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    let Some(status) = status else {
        return pending().await;
    };
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    Ok(response)
}

/// Ends a request: with the response that was logged, or by dropping it if there was none.
fn end(mut request: InFlight) {
    if let Poll::Ready(Ok(response)) = poll(request.as_mut()) {
        let body = pin!(response.into_body());
        let _ = body.poll_frame(&mut Context::from_waker(Waker::noop()));
    }
}

/// Counts in process are ready at once, so nothing has to be woken.
fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
