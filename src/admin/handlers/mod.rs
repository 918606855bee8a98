//! The handlers of the routes, and the status of keys in their answers.

use std::time::Duration;

use crate::{
    admin::api::Status,
    clock::Timestamp,
    limiter::{LimitStatus, PolicyDecision},
    strategy::RetryAfter,
};

pub(super) mod activity;
pub(super) mod blocks;
pub(super) mod explain;
pub(super) mod health;
pub(super) mod keys;
pub(super) mod overrides;
pub(super) mod policies;

/// The statuses under all policies of a call, shadow policies included.
fn statuses_of(status: &LimitStatus) -> Vec<Status> {
    let policies = status.policies().chain(status.shadows());
    policies.map(|decision| status_of(&decision)).collect()
}

fn status_of(decision: &PolicyDecision<'_>) -> Status {
    let retry_after = decision.retry_after();
    Status {
        policy: decision.policy().to_owned(),
        key: decision.key_text(),
        limit: limit(decision),
        remaining: remaining(decision),
        blocked_until: blocked_until(decision),
        cost: decision.cost(),
        retry_after_ms: retry_after.duration().map(millis),
        reset_after_ms: millis(decision.reset_after()),
        would_admit: decision.cost() == 0 || retry_after == RetryAfter::Now,
    }
}

/// The most units that can be charged at once; `None` under a block list.
fn limit(decision: &PolicyDecision<'_>) -> Option<u64> {
    (!decision.is_block_list()).then(|| decision.limit())
}

/// The whole units left; `None` under a block list.
fn remaining(decision: &PolicyDecision<'_>) -> Option<u64> {
    (!decision.is_block_list()).then(|| decision.remaining())
}

/// When the ban of the key ends; `None` if it is not banned, or the policy is no ban.
fn blocked_until(decision: &PolicyDecision<'_>) -> Option<String> {
    let wait = decision.retry_after().duration()?;
    let is_blocked = decision.is_ban() && !wait.is_zero();
    is_blocked.then(|| rfc3339(decision.decided_at() + wait))
}

/// Whole milliseconds, rounded up, so that a wait is never too short.
fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// An instant as in RFC 3339; empty outside of the years that it has.
fn rfc3339(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_microsecond(at.as_micros());
    at.map_or_else(|_| String::new(), |at| at.to_string())
}
