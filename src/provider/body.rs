//! What bodies in JSON say. The application reads them, and calls these functions.

use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::{
    feedback::{Feedback, Refusal, Reset},
    reading::status_text,
    text::{Decimal, Instant, from_nanos, go_duration},
};

/// Bytes of the longest body that is read.
const MAX_BODY_BYTES: usize = 64 << 10;
/// Members of a list that are read.
const MAX_ITEMS: usize = 32;

/// Reads the body of a response of the Gemini API. At most 64 KiB are read.
///
/// The call was refused if the status is 429, or 503 with a time, or the error's status is `RESOURCE_EXHAUSTED`. The time is
/// `google.rpc.RetryInfo`'s. Each violation of `google.rpc.QuotaFailure` is a limit with nothing remaining, whose name is
/// the `quotaId`, such as `GenerateRequestsPerDayPerProjectPerModel-FreeTier`.
///
/// ```
/// use std::time::Duration;
///
/// use http::StatusCode;
/// use tollgate::provider;
///
/// let body = br#"{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [
///     {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.700s"}
/// ]}}"#;
/// let feedback = provider::gemini(StatusCode::TOO_MANY_REQUESTS, body);
/// let refusal = feedback.refusal.expect("a refusal");
/// assert_eq!(refusal.retry_after, Some(Duration::from_millis(3_700)));
/// ```
pub fn gemini(status: StatusCode, body: &[u8]) -> Feedback {
    let mut feedback = Feedback::default();
    let parsed = parse(body, &mut feedback).unwrap_or_default();
    // A stream that fails is a list of one error.
    let error = &parsed.get(0).unwrap_or(&parsed)["error"];
    let mut delay = None;
    for detail in items(&error["details"]) {
        let kind = detail["@type"].as_str().unwrap_or_default();
        if kind.ends_with("google.rpc.RetryInfo") {
            let value = &detail["retryDelay"];
            match value.as_str().and_then(go_duration) {
                Some(time) => delay = delay.max(Some(time)),
                None => feedback.add_unread("retryDelay", value.to_string()),
            }
        } else if kind.ends_with("google.rpc.QuotaFailure") {
            for violation in items(&detail["violations"]) {
                add_violation(violation, &mut feedback);
            }
        }
    }
    let cause = match status {
        StatusCode::TOO_MANY_REQUESTS => Some(status_text(status)),
        _ if error["status"] == "RESOURCE_EXHAUSTED" => Some("error.status".into()),
        StatusCode::SERVICE_UNAVAILABLE if delay.is_some() => Some(status_text(status)),
        _ => None,
    };
    feedback.refusal = cause.map(|cause| match delay.filter(|delay| !delay.is_zero()) {
        Some(delay) => Refusal::new("retryDelay").retry_after(delay),
        None => Refusal::new(cause),
    });
    feedback
}

/// A quota of Gemini that the call exceeds.
fn add_violation(violation: &Value, feedback: &mut Feedback) {
    let Some(name) = violation["quotaId"].as_str() else {
        return;
    };
    let Some(limit) = feedback.limit_mut(name) else {
        return feedback.add_unread("quotaId", name);
    };
    limit.merge_remaining(0);
    if let Some(quota) = number(&violation["quotaValue"]) {
        limit.merge_limit(quota.whole);
    }
}

