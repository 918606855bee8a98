//! The keys of documents in both formats, and how they are read from YAML.

use serde::Deserialize;
use serde_json::{Map, Value};
use serde_saphyr::{
    Error, Location, MessageFormatter, Options, Spanned, UserMessageFormatter, budget,
    budget::BudgetBreach, options,
};

use super::mistake::quoted;

/// The largest file, in bytes.
pub(super) const MAX_BYTES: usize = 4 << 20;

/// The most lists and maps that a value is within, once aliases are replaced by what they stand for.
const MAX_DEPTH: usize = 64;

/// The most values of a file, keys among them, once aliases are replaced.
const MAX_VALUES: usize = 1 << 18;

/// The most bytes of texts of a file, once aliases are replaced.
const MAX_TEXT_BYTES: usize = 2 * MAX_BYTES;

/// The rules of a domain.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) format: Option<Spanned<String>>,
    pub(super) domain: Option<Spanned<String>>,
    pub(super) descriptors: Option<Vec<Spanned<Rule>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) key: Option<Spanned<String>>,
    pub(super) value: Option<Spanned<String>>,
    /// In the reference format.
    pub(super) rate_limit: Option<Spanned<RateLimit>>,
    /// In tollgate's format.
    pub(super) limits: Option<Spanned<Vec<Spanned<Limit>>>>,
    pub(super) shadow_mode: Option<bool>,
    pub(super) quota_mode: Option<bool>,
    pub(super) detailed_metric: Option<bool>,
    pub(super) value_to_metric: Option<bool>,
    pub(super) share_threshold: Option<Spanned<bool>>,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) descriptors: Option<Vec<Spanned<Rule>>>,
}

/// A limit in the reference format.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    pub(super) unit: Option<Spanned<String>>,
    pub(super) requests_per_unit: Option<u32>,
    pub(super) unlimited: Option<bool>,
    pub(super) name: Option<Spanned<String>>,
    pub(super) replaces: Option<Vec<Spanned<Replaced>>>,
}

/// A limit that another one replaces.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replaced {
    pub(super) name: Option<Spanned<String>>,
}

/// A limit in tollgate's format.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    pub(super) name: Option<Spanned<String>>,
    pub(super) quota: Option<Spanned<String>>,
    pub(super) strategy: Option<Spanned<String>>,
    pub(super) calendar: Option<Spanned<bool>>,
    pub(super) on_reject: Option<Spanned<String>>,
    pub(super) independent: Option<Spanned<bool>>,
    pub(super) unlimited: Option<bool>,
    pub(super) replaces: Option<Vec<Spanned<String>>>,
}

/// Reads the documents of a file's text, without those that are empty. An error is the first mistake, and where it is.
pub(super) fn parse(text: &str) -> Result<Vec<Spanned<Document>>, (Location, String)> {
    if text.len() > MAX_BYTES {
        return Err((Location::UNKNOWN, too_large()));
    }
    serde_saphyr::from_multiple_with_options(text, yaml()).map_err(|error| {
        (
            error.location().unwrap_or(Location::UNKNOWN),
            message(&error),
        )
    })
}

/// Where a value is, if there is one.
pub(super) fn location_of<T>(value: Option<&Spanned<T>>) -> Option<Location> {
    value.map(|value| value.defined)
}

/// The message for a file that is too large.
pub(super) fn too_large() -> String {
    format!("the file is too large; expected at most {MAX_BYTES} bytes")
}

/// Whether a plain scalar is read as its text, and not as a number, a boolean or null.
pub(super) fn is_string(scalar: &str) -> bool {
    let value = serde_saphyr::from_str_with_options(scalar, yaml());
    matches!(value, Ok(Value::String(text)) if text == scalar)
}

/// YAML 1.1, as the reference server reads it, within bounds.
fn yaml() -> Options {
    options! {
        budget: budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_VALUES,
            max_documents: MAX_VALUES,
            max_total_scalar_bytes: MAX_TEXT_BYTES,
            // A list or map begins and ends.
            max_events: 2 * MAX_VALUES,
            max_recorded_anchor_events: 2 * MAX_VALUES,
            enforce_alias_anchor_ratio: false,
        },
        legacy_octal_numbers: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// What is wrong, and what was expected.
fn message(error: &Error) -> String {
    match error {
        Error::AliasError { error, .. } => message(error),
        Error::SerdeUnknownField {
            field, expected, ..
        } => {
            let (field, expected) = (quoted(field), expected.join(", "));
            format!("unknown key {field}; expected one of {expected}")
        }
        Error::DuplicateMappingKey { key, .. } => {
            let key = quoted(key.as_deref().unwrap_or_default());
            format!("the key {key} for a second time; expected each key once")
        }
        Error::ExternalMessage { msg, .. } => format!("invalid YAML: {msg}"),
        Error::Unexpected { expected, .. } => match *expected {
            "mapping start" => "expected a map".to_owned(),
            "sequence start" => "expected a list".to_owned(),
            _ => "expected a single value".to_owned(),
        },
        Error::InvalidScalar { ty: "boolean", .. } => "expected true or false".to_owned(),
        Error::InvalidScalar { ty: "u32", .. } => {
            format!("expected a number from 0 to {}", u32::MAX)
        }
        Error::NonFiniteFloat { value, .. } => {
            format!("{}; expected a number that JSON has", quoted(value))
        }
        Error::UnsupportedTag { tag, .. } => {
            format!("the tag {}; expected a value without a tag", quoted(tag))
        }
        Error::Budget {
            breach: BudgetBreach::Depth { .. },
            ..
        } => format!(
            "too many lists and maps within each other; expected at most {MAX_DEPTH} levels"
        ),
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => format!(
            "too many values with aliases expanded; expected at most {MAX_VALUES} values and {MAX_TEXT_BYTES} bytes of text"
        ),
        _ => UserMessageFormatter.format_message(error).into_owned(),
    }
}
