//! Keys and strategies as a document has them: texts that [`KeyExtractor::config_text`] and
//! [`Strategy::config_text`] write.
//!
//! [`KeyExtractor::config_text`]: crate::KeyExtractor::config_text
//! [`Strategy::config_text`]: crate::strategy::Strategy::config_text

mod key;
mod strategy;

pub(crate) use key::parse_key;
pub(crate) use strategy::parse_strategy;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
