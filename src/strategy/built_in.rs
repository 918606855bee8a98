//! The strategies of this library.

use std::{any::Any, sync::Arc};

use super::{
    Rule, Strategy,
    entry::{BuiltIn, NO_SETTINGS},
};
use crate::{
    error::InvalidValue,
    scan::{Scanner, Token},
};

/// The strategies, in the order in which they are suggested.
pub(crate) const BUILT_IN: &[BuiltIn] = &[
    super::Gcra::BUILT_IN,
    super::TokenBucket::BUILT_IN,
    super::FixedWindow::BUILT_IN,
    super::CalendarWindow::BUILT_IN,
    super::ListWindow::BUILT_IN,
    super::SlidingWindow::BUILT_IN,
    super::SlidingLog::BUILT_IN,
    super::Concurrency::BUILT_IN,
    super::Ban::BUILT_IN,
];

/// Parses the text of a strategy, such as `sliding_window buckets 10`: of a built-in one with its settings, or a name for `find_other`.
pub(crate) fn parse(
    text: &str,
    find_other: impl FnOnce(&str) -> Result<Arc<dyn Strategy>, InvalidValue>,
) -> Result<Arc<dyn Strategy>, InvalidValue> {
    let mut tokens = Scanner::new("strategy", text);
    let Some(name) = tokens.peek_word() else {
        return Err(tokens.unexpected("a strategy such as gcra"));
    };
    tokens.take();
    let (strategy, settings) = match BUILT_IN.iter().find(|built_in| built_in.name() == name) {
        Some(built_in) => ((built_in.parse)(&mut tokens)?, built_in.settings),
        None => (find_other(name)?, NO_SETTINGS),
    };
    match tokens.peek() {
        Token::End => Ok(strategy),
        _ => Err(tokens.unexpected(settings)),
    }
}

/// The texts of the strategies.
pub(crate) fn texts() -> Vec<&'static str> {
    BUILT_IN.iter().map(|strategy| strategy.text).collect()
}

impl BuiltIn {
    /// The strategy that a rule is of; `None` for one of the application.
    pub(crate) fn of(rule: &dyn Rule) -> Option<&'static Self> {
        let rule: &dyn Any = rule;
        let rule = rule.type_id();
        BUILT_IN.iter().find(|strategy| (strategy.rule)() == rule)
    }

    /// The letter of its state format.
    fn letter(&self) -> Option<char> {
        self.state_format.chars().next()
    }
}

/// Whether `text` has the form of a state format: a lowercase letter and a digit. No part of a prefix has it, so that a key in Redis
/// can be read in one way only.
pub(crate) fn is_state_format(text: &str) -> bool {
    matches!(text.as_bytes(), [b'a'..=b'z', b'0'..=b'9'])
}

/// Checks the form of a rule's state format, and that its letter is not one of a built-in strategy, in use or not.
pub(crate) fn check_state_format(rule: &dyn Rule) -> Result<(), InvalidValue> {
    if BuiltIn::of(rule).is_some() {
        return Ok(());
    }
    let text = rule.info().state_format;
    let mut reserved: Vec<_> = BUILT_IN.iter().filter_map(BuiltIn::letter).collect();
    if is_state_format(text) && !text.starts_with(&*reserved) {
        return Ok(());
    }
    reserved.sort_unstable();
    let reserved = String::from_iter(reserved);
    Err(InvalidValue::new(
        format!("the state format {text:?} of {rule:?}"),
        format!(
            "a lowercase letter and a digit; letters of built-in formats are reserved: {reserved}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{quota::Quota, strategy::Terms};

    impl BuiltIn {
        /// The strategy without settings that it need not have, and with durations of a day.
        pub(crate) fn example(&self) -> Arc<dyn Strategy> {
            let text = self.text.replace("DURATION", "1day");
            let mut tokens = Scanner::new("strategy", &text);
            tokens.take();
            (self.parse)(&mut tokens).expect("a strategy")
        }

        /// A rule of its [example](BuiltIn::example), of so many units per hour or permits.
        pub(crate) fn example_rule(&self, units: u64) -> Arc<dyn Rule> {
            let (strategy, terms) = (self.example(), Terms::default());
            let per_hour = strategy.bind(&Quota::requests(units).per_hour(), &terms);
            let rule = per_hour.or_else(|_| strategy.bind(&Quota::concurrent(units), &terms));
            rule.expect("a rule")
        }
    }

    #[test]
    fn a_strategy_says_of_itself_what_its_rules_and_texts_say() {
        for strategy in BUILT_IN {
            let (rule, text) = (strategy.example_rule(10), strategy.text);
            assert_eq!(rule.info().state_format, strategy.state_format, "{text}");
            let own = BuiltIn::of(&*rule).expect(text);
            assert_eq!(own.text, text);
            let written = strategy.example().config_text().expect(text).into_owned();
            assert!(written.starts_with(strategy.name()), "{written}");
        }
    }

    #[test]
    fn each_strategy_has_a_letter_of_its_own() {
        let mut letters: Vec<_> = BUILT_IN.iter().filter_map(BuiltIn::letter).collect();
        letters.sort_unstable();
        letters.dedup();
        assert_eq!(letters.len(), BUILT_IN.len());
        for strategy in BUILT_IN {
            assert!(is_state_format(strategy.state_format), "{}", strategy.text);
        }
    }

    #[test]
    fn a_state_format_is_a_lowercase_letter_and_a_digit() {
        for text in ["g2", "a0", "z9"] {
            assert!(is_state_format(text), "{text}");
        }
        for text in ["", "g", "2", "G2", "2g", "gg", "g22", "é2", "g:", "tg"] {
            assert!(!is_state_format(text), "{text}");
        }
    }
}
