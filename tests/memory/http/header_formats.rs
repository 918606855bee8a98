//! How responses show the limits: in which fields, of which policies, and how much later than exactly.

use tollgate::layer::exposed_headers;
use tollgate_tests::clocks::TwoClocks;

use crate::http::{support, support::*};

/// A layer that shows these policies in these fields.
fn layer(
    headers: Headers,
    policies: impl IntoIterator<Item = Policy>,
) -> (RateLimitLayer, ManualClock) {
    let (layer, clock) = support::layer(policies);
    (layer.headers(headers), clock)
}

const ALL: [&str; 5] = [
    "ratelimit-policy",
    "ratelimit",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
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
    // When the full quota is available: five seconds for each unit that is used.
    let x = |left, reset| {
        format!("x-ratelimit-limit: 2 | x-ratelimit-remaining: {left} | x-ratelimit-reset: {reset}")
    };
    #[rustfmt::skip]
    let rows = [
        (Headers::draft(), [
            draft(both, r#""burst";r=1;t=5, "daily";r=2;t=86400"#),
            draft(both, r#""burst";r=0;t=5, "daily";r=1;t=86400"#),
            draft(both, r#""burst";r=0;t=5, "daily";r=1;t=5"#),
        ]),
        // The policy with the fewest requests left.
        (Headers::x_ratelimit(), [x(1, 5), x(0, 10), x(0, 10)]),
        (Headers::none(), [(); 3].map(|()| String::new())),
    ];
    for (headers, expected) in rows {
        assert_eq!(three(headers.clone()).await, expected, "{headers:?}");
    }
    assert_eq!(Headers::default(), Headers::draft());
}

#[tokio::test]
async fn a_closure_writes_its_fields_on_every_response() {
    fn write(decision: &Decision, headers: &mut HeaderMap) {
        let shown = decision.policies().map(|policy| policy.remaining()).min();
        let after = headers.get("retry-after").cloned();
        let text = format!("{shown:?} {after:?}");
        headers.insert("x-custom", text.parse().expect("ASCII"));
    }
    let posts = shared("posts", "1/min").only_method(Method::POST);
    let (layer, _) = layer(Headers::custom(write), [posts]);
    let app = hello(&layer);
    let post = || Request::post("/").body(Body::empty()).expect("a request");
    let responses = [
        send(&app, to("/")).await,
        send(&app, post()).await,
        send(&app, post()).await,
    ];
    let fields = responses.map(|response| response.field("x-custom"));
    assert_eq!(
        fields,
        ["None None", "Some(0) None", r#"Some(0) Some("60")"#]
    );
}

#[tokio::test]
async fn the_reported_policy_is_the_one_with_the_fewest_requests_left_or_the_longest_wait() {
    let one = |name, quota, cost| shared(name, quota).cost(cost);
    let light = || one("light", "5/h", 1);
    #[rustfmt::skip]
    let rows = [
        // By how many such requests would pass, not by units.
        (vec![light(), one("heavy", "30/h", 5)], 1, "5 4 720"),
        (vec![light(), one("heavy", "30/h", 10)], 1, "30 20 1200"),
        (vec![light(), one("free", "30/h", 0)], 1, "5 4 720"),
        (vec![one("short", "1/min", 1), one("long", "1/h", 1), one("open", "9/day", 1)], 2, "1 0 3600"),
        // The limit is never less than what remains.
        (vec![one("burst", "10/s burst 30", 1)], 1, "30 29 1"),
    ];
    for (policies, requests, expected) in rows {
        let (layer, _) = layer(Headers::x_ratelimit(), policies);
        let app = hello(&layer);
        statuses(&app, requests - 1).await;
        let response = send(&app, to("/")).await;
        let fields = ["limit", "remaining", "reset"];
        let fields = fields.map(|name| response.field(&format!("x-ratelimit-{name}")));
        assert_eq!(fields.join(" "), expected);
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
    for (policy, expected) in [
        (window, "2027-01-15T08:17:40Z"),
        (calendar, "2027-01-15T08:17:00Z"),
    ] {
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let headers = Headers::anthropic().requests(policy.name());
        let layer = RateLimitLayer::builder().store(store).policy(policy);
        let app = hello(&layer.built().headers(headers));
        let mut resets = BTreeSet::new();
        for _ in 0..3 {
            let response = send(&app, to("/")).await;
            resets.insert(response.field("anthropic-ratelimit-requests-reset"));
            clock.pass(6_543_210);
        }
        assert_eq!(Vec::from_iter(resets), [expected]);
        clock.pass(-3 * 6_543_210);
    }
}

#[tokio::test]
async fn all_headers_can_be_exposed_to_pages() {
    for headers in [Headers::draft(), Headers::x_ratelimit()] {
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
    for headers in [Headers::draft(), Headers::x_ratelimit()] {
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
            // A client that goes by this field waits as long.
            let expected = [String::new(), wait.to_string()];
            assert!(expected.contains(&rejected.field("x-ratelimit-reset")));
            waits.insert(wait);
        }
        // All alike would be chance of one in 41^63.
        assert!(waits.len() > 1, "{waits:?}");
        clock.advance(secs(*waits.first().expect("one")));
        assert_eq!(status(&app, "/").await, 200);
    }
}
