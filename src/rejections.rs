//! The form of the responses to rejected requests. `respond` writes them.

/// The form of the responses to rejected requests over HTTP: see
/// [`RateLimitLayer::rejections`](crate::RateLimitLayer::rejections).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rejections {
    /// Problem details (RFC 9457), or plain text for a browser.
    #[default]
    Default,
    /// Errors as OpenAI's API has them, in JSON.
    OpenAi,
    /// Errors as Anthropic's API has them, in JSON.
    Anthropic,
}
