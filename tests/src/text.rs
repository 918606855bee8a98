//! Texts of which a test knows parts.

use std::fmt::Display;

/// Asserts that a text, or the message of an error, has each of these parts.
#[track_caller]
pub fn assert_contains<'a>(text: impl Display, parts: impl IntoIterator<Item = &'a str>) {
    let text = text.to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}
