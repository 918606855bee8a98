//! The tower layer: [`RateLimitLayer`](crate::RateLimitLayer) and its service.
//!
//! # What happens to a request
//!
//! 1. A request on a [deny list](crate::limiter::LimiterBuilder::deny) is rejected with 403. One on an allow list, a CORS preflight, and
//!    one that is [skipped](crate::limiter::LimiterBuilder::skip_path) are admitted without a charge.
//! 2. The extractor of each policy that applies finds a key in the request's head. The body isn't read.
//! 3. The limiter evaluates all policies at once, all or nothing.
//! 4. If the request is admitted, its [`Admission`](crate::Admission) is put into its extensions, and the inner service that
//!    was polled ready is called. The `RateLimit` fields are added to its response.
//! 5. If not, nothing is charged, the inner service isn't called, and the response is a rejection.
//!
//! The service's error is the inner service's own: the layer adds none. Dropping the response future before the decision
//! cancels the request, and a charge that was made nevertheless is refunded.
//!
//! # Stacked layers
//!
//! An inner layer adds its decision to the `Admission` of the outer one. If it rejects the request, the outer layers' charges
//! are refunded. Each layer adds its own fields to the response.
//!
//! # Rejections
//!
//! | reason | HTTP | gRPC |
//! |---|---|---|
//! | a quota is exhausted, or the key is banned | 429 Too Many Requests | 8 `RESOURCE_EXHAUSTED` |
//! | the request is on a deny list | 403 Forbidden | 7 `PERMISSION_DENIED` |
//! | the store failed, and the limiter [rejects](crate::OnStoreError::Reject) then, or the store is misconfigured | 503 Service Unavailable | 14 `UNAVAILABLE` |
//! | the request has no key, and the policy rejects such requests | 400 Bad Request | 3 `INVALID_ARGUMENT` |
//!
//! Over HTTP the body is problem details (RFC 9457), or plain text for a browser, whose `Accept` names text and no JSON.
//! [`rejections`](crate::RateLimitLayer::rejections) sets another form, that of a provider's API, and
//! [`on_rejection`](crate::RateLimitLayer::on_rejection) replaces the response. `Retry-After`, in whole seconds, rounded up and at
//! least 1, is on every rejection after which a retry can succeed; [`RateLimitHeaders`](crate::RateLimitHeaders) are the other
//! fields.
//!
//! A [`Rejected`](crate::Rejected) that an axum handler returns becomes the same kind of response, with the fields and text of
//! the innermost layer. The layer's charge for the request stays, unless
//! [`refund_handler_rejections`](crate::RateLimitLayer::refund_handler_rejections) is set. With feature `tonic`, the `Status` that a tonic
//! handler returns for a `Rejected` is refunded likewise, and has the layer's
//! [fixed fields](crate::RateLimitLayer::rejection_header), unless it ends a stream that has begun.
//!
//! ## gRPC
//!
//! A POST whose content type is `application/grpc`, with or without a `+format`, is a gRPC call, and so is one of gRPC-Web
//! (`application/grpc-web`, `application/grpc-web-text`). HTTP and gRPC requests on one port each get their kind of response. A
//! rejected call gets HTTP status 200 and no message, also if its method streams:
//!
//! - `grpc-status` and `grpc-message`, in a response of headers only (Trailers-Only); over gRPC-Web in the body;
//! - `grpc-retry-pushback-ms`, which clients with a retry policy follow (gRFC A6): milliseconds, rounded up; -1 if the call
//!   would never be admitted, or only after 24 days;
//! - with feature `tonic`, `grpc-status-details-bin`: a `google.rpc.Status` with `RetryInfo`, exact to the microsecond,
//!   and `QuotaFailure`, with a violation for each policy that rejected: its name as `subject` and `quota_id`, and
//!   its quota;
//! - as metadata, what an HTTP rejection has: `retry-after` and the [fields](crate::RateLimitHeaders).

pub(crate) mod body;
mod future;
#[expect(clippy::module_inception, reason = "a file for each of tower's parts")]
pub(crate) mod layer;
mod service;
mod shared;

pub use body::ResponseBody;
pub use future::ResponseFuture;
pub use service::RateLimit;

pub use crate::{headers::exposed_headers, rejections::Rejections};

/// A limiter, or a layer and its limiter.
#[cfg(any(feature = "admin", feature = "config"))]
#[derive(Clone, Debug)]
pub(crate) enum LimiterOrLayer {
    Limiter(crate::limiter::Limiter),
    Layer(crate::layer::layer::RateLimitLayer),
}

#[cfg(any(feature = "admin", feature = "config"))]
impl LimiterOrLayer {
    pub(crate) fn limiter(&self) -> &crate::limiter::Limiter {
        match self {
            Self::Limiter(limiter) => limiter,
            Self::Layer(layer) => layer.limiter(),
        }
    }
}

/// The conversions into a public type around a [`LimiterOrLayer`].
#[cfg(any(feature = "admin", feature = "config"))]
macro_rules! from_limiter_or_layer {
    ($name:ident) => {
        impl From<$crate::limiter::Limiter> for $name {
            fn from(limiter: $crate::limiter::Limiter) -> Self {
                Self($crate::layer::LimiterOrLayer::Limiter(limiter))
            }
        }

        impl From<&$crate::limiter::Limiter> for $name {
            fn from(limiter: &$crate::limiter::Limiter) -> Self {
                limiter.clone().into()
            }
        }

        impl From<$crate::layer::layer::RateLimitLayer> for $name {
            fn from(layer: $crate::layer::layer::RateLimitLayer) -> Self {
                Self($crate::layer::LimiterOrLayer::Layer(layer))
            }
        }

        impl From<&$crate::layer::layer::RateLimitLayer> for $name {
            fn from(layer: &$crate::layer::layer::RateLimitLayer) -> Self {
                layer.clone().into()
            }
        }
    };
}

#[cfg(any(feature = "admin", feature = "config"))]
pub(crate) use from_limiter_or_layer;
