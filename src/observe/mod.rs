//! Observers, which receive what a limiter does: decisions, calls of the store, and changes of state.
//!
//! An [`Observer`] is set by [`LimiterBuilder::observe`](crate::limiter::LimiterBuilder::observe). It counts, samples or forwards what
//! happens in this process; gauges are read from [`Limiter::stats`](crate::Limiter::stats), whenever they are needed.
//!
//! ```
//! use std::sync::{Arc, atomic::{AtomicU64, Ordering::Relaxed}};
//! use tollgate::{
//!     Limiter, Policy, Quota,
//!     observe::{DecisionEvent, DecisionOutcome, Observer},
//! };
//!
//! #[derive(Debug, Default)]
//! struct Counts {
//!     admitted: AtomicU64,
//!     rejected: AtomicU64,
//! }
//!
//! impl Observer for Counts {
//!     fn on_decision(&self, event: &DecisionEvent<'_>) {
//!         for (outcome, requests) in event.outcomes() {
//!             match outcome {
//!                 DecisionOutcome::Admitted => self.admitted.fetch_add(requests, Relaxed),
//!                 DecisionOutcome::Rejected => self.rejected.fetch_add(requests, Relaxed),
//!                 _ => 0,
//!             };
//!         }
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let counts = Arc::new(Counts::default());
//! let limiter = Limiter::builder()
//!     .policy(Policy::new("api", Quota::requests(5).per_minute()))
//!     .observe(counts.clone())
//!     .build()?;
//! // Five of these eight requests are admitted.
//! assert_eq!(limiter.check("alice").times(8).await.admitted(), 5);
//! assert!(limiter.admit("alice").await.is_err());
//! assert_eq!((counts.admitted.load(Relaxed), counts.rejected.load(Relaxed)), (5, 4));
//! # Ok::<(), tollgate::ConfigError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is reported
//!
//! Each request has one [`DecisionEvent`], however it ends: requests by a layer, by [`check`](crate::Limiter::check) and
//! [`admit`](crate::Limiter::admit), and those that [wait](crate::Limiter::wait), once when the waiting ends. A request that is
//! dropped before its decision is [`Cancelled`](DecisionOutcome::Cancelled); a future that is dropped before its first poll made none.
//! So the requests of all outcomes together are the requests that were made. Calls that are no requests, such as [`peek`](crate::Limiter::peek) and
//! [`reset`](crate::Limiter::reset), have none.
//!
//! Events identify callers by their [`Key`](crate::Key), which is a hash where the policy's extractor is secret, and otherwise
//! holds what applications and the store see too. They hold nothing else of a request.
//!
//! # Cost
//!
//! Without an observer a request takes one more branch. With one, the observer is called where the request runs. The status
//! under each policy is computed when the observer reads it.

/// Public for [`Observer::counts`], and can't be named outside.
#[cfg(any(feature = "admin", feature = "metrics"))]
#[cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "the admin API shows some of them")
)]
pub(crate) mod counts;
mod decision;
mod event;
mod observers;
#[cfg(feature = "redis")]
mod shared_observers;
mod stats;

use std::fmt;

#[cfg(feature = "redis")]
pub(crate) use self::shared_observers::SharedObservers;
pub(crate) use self::{decision::EventStatus, observers::Observers};
pub use self::{
    decision::{
        DecisionEvent, DecisionOutcome, DecisionSource, NEAR_PERCENT, PolicyEvent, PolicyEvents,
        PolicyEventsIter, PolicyKind, PolicyResult,
    },
    event::{Event, StoreCallEvent, StoreCallResult, UnitsEvent, UnitsKind},
    stats::{
        BreakerState, LeaseStats, LimiterStats, NodeStats, PolicyStats, ShadowStats, StatsHandle,
        StoreStats,
    },
};

/// Receives what a limiter does.
///
/// The methods are called where things happen: on request paths, in destructors, on the thread `tollgate-events` of the stores on Redis; on any thread, also
/// outside of a runtime. They must not block, and should return fast. No lock is held that several requests take. Each method does
/// nothing unless it is implemented.
///
/// # Panics
///
/// A panic of an observer is caught and logged, at most every 10 s. It changes no decision and no count, and the other observers
/// are called. (In a program that is built with `panic = "abort"` it ends the process.)
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// A request was decided, or was dropped before it was.
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let _ = event;
    }

    /// Units were charged, refunded or settled after a request's decision, or by hand. What a request is charged on arrival is in
    /// its [decision](PolicyEvent::charged).
    fn on_units(&self, event: &UnitsEvent<'_>) {
        let _ = event;
    }

    /// The store was called: once for each round trip to a server, which may have the operations of many requests. Counting in
    /// process has none.
    fn on_store_call(&self, event: &StoreCallEvent<'_>) {
        let _ = event;
    }

    /// The state of the limiter or of its store has changed.
    fn on_event(&self, event: &Event<'_>) {
        let _ = event;
    }

    /// Counts in which the limiter counts admitted requests itself, in place of [`on_decision`](Self::on_decision): those that
    /// are not timed, if all observers have counts.
    #[cfg(any(feature = "admin", feature = "metrics"))]
    #[doc(hidden)]
    fn counts(&self) -> Option<&counts::Counts> {
        None
    }
}
