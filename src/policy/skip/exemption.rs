//! The condition by which a request is exempt from a policy, or from all of a limiter.

use std::fmt;

use http::Method;

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
    /// [`skip_with`](crate::Policy::skip_with): the function's name in configuration files, or `#` and its position, from 1.
    SkipWith(String),
    /// [`only_method`](crate::Policy::only_method) with these methods, none of which is the request's.
    OnlyMethod(Vec<Method>),
    /// [`only_path`](crate::Policy::only_path) with these paths, none of which is the request's.
    OnlyPath(Vec<String>),
    /// [`only_with`](crate::Policy::only_with): the function's name in configuration files, or `#` and its position, from 1.
    OnlyWith(String),
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
            Self::SkipWith(name) => write!(f, "skip_with {name}"),
            Self::OnlyMethod(methods) => {
                let methods: Vec<_> = methods.iter().map(Method::as_str).collect();
                write!(f, "only_method {}", methods.join(", "))
            }
            Self::OnlyPath(paths) => write!(f, "only_path {}", paths.join(", ")),
            Self::OnlyWith(name) => write!(f, "only_with {name}"),
        }
    }
}
