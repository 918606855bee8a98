//! Extractors as text, as a configuration document has them: `header:x-tenant | peer`.

use std::borrow::Cow;

/// Whether a name stands in a text as it is, rather than in quotes.
pub(crate) fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.bytes().all(plain)
}

/// A name, in quotes if it has other characters than letters, digits, `-`, `_` and `.`.
pub(super) fn quoted(name: &str) -> Cow<'_, str> {
    if is_plain(name) {
        return name.into();
    }
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{name}\"").into()
}

/// The text of an extractor of a named field, such as `header:x-api-key readable`.
pub(super) fn field(kind: &str, name: &str, secret: bool, secret_by_default: bool) -> String {
    let name = quoted(name);
    let setting = if secret == secret_by_default {
        ""
    } else if secret {
        " secret"
    } else {
        " readable"
    };
    format!("{kind}:{name}{setting}")
}

/// The text of one of several alternatives: in parentheses if it has alternatives itself.
pub(super) fn alternative(text: Cow<'_, str>) -> Cow<'_, str> {
    if has_alternatives(&text) {
        format!("({text})").into()
    } else {
        text
    }
}

/// Whether there is a `|` outside of quotes and brackets.
fn has_alternatives(text: &str) -> bool {
    let (mut depth, mut quoted) = (0_u32, false);
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '"' => quoted = !quoted,
            '\\' if quoted => drop(chars.next()),
            _ if quoted => {}
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}
