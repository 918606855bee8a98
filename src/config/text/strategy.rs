//! Parses the texts of strategies, such as `sliding_window buckets 10`.

use std::sync::Arc;

use crate::{
    config::{Registry, names},
    error::InvalidValue,
    strategy::{Strategy, built_in::parse},
};

/// Parses the text of a strategy: a built-in one with its settings, or a registered name.
pub(crate) fn parse_strategy(
    text: &str,
    registry: &Registry,
) -> Result<Arc<dyn Strategy>, InvalidValue> {
    parse(text, |name| {
        let unknown = || {
            names::unknown(
                "strategy",
                name,
                &names::built_in_strategies(),
                registry.strategy_names(),
            )
        };
        registry.find_strategy(name).ok_or_else(unknown)
    })
}
