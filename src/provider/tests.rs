//! Responses as providers send them, and others.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::{Feedback, Provider};

/// 784111777 in Unix time.
const DATE: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");

fn read(provider: &Provider, status: u16, fields: &[(&str, &str)]) -> Feedback {
    let mut headers = HeaderMap::new();
    for (name, value) in [DATE].iter().chain(fields) {
        let name: HeaderName = name.parse().expect("a name");
        let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
        headers.append(name, value);
    }
    provider.read(StatusCode::from_u16(status).expect("a status"), &headers)
}

/// What was read, as text: `NAME remaining/limit ends in TIME`.
fn limits(feedback: &Feedback) -> Vec<String> {
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
    limits
}

/// The names of the fields that could not be read.
fn unread(feedback: &Feedback) -> Vec<&str> {
    feedback.unread.iter().map(super::Unread::field).collect()
}

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

#[test]
fn limits_are_read_as_each_provider_writes_them() {
    type Case<'a> = (Provider, &'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        (
            Provider::openai(),
            &[
                ("x-ratelimit-limit-requests", "30,000"),
                ("x-ratelimit-remaining-requests", "29,999"),
                ("x-ratelimit-reset-requests", "12ms"),
                ("x-ratelimit-limit-tokens", "150000"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-tokens", "23h47m36.648s"),
                ("x-ratelimit-remaining-project-tokens", "7"),
            ],
            &[
                "project-tokens 7/?",
                "requests 29999/30000",
                "tokens 0/150000",
            ],
        ),
        (
            Provider::azure_openai(),
            &[
                ("x-ratelimit-remaining-requests", "2999"),
                ("x-ratelimit-reset-requests", "20ms"),
            ],
            &["requests 2999/?"],
        ),
        (
            Provider::anthropic(),
            &[
                ("anthropic-ratelimit-requests-limit", "50"),
                ("anthropic-ratelimit-requests-remaining", "49"),
                ("anthropic-ratelimit-requests-reset", "1994-11-06T08:49:38Z"),
                ("anthropic-ratelimit-input-tokens-limit", "40000"),
                ("anthropic-ratelimit-input-tokens-remaining", "40000"),
                ("anthropic-priority-output-tokens-limit", "1000"),
            ],
            &[
                "input-tokens 40000/40000",
                "priority-output-tokens ?/1000",
                "requests 49/50",
            ],
        ),
        (
            Provider::anthropic(),
            &[
                ("anthropic-ratelimit-unified-status", "allowed"),
                ("anthropic-ratelimit-unified-reset", "784111800"),
                ("anthropic-ratelimit-unified-5h-status", "allowed"),
                ("anthropic-ratelimit-unified-5h-utilization", "0.01"),
                ("anthropic-ratelimit-unified-5h-reset", "784111787"),
                ("anthropic-ratelimit-unified-7d-utilization", "5e-05"),
                ("anthropic-ratelimit-unified-7d-reset", "784112777"),
                ("anthropic-ratelimit-unified-overage-status", "rejected"),
            ],
            &["unified-5h ?/? ends in 10s", "unified-7d ?/? ends in 1000s"],
        ),
        (
            Provider::github(),
            &[
                ("x-ratelimit-limit", "5000"),
                ("x-ratelimit-remaining", "4999"),
                ("x-ratelimit-used", "1"),
                ("x-ratelimit-reset", "784115377"),
                ("x-ratelimit-resource", "search"),
            ],
            &["search 4999/5000 ends in 3600s"],
        ),
        (
            Provider::github(),
            &[("x-ratelimit-remaining", "4999")],
            &["core 4999/?"],
        ),
        (
            Provider::standard(),
            &[
                (
                    "ratelimit",
                    r#""burst";r=3;t=1, "daily";r=40.0;t=3600;pk=:AA==:"#,
                ),
                (
                    "ratelimit-policy",
                    r#""burst";q=10;w=1, "daily";q=100;w=86400"#,
                ),
            ],
            &["burst 3/10 ends in 1s", "daily 40/100 ends in 3600s"],
        ),
        (
            Provider::standard(),
            &[
                ("ratelimit", "limit=10, remaining=5, reset=3"),
                ("ratelimit-policy", "10;w=60"),
            ],
            &["default 5/10 ends in 3s"],
        ),
        (
            Provider::standard(),
            &[
                ("ratelimit-limit", "100, 100;w=60"),
                ("ratelimit-remaining", "4.9"),
                ("ratelimit-reset", "3.5"),
            ],
            &["default 4/100 ends in 3.5s"],
        ),
        (
            Provider::standard(),
            &[
                ("x-ratelimit-limit", "1,000"),
                ("x-ratelimit-remaining", "5"),
                ("x-ratelimit-reset", "60"),
            ],
            &["default 5/1000 ends in 60s"],
        ),
        (
            Provider::standard(),
            &[
                ("x-ratelimit-remaining", "9"),
                ("x-ratelimit-remaining", "5"),
            ],
            &["default 5/?"],
        ),
    ];
    for (provider, fields, expected) in cases {
        let feedback = read(provider, 200, fields);
        assert_eq!(limits(&feedback), *expected, "{provider:?} {fields:?}");
        assert_eq!(feedback.unread, [], "{fields:?}");
        assert_eq!(feedback.refusal, None, "{fields:?}");
    }
}

