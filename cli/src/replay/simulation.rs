//! The run: a layer with the document's policies, on a clock that shows the time of the log.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    convert::Infallible,
    future::Future,
    num::NonZeroUsize,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use tollgate::{
    Admission, Decision, Key, Limiter, ManualClock, MemoryStore, Policy, RateLimitLayer,
    clock::Timestamp,
    layer::{RateLimit, ResponseFuture},
    limiter::{DecisionKind, LimiterBuilder},
};
use tower_layer::Layer;
use tower_service::Service;

use super::request::Entry;

/// The layer, and the requests in flight.
pub(super) struct Simulation {
    clock: ManualClock,
    store: MemoryStore,
    limiter: Limiter,
    service: RateLimit<Backend>,
    decided: Shared,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    /// How many requests were replayed.
    count: u64,
}

/// What was decided on a request.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) outcome: Outcome,
    pub(super) policies: Vec<DecidedPolicy>,
}

/// Whether a request was admitted, or why not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcome {
    #[default]
    Admitted,
    /// By the policies that say so.
    Rejected,
    /// By the policy of this index, since there was no key.
    MissingKey(usize),
    DenyListed,
    /// The store had no room for a key.
    Failed,
}

/// What a policy has decided on a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecidedPolicy {
    /// The policy's index in [`Limiter::policies`].
    pub(super) index: usize,
    pub(super) key: Key,
    /// Whether it rejects the request, or would if it were no shadow.
    pub(super) rejects: bool,
}

/// Where the service and the layer put what was decided.
type Shared = Arc<Mutex<Slot>>;

#[derive(Debug, Default)]
struct Slot {
    /// The names of the policies.
    names: Vec<String>,
    decided: Decided,
}

impl Simulation {
    /// A layer of these policies.
    pub(super) fn new(
        builder: LimiterBuilder,
        max_keys: NonZeroUsize,
    ) -> Result<Self, tollgate::ConfigError> {
        let clock = ManualClock::default();
        let store = MemoryStore::builder()
            .max_keys(max_keys)
            .clock(clock.clone())
            .build();
        let limiter = builder.store(store.clone()).build()?;
        let names = limiter
            .policies()
            .iter()
            .map(|policy| policy.name().to_owned())
            .collect();
        let decided = Shared::new(Mutex::new(Slot {
            names,
            decided: Decided::default(),
        }));
        let on_rejection = decided.clone();
        let layer = RateLimitLayer::new(limiter.clone()).on_rejection(move |rejected, _| {
            lock(&on_rejection).set(rejected.decision());
            let mut response = Response::new(http_body_util::Empty::<Bytes>::new());
            *response.status_mut() = rejected.status();
            response
        });
        let service = layer.layer(Backend {
            decided: decided.clone(),
        });
        Ok(Self {
            clock,
            store,
            limiter,
            service,
            decided,
            in_flight: BinaryHeap::new(),
            count: 0,
        })
    }

    /// The policies, in the order in which [`DecidedPolicy`] numbers them.
    pub(super) fn policies(&self) -> Vec<Policy> {
        self.limiter.policies()
    }

    /// The number of keys that the store has evicted.
    pub(super) fn evicted(&self) -> u64 {
        self.store.dropped()
    }

    /// Replays a request, after the requests that have ended before it, and calls `read` with what was decided.
    pub(super) fn replay<T>(&mut self, entry: Entry, read: impl FnOnce(&Decided) -> T) -> T {
        self.end_until(entry.at);
        self.clock.set(Timestamp::from_micros(entry.at));
        lock(&self.decided).decided.clear();
        let mut response = Box::pin(self.service.call(entry.request));
        if poll(response.as_mut()).is_pending() {
            let request = InFlight {
                order: (
                    entry.at.saturating_add(entry.duration_us.unwrap_or(0)),
                    self.count,
                ),
                response,
            };
            match entry.duration_us {
                Some(_) => self.in_flight.push(Reverse(request)),
                None => request.end(),
            }
        }
        self.count += 1;
        read(&lock(&self.decided).decided)
    }

    /// Ends the requests that end by this instant, each at its own.
    fn end_until(&mut self, at: i64) {
        while let Some(Reverse(first)) = self.in_flight.peek()
            && first.order.0 <= at
            && let Some(Reverse(first)) = self.in_flight.pop()
        {
            self.clock.set(Timestamp::from_micros(first.order.0));
            first.end();
        }
    }
}

impl Slot {
    fn set(&mut self, decision: &Decision) {
        let index_of = |name: &str| self.names.iter().position(|own| own == name);
        let decided = &mut self.decided;
        decided.outcome = match decision.kind() {
            DecisionKind::Admitted => Outcome::Admitted,
            DecisionKind::Rejected => Outcome::Rejected,
            DecisionKind::MissingKey { policy, .. } => match index_of(policy) {
                Some(index) => Outcome::MissingKey(index),
                None => Outcome::Failed,
            },
            DecisionKind::DenyListed => Outcome::DenyListed,
            _ => Outcome::Failed,
        };
        decided.policies.clear();
        for policy in decision.policies().chain(decision.shadows()) {
            let Some(index) = index_of(policy.policy()) else {
                continue;
            };
            decided.policies.push(DecidedPolicy {
                index,
                key: policy.key(),
                rejects: policy.would_reject(),
            });
        }
    }
}

impl Decided {
    fn clear(&mut self) {
        self.outcome = Outcome::default();
        self.policies.clear();
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Slot> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts in process are ready at once, so nothing has to be woken.
fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// An admitted request that has not ended, ordered by its end.
struct InFlight {
    order: (i64, u64),
    response: Pin<Box<ResponseFuture<Backend, Option<StatusCode>>>>,
}

impl InFlight {
    /// Ends the request: with the response that was logged, or by dropping it if there was none.
    fn end(mut self) {
        let Poll::Ready(Ok(response)) = poll(self.response.as_mut()) else {
            return;
        };
        let mut body = pin!(response.into_body());
        let _ = body
            .as_mut()
            .poll_frame(&mut Context::from_waker(Waker::noop()));
    }
}

impl PartialEq for InFlight {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for InFlight {}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InFlight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

/// The service behind the layer, which responds with the logged status when the request has ended.
#[derive(Clone)]
struct Backend {
    decided: Shared,
}

impl Service<Request<Option<StatusCode>>> for Backend {
    type Response = Response<LoggedBody>;
    type Error = Infallible;
    type Future = LoggedResponse;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Option<StatusCode>>) -> LoggedResponse {
        if let Some(admission) = request.extensions().get::<Admission>() {
            let mut slot = lock(&self.decided);
            for decision in admission.decisions() {
                slot.set(&decision);
            }
        }
        LoggedResponse {
            status: *request.body(),
            has_ended: false,
        }
    }
}

/// Pending when it is first polled, on arrival, and ready when the request has ended.
#[derive(Debug)]
struct LoggedResponse {
    /// `None` if it is never ready.
    status: Option<StatusCode>,
    has_ended: bool,
}

impl Future for LoggedResponse {
    type Output = Result<Response<LoggedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let has_ended = std::mem::replace(&mut self.has_ended, true);
        match self.status {
            Some(status) if has_ended => {
                let mut response = Response::new(LoggedBody);
                *response.status_mut() = status;
                Poll::Ready(Ok(response))
            }
            _ => Poll::Pending,
        }
    }
}

/// A body that is sent when it is polled.
#[derive(Debug)]
struct LoggedBody;

impl Body for LoggedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }
}
