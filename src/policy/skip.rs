//! Which requests a limit applies to.

use std::{borrow::Cow, fmt, sync::Arc};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use crate::{error::InvalidValue, extract::original_path};

/// Conditions on requests: by their path, by their method, and by functions.
#[derive(Clone, Default)]
pub(crate) struct Skips(Option<Box<Conditions>>);

#[derive(Clone, Default)]
struct Conditions {
    skip: Matches,
    only: Matches,
}

#[derive(Clone, Default)]
struct Matches {
    paths: Vec<Box<str>>,
    methods: Vec<Method>,
    with: Vec<Condition>,
}

type Condition = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

impl Skips {
    pub(crate) fn add_path(&mut self, path: &str) {
        self.conditions().skip.paths.push(path.into());
    }

    pub(crate) fn add_method(&mut self, method: Method) {
        self.conditions().skip.methods.push(method);
    }

    pub(crate) fn add(&mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) {
        self.conditions().skip.with.push(Arc::new(condition));
    }

    pub(crate) fn only_path(&mut self, path: &str) {
        self.conditions().only.paths.push(path.into());
    }

    pub(crate) fn only_method(&mut self, method: Method) {
        self.conditions().only.methods.push(method);
    }

    pub(crate) fn only_with(&mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) {
        self.conditions().only.with.push(Arc::new(condition));
    }

    fn conditions(&mut self) -> &mut Conditions {
        self.0.get_or_insert_default()
    }

    /// Whether the limit doesn't apply to a request.
    #[inline]
    pub(crate) fn skip(&self, parts: &Parts) -> bool {
        self.0
            .as_ref()
            .is_some_and(|conditions| conditions.exempt(parts))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn check(&self) -> Result<(), InvalidValue> {
        let Some(conditions) = &self.0 else {
            return Ok(());
        };
        let unfit = |path: &str| {
            let exact = path.strip_suffix("/*").unwrap_or(path);
            exact.contains(['*', '?', '#']) || !path.starts_with('/') || !reads_in_one_way(exact)
        };
        let mut paths = conditions.skip.paths.iter().chain(&conditions.only.paths);
        let unfit = paths.find(|path| unfit(path));
        unfit.map_or(Ok(()), |path| {
            Err(InvalidValue::new(
                format!("the path {path:?}"),
                "a path such as /health, or all beneath one: /static/*; without segments . and .., ; and \\, and their \
                 like in percent-encoding",
            ))
        })
    }
}

impl Conditions {
    fn exempt(&self, parts: &Parts) -> bool {
        let Self { skip, only } = self;
        let skipped = skip.methods.contains(&parts.method)
            || skip
                .paths
                .iter()
                .any(|name| is_at(name, original_path(parts)))
            || skip.with.iter().any(|condition| condition(parts));
        let meant = (only.methods.is_empty() || only.methods.contains(&parts.method))
            && (only.paths.is_empty()
                || only
                    .paths
                    .iter()
                    .any(|name| may_be_at(name, original_path(parts))))
            && only.with.iter().all(|condition| condition(parts));
        skipped || !meant
    }
}

impl fmt::Debug for Skips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(conditions) => f
                .debug_struct("Skips")
                .field("skip", &conditions.skip)
                .field("only", &conditions.only)
                .finish(),
            None => f.write_str("Skips"),
        }
    }
}

impl fmt::Debug for Matches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matches")
            .field("paths", &self.paths)
            .field("methods", &self.methods)
            .field("with", &self.with.len())
            .finish()
    }
}

/// Whether `path` is the one that is named, or beneath it if the name ends with `/*`, however a server reads it.
fn is_at(name: &str, path: &str) -> bool {
    let Some(above) = name.strip_suffix('*') else {
        return name == path;
    };
    path.strip_prefix(above).is_some_and(reads_in_one_way)
}

/// Whether a server may read `path` as the one that is named, or as one beneath it if the name ends with `/*`.
fn may_be_at(name: &str, path: &str) -> bool {
    let at = |path: &str| match name.strip_suffix('*') {
        None => *decoded(name) == *decoded(path),
        Some(above) => decoded(path).starts_with(&*decoded(above)),
    };
    let Cow::Owned(plain) = without_parameters(path) else {
        return at(path) || !reads_in_one_way(path);
    };
    at(path) || at(&plain) || !reads_in_one_way(&plain)
}

/// Whether all servers read a path, or its end, alike. A router that resolves `/static/../admin`, or decodes what is
/// encoded there, would answer for `/admin`; servlets drop what follows a `;`, others what follows a NUL; decoders that
/// take UTF-8 of more bytes than it needs read `%c0%ae` as a dot.
fn reads_in_one_way(path: &str) -> bool {
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

/// Whether what is percent-encoded in `path` is UTF-8.
fn is_utf8(path: &str) -> bool {
    !path.contains('%') || std::str::from_utf8(&bytes_of(path)).is_ok()
}

/// `path` with its percent-encodings decoded; as it is where they are no UTF-8.
fn decoded(path: &str) -> Cow<'_, str> {
    let encoded = path
        .contains('%')
        .then(|| String::from_utf8(bytes_of(path)));
    match encoded {
        Some(Ok(decoded)) => decoded.into(),
        _ => path.into(),
    }
}

/// The bytes that `path` encodes. A `%` that no two hexadecimal digits follow stands for itself.
fn bytes_of(path: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = match after {
            [high, low, ..] if byte == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match digits {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    bytes
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// `path` as a server reads it that takes what follows a `;` in a segment for the segment's parameters.
fn without_parameters(path: &str) -> Cow<'_, str> {
    if !path.contains(';') {
        return path.into();
    }
    let segments = path.split('/').map(|segment| segment.split(';').next());
    let segments: Vec<_> = segments.flatten().collect();
    segments.join("/").into()
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
    fn a_path_matches_itself_and_a_star_all_paths_beneath() {
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
            ("/static/*", "/static/caf%C3%A9", true),
        ] {
            assert_eq!(is_at(name, path), expected, "{name} {path}");
            assert_eq!(may_be_at(name, path), expected, "{name} {path}");
        }
    }

    #[test]
    fn a_path_that_may_leave_the_prefix_is_not_beneath_it() {
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
            "a%zz",
            "a;b",
            "..;/admin",
            "a%3Bb",
            "a%00",
            "%c0%ae%c0%ae/admin",
            "%e0%80%af",
            "%ed%a0%80",
            "caf%c3",
        ] {
            assert!(!is_at("/static/*", &format!("/static/{rest}")), "{rest}");
        }
    }

    #[test]
    fn a_path_that_may_be_read_as_the_named_one_matches_it() {
        for path in [
            "/login",
            "/%6Cogin",
            "/login;jsessionid=1",
            "/x/../login",
            "/x/%2e%2e/login",
            "/static/..;/login",
            "/login%00",
            "/login%c0",
        ] {
            assert!(may_be_at("/login", path), "{path}");
        }
        for path in ["/", "/logins", "/login/", "/a;b", "/caf%C3%A9", "/login%20"] {
            assert!(!may_be_at("/login", path), "{path}");
        }
        assert!(may_be_at("/caf%C3%A9", "/caf\u{e9}"));
        assert!(may_be_at("/admin/*", "/adm%69n/users"));
    }
}
