//! Fields of a request by which it is counted: a header, a query parameter, a cookie.

use std::borrow::Cow;

use super::Extracted;
use crate::{key::Key, log::LogThrottle};

/// The [missing key's name](super::KeyExtractor::missing_key_name) of an extractor that sets none.
pub(super) const A_KEY: &str = "a key for this limit";

/// The key of a field's value: a hash if it is `secret`, and none if it is empty.
pub(super) fn key(value: &[u8], secret: bool) -> Option<Key> {
    let make = if secret { Key::secret } else { Key::new };
    (!value.is_empty()).then(|| make(value))
}

/// The one text of an extractor that takes one; `None` if it is empty, or there is another number of texts.
pub(super) fn text<'a>(texts: &[&'a str]) -> Option<&'a str> {
    match texts {
        [text] => (!text.is_empty()).then_some(*text),
        _ => None,
    }
}

/// The key of a field by its one value. A field with several different values is ambiguous; equal ones are one.
pub(super) fn extract<T: PartialEq, E: Into<Extracted>>(
    kind: &str,
    name: &str,
    mut values: impl Iterator<Item = T>,
    key: impl FnOnce(T) -> E,
) -> Extracted {
    let Some(value) = values.next() else {
        return Extracted::Absent;
    };
    if values.any(|other| other != value) {
        return ambiguous(kind, name);
    }
    key(value).into()
}

/// The [missing key's name](super::KeyExtractor::missing_key_name) of a field.
pub(super) fn missing(kind: &str, name: &str, is_ambiguous: bool) -> Cow<'static, str> {
    let one = if is_ambiguous {
        " (with one valid value)"
    } else {
        ""
    };
    format!("{kind} {name}{one}").into()
}

#[cold]
pub(super) fn ambiguous(kind: &str, name: &str) -> Extracted {
    static LOG: LogThrottle = LogThrottle::new();
    LOG.log_with(|suppressed| {
        tracing::debug!(
            suppressed,
            "a request has no single key: {kind} {name} has several values, or one that can't be decoded"
        );
    });
    Extracted::Ambiguous
}
