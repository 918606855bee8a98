//! The response to a call that failed in a handler.

use std::time::Duration;

use super::{delay::after_failure, problem::REDUCED_CAPACITY_TITLE};
#[cfg(feature = "axum")]
use super::{delay::whole_seconds, problem::REDUCED_CAPACITY};
use crate::{error::CallError, log::LogThrottle};

/// The response to a call that failed in a handler: the service is unavailable, and when to retry.
pub(crate) struct Unavailable {
    /// `None` if waiting doesn't help.
    pub(crate) retry_after: Option<Duration>,
}

impl Unavailable {
    /// Of a mistake of the application, which is logged.
    pub(crate) fn of(error: &CallError) -> Self {
        let retry_after = match error {
            CallError::Store(error) => Some(after_failure(error)),
            CallError::UnknownPolicy(_)
            | CallError::PartsRequired { .. }
            | CallError::CreditUnsupported { .. }
            | CallError::NotABan { .. } => {
                static MISUSE: LogThrottle = LogThrottle::new();
                MISUSE.log_with(|suppressed| {
                    tracing::error!(%error, suppressed, "a handler returned the error of a call that the application made wrongly");
                });
                None
            }
        };
        Self { retry_after }
    }

    /// `Retry-After`: whole seconds, rounded up, at least one.
    #[cfg(feature = "axum")]
    pub(crate) fn seconds(&self) -> Option<u64> {
        self.retry_after.map(|wait| whole_seconds(wait).max(1))
    }

    /// Problem details (RFC 9457), as of a layer whose store failed.
    #[cfg(feature = "axum")]
    pub(crate) fn json() -> String {
        format!(
            r#"{{"type":"{REDUCED_CAPACITY}","title":"{REDUCED_CAPACITY_TITLE}","status":503}}"#
        )
    }

    /// A line for people.
    #[cfg(feature = "tonic")]
    pub(crate) fn sentence() -> String {
        format!("{REDUCED_CAPACITY_TITLE}.")
    }
}
