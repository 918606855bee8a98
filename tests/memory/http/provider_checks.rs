//! What must hold of a provider's response, whatever it is. Property tests and fuzz targets share it, so it depends on
//! neither.

use std::{collections::HashSet, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tollgate::provider::{Feedback, Provider, gemini, github_graphql, shopify};

/// The fields that providers send.
#[rustfmt::skip]
pub(crate) const FIELDS: [&str; 32] = [
    "date", "retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining",
    "ratelimit-reset", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-ratelimit-resource",
    "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", "x-ratelimit-limit-",
    "x-ratelimit-remaining-tokens", "x-ratelimit-reset-project-tokens", "anthropic-ratelimit-requests-limit",
    "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset", "anthropic-ratelimit-input-tokens-reset",
    "anthropic-priority-input-tokens-remaining", "anthropic-ratelimit-unified-status", "anthropic-ratelimit-unified-reset",
    "anthropic-ratelimit-unified-5h-utilization", "anthropic-ratelimit-unified-5h-reset",
    "anthropic-ratelimit-unified-7d-utilization", "anthropic-ratelimit-unified-7d-reset",
    "grpc-status", "grpc-status-details-bin", "grpc-retry-pushback-ms",
];

/// The longest time that is reported.
const MAX_TIME: Duration = Duration::from_secs(366 * 86_400);

fn providers() -> [Provider; 6] {
    let [github, grpc] = [Provider::github(), Provider::grpc()];
    let [openai, azure] = [Provider::openai(), Provider::azure_openai()];
    let anthropic = Provider::anthropic();
    [Provider::standard(), openai, azure, anthropic, github, grpc]
}

/// Every provider's parser reads every response, within bounds.
pub(crate) fn a_response_is_read(status: StatusCode, lines: &[(HeaderName, HeaderValue)]) {
    let headers: HeaderMap = lines.iter().fold(HeaderMap::new(), |mut headers, line| {
        headers.append(line.0.clone(), line.1.clone());
        headers
    });
    for provider in providers() {
        is_within_bounds(&provider.read(status, &headers));
    }
}

/// Every body is read, within bounds.
pub(crate) fn a_body_is_read(status: StatusCode, body: &[u8]) {
    for feedback in [gemini(status, body), shopify(body), github_graphql(body)] {
        is_within_bounds(&feedback);
    }
}

fn is_within_bounds(feedback: &Feedback) {
    let refusal = feedback.refusal.as_ref();
    if let Some(time) = refusal.and_then(|refusal| refusal.retry_after) {
        assert!(!time.is_zero() && time <= MAX_TIME, "{feedback:?}");
    }
    assert!(feedback.limits.len() <= 32, "{feedback:?}");
    let names: HashSet<_> = feedback.limits.iter().map(|limit| &limit.name).collect();
    assert_eq!(names.len(), feedback.limits.len(), "{feedback:?}");
    for limit in &feedback.limits {
        let printable = |c: char| c == ' ' || c.is_ascii_graphic();
        assert!(limit.name.chars().all(printable), "{feedback:?}");
        assert!((1..=64).contains(&limit.name.len()), "{feedback:?}");
        let end = limit.window_end.unwrap_or_default();
        assert!(end <= MAX_TIME, "{feedback:?}");
    }
    assert!(feedback.unread.len() <= 16, "{feedback:?}");
    for unread in &feedback.unread {
        for text in [unread.field(), unread.value()] {
            assert!(text.chars().count() <= 64, "{feedback:?}");
            assert!(!text.contains(char::is_control), "{feedback:?}");
        }
    }
    for max in [1, 3_600] {
        let max = Duration::from_secs(max);
        let time = Provider::standard().max_block(max).block_time(feedback);
        assert!(refusal.is_none() || time.is_some(), "{feedback:?}");
        assert!(
            time.is_none_or(|time| !time.is_zero() && time <= max),
            "{feedback:?}"
        );
    }
}
