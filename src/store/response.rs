//! Responses of a store.

#[cfg(feature = "redis")]
use std::sync::Arc;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use smallvec::SmallVec;
#[cfg(feature = "redis")]
use tokio::runtime;

use crate::{clock::Timestamp, error::StoreError, strategy::Snapshot};

/// A store's answer, at once or later.
#[must_use]
pub enum StoreResponse {
    /// Known at once.
    Ready(Result<OpResult, StoreError>),
    /// Being asked for. Dropping it withdraws the question; what it had charged is given back.
    Pending(PendingResponse),
}

impl StoreResponse {
    /// What a future will answer.
    pub fn pending(
        answer: impl Future<Output = Result<OpResult, StoreError>> + Send + 'static,
    ) -> Self {
        Self::Pending(PendingResponse(Pending::Boxed(Box::pin(answer))))
    }
}

/// An answer that is being asked for.
#[must_use = "dropping it withdraws the question"]
pub struct PendingResponse(Pending);

enum Pending {
    Boxed(Pin<Box<dyn Future<Output = Result<OpResult, StoreError>> + Send>>),
    #[cfg(feature = "redis")]
    Shared(SharedResponse),
}

/// The response that a shared request will get.
#[cfg(feature = "redis")]
struct SharedResponse {
    /// None once the response was returned.
    request: Option<Arc<dyn PollResponse>>,
    /// The runtime that it was polled on last, or is sent from if it was not polled.
    runtime: Option<runtime::Id>,
}

/// A request of a store that other tasks share, and that its response is read from without an allocation of its own.
#[cfg(feature = "redis")]
pub(crate) trait PollResponse: Send + Sync {
    /// Returns the response, or the request itself, which is to be polled again when the waker was called. `runtime` is the
    /// runtime that it was polled on last, and becomes the one at hand.
    fn poll_response(
        self: Arc<Self>,
        cx: &Context<'_>,
        runtime: &mut Option<runtime::Id>,
    ) -> Result<Result<OpResult, StoreError>, Arc<dyn PollResponse>>;

    /// Cancels the request: its response will not be read.
    fn cancel(self: Arc<Self>);
}

impl PendingResponse {
    /// A response that is known.
    pub(crate) fn ready(response: Result<OpResult, StoreError>) -> Self {
        Self(Pending::Boxed(Box::pin(std::future::ready(response))))
    }

    /// The response of a shared request, which is sent from `runtime`.
    #[cfg(feature = "redis")]
    pub(crate) fn shared(request: Arc<dyn PollResponse>, runtime: Option<runtime::Id>) -> Self {
        Self(Pending::Shared(SharedResponse {
            request: Some(request),
            runtime,
        }))
    }
}

impl Future for PendingResponse {
    type Output = Result<OpResult, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Pending::Boxed(response) => response.as_mut().poll(cx),
            #[cfg(feature = "redis")]
            Pending::Shared(shared) => shared.poll(cx),
        }
    }
}

#[cfg(feature = "redis")]
impl SharedResponse {
    #[inline]
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<OpResult, StoreError>> {
        let Some(request) = self.request.take() else {
            return Poll::Pending;
        };
        match request.poll_response(cx, &mut self.runtime) {
            Ok(response) => Poll::Ready(response),
            Err(request) => {
                self.request = Some(request);
                Poll::Pending
            }
        }
    }
}

#[cfg(feature = "redis")]
impl Drop for SharedResponse {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.cancel();
        }
    }
}

impl fmt::Debug for PendingResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingResponse").finish_non_exhaustive()
    }
}

impl fmt::Debug for StoreResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Self::Pending(_) => f.debug_tuple("Pending").finish_non_exhaustive(),
        }
    }
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The store counted.
    Store,
    /// A denial that the store gave before, and that still holds.
    RejectionCache,
    /// Not from the store, which could not answer: what the limiter was told to do then.
    Fallback,
    /// Nothing was asked: no policy applied, one found no key, or a list allows or denies it.
    NotChecked,
}

/// What a store answers.
#[derive(Clone, Debug)]
pub struct OpResult {
    /// How many requests of a [`Acquire`](Op::Acquire) were charged.
    pub admitted: u64,
    /// The instant it was judged at, on the store's clock.
    pub at: Timestamp,
    /// How long ago that is at least: zero, but from the [cache](DecisionSource::RejectionCache).
    pub age: Duration,
    /// How many equal requests were admitted at the same instant after this one. What the lines saw is after these.
    pub admitted_after: u64,
    /// Where the answer came from.
    pub source: DecisionSource,
    /// One for each line, in order.
    pub counters: SmallVec<[CounterResult; 1]>,
}

/// What a store answers about one line.
#[derive(Clone, Copy, Debug)]
pub struct CounterResult {
    /// How many units were charged ([`Acquire`](Op::Acquire), [`ForceAcquire`](Op::ForceAcquire)), given back ([`Refund`](Op::Refund)) or renewed.
    pub units: u64,
    /// The key's state after it, or before a [`Reset`](Op::Reset).
    pub snapshot: Snapshot,
    /// How much later than [the answer's instant](OpResult::at) it was judged, in microseconds, by its own clock: several keys
    /// may be on several servers, and a rule may [follow the wall clock](Rule::follows_wall_clock).
    pub clock_skew_us: i64,
}

impl OpResult {
    /// The instant at which a line was judged.
    pub(crate) fn at_line(&self, line: &CounterResult) -> Timestamp {
        self.at.shifted(line.clock_skew_us)
    }
}

impl CounterResult {
    /// What became of a line.
    pub const fn of(units: u64, snapshot: Snapshot) -> Self {
        Self {
            units,
            snapshot,
            clock_skew_us: 0,
        }
    }
}
