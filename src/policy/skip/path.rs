//! How servers may read a request's path, and which named paths it matches.

use std::borrow::Cow;

/// Whether every server reads `path` as `name`, or as a path below it if `name` ends with `/*`.
pub(in crate::policy) fn path_matches(name: &str, path: &str) -> bool {
    let Some(prefix) = name.strip_suffix('*') else {
        return name == path;
    };
    path.strip_prefix(prefix).is_some_and(is_unambiguous)
}

/// Whether some server may read `path` as `name`, or as a path below it if `name` ends with `/*`.
pub(in crate::policy) fn path_may_match(name: &str, path: &str) -> bool {
    let at = |path: &str| match name.strip_suffix('*') {
        None => *decoded(name) == *decoded(path),
        Some(prefix) => decoded(path).starts_with(&*decoded(prefix)),
    };
    let Cow::Owned(plain) = without_parameters(path) else {
        return at(path) || !is_unambiguous(path);
    };
    at(path) || at(&plain) || !is_unambiguous(&plain)
}

/// Whether all servers read a path, or the end of one, alike. A router that resolves or decodes `/static/../admin` responds as
/// for `/admin`; servlets drop what follows a `;`, others what follows a NUL; decoders that accept overlong UTF-8 read
/// `%c0%ae` as a dot.
pub(super) fn is_unambiguous(path: &str) -> bool {
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
pub(super) fn has_parameters(name: &str) -> bool {
    name.contains(['{', '}']) || name.contains("/:")
}

/// Whether the percent-decoded `path` is UTF-8.
fn is_utf8(path: &str) -> bool {
    !path.contains('%') || std::str::from_utf8(&percent_decoded(path)).is_ok()
}

/// The percent-decoded `path`, or `path` itself if that is not UTF-8.
fn decoded(path: &str) -> Cow<'_, str> {
    let encoded = path
        .contains('%')
        .then(|| String::from_utf8(percent_decoded(path)));
    match encoded {
        Some(Ok(decoded)) => decoded.into(),
        _ => path.into(),
    }
}

/// The percent-decoded bytes of `path`. A `%` without two hexadecimal digits behind it is kept.
fn percent_decoded(path: &str) -> Vec<u8> {
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

/// `path` without the parameters of its segments: what follows a `;`.
fn without_parameters(path: &str) -> Cow<'_, str> {
    if !path.contains(';') {
        return path.into();
    }
    let segments = path.split('/').map(|segment| segment.split(';').next());
    let segments: Vec<_> = segments.flatten().collect();
    segments.join("/").into()
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
            assert_eq!(path_matches(name, path), expected, "{name} {path}");
            assert_eq!(path_may_match(name, path), expected, "{name} {path}");
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
            assert!(
                !path_matches("/static/*", &format!("/static/{rest}")),
                "{rest}"
            );
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
            assert!(path_may_match("/login", path), "{path}");
        }
        for path in ["/", "/logins", "/login/", "/a;b", "/caf%C3%A9", "/login%20"] {
            assert!(!path_may_match("/login", path), "{path}");
        }
        assert!(path_may_match("/caf%C3%A9", "/caf\u{e9}"));
        assert!(path_may_match("/admin/*", "/adm%69n/users"));
    }
}
