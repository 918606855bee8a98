//! The form of the responses to rejected requests. `respond` writes them.

use serde::{Deserialize, Serialize};

/// The form of the responses to rejected requests over HTTP: see
/// [`RateLimitLayer::rejections`](crate::RateLimitLayer::rejections).
///
/// | | quota exceeded, ban: 429 | deny list: 403 | missing key: 400 | store failure: 503 |
/// |---|---|---|---|---|
/// | `Default` | problem details | problem details | problem details | problem details |
/// | `OpenAi`: `error.type` | `tokens` for a policy that the [headers](crate::RateLimitHeaders::tokens) name so, `requests` for others; `error.code` is `rate_limit_exceeded` | `invalid_request_error` | `invalid_request_error` | `server_error` |
/// | `Anthropic`: `error.type` | `rate_limit_error` | `permission_error` | `invalid_request_error` | `overloaded_error` |
///
/// The message says what problem details say, and the wait in seconds.
///
/// In the form of a provider a rejection has two more fields, which the official SDKs of both read:
///
/// - `retry-after-ms`, the wait in milliseconds, rounded up, beside `Retry-After`, which has whole seconds;
/// - `x-should-retry: false`, if a retry never succeeds, or only after more than 60 s. These SDKs ignore a longer wait, and
///   would retry in less than a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rejections {
    /// Problem details (RFC 9457), or plain text for a browser.
    #[default]
    Default,
    /// Errors as OpenAI's API has them, in JSON.
    #[serde(rename = "openai")]
    OpenAi,
    /// Errors as Anthropic's API has them, in JSON.
    Anthropic,
}
