//! The parts of a document about responses.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::values::{duration, forms};

forms! {
    /// The rate-limit fields of responses: see [`RateLimitHeaders`](crate::RateLimitHeaders).
    pub enum HeadersSection, "the name of a format such as \"draft\", or a table with format, closest and jitter" {
        /// The fields of this format.
        Format(HeaderFormatSection) from text;
        /// The fields of a format, with settings.
        Settings(HeaderSettings) from table;
    }
}

/// A format of rate-limit fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HeaderFormatSection {
    /// The newest published version of the IETF's draft.
    #[default]
    Draft,
    /// Version 11 of the draft.
    #[serde(rename = "draft_11")]
    Draft11,
    /// Version 06 of the draft.
    #[serde(rename = "draft_06")]
    Draft06,
    /// `X-RateLimit-*`, with the reset in seconds from now.
    XRatelimit,
    /// `X-RateLimit-*`, with the reset in seconds since the Unix epoch.
    XRatelimitEpoch,
    /// The `x-ratelimit-*` fields of tower_governor.
    TowerGovernor,
    /// No fields.
    None,
}

/// A format of rate-limit fields, with settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct HeaderSettings {
    /// The format. Default: `draft`.
    pub format: HeaderFormatSection,
    /// Whether only the policy that is closest to its limit is described. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closest: Option<bool>,
    /// The most that is added at random to the wait of a rejection, such as `"2s"`. Default: none.
    #[serde(with = "duration", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<super::values::DurationSchema>")
    )]
    pub jitter: Option<Duration>,
}

/// The body of the response to a rejected request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RejectionSection {
    /// The text, in which `{retry_after}` is the wait in seconds and `{policy}` the name of the policy that rejected, both
    /// empty if there is none. Another word in braces is a mistake; other braces stand for themselves.
    pub body: String,
    /// The media type. Default: `text/plain; charset=utf-8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}
