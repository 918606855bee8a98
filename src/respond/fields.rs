//! The `RateLimit` and `RateLimit-Policy` fields of draft-ietf-httpapi-ratelimit-headers, and `Retry-After`.

use std::{fmt::Write, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};

use crate::{
    decision::{Decision, Ruling},
    strategy::Retry,
};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// What a client that found the store closed is to wait: long enough for an election, short enough to be back soon.
const FAULT_RETRY: u64 = 1;

/// Adds the fields of `decision`. Lists of layers further in stay: more lines of a list are one list (RFC 9651, 4.2).
pub(crate) fn write(decision: &Decision, headers: &mut HeaderMap) {
    let retry_after = retry_after(decision);
    // A layer further in that refused, or a handler, may have said when to come back.
    let latest = retry_after.or_else(|| said(headers)).unwrap_or(u64::MAX);
    if decision.verdicts().len() > 0 {
        let (mut policies, mut limits) = (String::with_capacity(64), String::with_capacity(64));
        for verdict in decision.verdicts() {
            let comma = if policies.is_empty() { "" } else { ", " };
            let quota = verdict.quota();
            // Names hold neither quotes nor backslashes, so that they stand as they are.
            let name = verdict.policy();
            let _ = write!(policies, "{comma}\"{name}\";q={}", quota.units());
            if quota.is_concurrent() {
                policies.push_str(";qu=\"concurrent-requests\"");
            }
            // A window is whole seconds; of a shorter one there is nothing true to say.
            if quota.period() >= Duration::from_secs(1) {
                let _ = write!(policies, ";w={}", whole_seconds(quota.period()));
            }
            // Where more is left than was asked for, the wait is for the full quota; never later than Retry-After.
            let wait = match verdict.retry() {
                Retry::After(wait) => wait,
                _ => verdict.reset_after(),
            };
            let t = whole_seconds(wait).min(latest);
            let _ = write!(limits, "{comma}\"{name}\";r={};t={t}", verdict.remaining());
        }
        for (name, list) in [(POLICY, policies), (LIMIT, limits)] {
            if let Ok(value) = HeaderValue::try_from(list) {
                headers.append(name, value);
            }
        }
    }
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
}

/// `Retry-After` (RFC 9110, 10.2.3) of a refusal: whole seconds, rounded up, at least one. None where waiting doesn't
/// help.
fn retry_after(decision: &Decision) -> Option<u64> {
    match (decision.ruling(), decision.retry()) {
        (Ruling::Exhausted, Retry::After(wait)) => Some(whole_seconds(wait).max(1)),
        (Ruling::Fault(_), _) => Some(FAULT_RETRY),
        _ => None,
    }
}

/// The `Retry-After` that is there already, if it is in seconds.
fn said(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
