//! The tower layer.
//!
//! # What happens to a request
//!
//! 1. Each policy's extractor looks for a key in the request's head. The body isn't touched.
//! 2. The limiter judges the request under all policies at once.
//! 3. If it may pass, the [`Admission`](crate::Admission) goes into its extensions and the inner service is called:
//!    the one that was polled ready. On its response the `RateLimit` fields are added.
//! 4. If not, the inner service isn't called. The answer is 429 (503 if the store is at fault and the limiter was told
//!    to refuse then, 400 if there is no key) with problem details; nothing was charged.
//!
//! The error is the inner service's own: this layer has none.
//!
//! # Stacked layers
//!
//! A layer further in joins the `Admission` that it finds. If it refuses, the outer layers' charges are given back; on
//! the response, each layer adds its own fields.

mod body;
mod future;
#[expect(clippy::module_inception, reason = "a file for each of tower's parts")]
mod layer;
mod service;
mod ticket;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use layer::{RateLimitLayer, RateLimitLayerBuilder};
pub use service::RateLimit;
