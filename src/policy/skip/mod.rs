//! Which requests a limit applies to.

use std::{fmt, sync::Arc};

use self::path::{PathPattern, RequestPath};
use super::Policy;
use crate::{error::InvalidValue, shared_fn::SharedFn};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

pub(crate) mod path;

/// Returns whether a condition holds for a request.
pub type ConditionFn = dyn Fn(&Parts) -> bool + Send + Sync;

/// Conditions on requests: by their path, by their method, and by functions.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Conditions {
    /// Paths such as `/health`, or with `/*` at their end all paths beneath them.
    pub paths: Vec<PathPattern>,
    /// Methods such as `OPTIONS`.
    pub methods: Vec<Method>,
    /// Functions of the request's head.
    pub with: Vec<SharedFn<ConditionFn>>,
}

/// The requests that a policy or a limiter skips, and those that it applies to only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SkipRules<'a> {
    pub(crate) skip: &'a Conditions,
    pub(crate) only: &'a Conditions,
}

impl Conditions {
    /// Whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.methods.is_empty() && self.with.is_empty()
    }

    pub(crate) fn add_path(&mut self, path: &str) {
        self.paths.push(PathPattern::new(path));
    }

    pub(crate) fn add(&mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) {
        let condition: Arc<ConditionFn> = Arc::new(condition);
        self.with.push(condition.into());
    }

    pub(crate) fn add_method(&mut self, method: Method) {
        self.methods.push(method);
    }

    fn has_method(&self, method: &Method) -> bool {
        self.methods.contains(method)
    }

    fn path(&self, index: usize) -> String {
        self.paths
            .get(index)
            .map_or(String::new(), |pattern| pattern.text.to_string())
    }
}

impl SkipRules<'_> {
    /// The condition by which the policy doesn't apply to a request; `None` if it does.
    #[inline]
    pub(crate) fn exempting(self, parts: &Parts, path: &RequestPath<'_>) -> Option<ConditionMatch> {
        match self.is_empty() {
            true => None,
            false => self.find(parts, path),
        }
    }

    fn find(self, parts: &Parts, path: &RequestPath<'_>) -> Option<ConditionMatch> {
        let Self { skip, only } = self;
        let holds = |condition: &SharedFn<ConditionFn>| condition(parts);
        if skip.has_method(&parts.method) {
            return Some(ConditionMatch::SkipMethod);
        }
        let mut paths = skip.paths.iter();
        if let Some(index) = paths.position(|pattern| pattern.matches(path)) {
            return Some(ConditionMatch::SkipPath(index));
        }
        if let Some(index) = skip.with.iter().position(holds) {
            return Some(ConditionMatch::SkipWith(index));
        }
        if !only.methods.is_empty() && !only.has_method(&parts.method) {
            return Some(ConditionMatch::OnlyMethod);
        }
        let mut paths = only.paths.iter();
        let mut may_be_one = || paths.any(|pattern| pattern.may_match(path));
        if !only.paths.is_empty() && !may_be_one() {
            return Some(ConditionMatch::OnlyPath);
        }
        let failing = only.with.iter().position(|condition| !holds(condition));
        failing.map(ConditionMatch::OnlyWith)
    }

    /// Describes the condition by which the policy doesn't apply to a request.
    pub(crate) fn describe(self, matched: ConditionMatch, parts: &Parts) -> Exemption {
        let Self { skip, only } = self;
        match matched {
            ConditionMatch::SkipMethod => Exemption::SkipMethod(parts.method.clone()),
            ConditionMatch::SkipPath(index) => Exemption::SkipPath(skip.path(index)),
            ConditionMatch::SkipWith(index) => Exemption::SkipWith(index),
            ConditionMatch::OnlyMethod => Exemption::OnlyMethod(only.methods.clone()),
            ConditionMatch::OnlyPath => Exemption::OnlyPath(
                (0..only.paths.len())
                    .map(|index| only.path(index))
                    .collect(),
            ),
            ConditionMatch::OnlyWith(index) => Exemption::OnlyWith(index),
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.skip.is_empty() && self.only.is_empty()
    }

    /// Reports invalid paths and methods.
    pub(crate) fn validate(self, report: &mut dyn FnMut(InvalidValue)) {
        for (paths, methods, conditions) in [
            ("skip.paths[]", "skip.methods[]", self.skip),
            ("only.paths[]", "only.methods[]", self.only),
        ] {
            for (index, pattern) in conditions.paths.iter().enumerate() {
                if let Err(invalid) = pattern.validate() {
                    report(invalid.in_entry(paths, index));
                }
            }
            for (index, method) in conditions.methods.iter().enumerate() {
                if let Err(invalid) = validate_method(method) {
                    report(invalid.in_entry(methods, index));
                }
            }
        }
    }
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

/// An error for a standard method that is not in upper case: HTTP's methods are case-sensitive.
pub(in crate::policy) fn validate_method(method: &Method) -> Result<(), InvalidValue> {
    let text = method.as_str();
    let upper = text.to_ascii_uppercase();
    let is_standard = "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH"
        .split(' ')
        .any(|standard| standard == upper);
    if text == upper || !is_standard {
        return Ok(());
    }
    Err(InvalidValue::new(
        format!("the method {text:?}"),
        format!("{upper:?}, in upper case"),
    ))
}

/// A condition by which a request is exempt: see [`Explanation`](crate::explain::Explanation). Displayed as the call that set it:
/// `skip_path /static/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exemption {
    /// It is a CORS preflight, which [counts under no policy](crate::limiter::LimiterBuilder::count_preflights) of the limiter.
    Preflight,
    /// [`skip_method`](crate::Policy::skip_method) with its method.
    SkipMethod(Method),
    /// [`skip_path`](crate::Policy::skip_path) with this path.
    SkipPath(String),
    /// [`skip_with`](crate::Policy::skip_with): the function at this index, which is displayed as `#` and its position, from 1.
    SkipWith(usize),
    /// [`only_method`](crate::Policy::only_method) with these methods, none of which is the request's.
    OnlyMethod(Vec<Method>),
    /// [`only_path`](crate::Policy::only_path) with these paths, none of which is the request's.
    OnlyPath(Vec<String>),
    /// [`only_with`](crate::Policy::only_with): the function at this index, which is displayed as `#` and its position, from 1.
    OnlyWith(usize),
}

