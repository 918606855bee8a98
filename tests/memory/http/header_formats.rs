//! How responses show the limits: in which fields, of which policies, and how much later than exactly.

use std::collections::BTreeSet;

use tollgate::layer::exposed_headers;

use crate::http::{support, support::*};

/// A layer that shows these policies in these fields.
fn layer(
    headers: Headers,
    policies: impl IntoIterator<Item = Policy>,
) -> (RateLimitLayer, ManualClock) {
    let (layer, clock) = support::layer(policies);
    (layer.headers(headers), clock)
}

const ALL: [&str; 10] = [
    "ratelimit-policy",
    "ratelimit",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-after",
    "x-ratelimit-whitelisted",
];

/// All fields about limits, as `name: value`.
fn limit_fields(response: &TestResponse) -> Vec<String> {
    let names = ALL.into_iter();
    let names = names.filter(|name| response.headers.contains_key(*name));
    let fields = names.map(|name| format!("{name}: {}", response.field(name)));
    fields.collect()
}

/// A burst that is soon used up and soon back, and a day's worth that isn't.
fn two() -> [Policy; 2] {
    [
        shared("burst", "2/10s"),
        shared("daily", "3/day").strategy(FixedWindow),
    ]
}

/// The first responses of a layer with both policies, and its rejection.
async fn three(headers: Headers) -> [Vec<String>; 3] {
    let (layer, _) = layer(headers, two());
    let app = hello(&layer);
    let get = async || send(&app, to("/")).await;
    let responses = [get().await, get().await, get().await];
    assert_eq!(responses[2].status, 429);
    // Whatever the other headers are, a rejection has a `Retry-After`, and no other response has one.
    let waits = responses.each_ref().map(TestResponse::retry_after);
    assert_eq!(waits, [None, None, Some(5)]);
    responses.each_ref().map(limit_fields)
}

#[tokio::test]
async fn the_current_draft_is_the_default_format() {
    assert_eq!(Headers::default(), Headers::draft());
    let responses = three(Headers::draft()).await;
    let policies = r#"ratelimit-policy: "burst";q=2;w=10, "daily";q=3;w=86400"#;
    for (response, limits) in responses.iter().zip([
        r#"ratelimit: "burst";r=1;t=5, "daily";r=2;t=86400"#,
        r#"ratelimit: "burst";r=0;t=5, "daily";r=1;t=86400"#,
        r#"ratelimit: "burst";r=0;t=5, "daily";r=1;t=5"#,
    ]) {
        assert_eq!(response, &[policies, limits]);
    }
    let (layer, _) = support::layer(two());
    let first = send(&hello(&layer), to("/")).await;
    assert_eq!(limit_fields(&first), responses[0]);
}

