//! Errors of configurations, calls and stores.

use std::{error, fmt, sync::Arc};

#[cfg(feature = "config")]
mod reference;
mod store;

#[cfg(feature = "config")]
pub use reference::Reference;
pub(crate) use store::Escaped;
pub use store::StoreError;

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
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// The field that the value is in, if it is known.
    #[cfg(feature = "config")]
    pub(crate) fn field(&self) -> Option<&Field> {
        self.field.as_ref()
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

impl error::Error for ConfigError {}

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

/// The error of a [`Strategy`](crate::strategy::Strategy), a [`Store`](crate::store::Store) or a
/// [`KeyExtractor`](crate::KeyExtractor) for a setting that it can't use. The limiter that is built with it returns a
/// [`ConfigError`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    value: String,
    expected: String,
    /// Set by what asks for the value to be checked, since what checks it may be the application's.
    field: Option<Field>,
    #[cfg(feature = "config")]
    unresolved: Option<Reference>,
}

impl InvalidValue {
    /// An error about `value`; `expected` describes a valid one. They read "`value`; expected `expected`".
    pub fn new(value: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            value: value.into(),
            expected: expected.into(),
            field: None,
            #[cfg(feature = "config")]
            unresolved: None,
        }
    }

    /// The same error, which is in this field.
    pub(crate) fn in_field(self, name: &'static str) -> Self {
        self.in_entry(name, 0)
    }

    /// The same error, which is in the entry at `index` of a field: `name` has `[]` where the index stands.
    pub(crate) fn in_entry(mut self, name: &'static str, index: usize) -> Self {
        self.field = Some(Field { name, index });
        self
    }

    /// The same error, which is that `reference` can't be resolved.
    #[cfg(feature = "config")]
    pub(crate) fn unresolved(mut self, reference: Reference) -> Self {
        self.unresolved = Some(reference);
        self
    }

    /// Takes what can't be resolved, if that is the error.
    #[cfg(feature = "config")]
    pub(crate) fn take_unresolved(&mut self) -> Option<Reference> {
        self.unresolved.take()
    }
}

/// The error of a name that no policy of the limiter has.
///
/// ```
/// use tollgate::{CallError, Limiter, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("tokens", Quota::requests(5).per_minute()))
///     .build()?;
/// let error = limiter.peek([("tokns", "alice")]).await.unwrap_err();
/// assert!(matches!(&error, CallError::UnknownPolicy(unknown) if unknown.name() == "tokns"));
/// assert_eq!(error.to_string(), r#"no policy "tokns"; expected one of ["tokens"]"#);
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(Arc<(String, Vec<String>)>);

impl UnknownPolicy {
    pub(crate) fn new(name: &str, known: impl IntoIterator<Item = String>) -> Self {
        Self(Arc::new((name.to_owned(), known.into_iter().collect())))
    }

    /// The unknown name.
    pub fn name(&self) -> &str {
        &self.0.0
    }

    /// The names of the limiter's policies.
    pub fn known(&self) -> &[String] {
        &self.0.1
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no policy {:?}; expected one of {:?}",
            self.name(),
            self.known()
        )
    }
}

impl error::Error for UnknownPolicy {}

/// The error of an operation by hand other than a check, such as [`Limiter::reset`](crate::Limiter::reset).
///
/// As a response it is a 503 Service Unavailable without details. Its text, for logs and operators, names what failed and what
/// to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The store failed. After a [timeout](StoreError::Timeout) the operation may have been done, or be done later. It is never
    /// done in process instead.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The call names a policy that the limiter does not have; the store was not called.
    #[error(transparent)]
    UnknownPolicy(#[from] UnknownPolicy),
    /// The call has two keys for a policy; the store was not called.
    #[error("policy {policy:?} is named twice; expected one key for each policy")]
    #[non_exhaustive]
    DuplicatePolicy {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// The policy takes its quota, its cost or its conditions from requests, and the call has neither a request, by
    /// [`Check::parts`](crate::Check::parts), nor settings of its own. The store was not called.
    #[error("policy {policy:?} takes {lacks}")]
    #[non_exhaustive]
    PartsRequired {
        /// The policy's name.
        policy: Arc<str>,
        /// What the call lacks, and which calls supply it: ``its cost from a request: call `parts`, `cost` or `cost_for` ``.
        lacks: &'static str,
    },
    /// The policy's strategy can't credit units: see [`PolicyHandle::credit`](crate::PolicyHandle::credit).
    #[error(
        "policy {policy:?} can't be credited: its strategy stores each charge separately; use `reset` to return all units"
    )]
    #[non_exhaustive]
    CreditUnsupported {
        /// The policy's name.
        policy: Arc<str>,
    },
    /// The call blocks or unblocks keys, and none of its policies is a [ban](crate::Ban). The store was not called.
    #[error(
        "none of the policies {policies:?} is a ban: block and unblock require one, such as Policy::block_list(\"blocked\")"
    )]
    #[non_exhaustive]
    NotABan {
        /// The policies' names.
        policies: Vec<Arc<str>>,
    },
}
