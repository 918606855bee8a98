//! Parses the texts of strategies, such as `sliding_window buckets 10`.

use std::sync::Arc;

use crate::{
    config::{Registry, names},
    error::InvalidValue,
    setting::scan::{Scanner, Token},
    strategy::{Strategy, built_in::BUILT_IN, entry::NO_SETTINGS},
};

/// Parses the text of a strategy: a built-in one with its settings, or a registered name.
pub(crate) fn parse_strategy(
    text: &str,
    registry: &Registry,
) -> Result<Arc<dyn Strategy>, InvalidValue> {
    let mut tokens = Scanner::new("strategy", text);
    let Some(name) = tokens.peek_word() else {
        return Err(tokens.unexpected("a strategy such as gcra"));
    };
    tokens.take();
    let (strategy, settings) = match BUILT_IN.iter().find(|built_in| built_in.name() == name) {
        Some(built_in) => ((built_in.parse)(&mut tokens)?, built_in.settings),
        None => {
            let registered = registry.find_strategy(name);
            let unknown = || {
                let built_in = names::built_in_strategies();
                names::unknown("strategy", name, &built_in, registry.strategy_names())
            };
            (registered.ok_or_else(unknown)?, NO_SETTINGS)
        }
    };
    match tokens.peek() {
        Token::End => Ok(strategy),
        _ => Err(tokens.unexpected(settings)),
    }
}