#[tokio::test]
async fn the_reported_policy_is_the_one_with_the_fewest_requests_left() {
    let responses = three(Headers::draft().closest()).await;
    let policy = r#"ratelimit-policy: "burst";q=2;w=10"#;
    assert_eq!(responses[0], [policy, r#"ratelimit: "burst";r=1;t=5"#]);
    assert_eq!(responses[2], [policy, r#"ratelimit: "burst";r=0;t=5"#]);

    // By how many such requests would pass, not by units.
    let of = |cost| async move {
        let heavy = shared("heavy", "30/h").cost(cost);
        let (layer, _) = layer(Headers::x_ratelimit(), [shared("light", "5/h"), heavy]);
        let response = send(&hello(&layer), to("/")).await;
        response.field("x-ratelimit-remaining")
    };
    assert_eq!(of(5).await, "4", "four and five such requests");
    assert_eq!(of(10).await, "20", "four and two such requests");
    assert_eq!(of(0).await, "4", "what costs nothing is no limit");
}

#[tokio::test]
async fn of_several_rejecting_policies_the_one_with_the_longest_wait_is_reported() {
    let policies = [("short", "1/min"), ("long", "1/h"), ("open", "9/day")];
    let policies = policies.map(|(name, quota)| shared(name, quota));
    let (layer, _) = layer(Headers::x_ratelimit(), policies);
    let app = hello(&layer);
    status(&app, "/").await;
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.retry_after(), Some(3_600));
    assert_eq!(rejected.field("x-ratelimit-reset"), "3600");
}

#[tokio::test]
async fn version_06_of_the_draft_has_a_triple_and_a_list_of_quotas() {
    let list = "ratelimit-policy: 2;w=10, 3;w=86400";
    let triple = |left: u64| {
        let fields = [("limit", 2), ("remaining", left), ("reset", 5)];
        fields.map(|(name, value)| format!("ratelimit-{name}: {value}"))
    };
    let responses = three(Headers::draft_06()).await;
    for (response, left) in responses.iter().zip([1, 0, 0]) {
        assert_eq!(response[0], list);
        assert_eq!(response[1..], triple(left));
    }
    let responses = three(Headers::draft_06().closest()).await;
    for (response, left) in responses.iter().zip([1, 0, 0]) {
        assert_eq!(response[0], "ratelimit-policy: 2;w=10");
        assert_eq!(response[1..], triple(left));
    }
}

#[tokio::test]
async fn x_ratelimit_reset_is_in_seconds_from_now_or_since_the_epoch() {
    for (headers, reset) in [
        (Headers::x_ratelimit(), 0),
        (Headers::x_ratelimit_epoch(), 1_800_000_000_u64),
        (Headers::x_ratelimit().closest(), 0),
    ] {
        let responses = three(headers).await;
        // When the full quota is available: five seconds for each unit that is used.
        for (response, (left, full)) in responses.iter().zip([(1, 5), (0, 10), (0, 10)]) {
            let reset = reset + full;
            let fields = [("limit", 2), ("remaining", left), ("reset", reset)];
            let fields = fields.map(|(name, value)| format!("x-ratelimit-{name}: {value}"));
            assert_eq!(response[..], fields);
        }
    }
}

#[tokio::test]
async fn tower_governors_fields_have_the_wait_of_rejections_and_name_what_no_policy_limits() {
    let fields = |left: u64| {
        let fields = [("limit", 2), ("remaining", left)];
        fields.map(|(name, value)| format!("x-ratelimit-{name}: {value}"))
    };
    let responses = three(Headers::tower_governor()).await;
    assert_eq!(responses[0], fields(1));
    assert_eq!(responses[1], fields(0));
    assert_eq!(responses[2][..2], fields(0));
    assert_eq!(responses[2][2..], ["x-ratelimit-after: 5"]);

    let posts = shared("posts", "2/min").only_method(Method::POST);
    let (layer, _) = layer(Headers::tower_governor(), [posts]);
    let response = send(&hello(&layer), to("/")).await;
    assert_eq!(limit_fields(&response), ["x-ratelimit-whitelisted: true"]);
}

#[tokio::test]
async fn the_limit_of_a_triple_is_never_less_than_what_remains() {
    for headers in [Headers::draft_06(), Headers::x_ratelimit()] {
        let (layer, _) = layer(headers, [shared("burst", "10/s burst 30")]);
        let response = send(&hello(&layer), to("/")).await;
        let fields = limit_fields(&response);
        assert_contains(fields.join("\n"), ["limit: 30\n", "remaining: 29\n"]);
    }
}

#[tokio::test]
async fn the_reset_time_of_a_window_does_not_move() {
    let window = shared("window", "9/min").strategy(FixedWindow);
    let (layer, clock) = layer(Headers::x_ratelimit_epoch(), [window]);
    let app = hello(&layer);
    let mut resets = BTreeSet::new();
    for _ in 0..9 {
        resets.insert(send(&app, to("/")).await.field("x-ratelimit-reset"));
        clock.advance(Duration::from_micros(6_543_210));
    }
    assert_eq!(resets.into_iter().collect::<Vec<_>>(), ["1800000060"]);
}

#[tokio::test]
async fn a_reset_time_within_a_second_is_rounded_up() {
    let (layer, clock) = layer(Headers::x_ratelimit_epoch(), [shared("once", "1/1500ms")]);
    clock.advance(Duration::from_micros(100_001));
    let app = hello(&layer);
    for expected in [200, 429] {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status.as_u16(), expected);
        // 1.600001 s after a full second.
        assert_eq!(response.field("x-ratelimit-reset"), "1800000002");
    }
}

#[tokio::test]
async fn without_rate_limit_headers_only_retry_after_is_sent() {
    let responses = three(Headers::none()).await;
    assert!(responses.iter().all(Vec::is_empty), "{responses:?}");
}

#[tokio::test]
async fn retry_after_is_on_a_rejection_for_a_failed_store_in_every_format() {
    for headers in [Headers::draft(), Headers::x_ratelimit(), Headers::none()] {
        let layer = rejecting(StubStore::unreachable(), shared("burst", "10/s"));
        let response = send(&hello(&layer.headers(headers)), to("/")).await;
        assert_eq!(response.status, 503);
        assert_eq!(response.retry_after(), Some(1));
        assert!(limit_fields(&response).is_empty());
    }
}

#[tokio::test]
async fn all_headers_can_be_exposed_to_pages() {
    for headers in [
        Headers::draft(),
        Headers::draft_06(),
        Headers::x_ratelimit(),
        Headers::x_ratelimit_epoch(),
        Headers::tower_governor(),
    ] {
        let (layer, _) = layer(headers.clone(), [shared("once", "1/h")]);
        let app = hello(&layer);
        for expected in [200, 429] {
            let response = send(&app, to("/")).await;
            assert_eq!(response.status.as_u16(), expected);
            for name in response.headers.keys() {
                let ours = name.as_str().contains("ratelimit") || name == "retry-after";
                assert_eq!(exposed_headers().contains(name), ours, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn jitter_lengthens_retry_after_and_never_shortens_it() {
    const MOST: u64 = 40;
    for headers in [
        Headers::draft(),
        Headers::draft_06(),
        Headers::x_ratelimit(),
    ] {
        let jitter = headers.clone().jitter(secs(MOST));
        let (layer, clock) = layer(jitter, [shared("once", "1/min"), shared("wide", "99/day")]);
        let app = hello(&layer);
        let first = send(&app, to("/")).await;
        let (plain, _) = self::layer(headers, [shared("once", "1/min"), shared("wide", "99/day")]);
        let plain = send(&hello(&plain), to("/")).await;
        // An admitted request has exact fields.
        assert_eq!(limit_fields(&first), limit_fields(&plain));

        let mut waits = BTreeSet::new();
        for _ in 0..64 {
            let rejected = send(&app, to("/")).await;
            let wait = rejected.retry_after().expect("a Retry-After");
            assert!((60..=60 + MOST).contains(&wait), "{wait}");
            assert!(rejected.resets().iter().all(|t| *t <= wait), "{rejected:?}");
            for name in ["ratelimit-reset", "x-ratelimit-reset"] {
                // A client that goes by this field waits as long.
                let expected = [String::new(), wait.to_string()];
                assert!(expected.contains(&rejected.field(name)), "{name}");
            }
            waits.insert(wait);
        }
        // All alike would be chance of one in 41^63.
        assert!(waits.len() > 1, "{waits:?}");
        clock.advance(secs(*waits.first().expect("one")));
        assert_eq!(status(&app, "/").await, 200);
    }
}

#[tokio::test]
async fn jitter_of_less_than_a_millisecond_is_none() {
    let (layer, _) = layer(Headers::draft().jitter(Duration::from_micros(999)), two());
    let app = hello(&layer);
    for expected in [200, 200, 429, 429] {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status.as_u16(), expected);
        assert!(response.retry_after().is_none_or(|wait| wait == 5));
    }
    // Nor does more than any clock holds break anything.
    let (layer, _) = self::layer(Headers::draft().jitter(Duration::MAX), two());
    let app = hello(&layer);
    for expected in [200, 200, 429] {
        assert_eq!(status(&app, "/").await, expected);
    }
}

#[tokio::test]
async fn a_handlers_rejection_has_the_configured_format() {
    let headers = Headers::x_ratelimit();
    let (layer, _) = layer(headers.clone(), [shared("once", "1/h")]);
    let limiter: Limiter = layer.limiter().clone();
    let handler = async move || -> Result<&str, Rejected> {
        let checked = limiter.check(Key::global()).await.into_result();
        let _ = checked.map_err(|rejected| rejected.headers(headers.clone()))?;
        Ok("hello")
    };
    let app = Router::new().route("/", get(handler));
    assert_eq!(status(&app, "/").await, 200);
    let handlers = send(&app, to("/")).await;
    assert_eq!(handlers.status, 429);
    assert_eq!(handlers, send(&hello(&layer), to("/")).await);
}

#[tokio::test]
async fn a_layer_has_the_configured_format_however_it_was_built() {
    let policy = || Policy::new("once", quota("1/h")).key(extract::global());
    let headers = Headers::x_ratelimit();
    let built = RateLimitLayer::builder().policy(policy()).built();
    let limiter = Limiter::builder().policy(policy()).built();
    let around = RateLimitLayer::new(limiter);
    for layer in [built, around].map(|layer| layer.headers(headers.clone())) {
        // Another dialect of a clone leaves this one as it is.
        let _ = layer.clone().headers(Headers::none());
        let response = send(&hello(&layer), to("/")).await;
        assert_eq!(response.field("x-ratelimit-limit"), "1");
        assert_eq!(response.field("ratelimit"), "");
    }
}
