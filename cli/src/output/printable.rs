//! Text that a terminal shows, and does not obey.

use std::borrow::Cow;

/// The text without control characters: keys are sent by clients, and a terminal would obey them.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| {
        c.is_control()
            || ('\u{202a}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{2069}').contains(&c)
    };
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().map(|c| match is_unsafe(c) {
        true => c.escape_unicode().to_string(),
        false => c.to_string(),
    });
    Cow::Owned(shown.collect())
}

/// [`printable`], of each line.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}
