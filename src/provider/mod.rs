//! What providers of APIs say about their limits in responses, for outgoing calls that obey them.
//!
//! A [`Provider`] reads the status and the fields of a response into a [`Feedback`]: whether the call was refused, and what is
//! left of the provider's limits. It keeps no state and does no I/O; without a `Date` field it reads the system's clock. With feature `provider-json`, `gemini`, `shopify` and
//! `github_graphql` read the bodies of providers that say it there.
//!
//! ```
//! use std::time::Duration;
//!
//! use http::{Response, StatusCode};
//! use tollgate::provider::Provider;
//!
//! // The policy `rpm` counts what the provider calls requests.
//! let provider = Provider::openai().limit("requests", "rpm");
//! let response = Response::builder()
//!     .status(429)
//!     .header("retry-after-ms", "1250")
//!     .header("x-ratelimit-limit-requests", "60")
//!     .header("x-ratelimit-remaining-requests", "0")
//!     .body(())?;
//!
//! let feedback = provider.read(response.status(), response.headers());
//! assert_eq!(provider.block_time(&feedback), Some(Duration::from_millis(1_250)));
//! let requests = &feedback.limits[0];
//! assert_eq!((&*requests.name, requests.limit, requests.remaining), ("requests", Some(60), Some(0)));
//! # Ok::<(), http::Error>(())
//! ```
//!
//! # Fields
//!
//! | provider | fields | limits by name | end of the window |
//! |---|---|---|---|
//! | [`standard`](Provider::standard) | `RateLimit`, `RateLimit-Policy` as lists: `"burst";q=10;r=3;t=1` | each item's | in seconds |
//! | | `RateLimit: limit=10, remaining=3, reset=1`; `RateLimit-Limit`, `-Remaining`, `-Reset`; `X-RateLimit-Limit`, `-Remaining`, `-Reset` | `default` | in seconds; as Unix time above 10^9, in milliseconds above 10^12 |
//! | [`openai`](Provider::openai), [`azure_openai`](Provider::azure_openai) | `x-ratelimit-{limit,remaining}-NAME` | `requests`, `tokens`, `project-tokens` and others | none: buckets |
//! | [`anthropic`](Provider::anthropic) | `anthropic-ratelimit-NAME-{limit,remaining}`, `anthropic-priority-…` | `requests`, `tokens`, `input-tokens`, `output-tokens`; `priority-input-tokens` and others | none: buckets |
//! | | `anthropic-ratelimit-unified-{5h,7d}-{utilization,reset}`, `anthropic-ratelimit-unified-{status,reset}` | `unified-5h`, `unified-7d`, and `unified` of a rejected call; nothing remains at a utilization of 1, unless the status is `allowed` | in Unix time |
//! | [`github`](Provider::github) | `x-ratelimit-{limit,remaining,reset,resource}` | the resource, or `core` | in Unix time |
//! | `github_graphql` | `data.rateLimit` of the body | `graphql` | `resetAt`, an instant of RFC 3339 |
//!
//! A server that writes `X-RateLimit-Reset` for a bucket, as this crate does under [`RateLimitHeaders::x_ratelimit`](crate::RateLimitHeaders::x_ratelimit), means
//! when it is full: a policy that counts such a limit waits for that once nothing remains.
//!
//! Numbers are whole, or rounded down, and may have commas between thousands; one that is too large is the largest. A field that cannot
//! be read is [`Unread`], and changes nothing. A response that a cache has kept, whose `Age` is above 0, says nothing of limits, and the
//! time of its refusal is shortened by its age. Fields that are sent several times count once: the smallest number, and the latest end.
//!
//! # Refusals
//!
//! | provider | a call is refused by |
//! |---|---|
//! | those that read fields | 429; 503 with `Retry-After` or `retry-after-ms` |
//! | `anthropic` | `anthropic-ratelimit-unified-status: rejected` |
//! | `github` | 403 with nothing remaining or with `Retry-After` |
//! | `gemini` | 429; 503 with a time; `error.status` is `RESOURCE_EXHAUSTED`, with a `RetryInfo` or a `QuotaFailure` |
//! | `shopify` | an error with the code `THROTTLED` |
//! | `github_graphql` | an error of type `RATE_LIMITED` |
//! | `grpc`, with feature `tonic` | `grpc-status` 8 `RESOURCE_EXHAUSTED`, which also means a message that is too large, or 14 `UNAVAILABLE`, with a time, a `QuotaFailure`, an `ErrorInfo` of a limit or `x-envoy-ratelimited` |
//!
//! The time is the first that is there and not zero:
//!
//! 1. `retry-after-ms` in milliseconds; then `Retry-After` in seconds or as a date. Both may have decimals. Over gRPC, before these,
//!    `grpc-retry-pushback-ms`, then the `RetryInfo` of `grpc-status-details-bin`; in bodies Gemini's `retryDelay`, and the time in
//!    which Shopify restores the points that the query requests.
//! 2. The latest end of a window of which nothing remains. When a bucket is *full* again says nothing about the next call,
//!    so it is not read.
//! 3. [`Provider::default_block`].
//!
//! # Sources
//!
//! `Retry-After`: RFC 9110, 10.2.3. `RateLimit`: draft-ietf-httpapi-ratelimit-headers-11, and for the older forms its drafts 03 to
//! 09; structured fields: RFC 9651. gRPC: its HTTP/2 protocol, gRFC A6 and `google/rpc/error_details.proto`. OpenAI,
//! Anthropic, Gemini, GitHub and Shopify: the pages about rate limits of their documentation, and the retries of OpenAI's and
//! Anthropic's SDKs; the fields of Anthropic's plans are not documented.

mod anthropic;
#[cfg(feature = "provider-json")]
mod body;
mod feedback;
mod github;
#[cfg(feature = "tonic")]
mod grpc;
mod openai;
#[expect(clippy::module_inception, reason = "the type of this name")]
mod provider;
mod reading;
mod standard;
#[cfg(test)]
mod tests;
mod text;

#[cfg(feature = "provider-json")]
pub use body::{gemini, github_graphql, shopify};
pub use feedback::{Feedback, Refusal, ReportedLimit, Unread};
pub use provider::Provider;
