//! What bodies in JSON say. The application reads them, and calls these functions.

use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::{
    feedback::{Feedback, Refusal},
    reading::status_text,
    text::{Decimal, Instant, MAX_TIME, seconds},
};

/// Bytes of the longest body that is read.
const MAX_BODY_BYTES: usize = 64 << 10;
/// Members of a list that are read.
const MAX_ITEMS: usize = 32;

/// Reads the body of a response of the Gemini API. At most 64 KiB are read.
///
/// The call was refused if the status is 429, or 503 with a time, or the error's status is `RESOURCE_EXHAUSTED` and its details have
/// a `google.rpc.RetryInfo` or a `google.rpc.QuotaFailure`. The time is that of the former.
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
    let (mut delay, mut has_quota) = (None, false);
    for detail in items(&error["details"]) {
        let kind = detail["@type"].as_str().unwrap_or_default();
        has_quota |= kind.ends_with("google.rpc.QuotaFailure");
        if !kind.ends_with("google.rpc.RetryInfo") {
            continue;
        }
        let value = &detail["retryDelay"];
        let time = value.as_str().and_then(|text| text.strip_suffix('s'));
        match time.and_then(seconds) {
            Some(time) => delay = delay.max(Some(time)),
            None => feedback.add_unread("retryDelay", value.to_string()),
        }
    }
    let cause = match status {
        StatusCode::TOO_MANY_REQUESTS => Some(status_text(status)),
        // The code alone may also mean a request that is too large.
        _ if error["status"] == "RESOURCE_EXHAUSTED" && (has_quota || delay.is_some()) => {
            Some("error.status".into())
        }
        StatusCode::SERVICE_UNAVAILABLE if delay.is_some() => Some(status_text(status)),
        _ => None,
    };
    feedback.refusal = cause.map(|cause| match delay.filter(|delay| !delay.is_zero()) {
        Some(delay) => Refusal::new("retryDelay").retry_after(delay),
        None => Refusal::new(cause),
    });
    feedback
}

/// Reads the body of a response of Shopify's GraphQL API. At most 64 KiB are read.
///
/// The call was refused if an error's code is `THROTTLED`. The time is until there are as many points as the query requests, by
/// `extensions.cost`.
pub fn shopify(body: &[u8]) -> Feedback {
    let mut feedback = Feedback::default();
    let Some(body) = parse(body, &mut feedback) else {
        return feedback;
    };
    let mut errors = items(&body["errors"]);
    if !errors.any(|error| error["extensions"]["code"] == "THROTTLED") {
        return feedback;
    }
    let cost = &body["extensions"]["cost"];
    let bucket = &cost["throttleStatus"];
    let mut field = |value: &Value, name: &'static str| {
        let value = &value[name];
        let number = number(value);
        if number.is_none() && !value.is_null() {
            feedback.add_unread(name, value.to_string());
        }
        number
    };
    let requested = field(cost, "requestedQueryCost");
    let available = field(bucket, "currentlyAvailable");
    let rate = field(bucket, "restoreRate");
    let time = requested.zip(available).zip(rate);
    let time =
        time.and_then(|((requested, available), rate)| restore_time(requested, available, rate));
    let refusal = Refusal::new("errors.extensions.code");
    feedback.refusal = Some(refusal.retry_after(time.unwrap_or_default()));
    feedback
}

/// Reads the body of a response of GitHub's GraphQL API whose query asks for `rateLimit { remaining resetAt }`. At most 64 KiB
/// are read.
///
/// `data.rateLimit` is the limit `graphql`, whose window ends at `resetAt` by the system's clock. An error of type
/// `RATE_LIMITED` is a refusal.
pub fn github_graphql(body: &[u8]) -> Feedback {
    let mut feedback = Feedback::default();
    let Some(body) = parse(body, &mut feedback) else {
        return feedback;
    };
    let window = &body["data"]["rateLimit"];
    let remaining = number(&window["remaining"]);
    let end = window["resetAt"].as_str().and_then(Instant::parse_rfc3339);
    for (field, is_read) in [
        ("remaining", remaining.is_some()),
        ("resetAt", end.is_some()),
    ] {
        if !is_read && !window[field].is_null() {
            feedback.add_unread(field, window[field].to_string());
        }
    }
    if let Some(limit) = feedback.limit_mut("graphql").filter(|_| !window.is_null()) {
        limit.remaining = remaining.map(|remaining| remaining.whole);
        limit.window_end = end.map(|end| end.from(Instant::now()));
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
    let nanos = (missing * 1_000_000_000).div_ceil(rate);
    let time = u64::try_from(nanos).map_or(MAX_TIME, Duration::from_nanos);
    Some(time.min(MAX_TIME))
}
