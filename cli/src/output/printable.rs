//! Text that a terminal shows, and does not obey.

use std::borrow::Cow;

/// The text without control characters, and without characters that are not seen or that change the direction of others: keys are
/// sent by clients, and a terminal would obey them.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_unsafe = |c: char| {
        let is_invisible = matches!(
            c,
            '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        );
        c.is_control() || is_invisible
    };
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    for c in text.chars() {
        if is_unsafe(c) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// [`printable`], of each line.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

#[test]
fn text_that_is_not_seen_is_escaped() {
    for (text, shown) in [
        ("Zoë 鍵", "Zoë 鍵"),
        ("a\u{1b}[2J\u{9b}1m", "a\\u{1b}[2J\\u{9b}1m"),
        (
            "a\u{200b}b\u{202e}c\u{feff}",
            "a\\u{200b}b\\u{202e}c\\u{feff}",
        ),
    ] {
        assert_eq!(printable(text), shown);
    }
}
