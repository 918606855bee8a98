//! Responses as providers send them, and others.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::{Feedback, Provider};

/// 784111777 in Unix time.
const DATE: &str = "date: Sun, 06 Nov 1994 08:49:37 GMT";

/// What is read of a response with these fields, `name: value | name: value`, behind a date unless they begin with one.
fn read(provider: &Provider, status: u16, fields: &str) -> Feedback {
    let mut headers = HeaderMap::new();
    let date = (!fields.starts_with("date: ")).then_some(DATE);
    for field in date.into_iter().chain(fields.split(" | ")) {
        if let Some((name, value)) = field.split_once(": ") {
            let name: HeaderName = name.parse().expect("a name");
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            headers.append(name, value);
        }
    }
    provider.read(StatusCode::from_u16(status).expect("a status"), &headers)
}

/// What was read, as text: `NAME remaining/limit ends in TIME`.
fn limits(feedback: &Feedback) -> String {
    let number = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
    let limits = feedback.limits.iter().map(|limit| {
        let end = match limit.window_end {
            None => String::new(),
            Some(time) => format!(" ends in {time:?}"),
        };
        let (remaining, quota) = (number(limit.remaining), number(limit.limit));
        format!("{} {remaining}/{quota}{end}", limit.name)
    });
    let mut limits: Vec<_> = limits.collect();
    limits.sort();
    limits.join(", ")
}

/// The names of the fields that could not be read.
fn unread(feedback: &Feedback) -> Vec<&str> {
    feedback.unread.iter().map(super::Unread::field).collect()
}

/// The field that a refusal was read of, and the block that follows from the response.
fn block(provider: &Provider, feedback: &Feedback) -> (Option<String>, Option<Duration>) {
    let refusal = feedback.refusal.as_ref();
    let field = refusal.map(|refusal| refusal.field.to_string());
    (field, provider.block_time(feedback))
}

#[test]
fn limits_are_read_as_each_provider_writes_them() {
    let (openai, standard) = (Provider::openai(), Provider::standard());
    let (anthropic, github) = (Provider::anthropic(), Provider::github());
    #[rustfmt::skip]
    let rows = [
        (&openai, "x-ratelimit-limit-requests: 30,000 | x-ratelimit-remaining-requests: 29,999 | x-ratelimit-reset-requests: 12ms \
            | x-ratelimit-limit-tokens: 150000 | x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 23h47m36.648s \
            | x-ratelimit-remaining-project-tokens: 7", "project-tokens 7/?, requests 29999/30000, tokens 0/150000"),
        (&Provider::azure_openai(), "x-ratelimit-remaining-requests: 2999 | x-ratelimit-reset-requests: 20ms", "requests 2999/?"),
        (&anthropic, "anthropic-ratelimit-requests-limit: 50 | anthropic-ratelimit-requests-remaining: 49 \
            | anthropic-ratelimit-requests-reset: 1994-11-06T08:49:38Z | anthropic-ratelimit-input-tokens-limit: 40000 \
            | anthropic-ratelimit-input-tokens-remaining: 40000 | anthropic-priority-output-tokens-limit: 1000",
            "input-tokens 40000/40000, priority-output-tokens ?/1000, requests 49/50"),
        (&anthropic, "anthropic-ratelimit-unified-status: allowed | anthropic-ratelimit-unified-reset: 784111800 \
            | anthropic-ratelimit-unified-5h-status: allowed | anthropic-ratelimit-unified-5h-utilization: 0.01 \
            | anthropic-ratelimit-unified-5h-reset: 784111787 | anthropic-ratelimit-unified-7d-utilization: 5e-05 \
            | anthropic-ratelimit-unified-7d-reset: 784112777 | anthropic-ratelimit-unified-overage-status: rejected",
            "unified-5h ?/? ends in 10s, unified-7d ?/? ends in 1000s"),
        (&github, "x-ratelimit-limit: 5000 | x-ratelimit-remaining: 4999 | x-ratelimit-used: 1 | x-ratelimit-reset: 784115377 \
            | x-ratelimit-resource: search", "search 4999/5000 ends in 3600s"),
        (&github, "x-ratelimit-remaining: 4999", "core 4999/?"),
        (&standard, "ratelimit: \"burst\";r=3;t=1, \"daily\";r=40.0;t=3600;pk=:AA==: \
            | ratelimit-policy: \"burst\";q=10;w=1, \"daily\";q=100;w=86400", "burst 3/10 ends in 1s, daily 40/100 ends in 3600s"),
        (&standard, "ratelimit: limit=10, remaining=5, reset=3 | ratelimit-policy: 10;w=60", "default 5/10 ends in 3s"),
        (&standard, "ratelimit-limit: 100, 100;w=60 | ratelimit-remaining: 4.9 | ratelimit-reset: 3.5", "default 4/100 ends in 3.5s"),
        (&standard, "x-ratelimit-limit: 1,000 | x-ratelimit-remaining: 5 | x-ratelimit-reset: 60", "default 5/1000 ends in 60s"),
        (&standard, "x-ratelimit-remaining: 9 | x-ratelimit-remaining: 5", "default 5/?"),
        // A reset is seconds or an instant, by its size.
        (&standard, "date: Sun, 09 Sep 2001 01:46:40 GMT | x-ratelimit-reset: 1000000005", "default ?/? ends in 5s"),
        (&standard, "date: Sun, 09 Sep 2001 01:46:40 GMT | x-ratelimit-reset: 1000000005000", "default ?/? ends in 5s"),
        (&standard, "date: Sun, 09 Sep 2001 01:46:40 GMT | x-ratelimit-reset: 1000000000", "default ?/? ends in 31622400s"),
    ];
    for (provider, fields, expected) in rows {
        let feedback = read(provider, 200, fields);
        assert_eq!(limits(&feedback), expected, "{provider:?} {fields}");
        assert_eq!(feedback.unread, [], "{fields}");
        assert_eq!(feedback.refusal, None, "{fields}");
    }
}