#[test]
fn a_standard_reset_is_seconds_or_an_instant_by_its_size() {
    let date = ("date", "Sun, 09 Sep 2001 01:46:40 GMT");
    for (value, expected) in [
        ("60", 60),
        ("1000000005", 5),
        ("1000000005000", 5),
        ("1000000000", 366 * 86_400),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert("date", HeaderValue::from_static(date.1));
        headers.insert("x-ratelimit-reset", HeaderValue::from_static(value));
        let feedback = Provider::standard().read(StatusCode::OK, &headers);
        assert_eq!(feedback.limits[0].window_end, seconds(expected), "{value}");
    }
}

#[test]
fn a_refusal_blocks_for_the_first_time_that_is_there() {
    let (standard, openai) = (Provider::standard(), Provider::openai());
    let anthropic = Provider::anthropic().limit("unified-7d", "weekly");
    let github = Provider::github();
    let counted = github.clone().limit("core", "calls");
    type Case<'a> = (
        &'a Provider,
        u16,
        &'a [(&'a str, &'a str)],
        Option<&'a str>,
        Option<Duration>,
    );
    let retry_after = ("retry-after", "30");
    let exhausted = [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "784111797"),
    ];
    let window = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "20")];
    let bucket = [
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "20s"),
    ];
    let status = "status 429";
    let cases: &[Case<'_>] = &[
        (&standard, 200, &[retry_after], None, None),
        (&standard, 500, &[retry_after], None, None),
        (&standard, 403, &[retry_after], None, None),
        (&standard, 503, &[], None, None),
        (
            &standard,
            503,
            &[retry_after],
            Some("retry-after"),
            seconds(30),
        ),
        (&standard, 429, &[], Some(status), seconds(1)),
        (
            &standard,
            429,
            &[retry_after],
            Some("retry-after"),
            seconds(30),
        ),
        (
            &standard,
            429,
            &[retry_after, ("retry-after-ms", "250.5")],
            Some("retry-after-ms"),
            Some(Duration::from_micros(250_500)),
        ),
        (
            &standard,
            429,
            &[retry_after, ("retry-after-ms", "0")],
            Some("retry-after"),
            seconds(30),
        ),
        (
            &standard,
            429,
            &[("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT")],
            Some("retry-after"),
            seconds(60),
        ),
        // The date has passed.
        (
            &standard,
            429,
            &[("retry-after", "Sun, 06 Nov 1994 08:48:37 GMT")],
            Some(status),
            seconds(1),
        ),
        (
            &standard,
            429,
            &[("retry-after", "1.5"), ("retry-after", "0.5")],
            Some("retry-after"),
            Some(Duration::from_millis(1_500)),
        ),
        (
            &standard,
            429,
            &[("retry-after", "999999999")],
            Some("retry-after"),
            seconds(3_600),
        ),
        (&standard, 429, &window, Some(status), seconds(20)),
        (&standard, 200, &window, None, None),
        // When the bucket is full is not when the next call fits.
        (&openai, 429, &bucket, Some(status), seconds(1)),
        (&openai, 200, &bucket, None, None),
        (&github, 403, &[], None, None),
        (
            &github,
            403,
            &[("x-ratelimit-remaining", "1"), exhausted[1]],
            None,
            None,
        ),
        (&github, 403, &exhausted, Some("status 403"), seconds(20)),
        (
            &github,
            403,
            &[retry_after],
            Some("retry-after"),
            seconds(30),
        ),
        (&github, 429, &[], Some(status), seconds(60)),
        // A limit of other calls of the account, perhaps.
        (&github, 200, &exhausted, None, None),
        (&counted, 200, &exhausted, None, seconds(20)),
        // Extra usage goes on.
        (
            &anthropic,
            200,
            &[
                ("anthropic-ratelimit-unified-status", "rejected"),
                ("anthropic-ratelimit-unified-overage-status", "allowed"),
                ("anthropic-ratelimit-unified-reset", "784111807"),
            ],
            None,
            None,
        ),
        (
            &anthropic,
            200,
            &[
                ("anthropic-ratelimit-unified-status", "rejected"),
                ("anthropic-ratelimit-unified-reset", "784111807"),
            ],
            Some("anthropic-ratelimit-unified-status"),
            seconds(30),
        ),
        (
            &anthropic,
            200,
            &[
                ("anthropic-ratelimit-unified-7d-utilization", "1.01"),
                ("anthropic-ratelimit-unified-7d-reset", "784111787"),
            ],
            None,
            seconds(10),
        ),
        (
            &anthropic,
            200,
            &[
                ("anthropic-ratelimit-unified-status", "allowed_warning"),
                ("anthropic-ratelimit-unified-7d-utilization", "1.01"),
                ("anthropic-ratelimit-unified-7d-reset", "784111787"),
            ],
            None,
            None,
        ),
    ];
    for (provider, status, fields, cause, time) in cases {
        let feedback = read(provider, *status, fields);
        let refusal = feedback.refusal.as_ref();
        assert_eq!(
            refusal.map(|refusal| &*refusal.field),
            *cause,
            "{provider:?} {status} {fields:?}"
        );
        assert_eq!(
            provider.block_time(&feedback),
            *time,
            "{provider:?} {status} {fields:?}"
        );
        assert_eq!(feedback.unread, [], "{fields:?}");
    }
}