/// Reads the body of a response of Shopify's GraphQL API. At most 64 KiB are read.
///
/// `extensions.cost.throttleStatus` is the limit `points`, a bucket. The call was refused if an error's code is
/// `THROTTLED`; the time is then until there are as many points as the query requests.
pub fn shopify(body: &[u8]) -> Feedback {
    let mut feedback = Feedback::default();
    let Some(body) = parse(body, &mut feedback) else {
        return feedback;
    };
    let cost = &body["extensions"]["cost"];
    let bucket = &cost["throttleStatus"];
    let field = |value: &Value, name: &'static str, feedback: &mut Feedback| {
        let value = &value[name];
        let number = number(value);
        if number.is_none() && !value.is_null() {
            feedback.add_unread(name, value.to_string());
        }
        number
    };
    let maximum = field(bucket, "maximumAvailable", &mut feedback);
    let available = field(bucket, "currentlyAvailable", &mut feedback);
    let rate = field(bucket, "restoreRate", &mut feedback);
    let requested = field(cost, "requestedQueryCost", &mut feedback);
    let time_until = |points: Option<Decimal>| restore_time(points?, available?, rate?);
    if (maximum.is_some() || available.is_some())
        && let Some(limit) = feedback.limit_mut("points")
    {
        limit.limit = maximum.map(|maximum| maximum.whole);
        limit.remaining = available.map(|available| available.whole);
        limit.reset = time_until(maximum).map(Reset::Full);
    }
    let mut errors = items(&body["errors"]);
    if errors.any(|error| error["extensions"]["code"] == "THROTTLED") {
        let refusal = Refusal::new("errors.extensions.code");
        let time = time_until(requested).unwrap_or_default();
        feedback.refusal = Some(refusal.retry_after(time));
    }
    feedback
}

/// Reads the body of a response of GitHub's GraphQL API whose query asks for `rateLimit { limit remaining resetAt }`. At
/// most 64 KiB are read.
///
/// `data.rateLimit` is the limit `graphql`, whose window ends at `resetAt` by the system's clock. An error of type
/// `RATE_LIMITED` is a refusal.
pub fn github_graphql(body: &[u8]) -> Feedback {
    let mut feedback = Feedback::default();
    let Some(body) = parse(body, &mut feedback) else {
        return feedback;
    };
    let name = "graphql";
    let values = &body["data"]["rateLimit"];
    for part in ["limit", "remaining", "resetAt"] {
        let value = &values[part];
        if value.is_null() {
            continue;
        }
        let merged = match part {
            "resetAt" => value
                .as_str()
                .and_then(Instant::parse_rfc3339)
                .and_then(|at| {
                    let reset = Reset::WindowEnd(at.from(Instant::now()));
                    feedback.limit_mut(name)?.merge_reset(reset);
                    Some(())
                }),
            _ => number(value).and_then(|number| {
                let limit = feedback.limit_mut(name)?;
                match part {
                    "limit" => limit.merge_limit(number.whole),
                    _ => limit.merge_remaining(number.whole),
                }
                Some(())
            }),
        };
        if merged.is_none() {
            feedback.add_unread(part, value.to_string());
        }
    }
    if items(&body["errors"]).any(|error| error["type"] == "RATE_LIMITED") {
        feedback.refusal = Some(Refusal::new("errors.type"));
    }
    feedback
}

/// The body, unless it is too long or malformed.
fn parse(body: &[u8], feedback: &mut Feedback) -> Option<Value> {
    let parsed = (body.len() <= MAX_BODY_BYTES).then(|| serde_json::from_slice(body).ok());
    let parsed = parsed.flatten();
    if parsed.is_none() {
        feedback.add_unread("body", body);
    }
    parsed
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten().take(MAX_ITEMS)
}

/// A number, or one as text.
fn number(value: &Value) -> Option<Decimal> {
    match value {
        Value::Number(number) => Decimal::parse(&number.to_string()),
        Value::String(text) => Decimal::parse(text),
        _ => None,
    }
}

/// The time in which a bucket of `available` units that restores `rate` units a second has `target` units, rounded up to a
/// nanosecond. `None` if it restores none.
fn restore_time(target: Decimal, available: Decimal, rate: Decimal) -> Option<Duration> {
    // At most 2^64 units are below 2^94 billionths, which leaves room for the factor of 2^30.
    let billionths =
        |number: Decimal| u128::from(number.whole) * 1_000_000_000 + u128::from(number.fraction);
    let missing = billionths(target).saturating_sub(billionths(available));
    let rate = Some(billionths(rate)).filter(|rate| *rate > 0)?;
    Some(from_nanos((missing * 1_000_000_000).div_ceil(rate)))
}
