//! What a document says of a layer's responses.

use serde::Deserialize;

use crate::{
    config::forms::{duration_text, forms},
    rejections::Rejections,
};

forms! {
    /// The rate-limit fields of responses.
    pub enum HeadersSection, "the name of a format such as \"draft\", or a table with format and settings" {
        /// The fields of this format.
        Format(HeaderFormatSection) from text;
        /// The fields of a format, with settings.
        Settings(HeaderSettingsSection) from table;
    }
}

/// A format of rate-limit fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HeaderFormatSection {
    /// The newest published version of the IETF's draft.
    #[default]
    Draft,
    /// `X-RateLimit-*`, with the reset in seconds from now.
    XRatelimit,
    /// The `x-ratelimit-*-requests` and `x-ratelimit-*-tokens` fields of OpenAI, of the policies `requests` and `tokens`.
    #[serde(rename = "openai")]
    OpenAi,
    /// The `anthropic-ratelimit-*` fields of Anthropic, of the policies `requests`, `tokens`, `input_tokens` and `output_tokens`.
    Anthropic,
    /// No fields.
    None,
}

/// A format of rate-limit fields, with settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct HeaderSettingsSection {
    /// The format. Default: `draft`.
    pub format: HeaderFormatSection,
    /// The most that is added at random to the wait of a rejection, such as `"2s"`. Default: none.
    #[serde(deserialize_with = "duration_text")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<crate::config::forms::DurationSchema>")
    )]
    pub jitter: Option<String>,
    /// The policy of the `requests` fields of `openai` and `anthropic`. Default: none, without these fields.
    pub requests: Option<String>,
    /// The policy of the `tokens` fields of `openai` and `anthropic`. Default: none, without these fields.
    pub tokens: Option<String>,
    /// The policy of the `input-tokens` fields of `anthropic`. Default: none, without these fields.
    pub input_tokens: Option<String>,
    /// The policy of the `output-tokens` fields of `anthropic`. Default: none, without these fields.
    pub output_tokens: Option<String>,
}

/// The form of the responses to rejected requests over HTTP: see `RateLimitLayer::rejections`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RejectionsSection {
    /// Problem details (RFC 9457), or plain text for a browser.
    Default,
    /// Errors as OpenAI's API has them, in JSON.
    #[serde(rename = "openai")]
    OpenAi,
    /// Errors as Anthropic's API has them, in JSON.
    Anthropic,
}

impl From<RejectionsSection> for Rejections {
    fn from(document: RejectionsSection) -> Self {
        match document {
            RejectionsSection::Default => Self::Default,
            RejectionsSection::OpenAi => Self::OpenAi,
            RejectionsSection::Anthropic => Self::Anthropic,
        }
    }
}

/// The text of the responses to rejected requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RejectionSection {
    /// The text, in which `{retry_after}` is the wait in seconds and `{policy}` the name of the policy that rejected, both empty
    /// if there is none. Another word in braces is a mistake; other braces stand for themselves.
    pub body: String,
    /// The media type. Default: `text/plain; charset=utf-8`.
    pub content_type: Option<String>,
}
