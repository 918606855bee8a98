//! The tower layer.
//!
//! # What happens to a request
//!
//! 1. A request on a [deny list](crate::LimiterBuilder::deny) gets 403. One on an allow list, a CORS preflight, and one
//!    that is [skipped](crate::LimiterBuilder::skip_path) pass, and nothing is charged.
//! 2. The extractor of each policy that applies looks for a key in the request's head. The body isn't touched.
//! 3. The limiter decides on the request under all policies at once.
//! 4. If it may pass, the [`Admission`](crate::Admission) goes into its extensions and the inner service is called:
//!    the one that was polled ready. On its response the `RateLimit` fields are added.
//! 5. If not, the inner service isn't called, nothing was charged, and the answer is a rejection.
//!
//! The error is the inner service's own: this layer has none.
//!
//! # Stacked layers
//!
//! A layer further in joins the `Admission` that it finds. If it rejects, the outer layers' charges are refunded; on
//! the response, each layer adds its own fields.
//!
//! # Rejections
//!
//! | why | HTTP | gRPC |
//! |---|---|---|
//! | a quota is used up | 429 Too Many Requests | 8 `RESOURCE_EXHAUSTED` |
//! | the store failed, and the limiter is set to [reject](crate::OnStoreError::Reject) then, or the store is misconfigured | 503 Service Unavailable | 14 `UNAVAILABLE` |
//! | there is no key, and the policy rejects such requests | 400 Bad Request | 3 `INVALID_ARGUMENT` |
//!
//! Over HTTP the body is problem details (RFC 9457), or plain text for a browser that shows a page: whose `Accept` names
//! text and no JSON. [`on_rejection`](RateLimitLayer::on_rejection) answers in your own words. `Retry-After` is on every
//! rejection that waiting helps against; [`RateLimitHeaders`](crate::RateLimitHeaders) are the other fields.
//!
//! A [`Rejected`](crate::Rejected) that an axum handler returns is answered alike, by the closest layer: with its fields, in its
//! own words, and without those of another dialect. What the layer charged the request stays charged, unless
//! [`refund_handler_rejections`](RateLimitLayer::refund_handler_rejections) is set.
//!
//! ## gRPC
//!
//! A POST whose content type is `application/grpc`, with or without a `+format`, is a gRPC call, and so is one of
//! gRPC-Web (`application/grpc-web`, `application/grpc-web-text`). HTTP and gRPC on one port each get their own kind. A
//! rejected call gets HTTP status 200 and no message, whatever its method streams:
//!
//! - `grpc-status` and `grpc-message`, in a head that is all there is (Trailers-Only); over gRPC-Web in the body;
//! - `grpc-retry-pushback-ms`, by which clients with a retry policy come back (gRFC A6): milliseconds, rounded up; -1 if
//!   the call would never pass, or in longer than 24 days;
//! - with feature `tonic`, `grpc-status-details-bin`: a `google.rpc.Status` with `RetryInfo`, exact to the microsecond,
//!   and `QuotaFailure`, with a violation for each policy that rejected: its name as `subject` and `quota_id`, and
//!   its quota;
//! - what is on an HTTP rejection too, as metadata: `retry-after` and the [fields](crate::RateLimitHeaders).

mod body;
mod future;
pub(crate) mod in_flight;
#[expect(clippy::module_inception, reason = "a file for each of tower's parts")]
mod layer;
mod service;
pub(crate) mod shared;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use service::RateLimit;
