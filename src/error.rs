//! What can go wrong: in a configuration, and in a store.

use std::{error, fmt, sync::Arc, time::Duration};

/// A mistake in a configuration, found when a [`Limiter`](crate::Limiter), a layer or a store is built.
///
/// It says which policy it is about (if one), which value is wrong, and what would be valid.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Policy, Quota};
///
/// let error = Limiter::builder()
///     .policy(Policy::new("burst", Quota::requests(10).per(Duration::ZERO)))
///     .build()
///     .unwrap_err();
/// assert_eq!(error.policy(), Some("burst"));
/// assert_eq!(
///     error.to_string(),
///     r#"policy "burst": a period of 0ns; expected a period of at least 1 µs"#,
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    policy: Option<String>,
    value: String,
    expected: String,
}

impl ConfigError {
    pub(crate) fn new(value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            policy: None,
            value: value.into(),
            expected: expected.into(),
        }
    }

    pub(crate) fn of(policy: &str, unfit: InvalidValue) -> Self {
        Self {
            policy: Some(policy.to_owned()),
            value: unfit.value,
            expected: unfit.expected,
        }
    }

    /// A mistake at a place that isn't a policy.
    pub(crate) fn at(place: &str, unfit: InvalidValue) -> Self {
        Self::new(format!("{place}{}", unfit.value), unfit.expected)
    }

    /// The name of the policy that is at fault; `None` if it's the store or the whole.
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// What is wrong.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What would be valid.
    pub fn expected(&self) -> &str {
        &self.expected
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = &self.policy {
            write!(f, "policy {policy:?}: ")?;
        }
        write!(f, "{}; expected {}", self.value, self.expected)
    }
}

impl error::Error for ConfigError {}

/// Why a [`Strategy`](crate::strategy::Strategy) can't count a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    value: String,
    expected: String,
}

impl InvalidValue {
    /// `value` is what can't be counted, `valid` says what could.
    pub fn new(value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            value: value.into(),
            expected: expected.into(),
        }
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    pub(crate) name: String,
    pub(crate) known: Vec<String>,
}

impl UnknownPolicy {
    /// The name that no policy has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names that there are.
    pub fn known(&self) -> &[String] {
        &self.known
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no policy {:?}; expected one of {:?}",
            self.name, self.known
        )
    }
}

impl error::Error for UnknownPolicy {}

/// Why a store could not answer. A rejection is an answer; this is a failure.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer within the timeout. The request may still have been charged.
    #[error("the store did not answer within the timeout")]
    Timeout,
    /// No connection could be had, or it broke while an answer was awaited.
    #[error("no connection to the store: {0}")]
    Connection(Arc<str>),
    /// The circuit breaker is open: recent calls failed, none is made, and the store is probed in the background.
    #[error(
        "circuit breaker is open after failed calls to the store; next probe in {retry_after:?}"
    )]
    CircuitOpen {
        /// How long until the next probe.
        retry_after: Duration,
    },
    /// The server answered with an error; nothing was charged.
    #[error("the store answered with an error: {code}: {message}")]
    Server {
        /// The error's code, such as `OOM` or `READONLY`.
        code: Arc<str>,
        /// The server's words.
        message: Arc<str>,
    },
    /// The key holds data that this crate did not write. It was left as it is, and nothing was charged.
    #[error("the store's key {key:?} holds no state of this policy: {message}")]
    CorruptKey {
        /// The key in the store.
        key: Arc<str>,
        /// What is wrong with it.
        message: Arc<str>,
    },
    /// The store can't do what was asked.
    #[error("the store can't do that: {0}")]
    Unsupported(&'static str),
}
