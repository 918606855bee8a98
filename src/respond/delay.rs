//! The time after which a rejected request can be retried: `Retry-After`, and gRPC's retry pushback.

use std::time::Duration;

use super::RateLimitHeaders;
use crate::{
    error::StoreError,
    limiter::{Decision, DecisionKind},
    strategy::{RetryAfter, whole_seconds},
};

/// The least `Retry-After` of a store failure: long enough for an election of a new primary.
const MIN_RETRY_AFTER_STORE_ERROR: Duration = Duration::from_secs(1);

/// The `Retry-After` of a store failure: not before the next probe of the circuit breaker.
pub(crate) fn retry_after_store_error(error: &StoreError) -> Duration {
    match error {
        StoreError::CircuitOpen { retry_after, .. } => {
            MIN_RETRY_AFTER_STORE_ERROR.max(*retry_after)
        }
        _ => MIN_RETRY_AFTER_STORE_ERROR,
    }
}

/// A wait as `Retry-After` has it (RFC 9110, 10.2.3): whole seconds, rounded up, at least one.
pub(crate) fn retry_after_seconds(wait: Duration) -> u64 {
    whole_seconds(wait).max(1)
}

/// The time after which a rejected request can be retried, with jitter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryDelay {
    /// `None` if a retry does not depend on time.
    retry: Option<RetryAfter>,
    /// Random time that was added to the wait, so that clients do not retry all at once.
    pub(super) jitter: Duration,
}

impl RetryDelay {
    /// The delay of admitted requests.
    pub(crate) const NONE: Self = Self {
        retry: None,
        jitter: Duration::ZERO,
    };

    /// The delay of one rejection. Each call samples the jitter anew.
    pub(crate) fn of(decision: &Decision, fields: &RateLimitHeaders) -> Self {
        let jitter = fields.sample_jitter();
        let retry = match (decision.kind(), decision.retry_after()) {
            (DecisionKind::Rejected, RetryAfter::In(wait)) => {
                Some(RetryAfter::In(wait.saturating_add(jitter)))
            }
            (DecisionKind::Rejected, RetryAfter::Never) => Some(RetryAfter::Never),
            (DecisionKind::StoreFailed(error), _) => Some(RetryAfter::In(
                retry_after_store_error(error).saturating_add(jitter),
            )),
            _ => None,
        };
        Self { retry, jitter }
    }

    /// The wait; `None` if waiting doesn't help.
    pub(crate) fn wait(self) -> Option<Duration> {
        match self.retry {
            Some(RetryAfter::In(wait)) => Some(wait),
            _ => None,
        }
    }

    /// `Retry-After` (RFC 9110, 10.2.3): whole seconds, rounded up, at least one.
    pub(crate) fn seconds(self) -> Option<u64> {
        self.wait().map(retry_after_seconds)
    }

    /// `grpc-retry-pushback-ms` (gRFC A6): whole milliseconds, rounded up. -1 forbids a retry: for requests that
    /// will never be admitted, and for waits that exceed the field's 32 bits.
    pub(crate) fn pushback_ms(self) -> Option<i32> {
        match (self.millis(), self.retry?) {
            (Some(ms), _) => Some(i32::try_from(ms).unwrap_or(-1)),
            (None, RetryAfter::Never) => Some(-1),
            (None, _) => None,
        }
    }

    /// The wait in whole milliseconds, rounded up, at least one.
    pub(crate) fn millis(self) -> Option<u64> {
        let ms = self.wait()?.as_nanos().div_ceil(1_000_000).max(1);
        Some(u64::try_from(ms).unwrap_or(u64::MAX))
    }
}
