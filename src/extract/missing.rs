//! What a request without a key lacks, in its client's words.

use std::borrow::Cow;

use crate::log::Seldom;

/// What the request lacks unless an extractor says more.
pub(super) const A_KEY: &str = "a key for this limit";

/// A field by its kind and name, of which the request has so many: with several it is ambiguous.
pub(super) fn name(kind: &str, name: &str, found: usize) -> Cow<'static, str> {
    let once = if found > 1 { " (exactly once)" } else { "" };
    format!("{kind} {name}{once}").into()
}

/// Logs that a field was given more than once.
#[cold]
pub(super) fn log_ambiguous(kind: &str, name: &str) {
    static SELDOM: Seldom = Seldom::new();
    SELDOM.then(|suppressed| {
        tracing::debug!(
            suppressed,
            "a request has {kind} {name} more than once, which is ambiguous: it has no key"
        );
    });
}