/// The condition that exempts a request, by its index among its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConditionMatch {
    SkipMethod,
    SkipPath(usize),
    SkipWith(usize),
    OnlyMethod,
    OnlyPath,
    OnlyWith(usize),
}

impl fmt::Display for Exemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preflight => f.write_str("a CORS preflight"),
            Self::SkipMethod(method) => write!(f, "skip_method {method}"),
            Self::SkipPath(path) => write!(f, "skip_path {path}"),
            Self::SkipWith(index) => write!(f, "skip_with #{}", index + 1),
            Self::OnlyMethod(methods) => {
                let methods: Vec<_> = methods.iter().map(Method::as_str).collect();
                write!(f, "only_method {}", methods.join(", "))
            }
            Self::OnlyPath(paths) => write!(f, "only_path {}", paths.join(", ")),
            Self::OnlyWith(index) => write!(f, "only_with #{}", index + 1),
        }
    }
}

impl Policy {
    /// Sets the requests to which the policy does not apply: those for which any of the conditions of [`skip_path`](Self::skip_path) holds.
    #[must_use]
    pub fn skip(mut self, conditions: Conditions) -> Self {
        self.skip = conditions;
        self
    }

    /// Sets the only requests to which the policy applies: those for which the conditions of [`skip_path`](Self::skip_path) hold.
    #[must_use]
    pub fn only(mut self, conditions: Conditions) -> Self {
        self.only = conditions;
        self
    }

