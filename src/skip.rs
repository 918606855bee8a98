//! Which requests a limit doesn't concern.

use std::{fmt, sync::Arc};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use crate::{error::InvalidValue, extract::path_of};

/// Requests that are let off: by their path, by their method, and by what a function says of them.
#[derive(Clone, Default)]
pub(crate) struct Skips {
    paths: Vec<Box<str>>,
    methods: Vec<Method>,
    with: Vec<Condition>,
}

type Condition = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

impl Skips {
    pub(crate) fn add_path(&mut self, path: &str) {
        self.paths.push(path.into());
    }

    pub(crate) fn add_method(&mut self, method: Method) {
        self.methods.push(method);
    }

    pub(crate) fn add(&mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) {
        self.with.push(Arc::new(condition));
    }

    /// Whether a request is let off.
    #[inline]
    pub(crate) fn skip(&self, parts: &Parts) -> bool {
        !self.is_empty() && self.find(parts)
    }

    fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.methods.is_empty() && self.with.is_empty()
    }

    fn find(&self, parts: &Parts) -> bool {
        let at = |name: &str| is_at(name, path_of(parts));
        self.methods.contains(&parts.method)
            || self.paths.iter().any(|name| at(name))
            || self.with.iter().any(|condition| condition(parts))
    }

    pub(crate) fn check(&self) -> Result<(), InvalidValue> {
        let unfit = |path: &str| {
            let exact = path.strip_suffix("/*").unwrap_or(path);
            exact.contains(['*', '?', '#']) || !path.starts_with('/')
        };
        let unfit = self.paths.iter().find(|path| unfit(path));
        unfit.map_or(Ok(()), |path| {
            Err(InvalidValue::new(
                format!("the path {path:?}"),
                "a path such as /health, or all beneath one: /static/*",
            ))
        })
    }
}

impl fmt::Debug for Skips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Skips")
            .field("paths", &self.paths)
            .field("methods", &self.methods)
            .field("with", &self.with.len())
            .finish()
    }
}

/// Whether `path` is the one that is named, or beneath it if the name ends with `/*`.
fn is_at(name: &str, path: &str) -> bool {
    let Some(above) = name.strip_suffix('*') else {
        return name == path;
    };
    path.strip_prefix(above).is_some_and(stays_beneath)
}

/// Whether no server, however it reads a path, can find itself above where `rest` begins: a router that resolves
/// `/static/../admin`, or decodes what is encoded there, would answer for `/admin`.
fn stays_beneath(rest: &str) -> bool {
    let dots = rest.split('/').any(|segment| matches!(segment, "." | ".."));
    let mut escapes = rest.split('%').skip(1).map(|escape| escape.get(..2));
    let steers = |escape: &str| {
        ["2e", "2f", "5c", "25"]
            .iter()
            .any(|c| escape.eq_ignore_ascii_case(c))
    };
    let steered = escapes.any(|escape| escape.is_none_or(steers));
    !dots && !steered && !rest.contains('\\')
}

/// Whether it is a CORS preflight as the Fetch standard has them ("CORS-preflight request"): `OPTIONS`, with one `Origin`
/// and the one method that is asked for. Anything less is an `OPTIONS` request like any other.
pub(crate) fn is_preflight(parts: &Parts) -> bool {
    let asked = || only(&parts.headers, &ACCESS_CONTROL_REQUEST_METHOD);
    parts.method == Method::OPTIONS
        && only(&parts.headers, &ORIGIN).is_some_and(|origin| !origin.is_empty())
        && asked().is_some_and(|method| Method::from_bytes(method.as_bytes()).is_ok())
}

/// The value of a field that stands there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_itself_and_a_star_all_beneath() {
        for (name, path, expected) in [
            ("/health", "/health", true),
            ("/health", "/health/", false),
            ("/health", "/healthy", false),
            ("/static/*", "/static/a/b.css", true),
            ("/static/*", "/static/", true),
            ("/static/*", "/static", false),
            ("/static/*", "/statics/a", false),
            ("/*", "/anything", true),
            ("/static/*", "/static/a%20b", true),
            ("/static/*", "/static/..a", true),
        ] {
            assert_eq!(is_at(name, path), expected, "{name} {path}");
        }
    }

    #[test]
    fn what_may_lead_out_again_is_not_beneath() {
        for rest in [
            "../admin",
            "a/../../admin",
            "./a",
            "a/..",
            "%2e%2e/admin",
            "%2E./admin",
            "..%2fadmin",
            "a%2F..",
            "%252e%252e/admin",
            "..\\admin",
            "a%5cb",
            "a%",
            "a%2",
        ] {
            assert!(!is_at("/static/*", &format!("/static/{rest}")), "{rest}");
        }
    }
}
