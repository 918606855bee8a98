//! The state formats of the built-in strategies, which no other strategy may use.

use std::{
    any::{Any, TypeId},
    sync::LazyLock,
    time::Duration,
};

use super::{
    Ban, CalendarWindow, Concurrency, FixedWindow, Gcra, ListWindow, Rule, SlidingLog,
    SlidingWindow, Strategy, Terms, TokenBucket,
};
use crate::{error::InvalidValue, quota::Quota};

/// The type of a built-in strategy's rule, and its state format.
struct Format {
    rule: TypeId,
    text: &'static str,
    family: Family,
}

/// What built-in strategies count, and so what becomes of it under another quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// The time until all units are back.
    EvenRate,
    /// The units of a window that a request opens.
    Window,
    CalendarWindow,
    SlidingLog,
    SlidingWindow,
    Concurrency,
    Ban,
}

/// The rules of the built-in strategies.
static BUILT_IN: LazyLock<Vec<Format>> = LazyLock::new(|| {
    let (rate, terms) = (Quota::requests(1).per_minute(), Terms::default());
    let rules = [
        (Gcra.bind(&rate, &terms), Family::EvenRate),
        (TokenBucket.bind(&rate, &terms), Family::EvenRate),
        (FixedWindow.bind(&rate, &terms), Family::Window),
        (
            CalendarWindow::utc().bind(&rate, &terms),
            Family::CalendarWindow,
        ),
        (ListWindow.bind(&rate, &terms), Family::Window),
        (SlidingLog.bind(&rate, &terms), Family::SlidingLog),
        (
            SlidingWindow::new().bind(&rate, &terms),
            Family::SlidingWindow,
        ),
        (
            Concurrency::new().bind(&Quota::concurrent(1), &terms),
            Family::Concurrency,
        ),
        (
            Ban::for_duration(Duration::from_secs(1)).bind(&rate, &terms),
            Family::Ban,
        ),
    ];
    let rules = rules
        .into_iter()
        .filter_map(|(rule, family)| Some((rule.ok()?, family)));
    let formats = rules.map(|(rule, family)| Format {
        rule: type_of(&*rule),
        text: rule.info().state_format,
        family,
    });
    formats.collect()
});

fn type_of(rule: &dyn Rule) -> TypeId {
    let rule: &dyn Any = rule;
    rule.type_id()
}

/// What a rule counts; `None` for a strategy of the application.
pub(crate) fn family(rule: &dyn Rule) -> Option<Family> {
    let rule = type_of(rule);
    let format = BUILT_IN.iter().find(|format| format.rule == rule);
    format.map(|format| format.family)
}

/// Whether `text` has the form of a state format: a lowercase letter and a digit. No part of a prefix has it, so that a key in Redis
/// can be read in one way only.
pub(crate) fn is_state_format(text: &str) -> bool {
    matches!(text.as_bytes(), [b'a'..=b'z', b'0'..=b'9'])
}

/// Checks the form of a rule's state format, and that its letter is not one of a built-in strategy, in use or not.
pub(crate) fn check(rule: &dyn Rule) -> Result<(), InvalidValue> {
    let (text, rule_type) = (rule.info().state_format, type_of(rule));
    if BUILT_IN.iter().any(|format| format.rule == rule_type) {
        return Ok(());
    }
    let letter = |text: &'static str| text.chars().next();
    let mut reserved: Vec<_> = BUILT_IN.iter().filter_map(|f| letter(f.text)).collect();
    if is_state_format(text)
        && !reserved
            .iter()
            .any(|reserved| Some(*reserved) == letter(text))
    {
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

    #[test]
    fn each_built_in_format_has_its_own_letter_and_is_in_the_operations_guide() {
        let table = include_str!("../../docs/operations.md");
        assert_eq!(BUILT_IN.len(), 9);
        for (index, Format { rule, text, .. }) in BUILT_IN.iter().enumerate() {
            assert!(is_state_format(text), "{text}");
            assert!(table.contains(&format!("\n| `{text}` |")), "{text}");
            for other in &BUILT_IN[..index] {
                assert!(
                    other.rule != *rule && other.text[..1] != text[..1],
                    "{text}"
                );
            }
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
