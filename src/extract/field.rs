//! Fields of a request by which it is counted: a header, a query parameter, a cookie.

use std::borrow::Cow;

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

/// The value of a field that is given once. A field that is given more than once is ambiguous, and has none.
pub(super) fn single_value<T>(
    kind: &str,
    name: &str,
    mut values: impl Iterator<Item = T>,
) -> Option<T> {
    let value = values.next()?;
    if values.next().is_some() {
        log_ambiguous(kind, name);
        return None;
    }
    Some(value)
}

/// The [missing key's name](super::KeyExtractor::missing_key_name) of a field of which `found` values are given.
pub(super) fn missing(kind: &str, name: &str, found: usize) -> Cow<'static, str> {
    let once = if found > 1 { " (exactly once)" } else { "" };
    format!("{kind} {name}{once}").into()
}

#[cold]
fn log_ambiguous(kind: &str, name: &str) {
    static LOG: LogThrottle = LogThrottle::new();
    LOG.log_with(|suppressed| {
        tracing::debug!(
            suppressed,
            "a request has no key: {kind} {name} is given more than once, which is ambiguous"
        );
    });
}