#[test]
fn what_cannot_be_read_is_reported_and_changes_nothing() {
    for (provider, field, value) in [
        (Provider::openai(), "x-ratelimit-limit-tokens", "many"),
        (Provider::openai(), "x-ratelimit-remaining-tokens", "-1"),
        (Provider::openai(), "x-ratelimit-limit-", "1"),
        (Provider::openai(), "retry-after", "-5"),
        (Provider::openai(), "retry-after", "naïve"),
        (
            Provider::anthropic(),
            "anthropic-ratelimit-unified-5h-utilization",
            "NaN",
        ),
        (Provider::github(), "x-ratelimit-reset", "1e9"),
        (Provider::standard(), "ratelimit", r#""burst";r=-1"#),
        (Provider::standard(), "ratelimit", r#""burst";r="3""#),
        (Provider::standard(), "ratelimit", "(1 2)"),
        (Provider::standard(), "ratelimit", "limit=10 remaining=5"),
        (Provider::standard(), "ratelimit-limit", ", 100;w=60"),
    ] {
        let feedback = read(&provider, 429, &[(field, value)]);
        assert_eq!(unread(&feedback), [field], "{value}");
        assert_eq!(limits(&feedback), [""; 0], "{field}: {value}");
        let without = provider.block_time(&read(&provider, 429, &[]));
        assert_eq!(provider.block_time(&feedback), without, "{field}: {value}");
    }
}

#[test]
fn times_and_policies_are_those_of_the_settings() {
    let provider = Provider::standard()
        .max_block(Duration::from_secs(10))
        .default_block(Duration::from_secs(2))
        .block_list("paused")
        .limit("default", "rpm")
        .limit("default", "rpd");
    let block = |fields: &[_]| provider.block_time(&read(&provider, 429, fields));
    assert_eq!(block(&[("retry-after", "30")]), seconds(10));
    assert_eq!(block(&[]), seconds(2));
    assert_eq!(
        provider.policy_of("default").map(|name| &**name),
        Some("rpd")
    );
    assert_eq!(provider.policy_of("other"), None);
    assert_eq!(provider.policies().count(), 1);
    assert_eq!(provider.block_list_name(), Some("paused"));
    let never = provider.max_block(Duration::ZERO);
    assert_eq!(never.block_time(&read(&never, 429, &[])), None);
}

#[cfg(feature = "tonic")]
mod grpc {
    use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_STANDARD_NO_PAD};
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    fn details(delay: Duration) -> Vec<u8> {
        let details = ErrorDetails::with_retry_info(Some(delay));
        let status = Status::with_error_details(Code::Unavailable, "busy!", details);
        status.details().to_vec()
    }

    #[test]
    fn a_status_with_a_delay_is_a_refusal() {
        let provider = Provider::grpc();
        let bytes = details(Duration::from_millis(1_250));
        let padded = BASE64_STANDARD.encode(&bytes);
        let bare = BASE64_STANDARD_NO_PAD.encode(&bytes);
        assert_ne!(padded, bare);
        let none = BASE64_STANDARD.encode(details(Duration::ZERO));
        let (details, pushback) = ("grpc-status-details-bin", "grpc-retry-pushback-ms");
        let delay = Some(Duration::from_millis(1_250));
        type Case<'a> = (
            &'a str,
            &'a [(&'a str, &'a str)],
            Option<&'a str>,
            Option<Duration>,
        );
        let cases: &[Case<'_>] = &[
            ("0", &[(details, &padded)], None, None),
            ("8", &[(details, &padded)], Some(details), delay),
            ("8", &[(details, &bare)], Some(details), delay),
            ("14", &[(details, &bare)], Some(details), delay),
            ("14", &[], None, None),
            ("14", &[(details, &none)], None, None),
            ("8", &[], Some("grpc-status"), seconds(1)),
            (
                "8",
                &[("retry-after", "7")],
                Some("retry-after"),
                seconds(7),
            ),
            ("8", &[(pushback, "-1")], Some("grpc-status"), seconds(1)),
            (
                "8",
                &[(pushback, "2000"), (details, &padded)],
                Some(pushback),
                seconds(2),
            ),
        ];
        for (code, fields, cause, time) in cases {
            let fields = [&[("grpc-status", *code)], *fields].concat();
            let feedback = read(&provider, 200, &fields);
            let refusal = feedback.refusal.as_ref();
            assert_eq!(refusal.map(|refusal| &*refusal.field), *cause, "{fields:?}");
            assert_eq!(provider.block_time(&feedback), *time, "{fields:?}");
            assert_eq!(feedback.unread, [], "{fields:?}");
        }
        for value in ["*", "/w=="] {
            let feedback = read(&provider, 200, &[("grpc-status", "8"), (details, value)]);
            assert_eq!(unread(&feedback), [details], "{value}");
        }
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
        assert_eq!(Provider::standard().block_time(&feedback), seconds(1));
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
