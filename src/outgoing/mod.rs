//! Limits on the way out: a client that keeps to what the other side allows.
//!
//! An [`OutgoingLayer`] goes around any tower service, whatever its requests and responses are: an HTTP client such as
//! hyper-util's or reqwest's, a tonic channel, calls of a database in a
//! [`service_fn`](https://docs.rs/tower/latest/tower/fn.service_fn.html).
//!
//! ```
//! use std::{convert::Infallible, time::Duration};
//!
//! use tollgate::{Key, Limiter, OutgoingLayer, Policy, Quota, Rejected, RetryAfter};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tollgate::outgoing::BoxError> {
//! let limiter = Limiter::builder()
//!     .policy(Policy::new("geocoder", Quota::requests(5).per_second().burst(1)))
//!     .build()?;
//! let client = ServiceBuilder::new()
//!     .layer(OutgoingLayer::new(limiter).key(Key::new("our-account")).timeout(Duration::from_secs(2)))
//!     .service_fn(async |place: &'static str| Ok::<_, Infallible>(place.len()));
//!
//! // The second one waits for 200 ms.
//! assert_eq!(client.clone().oneshot("Lucca").await?, 5);
//! assert_eq!(client.clone().oneshot("Pisa").await?, 4);
//!
//! // A request that would have to wait for too long is rejected at once.
//! let hurried = OutgoingLayer::new(Limiter::builder()
//!     .policy(Policy::new("reports", Quota::requests(1).per_hour()))
//!     .build()?);
//! let reports = ServiceBuilder::new().layer(hurried).service_fn(async |()| Ok::<_, Infallible>(()));
//! reports.clone().oneshot(()).await?;
//! let error = reports.clone().oneshot(()).await.unwrap_err();
//! let rejected: &Rejected = error.downcast_ref().expect("a rejection");
//! assert!(rejected.retry_after() > RetryAfter::In(Duration::from_secs(3_500)));
//! # Ok(())
//! # }
//! ```
//!
//! # What happens to a request
//!
//! 1. The layer's [key](OutgoingLayer::key), or a [function](OutgoingLayer::key_with) of the request, says what it counts
//!    under. The policies' own extractors are for incoming requests, and are not used.
//! 2. It waits its turn, first come, first served: [`Limiter::wait`](crate::Limiter::wait) says how. Nothing is charged
//!    before it's called, and being ready takes nothing.
//! 3. The inner service is called: the one that was polled ready. One that keeps something for as long as it is ready, as
//!    a concurrency limit does, keeps it while the request waits; put such a layer outside of this one.
//! 4. If it may not pass, the inner service isn't called, and the error is a [`BoxError`] that downcasts to
//!    [`Rejected`](crate::Rejected). Every other error is the inner service's own. A client that tonic has generated makes a
//!    `Status` of it, of code `UNKNOWN`, whose `source()` is the `Rejected`.
//!
//! While the store fails, requests wait for it until their timeout, and are then rejected, unless the limiter has a
//! [setting](crate::LimiterBuilder::on_store_error) for that. An explicit [`OnStoreError::Admit`](crate::OnStoreError::Admit)
//! lets them pass at once.
//!
//! Dropped while it waits, it leaves the queue and costs nothing. Once the inner service was called, it is charged.
//!
//! # When the other side says 429
//!
//! Another service may reject a call for reasons of its own, and say in `Retry-After` when to come back. Add a
//! [block list](crate::Policy::block_list) to the policies, and [block](crate::PolicyHandle::block) the key for as long: all calls
//! under it wait, in all processes, and those whose timeout passes before that are rejected at once. A call that is repeated
//! joins the end of the queue.
//!
//! ```
//! use std::{convert::Infallible, time::Duration};
//!
//! use tollgate::{Limiter, OutgoingLayer, Policy, Quota};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tollgate::outgoing::BoxError> {
//! let limiter = Limiter::builder()
//!     .policy(Policy::new("api", Quota::requests(10).per_second().burst(1)))
//!     .policy(Policy::block_list("paused"))
//!     .build()?;
//! let paused = limiter.policy("paused")?;
//! let api = ServiceBuilder::new()
//!     .layer(OutgoingLayer::new(limiter).key("our-account").timeout(Duration::from_secs(10)))
//!     .service_fn(async |attempt: u32| Ok::<_, Infallible>(if attempt == 0 { 429 } else { 200 }));
//!
//! for attempt in 0.. {
//!     if api.clone().oneshot(attempt).await? != 429 {
//!         break;
//!     }
//!     // As long as the response's Retry-After says.
//!     paused.block("our-account", Duration::from_millis(50)).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # When it is over
//!
//! Policies that [charge](crate::Policy::charge_after) by the outcome see what is known here: that the service failed, that the
//! request was dropped, or that there is a response. They see its status if the response is one of HTTP's, and
//! [`InExtensions`] is chosen; otherwise it is 200.
//!
//! To charge what the call turned out to cost, get the request's [`Admission`](crate::Admission) by
//! [`attach`](OutgoingLayer::attach): [`AsTuple`] the response, or [`InExtensions`] of one of HTTP's. Permits of
//! in-flight limits are held until there is a response, or for as long as its admission lives.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use tollgate::{
//!     Limiter, OutgoingLayer, Policy, Quota,
//!     outgoing::AsTuple,
//! };
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tollgate::outgoing::BoxError> {
//! let limiter = Limiter::builder()
//!     .policy(Policy::new("tokens", Quota::requests(1_000).per_hour()))
//!     .build()?;
//! let model = ServiceBuilder::new()
//!     .layer(OutgoingLayer::new(limiter).cost(100).attach(AsTuple))
//!     .service_fn(async |prompt: String| Ok::<_, Infallible>(prompt.len() as u64));
//!
//! let (tokens, admission) = model.oneshot("Hello".into()).await?;
//! admission.policy("tokens")?.settle(tokens).await?;
//! assert_eq!(admission.remaining("tokens"), Some(995));
//! # Ok(())
//! # }
//! ```

pub(crate) mod attach;
mod future;
pub(crate) mod in_flight;
pub(crate) mod keys;
mod layer;
mod service;

pub use self::attach::{AsTuple, AttachAdmission, Discard, InExtensions};
pub use self::keys::{KeysFn, RequestKeys, StaticKeys};
pub use future::ResponseFuture;
pub use layer::OutgoingLayer;
pub use service::Outgoing;

/// The error of a service behind an [`OutgoingLayer`]: tower's own.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
