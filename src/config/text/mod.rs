//! Keys, strategies and durations as a document has them: texts that [`KeyExtractor::config_text`] and
//! [`Strategy::config_text`] write.
//!
//! [`KeyExtractor::config_text`]: crate::KeyExtractor::config_text
//! [`Strategy::config_text`]: crate::strategy::Strategy::config_text

use std::time::Duration;

use crate::{error::InvalidValue, quota::DurationText};

mod key;
mod scan;
mod strategy;

pub(crate) use key::parse_key;
pub(crate) use strategy::parse_strategy;

/// Parses a duration such as `50ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, InvalidValue> {
    let expected = "a duration such as \"50ms\", \"2s\", \"10min\" or \"1day\"";
    let duration = text.parse::<DurationText>();
    duration
        .map(|DurationText(duration)| duration)
        .map_err(|problem| InvalidValue::new(format!("the duration {text:?}: {problem}"), expected))
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
