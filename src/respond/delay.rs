//! How long a refused caller is to stay away.

use std::time::Duration;

use super::RateLimitHeaders;
use crate::{
    decision::{Decision, DecisionKind},
    error::StoreError,
    strategy::RetryAfter,
};

/// What a client that met a failed store is to wait at least: long enough for an election, short enough to be back soon.
const MIN_FAILURE_WAIT: Duration = Duration::from_secs(1);

/// What a client is to wait that met a failed store, by way of a layer or of a handler: until the next probe at least.
pub(super) fn after_failure(error: &StoreError) -> Duration {
    match error {
        StoreError::CircuitOpen { retry_after, .. } => MIN_FAILURE_WAIT.max(*retry_after),
        _ => MIN_FAILURE_WAIT,
    }
}

/// How long a refused caller is to stay away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay {
    /// None where waiting is not the matter.
    retry: Option<RetryAfter>,
    /// What it is put off by, so that not all come back at once.
    pub(super) jitter: Duration,
}

impl Delay {
    /// Of those who were let in.
    pub(crate) const NONE: Self = Self {
        retry: None,
        jitter: Duration::ZERO,
    };

    /// Of one refusal: asked again, it may be put off by another time.
    pub(crate) fn of(decision: &Decision, fields: RateLimitHeaders) -> Self {
        let jitter = fields.draw();
        let retry = match (decision.kind(), decision.retry_after()) {
            (DecisionKind::Rejected, RetryAfter::In(wait)) => {
                Some(RetryAfter::In(wait.saturating_add(jitter)))
            }
            (DecisionKind::Rejected, RetryAfter::Never) => Some(RetryAfter::Never),
            (DecisionKind::StoreFailed(error), _) => {
                Some(RetryAfter::In(after_failure(error).saturating_add(jitter)))
            }
            _ => None,
        };
        Self { retry, jitter }
    }

    /// The wait; `None` where waiting doesn't help.
    pub(crate) fn wait(self) -> Option<Duration> {
        match self.retry {
            Some(RetryAfter::In(wait)) => Some(wait),
            _ => None,
        }
    }

    /// `Retry-After` (RFC 9110, 10.2.3): whole seconds, rounded up, at least one.
    pub(crate) fn seconds(self) -> Option<u64> {
        self.wait().map(|wait| whole_seconds(wait).max(1))
    }

    /// `grpc-retry-pushback-ms` (gRFC A6): whole milliseconds, rounded up. -1 forbids to try again, which is what has to be
    /// said of what will never pass, and of waits that the field's 32 bits don't hold.
    pub(crate) fn pushback_ms(self) -> Option<i32> {
        match self.retry? {
            RetryAfter::In(wait) => {
                let ms = wait.as_nanos().div_ceil(1_000_000).max(1);
                Some(i32::try_from(ms).unwrap_or(-1))
            }
            RetryAfter::Never => Some(-1),
            RetryAfter::Now | RetryAfter::Unknown => None,
        }
    }
}

pub(super) fn whole_seconds(duration: Duration) -> u64 {
    let part = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().saturating_add(part)
}
