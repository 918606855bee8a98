//! Errors of configurations, calls and stores. Those that most programs name are in the crate's root.

use std::{error, fmt, sync::Arc};

pub(crate) mod call;
pub(crate) mod config;
pub(crate) mod overrides;
#[cfg(feature = "config")]
pub(crate) mod reference;
pub(crate) mod store;

pub use self::call::NotNow;
#[cfg(feature = "config")]
pub(crate) use self::reference::Reference;
pub(crate) use self::{
    call::CallError,
    config::{ConfigError, Field},
    store::{Escaped, StoreError},
};

/// The error of text that is no [`Quota`](crate::Quota). It names the problem, and shows valid quotas.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid quota {text:?}: {problem}; expected {VALID_QUOTAS}")]
pub struct ParseQuotaError {
    pub(crate) text: String,
    pub(crate) problem: String,
}

const VALID_QUOTAS: &str =
    r#"a quota such as "100/min", "10/s burst 20", "5000 per day", "3/500ms" or "8 concurrent""#;

/// The text, which a `main` that returns the error prints.
impl fmt::Debug for ParseQuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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

/// The rejection of a handler that extracts an [`Admission`](crate::Admission) without a [`RateLimitLayer`](crate::RateLimitLayer) around it: a
/// mistake in the application, whose response is 500, as axum's for a missing extension.
///
/// A handler that may have no layer extracts an `Option<Admission>`.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request has no Admission: add a RateLimitLayer around this handler")]
pub struct MissingAdmission;
