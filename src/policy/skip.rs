//! Which requests a limit applies to.

use std::{borrow::Cow, sync::Arc};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use crate::{
    error::InvalidValue,
    extract::original_path,
    policy::exemption::{ConditionMatch, Exemption},
    setting::{Code, CodeId, SettingValue},
};

/// Conditions on requests: by their path, by their method, and by functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct SkipRules(Option<Box<Conditions>>);

#[derive(Clone, Debug, Default)]
struct Conditions {
    skip: Matches,
    only: Matches,
}

#[derive(Clone, Debug, Default)]
struct Matches {
    paths: Vec<Box<str>>,
    methods: Vec<Method>,
    with: Vec<Code<ConditionFn>>,
}

pub(crate) type ConditionFn = dyn Fn(&Parts) -> bool + Send + Sync;

impl SkipRules {
    pub(crate) fn add_path(&mut self, path: &str) {
        self.conditions().skip.paths.push(path.into());
    }

    pub(crate) fn add_method(&mut self, method: Method) {
        self.conditions().skip.methods.push(method);
    }

    pub(crate) fn add(&mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) {
        self.add_code(unnamed(condition));
    }

    pub(crate) fn add_code(&mut self, condition: Code<ConditionFn>) {
        self.conditions().skip.with.push(condition);
    }

    pub(crate) fn only_path(&mut self, path: &str) {
        self.conditions().only.paths.push(path.into());
    }

    pub(crate) fn only_method(&mut self, method: Method) {
        self.conditions().only.methods.push(method);
    }

    pub(crate) fn only_with(&mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) {
        self.only_code(unnamed(condition));
    }

    pub(crate) fn only_code(&mut self, condition: Code<ConditionFn>) {
        self.conditions().only.with.push(condition);
    }

    fn conditions(&mut self) -> &mut Conditions {
        self.0.get_or_insert_default()
    }

    /// The condition by which the policy doesn't apply to a request; `None` if it does.
    #[inline]
    pub(crate) fn exempting(&self, parts: &Parts) -> Option<ConditionMatch> {
        self.0.as_ref()?.exempting(parts)
    }

    /// Describes the condition by which the policy doesn't apply to a request.
    pub(crate) fn describe(&self, matched: ConditionMatch, parts: &Parts) -> Exemption {
        let none = Conditions::default();
        let Conditions { skip, only } = self.0.as_deref().unwrap_or(&none);
        match matched {
            ConditionMatch::SkipMethod => Exemption::SkipMethod(parts.method.clone()),
            ConditionMatch::SkipPath(index) => Exemption::SkipPath(skip.path(index)),
            ConditionMatch::SkipWith(index) => Exemption::SkipWith(skip.code_name(index)),
            ConditionMatch::OnlyMethod => Exemption::OnlyMethod(only.methods.clone()),
            ConditionMatch::OnlyPath => Exemption::OnlyPath(
                (0..only.paths.len())
                    .map(|index| only.path(index))
                    .collect(),
            ),
            ConditionMatch::OnlyWith(index) => Exemption::OnlyWith(only.code_name(index)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The values of `skip` and of `only`, each unset if it has no conditions.
    pub(crate) fn values(&self) -> [SettingValue; 2] {
        let conditions = self.0.as_deref();
        let value = |matches: Option<&Matches>| matches.map_or(SettingValue::Unset, Matches::value);
        [
            value(conditions.map(|conditions| &conditions.skip)),
            value(conditions.map(|conditions| &conditions.only)),
        ]
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidValue> {
        let Some(conditions) = &self.0 else {
            return Ok(());
        };
        let invalid = |path: &str| {
            let exact = path.strip_suffix("/*").unwrap_or(path);
            exact.contains(['*', '?', '#']) || !path.starts_with('/') || !is_unambiguous(exact)
        };
        let mut paths = conditions.skip.paths.iter().chain(&conditions.only.paths);
        let invalid = paths.find(|path| invalid(path));
        invalid.map_or(Ok(()), |path| {
            Err(InvalidValue::new(
                format!("the path {path:?}"),
                "a path such as /health, or all beneath one: /static/*; without segments . and .., ; and \\, and their \
                 like in percent-encoding",
            ))
        })
    }
}

impl Conditions {
    fn exempting(&self, parts: &Parts) -> Option<ConditionMatch> {
        let Self { skip, only } = self;
        if skip.methods.contains(&parts.method) {
            return Some(ConditionMatch::SkipMethod);
        }
        let mut paths = skip.paths.iter();
        if let Some(index) = paths.position(|name| path_matches(name, original_path(parts))) {
            return Some(ConditionMatch::SkipPath(index));
        }
        if let Some(index) = skip.with.iter().position(|condition| condition(parts)) {
            return Some(ConditionMatch::SkipWith(index));
        }
        if !only.methods.is_empty() && !only.methods.contains(&parts.method) {
            return Some(ConditionMatch::OnlyMethod);
        }
        let mut paths = only.paths.iter();
        let mut may_be_one = || paths.any(|name| path_may_match(name, original_path(parts)));
        if !only.paths.is_empty() && !may_be_one() {
            return Some(ConditionMatch::OnlyPath);
        }
        let failing = only.with.iter().position(|condition| !condition(parts));
        failing.map(ConditionMatch::OnlyWith)
    }
}

impl Matches {
    fn path(&self, index: usize) -> String {
        self.paths
            .get(index)
            .map_or(String::new(), |path| path.to_string())
    }

    /// The name of a function in documents, or its position, from 1.
    fn code_name(&self, index: usize) -> String {
        match self.with.get(index).map(Code::value) {
            Some(SettingValue::Text(name)) => name.to_string(),
            _ => format!("#{}", index + 1),
        }
    }

    fn value(&self) -> SettingValue {
        let with = |condition: &Code<ConditionFn>| condition.value().clone();
        let lists: [(_, Vec<_>); 3] = [
            (
                "paths",
                self.paths.iter().map(SettingValue::display).collect(),
            ),
            (
                "methods",
                self.methods.iter().map(SettingValue::display).collect(),
            ),
            ("with", self.with.iter().map(with).collect()),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        let lists: Vec<_> = lists
            .map(|(name, list)| (name, SettingValue::List(list)))
            .collect();
        match lists.is_empty() {
            true => SettingValue::Unset,
            false => SettingValue::table(lists),
        }
    }
}

fn unnamed(condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Code<ConditionFn> {
    let condition = Arc::new(condition);
    let id = CodeId::of(&condition);
    Code::new(condition, id)
}

/// Whether every server reads `path` as `name`, or as a path below it if `name` ends with `/*`.
pub(super) fn path_matches(name: &str, path: &str) -> bool {
    let Some(prefix) = name.strip_suffix('*') else {
        return name == path;
    };
    path.strip_prefix(prefix).is_some_and(is_unambiguous)
}

/// Whether some server may read `path` as `name`, or as a path below it if `name` ends with `/*`.
pub(super) fn path_may_match(name: &str, path: &str) -> bool {
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

/// Whether it is a CORS preflight by the Fetch standard ("CORS-preflight request"): `OPTIONS`, with one `Origin` and one
/// valid `Access-Control-Request-Method`.
pub(crate) fn is_preflight(parts: &Parts) -> bool {
    let requested_method = || single_value(&parts.headers, &ACCESS_CONTROL_REQUEST_METHOD);
    parts.method == Method::OPTIONS
        && single_value(&parts.headers, &ORIGIN).is_some_and(|origin| !origin.is_empty())
        && requested_method().is_some_and(|method| Method::from_bytes(method.as_bytes()).is_ok())
}

/// The value of a field that occurs once.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
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
