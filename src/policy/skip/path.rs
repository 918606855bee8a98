//! How servers may read a request's path, and which named paths it matches.

use std::{borrow::Cow, cell::OnceCell};

use http::request::Parts;
use percent_encoding::percent_decode_str;

use crate::{error::InvalidValue, extract::original_path};

/// Longer paths are not decoded: they match no condition to skip, and each condition to apply.
const MAX_DECODED_BYTES: usize = 8 * 1024;

/// A path that a condition names, or all below it if it ends with `/*`. One that no condition can have is an error when the limiter
/// is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    /// As it was set.
    pub(in crate::policy) text: Box<str>,
    decoded: Box<str>,
}

/// The path of a request, which is decoded when a condition first needs it, and then once for all conditions.
pub(crate) struct RequestPath<'a> {
    path: &'a str,
    /// Decoded, if all servers read it alike; `None` if some may read it as any other path.
    decoded: OnceCell<Option<Cow<'a, str>>>,
}

impl PathPattern {
    /// The path, such as `/health`, or `/static/*` for all paths below `/static/`.
    pub fn new(text: &str) -> Self {
        Self {
            text: text.into(),
            decoded: decoded(text).into(),
        }
    }

    /// An error for a path that no condition can have.
    pub(in crate::policy) fn validate(&self) -> Result<(), InvalidValue> {
        let path = &*self.text;
        let exact = path.strip_suffix("/*").unwrap_or(path);
        let expected = if has_parameters(path) {
            // No request would match it, so that its limit would never apply.
            "a path as clients send it, not a router's pattern: /users/* for all beneath one, or a function by only_with and \
             skip_with"
        } else if exact.contains(['*', '?', '#'])
            || !path.starts_with('/')
            || !is_unambiguous(exact)
        {
            "a path such as /health, or all beneath one: /static/*; without segments . and .., ; and \\, and their like in \
             percent-encoding"
        } else {
            return Ok(());
        };
        Err(InvalidValue::new(format!("the path {path:?}"), expected))
    }

    /// Whether every server reads `path` as this one.
    pub(in crate::policy) fn matches(&self, path: &RequestPath<'_>) -> bool {
        match self.text.strip_suffix('*') {
            None => *self.text == *path.path,
            // The prefix ends with a slash and is unambiguous itself.
            Some(prefix) => path.path.starts_with(prefix) && path.decoded().is_some(),
        }
    }

    /// Whether some server may read `path` as this one.
    pub(in crate::policy) fn may_match(&self, path: &RequestPath<'_>) -> bool {
        let Some(path) = path.decoded() else {
            return true;
        };
        match self.decoded.strip_suffix('*') {
            None => *self.decoded == *path,
            // `/*` is every request, also one whose target is no path, such as `*`.
            Some(prefix) => prefix == "/" || path.starts_with(prefix),
        }
    }
}

impl<'a> RequestPath<'a> {
    #[inline]
    pub(crate) fn of(parts: &'a Parts) -> Self {
        Self::new(original_path(parts))
    }

    #[inline]
    fn new(path: &'a str) -> Self {
        Self {
            path,
            decoded: OnceCell::new(),
        }
    }

    fn decoded(&self) -> Option<&str> {
        let decode = || {
            let is_short = self.path.len() <= MAX_DECODED_BYTES;
            (is_short && is_unambiguous(self.path)).then(|| decoded(self.path))
        };
        self.decoded.get_or_init(decode).as_deref()
    }
}

/// Whether all servers read a path, or the end of one, alike. A router that resolves or decodes `/static/../admin` responds as
/// for `/admin`; servlets drop what follows a `;`, others what follows a NUL; decoders that accept overlong UTF-8 read
/// `%c0%ae` as a dot.
fn is_unambiguous(path: &str) -> bool {
    let dots = path.split('/').any(|segment| matches!(segment, "." | ".."));
    let mut escapes = path.split('%').skip(1).map(|escape| escape.get(..2));
    let steers = |escape: &str| {
        let hex = escape.bytes().all(|byte| byte.is_ascii_hexdigit());
        let steering = ["00", "25", "2e", "2f", "3b", "5c"];
        !hex || steering
            .iter()
            .any(|code| escape.eq_ignore_ascii_case(code))
    };
    let steered = escapes.any(|escape| escape.is_none_or(steers));
    !dots && !steered && !path.contains(['\\', ';']) && is_utf8(path)
}

/// Whether a named path has the parameters of a router's pattern: `/users/{id}`, or `/users/:id`.
fn has_parameters(name: &str) -> bool {
    name.contains(['{', '}']) || name.contains("/:")
}

/// Whether the percent-decoded `path` is UTF-8.
fn is_utf8(path: &str) -> bool {
    percent_decode_str(path).decode_utf8().is_ok()
}

/// The percent-decoded `path`, or `path` itself if that is not UTF-8.
fn decoded(path: &str) -> Cow<'_, str> {
    percent_decode_str(path)
        .decode_utf8()
        .unwrap_or(Cow::Borrowed(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `OPTIONS *`, which HTTP/2 allows with every method, and `CONNECT`, which has no path.
    #[test]
    fn a_target_without_a_path_may_be_any_and_is_none() {
        let all = PathPattern::new("/*");
        for path in ["*", ""] {
            let path = RequestPath::new(path);
            assert!(all.may_match(&path) && !all.matches(&path));
            assert!(!PathPattern::new("/login").may_match(&path));
        }
    }
}
