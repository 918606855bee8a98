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
///     r#"policy "burst": a period of 0ns: a period is at least 1 µs"#,
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
        write!(f, "{}: {}", self.value, self.expected)
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

/// Why a store could not answer. A refusal is an answer; this is a fault.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer within the deadline. What was asked may still have been charged.
    #[error("the store did not answer within the deadline")]
    Timeout,
    /// No connection could be had, or it broke while an answer was awaited.
    #[error("no connection to the store: {0}")]
    Connection(Arc<str>),
    /// It was not asked: it failed too often just now, and is being probed in the background.
    #[error(
        "the store is at fault, and is not asked until it answers a probe; the next one is due in {retry_after:?}"
    )]
    CircuitOpen {
        /// How long until the next probe. It may be asked again then.
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
    /// Something that this crate did not write stands under the key; it was left alone, and nothing was charged.
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
