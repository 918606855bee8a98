//! The status of keys, as answers have it.

use std::time::Duration;

use crate::{
    admin::api::Status, clock::Timestamp, decision::PolicyDecision, limiter::LimitStatus,
    strategy::RetryAfter,
};

/// The statuses under all policies of a call, shadow policies included.
pub(super) fn statuses(status: &LimitStatus) -> Vec<Status> {
    let policies = status.policies().chain(status.shadows());
    policies.map(|decision| status_of(&decision)).collect()
}

pub(super) fn status_of(decision: &PolicyDecision<'_>) -> Status {
    let retry_after = decision.retry_after();
    Status {
        policy: decision.policy().to_owned(),
        key: decision.key_text(),
        limit: decision.limit(),
        remaining: decision.remaining(),
        cost: decision.cost(),
        retry_after_ms: retry_after.duration().map(millis),
        reset_after_ms: millis(decision.reset_after()),
        would_admit: decision.cost() == 0 || retry_after == RetryAfter::Now,
    }
}

/// Whole milliseconds, rounded up, so that a wait is never too short.
pub(super) fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// An instant as in RFC 3339; empty outside of the years that it has.
pub(super) fn rfc3339(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_microsecond(at.as_micros());
    at.map_or_else(|_| String::new(), |at| at.to_string())
}