#[test]
fn a_refusal_blocks_for_the_first_time_that_is_there() {
    let (standard, openai) = (Provider::standard(), Provider::openai());
    let anthropic = Provider::anthropic().limit("unified-7d", "weekly");
    let github = Provider::github();
    let counted = github.clone().limit("core", "calls");
    let exhausted = "x-ratelimit-remaining: 0 | x-ratelimit-reset: 784111797";
    let window = "x-ratelimit-remaining: 0 | x-ratelimit-reset: 20";
    let bucket = "x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 20s";
    let unified = "anthropic-ratelimit-unified-status";
    let rejected = "anthropic-ratelimit-unified-status: rejected | anthropic-ratelimit-unified-reset: 784111807";
    let overage = &*format!("{rejected} | anthropic-ratelimit-unified-overage-status: allowed");
    let over = "anthropic-ratelimit-unified-7d-utilization: 1.01 | anthropic-ratelimit-unified-7d-reset: 784111787";
    let warned = &*format!("{over} | anthropic-ratelimit-unified-status: allowed_warning");
    let status = "status 429";
    // The provider, a status and fields; the field that refuses, and the milliseconds of the block.
    #[rustfmt::skip]
    let rows = [
        (&standard, 200, "retry-after: 30", "", 0),
        (&standard, 500, "retry-after: 30", "", 0),
        (&standard, 403, "retry-after: 30", "", 0),
        (&standard, 503, "", "", 0),
        (&standard, 503, "retry-after: 30", "retry-after", 30_000),
        (&standard, 429, "", status, 1_000),
        (&standard, 429, "retry-after: 30", "retry-after", 30_000),
        (&standard, 429, "retry-after: 30 | retry-after-ms: 250", "retry-after-ms", 250),
        (&standard, 429, "retry-after: 30 | retry-after-ms: 0", "retry-after", 30_000),
        (&standard, 429, "retry-after: Sun, 06 Nov 1994 08:50:37 GMT", "retry-after", 60_000),
        // The date has passed.
        (&standard, 429, "retry-after: Sun, 06 Nov 1994 08:48:37 GMT", status, 1_000),
        (&standard, 429, "retry-after: 1.5 | retry-after: 0.5", "retry-after", 1_500),
        // What is too large is the largest.
        (&standard, 429, "retry-after: 999999999", "retry-after", 3_600_000),
        (&standard, 429, "retry-after: 18446744073709551616", "retry-after", 3_600_000),
        (&standard, 429, "retry-after: 99999999999999999999999.5", "retry-after", 3_600_000),
        (&standard, 429, "retry-after: Fri, 31 Dec 9999 23:59:59 GMT", "retry-after", 3_600_000),
        // A wrong day of the week, in all forms.
        (&standard, 429, "retry-after: Mon, 06 Nov 1994 08:50:37 GMT", "retry-after", 60_000),
        (&standard, 429, "retry-after: Monday, 06-Nov-94 08:50:37 GMT", "retry-after", 60_000),
        (&standard, 429, "retry-after: Mon Nov  6 08:50:37 1994", "retry-after", 60_000),
        // A cache has kept it for a while.
        (&standard, 429, "retry-after: 30 | age: 10", "retry-after", 20_000),
        (&standard, 429, "retry-after-ms: 30000 | age: 10", "retry-after-ms", 20_000),
        (&standard, 429, "retry-after: Sun, 06 Nov 1994 08:50:37 GMT | age: 10", "retry-after", 50_000),
        (&standard, 429, "retry-after: 30 | age: 90", status, 1_000),
        (&counted, 200, "x-ratelimit-remaining: 0 | x-ratelimit-reset: 784111797 | age: 1", "", 0),
        (&counted, 200, "x-ratelimit-remaining: 0 | x-ratelimit-reset: 784111797 | age: 0", "", 20_000),
        (&counted, 200, "x-ratelimit-remaining: 0 | x-ratelimit-reset: 784111797 | age: 90, 10", "", 0),
        (&counted, 200, "x-ratelimit-remaining: 0 | x-ratelimit-reset: 784111797 | age: -1", "", 20_000),
        (&standard, 429, window, status, 20_000),
        (&standard, 200, window, "", 0),
        // When the bucket is full is not when the next call fits.
        (&openai, 429, bucket, status, 1_000),
        (&openai, 200, bucket, "", 0),
        (&github, 403, "", "", 0),
        (&github, 403, "x-ratelimit-remaining: 1 | x-ratelimit-reset: 784111797", "", 0),
        (&github, 403, exhausted, "status 403", 20_000),
        (&github, 403, "retry-after: 30", "retry-after", 30_000),
        (&github, 429, "", status, 60_000),
        // A limit of other calls of the account, perhaps.
        (&github, 200, exhausted, "", 0),
        (&counted, 200, exhausted, "", 20_000),
        // Extra usage goes on.
        (&anthropic, 200, overage, "", 0),
        (&anthropic, 200, rejected, unified, 30_000),
        (&anthropic, 200, over, "", 10_000),
        (&anthropic, 200, warned, "", 0),
    ];
    for (provider, status, fields, field, millis) in rows {
        let feedback = read(provider, status, fields);
        let expected = (
            (!field.is_empty()).then(|| field.to_owned()),
            (millis > 0).then(|| Duration::from_millis(millis)),
        );
        assert_eq!(
            block(provider, &feedback),
            expected,
            "{provider:?} {status} {fields}"
        );
        assert_eq!(feedback.unread, [], "{fields}");
    }
}