    /// Exempts requests to this path, as the client sent it and without its query, from the policy. `/static/*` matches every
    /// path below `/static/`. May be called several times.
    ///
    /// # Conditions
    ///
    /// | | the policy applies |
    /// |---|---|
    /// | `skip_path`, [`skip_method`](Policy::skip_method), [`skip_with`](Policy::skip_with) | unless one of them matches |
    /// | [`only_path`](Policy::only_path) | if one of these paths matches |
    /// | [`only_method`](Policy::only_method) | if it is one of these methods |
    /// | [`only_with`](Policy::only_with) | if all of these functions are true |
    ///
    /// All conditions that are set must hold. Paths are the original ones, also within a nested axum router, where `parts.uri`
    /// is the rest of the path: functions can read [`extract::original_path`](crate::extract::original_path).
    ///
    /// The policy applies to paths that servers read differently. So a path is never skipped that has segments `.` or `..`, a
    /// `;`, a backslash, one of these or a `/`, `%` or NUL in percent-encoding, or percent-encoding of invalid UTF-8; and
    /// `only_path("/login")` applies to `/%6Cogin`, and to every path with `;` or `..` in it. A condition whose own path has
    /// any of these, or the parameters of a router's pattern (`/users/{id}`, `/users/:id`), is a
    /// [`ConfigError`](crate::ConfigError) when the limiter is built.
    ///
    /// `/login/`, `//login` and `/LOGIN` are other paths than `/login`, as in axum's router. Where a service takes them for the
    /// same, name them too; or, if a layer such as tower-http's `NormalizePathLayer` does, put it around the limiter.
    ///
    /// A [`check`](crate::Limiter::check) by hand takes the request from [`Check::parts`](crate::limiter::Check::parts). Without it, a
    /// policy with conditions has to be named with its key, or the check is rejected.
    ///
    /// ```
    /// use http::{Method, Request};
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// /// Inserted by an authentication layer around this one. A header could be sent by anyone.
    /// #[derive(Clone)]
    /// struct Internal;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(
    ///         Policy::new("login", Quota::requests(5).per_minute())
    ///             .only_path("/login")
    ///             .only_method(Method::POST),
    ///     )
    ///     .policy(
    ///         Policy::new("burst", Quota::requests(10).per_second())
    ///             .skip_path("/health")
    ///             .skip_path("/static/*")
    ///             .skip_with(|parts| parts.extensions.get::<Internal>().is_some()),
    ///     )
    ///     .build()?;
    /// let policies_of = async |method: Method, path: &str| {
    ///     let request = Request::builder().method(method).uri(path).body(()).unwrap();
    ///     let decision = limiter.check("alice").parts(&request.into_parts().0).await;
    ///     decision.policies().map(|policy| policy.policy().to_owned()).collect::<Vec<_>>()
    /// };
    /// assert_eq!(policies_of(Method::POST, "/login").await, ["login", "burst"]);
    /// assert_eq!(policies_of(Method::GET, "/login").await, ["burst"]);
    /// assert_eq!(policies_of(Method::GET, "/static/logo.png").await, [""; 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn skip_path(mut self, path: impl AsRef<str>) -> Self {
        self.skip.add_path(path.as_ref());
        self
    }

    /// Exempts requests with this method from the policy. May be called several times: see [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn skip_method(mut self, method: Method) -> Self {
        self.skip.add_method(method);
        self
    }

    /// Exempts requests for whose head `condition` returns true from the policy. May be called several times: see
    /// [`skip_path`](Policy::skip_path). It runs on the request path and must not block. Within a nested axum router the path
    /// is [`extract::original_path`](crate::extract::original_path), not that of `parts.uri`.
    #[must_use]
    pub fn skip_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.skip.add(condition);
        self
    }

    /// Restricts the policy to requests to this path; `/admin/*` matches every path below `/admin/`, and `/*` every request, also
    /// `OPTIONS *`. Several calls add paths: see [`skip_path`](Policy::skip_path).
    #[must_use]
    pub fn only_path(mut self, path: impl AsRef<str>) -> Self {
        self.only.add_path(path.as_ref());
        self
    }

    /// Restricts the policy to requests with this method. Several calls add methods: see [`skip_path`](Policy::skip_path).
    ///
    /// `HEAD` is a method of its own, although axum's routers pass it to the handler of `GET`, which does its work for it: where
    /// `GET` is limited, name both.
    #[must_use]
    pub fn only_method(mut self, method: Method) -> Self {
        self.only.add_method(method);
        self
    }

    /// Restricts the policy to requests for whose head `condition` returns true. With several calls, all conditions have to be
    /// true: see [`skip_path`](Policy::skip_path). It runs on the request path and must not block. Within a nested axum router
    /// the path is [`extract::original_path`](crate::extract::original_path), not that of `parts.uri`.
    #[must_use]
    pub fn only_with<F>(mut self, condition: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        self.only.add(condition);
        self
    }
}
