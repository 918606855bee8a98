//! Errors of configurations.

use std::{error, fmt};

use super::{InvalidValue, ParseQuotaError, VALID_QUOTAS};

/// An invalid configuration, found when a [`Limiter`](crate::Limiter), a layer or a store is built.
///
/// Names the policy (if it is about one), the invalid value, and what is expected.
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
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    policy: Option<String>,
    value: String,
    expected: String,
    field: Option<Field>,
}

impl ConfigError {
    pub(crate) fn new(value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            policy: None,
            value: value.into(),
            expected: expected.into(),
            field: None,
        }
    }

    pub(crate) fn of(policy: &str, invalid: InvalidValue) -> Self {
        Self {
            policy: Some(policy.to_owned()),
            ..Self::at("", invalid)
        }
    }

    /// An error outside of policies; the value is described after `prefix`.
    pub(crate) fn at(prefix: &str, invalid: InvalidValue) -> Self {
        Self {
            field: invalid.field,
            ..Self::new(format!("{prefix}{}", invalid.value), invalid.expected)
        }
    }

    /// The same error, which is in this field.
    #[cfg(feature = "redis")]
    pub(crate) fn in_field(mut self, name: &'static str) -> Self {
        self.field = Some(Field { name, index: 0 });
        self
    }

    /// The name of the invalid policy; `None` if the store or the limiter as a whole is invalid.
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// The invalid setting, by its path in a configuration document: within the [policy](Self::policy) that has it, such as `cost`,
    /// `lease.ttl` or `skip.paths[1]`, or else in the whole, such as `store.timeout`. `None` if it is not in one setting, but in a
    /// policy's name, or in what documents don't have.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// let policy = Policy::new("burst", Quota::requests(10).per_second()).cost(11);
    /// let error = Limiter::builder().policy(policy).build().unwrap_err();
    /// assert_eq!(error.setting().as_deref(), Some("cost"));
    /// ```
    pub fn setting(&self) -> Option<String> {
        self.field.as_ref().map(ToString::to_string)
    }

    /// The invalid value, described in words.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// A description of what would be valid.
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

/// The text, which a `main` that returns the error prints.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for ConfigError {}

impl From<ParseQuotaError> for ConfigError {
    fn from(error: ParseQuotaError) -> Self {
        Self::new(
            format!("invalid quota {:?}: {}", error.text, error.problem),
            VALID_QUOTAS,
        )
    }
}

/// The field of a configuration document that has a setting, within its policy or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Such as `lease.ttl`, or `skip.paths[]` for an entry of an array.
    pub(crate) name: &'static str,
    /// The entry's index.
    pub(crate) index: usize,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.split_once("[]") {
            Some((array, rest)) => write!(f, "{array}[{}]{rest}", self.index),
            None => f.write_str(self.name),
        }
    }
}