#[test]
fn what_cannot_be_read_is_reported_and_changes_nothing() {
    let (openai, standard) = (Provider::openai(), Provider::standard());
    let utilization = "anthropic-ratelimit-unified-5h-utilization";
    #[rustfmt::skip]
    let rows = [
        (&openai, "x-ratelimit-limit-tokens", "many"),
        (&openai, "x-ratelimit-remaining-tokens", "-1"),
        (&openai, "x-ratelimit-limit-", "1"),
        (&openai, "retry-after", "-5"),
        (&openai, "retry-after", "naïve"),
        (&Provider::anthropic(), utilization, "NaN"),
        (&Provider::github(), "x-ratelimit-reset", "1e9"),
        (&standard, "ratelimit", r#""burst";r=-1"#),
        (&standard, "ratelimit", r#""burst";r="3""#),
        (&standard, "ratelimit", "(1 2)"),
        (&standard, "ratelimit", "limit=10 remaining=5"),
        (&standard, "ratelimit-limit", ", 100;w=60"),
        (&standard, "ratelimit", ""),
        (&standard, "retry-after", ""),
        (&standard, "x-ratelimit-remaining", ""),
    ];
    for (provider, field, value) in rows {
        let feedback = read(provider, 429, &format!("{field}: {value}"));
        assert_eq!(unread(&feedback), [field], "{value}");
        assert_eq!(limits(&feedback), "", "{field}: {value}");
        let without = provider.block_time(&read(provider, 429, ""));
        assert_eq!(provider.block_time(&feedback), without, "{field}: {value}");
    }
}

#[test]
fn times_and_policies_are_those_of_the_settings() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let provider = Provider::standard()
        .max_block(Duration::from_secs(10))
        .default_block(Duration::from_secs(2))
        .limit("default", "rpm")
        .limit("default", "rpd");
    let time = |fields: &str| provider.block_time(&read(&provider, 429, fields));
    assert_eq!(time("retry-after: 30"), seconds(10));
    assert_eq!(time(""), seconds(2));
    let policy = provider.policy_of("default").map(|name| &**name);
    assert_eq!(policy, Some("rpd"));
    let never = provider.max_block(Duration::ZERO);
    assert_eq!(never.block_time(&read(&never, 429, "")), None);
}

#[cfg(feature = "tonic")]
#[test]
fn a_grpc_status_with_a_delay_is_a_refusal() {
    use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_STANDARD_NO_PAD};
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt};

    let details = |delay| {
        let details = ErrorDetails::with_retry_info(Some(delay));
        let status = Status::with_error_details(Code::Unavailable, "busy!", details);
        status.details().to_vec()
    };
    let provider = Provider::grpc();
    let bytes = details(Duration::from_millis(1_250));
    let field = |value: String| format!("grpc-status-details-bin: {value}");
    let padded = &*field(BASE64_STANDARD.encode(&bytes));
    let bare = &*field(BASE64_STANDARD_NO_PAD.encode(&bytes));
    assert_ne!(padded, bare);
    let none = &*field(BASE64_STANDARD.encode(details(Duration::ZERO)));
    let failed = ErrorDetails::with_quota_failure_violation("rpm", "60 per minute");
    let failed = Status::with_error_details(Code::ResourceExhausted, "", failed);
    let quota = &*field(BASE64_STANDARD.encode(failed.details()));
    let both = &*format!("grpc-retry-pushback-ms: 2000 | {padded}");
    let name = "grpc-status-details-bin";
    #[rustfmt::skip]
    let rows = [
        (0, padded, "", 0),
        (8, padded, name, 1_250),
        (8, bare, name, 1_250),
        (14, bare, name, 1_250),
        (14, "", "", 0),
        (14, none, "", 0),
        (14, "retry-after: 7", "retry-after", 7_000),
        // Also a message that is too large.
        (8, "", "", 0),
        (8, none, "", 0),
        (8, quota, "grpc-status", 1_000),
        (8, "x-envoy-ratelimited: true", "grpc-status", 1_000),
        (14, "x-envoy-ratelimited: true", "grpc-status", 1_000),
        (8, "retry-after: 7", "retry-after", 7_000),
        (8, "grpc-retry-pushback-ms: -1", "", 0),
        (8, both, "grpc-retry-pushback-ms", 2_000),
        (8, &format!("age: 1 | {both}"), "grpc-retry-pushback-ms", 1_000),
        (8, &format!("age: 1 | {padded}"), name, 250),
    ];
    for (code, fields, field, millis) in rows {
        let feedback = read(&provider, 200, &format!("grpc-status: {code} | {fields}"));
        let expected = (
            (!field.is_empty()).then(|| field.to_owned()),
            (millis > 0).then(|| Duration::from_millis(millis)),
        );
        assert_eq!(block(&provider, &feedback), expected, "{code} {fields}");
        assert_eq!(feedback.unread, [], "{fields}");
    }
    for value in ["", "*", "/w=="] {
        let fields = format!("grpc-status: 8 | {name}: {value}");
        assert_eq!(unread(&read(&provider, 200, &fields)), [name], "{value}");
    }
}

