//! Names of callers, for operators.

use std::sync::Arc;

use http::request::Parts;

use super::Policy;
use crate::{
    error::Escaped,
    setting::{CodeId, Slot},
};

/// Finds the name of a request's caller.
pub(crate) type LabelFn = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// The longest label; the rest of a longer text is cut off.
const MAX_LABEL_BYTES: usize = 64;

impl Policy {
    /// Names callers whose keys are [hashed](crate::Key::secret) for operators: a short text that is no secret, such as the name of
    /// a customer or of an API key. The log line of a rejection, the admin API (`top`, `explain`, `blocks` and the log of changes) and the
    /// command line show it beside the key.
    ///
    /// `label` is called for requests that a layer rejects, and for explanations. It must not block. This process keeps the labels of
    /// the last 5,000 to 10,000 callers of its limiter, of at most 64 bytes each, with control characters escaped; no store and no metric has them.
    ///
    /// ```
    /// use tollgate::{Policy, Quota, extract};
    ///
    /// /// Inserted by the middleware that authenticates callers.
    /// #[derive(Clone)]
    /// struct Customer { name: String }
    ///
    /// let policy = Policy::new("api", Quota::requests(100).per_minute())
    ///     .key(extract::header("x-api-key"))
    ///     .label_with(|parts| Some(parts.extensions.get::<Customer>()?.name.clone()));
    /// # let _ = policy;
    /// ```
    #[must_use]
    pub fn label_with<F>(mut self, label: F) -> Self
    where
        F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    {
        let label = Arc::new(label);
        let id = CodeId::of(&label);
        self.settings.label_with = Some(Slot::filled(label, None, id));
        self
    }

    /// Whether it names callers.
    pub(crate) fn has_labels(&self) -> bool {
        self.settings.label_with.is_some()
    }

    /// The name of a request's caller.
    pub(crate) fn label(&self, parts: &Parts) -> Option<Box<str>> {
        let find = self.settings.label_with.as_ref().and_then(Slot::code)?;
        let label = find(parts)?;
        let escaped = Escaped(cut(&label)).to_string();
        let label = cut(&escaped);
        (!label.is_empty()).then(|| label.into())
    }
}

/// The first characters of a text, at most [`MAX_LABEL_BYTES`].
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_LABEL_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::quota::Quota;

    fn label(text: &'static str) -> Option<Box<str>> {
        let policy = Policy::new("p", Quota::requests(1).per_second());
        let policy = policy.label_with(move |_| Some(text.to_owned()));
        policy.label(&Request::new(()).into_parts().0)
    }

    #[test]
    fn a_label_is_short_and_in_one_line() {
        assert_eq!(label("acme").as_deref(), Some("acme"));
        assert_eq!(label("a\nb\u{1b}[0m").as_deref(), Some("a\\nb\\u{1b}[0m"));
        assert_eq!(label(""), None);
        let long = label(
            "\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}\u{1f980}\u{e9}",
        );
        assert_eq!(long.map(|label| label.len()), Some(62));
        let controls = label(
            "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n",
        );
        assert_eq!(controls.map(|label| label.len()), Some(64));
    }
}
