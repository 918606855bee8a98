//! How responses show the limits: in which fields, of which policies, and how much later than exactly.

use tollgate::layer::exposed_headers;
use tollgate_tests::two_clocks::TwoClocks;

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

/// All fields about limits, as `name: value | name: value`.
fn limit_fields(response: &TestResponse) -> String {
    let names = ALL.into_iter();
    let names = names.filter(|name| response.headers.contains_key(*name));
    let fields = names.map(|name| format!("{name}: {}", response.field(name)));
    fields.collect::<Vec<_>>().join(" | ")
}

/// A burst that is soon used up and soon back, and a day's worth that isn't.
fn two() -> [Policy; 2] {
    [
        shared("burst", "2/10s"),
        shared("daily", "3/day").strategy(FixedWindow),
    ]
}

/// The first responses of a layer with both policies, and its rejection.
async fn three(headers: Headers) -> [String; 3] {
    let (layer, _) = layer(headers, two());
    let app = hello(&layer);
    let get = async || send(&app, to("/")).await;
    let responses = [get().await, get().await, get().await];
    assert_eq!(responses[2].status, 429);
    // Whatever the other headers are, a rejection has a `Retry-After`, and no other response has one.
    let waits = responses.each_ref().map(TestResponse::retry_after);
    let lines = |response: &TestResponse| response.headers.get_all("ratelimit").iter().count();
    assert!(responses.iter().all(|response| lines(response) <= 1));
    assert_eq!(waits, [None, None, Some(5)]);
    responses.each_ref().map(limit_fields)
}

#[tokio::test]
async fn each_format_has_its_fields_on_every_response() {
    let draft = |policies: &str, limits: &str| {
        format!("ratelimit-policy: {policies} | ratelimit: {limits}")
    };
    let both = r#""burst";q=2;w=10, "daily";q=3;w=86400"#;
    let burst = |left: u64| draft(r#""burst";q=2;w=10"#, &format!(r#""burst";r={left};t=5"#));
    let triple = |prefix: &str, left: u64, reset: u64| {
        format!("{prefix}-limit: 2 | {prefix}-remaining: {left} | {prefix}-reset: {reset}")
    };
    let old = |policies: &str, left| {
        format!(
            "ratelimit-policy: {policies} | {}",
            triple("ratelimit", left, 5)
        )
    };
    // When the full quota is available: five seconds for each unit that is used.
    let x = |left, reset| triple("x-ratelimit", left, reset);
    let governor = |left| format!("x-ratelimit-limit: 2 | x-ratelimit-remaining: {left}");
    #[rustfmt::skip]
    let rows = [
        (Headers::draft(), [
            draft(both, r#""burst";r=1;t=5, "daily";r=2;t=86400"#),
            draft(both, r#""burst";r=0;t=5, "daily";r=1;t=86400"#),
            draft(both, r#""burst";r=0;t=5, "daily";r=1;t=5"#),
        ]),
        // The policy with the fewest requests left.
        (Headers::draft().closest(), [burst(1), burst(0), burst(0)]),
        (Headers::draft_06(), [1, 0, 0].map(|left| old("2;w=10, 3;w=86400", left))),
        (Headers::draft_06().closest(), [1, 0, 0].map(|left| old("2;w=10", left))),
        (Headers::x_ratelimit(), [x(1, 5), x(0, 10), x(0, 10)]),
        (Headers::x_ratelimit().closest(), [x(1, 5), x(0, 10), x(0, 10)]),
        (Headers::x_ratelimit_epoch(), [x(1, 1_800_000_005), x(0, 1_800_000_010), x(0, 1_800_000_010)]),
        (Headers::tower_governor(), [governor(1), governor(0), governor(0) + " | x-ratelimit-after: 5"]),
        (Headers::none(), [(); 3].map(|()| String::new())),
    ];
    for (headers, expected) in rows {
        assert_eq!(three(headers.clone()).await, expected, "{headers:?}");
    }
    assert_eq!(Headers::default(), Headers::draft());
    let (layer, _) = support::layer(two());
    let first = send(&hello(&layer), to("/")).await;
    assert_eq!(limit_fields(&first), three(Headers::draft()).await[0]);
}

#[tokio::test]
async fn tower_governors_fields_name_what_no_policy_limits() {
    let posts = shared("posts", "2/min").only_method(Method::POST);
    let (layer, _) = layer(Headers::tower_governor(), [posts]);
    let response = send(&hello(&layer), to("/")).await;
    assert_eq!(limit_fields(&response), "x-ratelimit-whitelisted: true");
}

#[tokio::test]
async fn the_reported_policy_is_the_one_with_the_fewest_requests_left() {
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
async fn the_limit_of_a_triple_is_never_less_than_what_remains() {
    for headers in [Headers::draft_06(), Headers::x_ratelimit()] {
        let (layer, _) = layer(headers, [shared("burst", "10/s burst 30")]);
        let response = send(&hello(&layer), to("/")).await;
        let fields = limit_fields(&response);
        assert_contains(fields, ["limit: 30 |", "remaining: 29 |"]);
    }
}

#[tokio::test]
async fn the_reset_date_of_a_window_follows_the_wall_clock_and_does_not_move() {
    const SECOND: i64 = 1_000_000;
    // The machine began in 1970, and learnt the time from the network.
    let clock = TwoClocks::at(1_000 * SECOND);
    clock.step(1_800_000_000 * SECOND);
    let window = shared("window", "9/min").strategy(FixedWindow);
    let calendar = shared("calendar", "9/min").strategy(CalendarWindow::utc());
    for (policy, expected) in [(window, "1800001060"), (calendar, "1800001020")] {
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let layer = RateLimitLayer::builder().store(store).policy(policy);
        let app = hello(&layer.built().headers(Headers::x_ratelimit_epoch()));
        let mut resets = BTreeSet::new();
        for _ in 0..3 {
            resets.insert(send(&app, to("/")).await.field("x-ratelimit-reset"));
            clock.pass(6_543_210);
        }
        assert_eq!(Vec::from_iter(resets), [expected]);
        clock.pass(-3 * 6_543_210);
    }
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
async fn all_headers_can_be_exposed_to_pages() {
    let x = [Headers::x_ratelimit(), Headers::x_ratelimit_epoch()];
    let others = [
        Headers::draft(),
        Headers::draft_06(),
        Headers::tower_governor(),
    ];
    for headers in x.into_iter().chain(others) {
        let (layer, _) = layer(headers, [shared("once", "1/h")]);
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
        let policies = || [shared("once", "1/min"), shared("wide", "99/day")];
        let (layer, clock) = layer(headers.clone().jitter(secs(MOST)), policies());
        let app = hello(&layer);
        let first = send(&app, to("/")).await;
        let (plain, _) = self::layer(headers, policies());
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
    assert_eq!(statuses(&hello(&layer), 3).await, [200, 200, 429]);
}

#[tokio::test]
async fn a_layer_has_the_configured_format_however_it_was_built() {
    let policy = || shared("once", "1/h");
    let headers = Headers::x_ratelimit();
    let built = RateLimitLayer::builder().policy(policy()).built();
    let around = RateLimitLayer::new(support::limiter([policy()]));
    for layer in [built, around].map(|layer| layer.headers(headers.clone())) {
        // Another dialect of a clone leaves this one as it is.
        let _ = layer.clone().headers(Headers::none());
        let response = send(&hello(&layer), to("/")).await;
        assert_eq!(response.field("x-ratelimit-limit"), "1");
        assert_eq!(response.field("ratelimit"), "");
    }
}
