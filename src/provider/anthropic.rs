//! `anthropic-ratelimit-NAME-{limit,remaining}` of buckets, and the fields of plans, `anthropic-ratelimit-unified-*`.

use http::{HeaderName, StatusCode};

use super::{
    reading::{Part, Reading, parse_unix, text},
    text::Decimal,
};

const UNIFIED_STATUS: &str = "anthropic-ratelimit-unified-status";
const SUFFIXES: [(&str, Part); 2] = [("-limit", Part::Limit), ("-remaining", Part::Remaining)];
/// The windows of a plan that hold for all models. Others hold for one model, and would block the rest.
const WINDOWS: [(&str, HeaderName, HeaderName); 2] = [
    (
        "unified-5h",
        HeaderName::from_static("anthropic-ratelimit-unified-5h-utilization"),
        HeaderName::from_static("anthropic-ratelimit-unified-5h-reset"),
    ),
    (
        "unified-7d",
        HeaderName::from_static("anthropic-ratelimit-unified-7d-utilization"),
        HeaderName::from_static("anthropic-ratelimit-unified-7d-reset"),
    ),
];
const OVERAGE_STATUS: HeaderName =
    HeaderName::from_static("anthropic-ratelimit-unified-overage-status");
const UNIFIED_RESET: HeaderName = HeaderName::from_static("anthropic-ratelimit-unified-reset");

pub(super) fn read(reading: &mut Reading<'_>, status: StatusCode) {
    for (field, value) in reading.headers {
        if let Some((name, part)) = limit_of(field.as_str()) {
            reading.read_units(name, part, (field, value));
        }
    }
    let plan = reading.headers.get(UNIFIED_STATUS).and_then(text);
    // Extra usage, which is paid for, goes on when the plan is used up.
    let overage = reading.headers.get(OVERAGE_STATUS).and_then(text);
    let plan = overage
        .filter(|overage| overage.starts_with("allowed"))
        .or(plan);
    read_plan(reading, plan);
    let rejected = (plan == Some("rejected")).then_some(UNIFIED_STATUS.into());
    if let Some(cause) = rejected.or_else(|| reading.refusing_status(status)) {
        reading.refuse(cause);
    }
}

/// The limit and its part that a field is of. Those of priority tiers have a prefix of their own.
fn limit_of(field: &str) -> Option<(&str, Part)> {
    let name = match field.strip_prefix("anthropic-ratelimit-") {
        Some(name) if name.starts_with("unified-") => return None,
        Some(name) => name,
        None => field
            .strip_prefix("anthropic-")
            .filter(|name| name.starts_with("priority-"))?,
    };
    SUFFIXES
        .iter()
        .find_map(|(suffix, part)| Some((name.strip_suffix(suffix)?, *part)))
}

fn read_plan(reading: &mut Reading<'_>, plan: Option<&str>) {
    for (name, utilization, reset) in &WINDOWS {
        reading.read_window_ends(name, reset, parse_unix);
        for value in reading.headers.get_all(utilization) {
            let Some(full) = text(value).and_then(is_full) else {
                reading.feedback.add_unread(utilization.as_str(), value);
                continue;
            };
            // A plan whose window is used up may go on under other terms, and then says so.
            let ends = full && plan.is_none_or(|plan| !plan.starts_with("allowed"));
            if let Some(limit) = reading.feedback.limit_mut(name)
                && ends
            {
                limit.merge_remaining(0);
            }
        }
    }
    if plan == Some("rejected") {
        // The end of the window by which the call was rejected, whichever it is.
        let name = "unified";
        reading.read_window_ends(name, &UNIFIED_RESET, parse_unix);
        if let Some(limit) = reading.feedback.limit_mut(name) {
            limit.merge_remaining(0);
        }
    }
}

/// Whether a utilization is one or more.
fn is_full(text: &str) -> Option<bool> {
    // Numbers close to zero are printed with an exponent.
    if let Some((number, exponent)) = text.split_once("e-") {
        let exponent = exponent.bytes().all(|byte| byte.is_ascii_digit());
        return Decimal::parse(number).filter(|_| exponent).map(|_| false);
    }
    Some(Decimal::parse(text)?.whole >= 1)
}
