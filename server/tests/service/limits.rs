//! Which rule counts a descriptor, and how.

use std::time::Instant;

use tollgate::limiter::Override;
use tollgate_server::{
    proto::{RateLimitDescriptor, RateLimitOverride},
    rules::{Rule, Unit},
};
use tonic::Code;

use crate::{
    client::{Client, cost, descriptor, entry, header, is_over, limit_of, over, request},
    scene::{
        TEST_TIMEOUT, limit, limit_together, named, policy, rule, rules, served, served_with,
        unlimited, with,
    },
};

fn with_limit(
    descriptor: RateLimitDescriptor,
    requests_per_unit: u32,
    unit: impl Into<Option<Unit>>,
) -> RateLimitDescriptor {
    let unit = unit.into().map_or(0, |unit| unit as i32);
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit,
        }),
        ..descriptor
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_beyond_the_limit_is_refused_with_all_that_a_client_needs() {
    let limited = named(limit("user", "", 2, Unit::Minute), "per-user", &[]);
    let client = served(rules([limited])).await;
    let alice = || descriptor([("user", "alice")]);

    let first = client.ask([alice()]).await;
    assert!(!is_over(&first));
    let (status, current) = (&first.statuses[0], limit_of(&first));
    assert_eq!(
        (current.requests_per_unit, current.unit, &*current.name),
        (2, Unit::Minute as i32, "per-user")
    );
    assert_eq!(status.limit_remaining, 1);
    // 19.877 seconds, rounded up.
    assert_eq!(status.duration_until_reset.expect("a time").seconds, 20);
    let fields = ["ratelimit", "ratelimit-policy", "retry-after"].map(|name| header(&first, name));
    let [left, policy] = [r#""per-user";r=1;t=20"#, r#""per-user";q=2;w=60"#];
    assert_eq!(fields, [Some(left), Some(policy), None]);
    assert!(first.raw_body.is_empty());

    assert!(client.passes(alice()).await);
    let third = client.ask([alice()]).await;
    assert!(is_over(&third));
    let status = &third.statuses[0];
    assert_eq!(status.limit_remaining, 0);
    assert_eq!(status.duration_until_reset.expect("a time").seconds, 20);
    let fields = ["retry-after", "content-type"].map(|name| header(&third, name));
    assert_eq!(fields, [Some("20"), Some("application/problem+json")]);
    let problem: serde_json::Value = serde_json::from_slice(&third.raw_body).expect("JSON");
    assert_eq!(problem["status"], 429);
    let violated = &problem["violated-policies"];
    assert_eq!(*violated, serde_json::json!(["per-user"]));
    // Another user has a count of its own.
    assert!(client.passes(descriptor([("user", "bob")])).await);
    // Without details, if the server is told so.
    let rules = rules([limit("user", "", 0, Unit::Minute)]);
    let client = served_with(&["--no-response-details"], rules).await;
    let response = client.ask([alice()]).await;
    assert!(is_over(&response));
    assert!(response.response_headers_to_add.is_empty() && response.raw_body.is_empty());
}

/// The number of requests that pass, of ten, which names the rule that counts.
async fn admitted_of_ten<const N: usize>(client: &Client, entries: [(&str, &str); N]) -> usize {
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += usize::from(client.passes(descriptor(entries)).await);
    }
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn the_value_counts_before_wildcards_in_their_order_and_those_before_the_key_alone() {
    let client = served(rules([
        limit("path", "", 5, Unit::Hour),
        limit("path", "/a*", 4, Unit::Hour),
        limit("path", "/a/*.png", 3, Unit::Hour),
        limit("path", "/a/b", 2, Unit::Hour),
        limit("path", "*.png", 1, Unit::Hour),
    ]))
    .await;
    for (value, expected) in [
        ("/a/b", 2),
        ("/a/c", 4),
        // The first wildcard that matches, not the longest.
        ("/a/c.png", 4),
        ("/b.png", 1),
        ("/b", 5),
        ("", 5),
    ] {
        assert_eq!(
            admitted_of_ten(&client, [("path", value)]).await,
            expected,
            "{value}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_counts_descriptors_of_its_own_depth_alone() {
    let inner = [
        limit("user", "bob", 1, Unit::Hour),
        limit("user", "", 2, Unit::Hour),
    ];
    let client = served(rules([
        with(limit("tenant", "a", 3, Unit::Hour), inner),
        with(rule("tenant", "b"), [limit("role", "", 4, Unit::Hour)]),
    ]))
    .await;
    assert_eq!(admitted_of_ten(&client, [("tenant", "a")]).await, 3);
    assert_eq!(
        admitted_of_ten(&client, [("tenant", "a"), ("user", "bob")]).await,
        1
    );
    assert_eq!(
        admitted_of_ten(&client, [("tenant", "a"), ("user", "alice")]).await,
        2
    );
    // No rule: a limit is not taken from the depth above.
    for entries in [
        [("tenant", "a"), ("other", "")],
        [("tenant", "b"), ("user", "bob")],
    ] {
        assert_eq!(admitted_of_ten(&client, entries).await, 10);
    }
    assert_eq!(admitted_of_ten(&client, [("tenant", "b")]).await, 10);
    let deeper = [("tenant", "a"), ("user", "bob"), ("more", "")];
    assert_eq!(admitted_of_ten(&client, deeper).await, 10);
    // The order of entries matters.
    assert_eq!(
        admitted_of_ten(&client, [("user", "bob"), ("tenant", "a")]).await,
        10
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_of_two_rules_for_one_value_counts() {
    let mut second = limit("other", "", 7, Unit::Hour);
    second.key = "user".to_owned();
    let client = served(rules([limit("user", "", 3, Unit::Hour), second])).await;
    assert_eq!(admitted_of_ten(&client, [("user", "alice")]).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_a_wildcard_have_counts_of_their_own_unless_it_shares_its_threshold() {
    let sharing = Rule {
        share_threshold: true,
        ..limit("file", "shared*", 3, Unit::Hour)
    };
    let client = served(rules([sharing, limit("file", "own*", 3, Unit::Hour)])).await;
    assert_eq!(admitted_of_ten(&client, [("file", "own1")]).await, 3);
    assert_eq!(admitted_of_ten(&client, [("file", "own2")]).await, 3);
    assert_eq!(admitted_of_ten(&client, [("file", "shared1")]).await, 3);
    assert_eq!(admitted_of_ten(&client, [("file", "shared2")]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_that_look_alike_when_joined_are_counted_apart() {
    let pair =
        |first: &str, second: &str| with(rule(first, ""), [limit(second, "", 1, Unit::Hour)]);
    let client = served(rules([pair("a", "b_c"), pair("a_b", "c")])).await;
    for entries in [
        [("a", "x"), ("b_c", "y")],
        [("a_b", "x"), ("c", "y")],
        [("a", "x+y"), ("b_c", "")],
        [("a", "x"), ("b_c", "+y")],
        [("a", "x_y"), ("b_c", "")],
        [("a", ""), ("b_c", "x_y")],
    ] {
        assert!(client.passes(descriptor(entries)).await, "{entries:?}");
        assert!(!client.passes(descriptor(entries)).await, "{entries:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_not_in_the_store_or_in_metrics() {
    let detailed = Rule {
        detailed_metric: true,
        ..limit("authorization", "", 5, Unit::Hour)
    };
    let client = served(rules([detailed, limit("user", "", 5, Unit::Hour)])).await;
    let secret = || descriptor([("authorization", "sk-secret-1")]);
    assert!(client.passes(secret()).await);
    assert!(client.passes(with_limit(secret(), 5, Unit::Hour)).await);
    assert!(client.passes(descriptor([("user", "alice")])).await);
    let keys = client.redis.keys().join("\n");
    assert!(!keys.contains("secret-1"), "{keys}");
    assert!(keys.contains("alice"), "{keys}");
    let metrics = crate::json::get(&client.server, "/metrics").await.1;
    assert!(!metrics.contains("secret-1"), "{metrics}");
    assert!(metrics.contains("key1=\"authorization_#"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cost_is_that_of_the_descriptor_or_else_of_the_request_and_0_looks_only() {
    let client = served(rules([limit("user", "", 10, Unit::Hour)])).await;
    let alice = || descriptor([("user", "alice")]);
    assert_eq!(client.left(alice()).await, 10);
    assert!(client.redis.keys().is_empty(), "a peek makes no key");

    let of_request = tollgate_server::proto::RateLimitRequest {
        hits_addend: 3,
        ..request([alice(), cost(alice(), 2)])
    };
    assert!(!is_over(
        &client.send(of_request).await.expect("a response")
    ));
    assert_eq!(client.left(alice()).await, 5);
    assert!(client.passes(cost(alice(), 5)).await);
    // A used-up limit that is peeked at is not over.
    assert!(client.passes(cost(alice(), 0)).await);
    assert!(!client.passes(cost(alice(), u64::MAX)).await);
    // A limit that is charged beyond its end is.
    let peek = client.ask([cost(alice(), 0)]).await;
    assert!(is_over(&peek));
    assert_eq!(header(&peek, "retry-after"), Some("3200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_charge_what_they_refuse_or_not_as_their_policies_say() {
    let client = served(rules([
        limit("charged", "", 10, Unit::Hour),
        limit_together("free", "", 10, Unit::Hour),
    ]))
    .await;
    for (key, left) in [("charged", 0), ("free", 3)] {
        let used = || descriptor([(key, "alice")]);
        assert!(client.passes(cost(used(), 7)).await);
        assert!(!client.passes(cost(used(), 5)).await);
        assert_eq!(client.left(used()).await, left, "{key}");
    }
    // A cost that never fits has no time to retry.
    let never = client.ask([cost(descriptor([("free", "bob")]), 11)]).await;
    assert!(is_over(&never));
    assert_eq!(header(&never, "retry-after"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_are_not_independent_are_charged_together_or_not_at_all() {
    let client = served(rules([
        limit_together("user", "", 5, Unit::Hour),
        limit_together("model", "", 2, Unit::Hour),
        limit("alone", "", 9, Unit::Hour),
    ]))
    .await;
    let all = || {
        [
            descriptor([("user", "alice")]),
            descriptor([("alone", "alice")]),
            descriptor([("model", "large")]),
        ]
    };
    for _ in 0..2 {
        assert_eq!(over(&client.ask(all()).await), [false, false, false]);
    }
    let refused = client.ask(all()).await;
    assert!(is_over(&refused));
    assert_eq!(over(&refused), [false, false, true]);
    let [user, alone, model] = all();
    assert_eq!(client.left(user).await, 3);
    assert_eq!(client.left(model).await, 0);
    // It is decided by itself.
    assert_eq!(client.left(alone).await, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_descriptor_replaces_the_rules_and_a_change_of_it_keeps_the_count() {
    let client = served(rules([limit("user", "", 1, Unit::Hour)])).await;
    let alice = |n, unit| with_limit(descriptor([("user", "alice")]), n, unit);
    for _ in 0..3 {
        assert!(client.passes(alice(3, Unit::Hour)).await);
    }
    assert!(!client.passes(alice(3, Unit::Hour)).await);
    let raised = client.ask([alice(10, Unit::Hour)]).await;
    assert!(!is_over(&raised));
    assert_eq!(limit_of(&raised).requests_per_unit, 10);
    // The refused one counts too.
    assert_eq!(raised.statuses[0].limit_remaining, 5);
    // Another unit has a count of its own, and so has the rule.
    assert!(client.passes(alice(1, Unit::Day)).await);
    assert!(client.passes(descriptor([("user", "alice")])).await);
    // Each unit can be counted.
    for unit in Unit::ALL {
        let bob = || with_limit(descriptor([("user", "bob")]), 1, unit);
        assert!(client.passes(bob()).await);
        assert!(!client.passes(bob()).await);
    }
    // One of 0 refuses all but looks.
    assert!(!client.passes(alice(0, Unit::Minute)).await);
    assert!(client.passes(cost(alice(0, Unit::Minute), 0)).await);
    // In a domain without rules there are no limits.
    let mut elsewhere = request([alice(0, Unit::Hour)]);
    elsewhere.domain = "elsewhere".to_owned();
    assert!(!is_over(&client.send(elsewhere).await.expect("a response")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_without_a_limit_passes_without_the_store() {
    let client = served(rules([
        unlimited("user", "admin"),
        limit("user", "", 1, Unit::Hour),
    ]))
    .await;
    client.redis.pause();
    let response = client
        .ask([descriptor([("user", "admin")]), descriptor([("none", "")])])
        .await;
    client.redis.resume();
    assert!(!is_over(&response));
    assert_eq!(response.statuses[0].limit_remaining, u32::MAX);
    assert_eq!(response.statuses[1].limit_remaining, 0);
    let mut statuses = response.statuses.iter();
    assert!(statuses.all(|status| status.current_limit.is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_others_of_the_request_replace_are_not_charged() {
    let client = served(rules([
        named(limit("user", "", 5, Unit::Hour), "base", &[]),
        named(limit("plan", "gold", 9, Unit::Hour), "gold", &["base"]),
        named(unlimited("staff", ""), "", &["gold"]),
    ]))
    .await;
    let [user, plan, staff] = [("user", "alice"), ("plan", "gold"), ("staff", "")];
    let [user, plan, staff] = [user, plan, staff].map(|entry| descriptor([entry]));
    let replaced = client.ask([user.clone(), plan.clone()]).await;
    assert!(replaced.statuses[0].current_limit.is_none());
    assert_eq!(replaced.statuses[1].limit_remaining, 8);
    assert_eq!(client.left(user.clone()).await, 5);
    // A limit that is replaced replaces others nevertheless.
    client.ask([user.clone(), plan.clone(), staff]).await;
    assert_eq!(
        (client.left(user.clone()).await, client.left(plan).await),
        (5, 8)
    );
    assert!(client.passes(user.clone()).await);
    assert_eq!(client.left(user).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_refused_with_their_mistake() {
    let client = served(rules([limit("user", "", 5, Unit::Hour)])).await;
    let user = || descriptor([("user", "alice")]);
    let mut no_domain = request([user()]);
    no_domain.domain.clear();
    let mut long_domain = request([user()]);
    long_domain.domain = "x".repeat(1025);
    let mut many = request([]);
    many.descriptors = vec![user(); 65];
    let mut deep = user();
    deep.entries = vec![entry("user", "alice"); 17];
    for (request, expected) in [
        (no_domain, "the domain is empty"),
        (long_domain, "the domain is longer than 1024 bytes"),
        (request([]), "there are no descriptors"),
        (many, "65 descriptors; at most 64 are allowed"),
        (
            request([user(), deep]),
            "descriptor 1 has 17 entries; at most 16 are allowed",
        ),
        (
            request([descriptor([(&*"x".repeat(1025), "alice")])]),
            "descriptor 0 has a key of more than 1024 bytes",
        ),
        (
            request([with_limit(user(), 5, None)]),
            "the limit of a descriptor has no unit 0",
        ),
    ] {
        let status = client.send(request).await.expect_err("a mistake");
        assert_eq!(
            (status.code(), status.message()),
            (Code::InvalidArgument, expected)
        );
    }
    let mut most = request([]);
    most.descriptors = vec![user(); 64];
    assert!(is_over(&client.send(most).await.expect("a response")));
}

/// A proxy admits requests whose limits can't be decided: so clients must not be able to make them undecidable.
#[tokio::test(flavor = "multi_thread")]
async fn no_value_of_a_client_keeps_its_request_from_being_limited() {
    let by_address = limit("address", "", 2, Unit::Hour);
    let client = served(rules([by_address, limit("path", "", 9, Unit::Hour)])).await;
    let long = "/".repeat(100_000).into_bytes();
    for path in [long, b"/a?\xff".to_vec(), Vec::new()] {
        let mut path_of = descriptor([("path", "")]);
        path_of.entries[0].value = path;
        for (address, expected) in [("a", [true, false]), ("b", [false, false])] {
            let of =
                |path: &RateLimitDescriptor| [descriptor([("address", address)]), path.clone()];
            if address == "a" {
                client.ask(of(&path_of)).await;
                client.ask(of(&path_of)).await;
            }
            let response = client.ask(of(&path_of)).await;
            assert_eq!(over(&response), expected);
        }
        client.redis.flush();
    }
    // An Envoy passes on up to 60 KiB of header fields.
    let longest = descriptor([("path", &*"/".repeat(60 << 10))]);
    let all = [(); 16].map(|()| longest.clone());
    assert!(is_over(&client.ask(all).await));
    let all = [(); 18].map(|()| longest.clone());
    let refused = client.send(request(all)).await.expect_err("too large");
    assert_eq!(refused.code(), Code::OutOfRange);
}

/// It may report what a request has cost, and wait for no longer than it waits for a decision.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_charges_stays_charged_though_it_has_given_up() {
    let client = served_with(
        &["--max-requests", "1"],
        rules([limit("user", "", 1_000, Unit::Hour), unlimited("free", "")]),
    )
    .await;
    let user = || descriptor([("user", "alice")]);
    client.ask([cost(user(), 100)]).await;
    client.redis.pause();
    // A connection of its own: each has one request in flight.
    let charging = Client::of(&client.server);
    let charge = tokio::spawn(async move {
        // Another request may be decided when it comes.
        let is_refused = async || {
            let sent = charging.send(request([cost(user(), 300)])).await;
            sent.is_err_and(|status| status.code() == Code::ResourceExhausted)
        };
        while is_refused().await {}
    });
    let start = Instant::now();
    // Until the charge is the one request that is decided.
    let free = || request([descriptor([("free", "")])]);
    while client.send(free()).await.is_ok() {
        assert!(start.elapsed() < TEST_TIMEOUT);
    }
    charge.abort();
    client.redis.resume();
    loop {
        // Refused until the charge is made.
        let left = client.send(request([cost(user(), 0)])).await;
        if left.is_ok_and(|left| left.statuses[0].limit_remaining == 600) {
            return;
        }
        assert!(start.elapsed() < TEST_TIMEOUT);
    }
}

/// On one thread: of several, another one may send the first before the rest is queued.
#[tokio::test]
async fn the_descriptors_of_a_request_share_calls_of_redis() {
    let client = served(rules([
        limit("a", "", 100, Unit::Hour),
        limit("b", "", 100, Unit::Day),
        limit_together("c", "", 100, Unit::Hour),
        limit_together("d", "", 100, Unit::Hour),
    ]))
    .await;
    let all = || {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|key| descriptor([(key, "x")]));
        let peek = cost(a.clone(), 0);
        [a, b, c, d, peek]
    };
    // The script is loaded.
    client.ask(all()).await;
    let before = client.redis.calls("evalsha");
    client.ask(all()).await;
    // The first may leave before the others have been pushed.
    assert!(client.redis.calls("evalsha") - before < 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_that_an_operator_sets_for_a_key_is_applied_and_reported() {
    let client = served(rules([limit("user", "", 2, Unit::Hour)])).await;
    let limiter = client.server.engine().limiter();
    let policy = limiter.policy(&policy("user", "")).expect("a policy");
    let more = Override::quota(Unit::Hour.quota(9));
    for (user, set) in [("alice", more), ("carol", Override::exempt())] {
        let set = policy.set_override(user, set).await;
        set.expect("an override");
    }
    for (user, limit) in [("alice", 9), ("bob", 2)] {
        let response = client.ask([descriptor([("user", user)])]).await;
        assert_eq!(limit_of(&response).requests_per_unit, limit);
        assert_eq!(response.statuses[0].limit_remaining, limit - 1);
    }
    let carol = descriptor([("user", "carol")]);
    assert!(client.passes(cost(carol, 99)).await);
}