#[cfg(feature = "provider-json")]
mod bodies {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::provider::{gemini, github_graphql, shopify};

    #[test]
    fn gemini_names_a_delay() {
        let body = json!({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [
                {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "50"},
            ]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.700s"},
        ]}});
        for body in [body.to_string(), json!([body]).to_string()] {
            for status in [429, 200] {
                let status = StatusCode::from_u16(status).expect("a status");
                let feedback = gemini(status, body.as_bytes());
                let refusal = feedback.refusal.as_ref().expect("a refusal");
                assert_eq!(refusal.retry_after, Some(Duration::from_millis(3_700)));
            }
        }
        for delay in ["3700ms", "soon", "3.7"] {
            let body = json!({"error": {"details": [
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
            ]}});
            let feedback = gemini(StatusCode::TOO_MANY_REQUESTS, body.to_string().as_bytes());
            assert_eq!(unread(&feedback), ["retryDelay"], "{delay}");
            assert_eq!(feedback.refusal.expect("a refusal").retry_after, None);
        }
        let unavailable = br#"{"error": {"status": "UNAVAILABLE"}}"#;
        let feedback = gemini(StatusCode::SERVICE_UNAVAILABLE, unavailable);
        assert_eq!(feedback, Feedback::default());
    }

    #[test]
    fn shopify_refuses_until_the_query_fits() {
        let body = |available: f64, errors| {
            json!({"errors": errors, "extensions": {"cost": {
                "requestedQueryCost": 202,
                "actualQueryCost": null,
                "throttleStatus": {
                    "maximumAvailable": 1000.0, "currentlyAvailable": available, "restoreRate": 50.0,
                },
            }}})
            .to_string()
        };
        let feedback = shopify(body(952.0, json!(null)).as_bytes());
        assert_eq!(feedback, Feedback::default());
        let throttled = json!([{"message": "Throttled", "extensions": {"code": "THROTTLED"}}]);
        let feedback = shopify(body(118.5, throttled).as_bytes());
        let refusal = feedback.refusal.expect("a refusal");
        assert_eq!(refusal.retry_after, Some(Duration::from_millis(1_670)));
    }

    #[test]
    fn a_bucket_that_restores_nothing_names_no_time() {
        let body = br#"{"errors": [{"extensions": {"code": "THROTTLED"}}], "extensions": {"cost": {
            "requestedQueryCost": 1e30,
            "throttleStatus": {"maximumAvailable": 1000, "currentlyAvailable": 5, "restoreRate": 0}
        }}}"#;
        let feedback = shopify(body);
        assert_eq!(unread(&feedback), ["requestedQueryCost"]);
        let time = Provider::standard().block_time(&feedback);
        assert_eq!(time, Some(Duration::from_secs(1)));
    }

    #[test]
    fn github_names_the_end_of_its_window() {
        let at = Timestamp::now() + Duration::from_secs(600);
        let body = json!({"data": {"rateLimit": {
            "cost": 1, "limit": 5000, "remaining": 0, "resetAt": at.to_string(),
        }}});
        let feedback = github_graphql(body.to_string().as_bytes());
        assert_eq!(feedback.limits[0].remaining, Some(0));
        let counted = Provider::github().limit("graphql", "points");
        let time = counted.block_time(&feedback).expect("a block");
        assert!(time > Duration::from_secs(300) && time <= Duration::from_secs(600));
        let limited = br#"{"errors": [{"type": "RATE_LIMITED"}]}"#;
        assert!(github_graphql(limited).refusal.is_some());
        let wrong = br#"{"data": {"rateLimit": {"remaining": -1, "resetAt": "soon"}}}"#;
        assert_eq!(unread(&github_graphql(wrong)), ["remaining", "resetAt"]);
    }

    #[test]
    fn a_body_that_is_malformed_or_too_long_is_not_read() {
        let long = format!("{}{{}}", " ".repeat(64 << 10));
        for body in ["", "{", "[[", "\u{feff}{}", &long] {
            let body = body.as_bytes();
            for feedback in [
                gemini(StatusCode::OK, body),
                shopify(body),
                github_graphql(body),
            ] {
                assert_eq!(unread(&feedback), ["body"]);
            }
        }
        let longest = format!("{}{{}}", " ".repeat((64 << 10) - 2));
        assert_eq!(shopify(longest.as_bytes()), Feedback::default());
    }
}
