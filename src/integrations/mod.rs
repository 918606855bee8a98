//! Implementations of other crates' traits for the types of this one.

use std::time::Duration;

#[cfg(feature = "axum")]
use crate::respond::{delay::retry_after_seconds, problem::REDUCED_CAPACITY};
use crate::{
    error::CallError,
    log::LogThrottle,
    respond::{delay::retry_after_store_error, problem::REDUCED_CAPACITY_TITLE},
};

#[cfg(feature = "axum")]
pub(crate) mod axum;
#[cfg(feature = "tonic")]
pub(crate) mod tonic;

/// The problem of a call that failed in a handler: the service is unavailable, and when to retry.
struct Unavailable {
    /// `None` if waiting doesn't help.
    retry_after: Option<Duration>,
}

impl Unavailable {
    /// The problem of `error`. If that is a mistake of the application, it is logged.
    fn of(error: &CallError) -> Self {
        let retry_after = match error {
            CallError::Store(error) => Some(retry_after_store_error(error)),
            CallError::UnknownPolicy(_)
            | CallError::DuplicatePolicy { .. }
            | CallError::TooManyEntries { .. }
            | CallError::PartsRequired { .. }
            | CallError::CreditUnsupported { .. }
            | CallError::NoBlockList
            | CallError::AdmitRequired { .. }
            | CallError::NotABan { .. } => {
                static MISUSE: LogThrottle = LogThrottle::new();
                MISUSE.log_with(|suppressed| {
                    tracing::error!(%error, suppressed, "a handler returned the error of an invalid call");
                });
                None
            }
        };
        Self { retry_after }
    }

    /// `Retry-After`: whole seconds, rounded up, at least one.
    #[cfg(feature = "axum")]
    fn seconds(&self) -> Option<u64> {
        self.retry_after.map(retry_after_seconds)
    }

    /// Problem details, the same as those of a layer whose store failed.
    #[cfg(feature = "axum")]
    fn json() -> String {
        format!(
            r#"{{"type":"{REDUCED_CAPACITY}","title":"{REDUCED_CAPACITY_TITLE}","status":503}}"#
        )
    }

    /// A message for people.
    #[cfg(feature = "tonic")]
    fn message() -> String {
        format!("{REDUCED_CAPACITY_TITLE}.")
    }
}
