//! New settings hold at once for all that was made before, invalid ones change nothing, and what a store knows is kept.

use tollgate::{changes::PolicyChangeKind, layer::Rejections};
use tollgate_tests::prelude::*;

use super::*;

#[tokio::test]
async fn new_limits_hold_at_once_for_clones_handles_and_layers_made_before() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "10/h")]);
        let (clone, layer) = (limiter.clone(), RateLimitLayer::new(limiter.clone()));
        let handle = limiter.policy("p").expect("its policy");
        let app = app(&layer);
        assert_eq!(get_from(&app).await.status, StatusCode::OK);
        assert!(clone.check(KEY).await.is_admitted());
        let changes = replace(&clone, [window("p", "4/h")]);
        assert_eq!(
            changes.to_string(),
            "p: altered: quota 10/h -> 4/h (the count stays)"
        );
        assert_eq!(used(&limiter, "p").await, 2);
        assert_eq!(handle.policy().expect("its policy").quota().amount(), 4);
        assert!(limiter.check(KEY).await.is_admitted());
        assert_eq!(get_from(&app).await.status, StatusCode::OK);
        assert_eq!(get_from(&app).await.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(!clone.check(KEY).await.is_admitted());
        let status = handle.peek(KEY).await.expect("a response");
        assert_eq!(status.left("p"), 0);
        assert_eq!(layer.limiter().policies()[0].quota().amount(), 4);
    }
}

#[tokio::test]
async fn a_removed_policy_is_unknown_and_finds_its_counts_when_it_returns() {
    for world in World::both() {
        let [p, q] = [policy("p", "10/h"), policy("q", "10/h")];
        let limiter = world.limiter([p.clone(), q.clone()]);
        let handle = limiter.policy("q").expect("its policy");
        assert!(limiter.check(KEY).cost(3).await.is_admitted());
        let kind = |changes: Changes, name: &str| changes.policy(name).expect(name).kind();
        let changes = replace(&limiter, [p.clone()]);
        assert_eq!(kind(changes, "q"), PolicyChangeKind::Removed);
        assert!(limiter.check(KEY).await.is_admitted());
        assert!(handle.policy().is_err() && handle.peek(KEY).await.is_err());
        assert!(limiter.admit([("q", KEY)]).await.is_err());
        let changes = replace(&limiter, [q, p]);
        assert_eq!(kind(changes, "q"), PolicyChangeKind::Added);
        assert_eq!(used(&limiter, "q").await, 3);
        assert_eq!(used(&limiter, "p").await, 4);
        assert!(handle.policy().is_ok());
    }
}

/// Each invalid set, and words of its error.
fn invalid_sets() -> Vec<(LimiterBuilder, &'static str)> {
    let one = || Limiter::builder().policy(policy("p", "10/h"));
    let and = |policy| one().policy(policy);
    let leased = policy("l", "100/s burst 3").lease(Lease::max_units(8).ttl(ms(200)));
    vec![
        (Limiter::builder(), "without a policy"),
        (and(policy("p", "5/h")), "second policy of this name"),
        (one().allow(KeyList::new("unknown", [KEY])), "unknown"),
        // A request's own quota, which admitted such a cost, is no part of the settings.
        (
            Limiter::builder().policy(policy("q", "9/h").cost(10)),
            "cost of 10",
        ),
        (and(window("w", "5/h burst 9")), "burst"),
        (and(leased), "with a lease of 200ms"),
        (and(policy("", "5/h")), "name"),
        // Another strategy for `p`, which the store can count by.
        (
            Limiter::builder()
                .policy(window("p", "10/h"))
                .policy(policy("", "5/h")),
            "name",
        ),
        (one().skip_path("no-slash"), "no-slash"),
        (one().on_store_error(LocalFallback::shared_by(0)), "0"),
        (one().store(MemoryStore::new()), "another store"),
    ]
}

#[tokio::test]
async fn invalid_settings_change_nothing_and_are_the_error_of_build() {
    for world in World::both() {
        let limiter = world.limiter([policy("p", "10/h"), policy("q", "9/h")]);
        let layer = RateLimitLayer::new(limiter.clone());
        assert!(limiter.check(KEY).cost(3).await.is_admitted());
        let lifted = limiter.check([("q", KEY)]).quota_for("q", quota("900/h"));
        assert!(lifted.cost(0).await.is_admitted());
        let before = format!("{:?}", limiter.policies());
        for ((builder, words), (same, _)) in invalid_sets().into_iter().zip(invalid_sets()) {
            let error = limiter.reconfigure(builder).expect_err(words).to_string();
            assert!(error.contains(words), "{error}, not {words}");
            assert_eq!(format!("{:?}", limiter.policies()), before, "{words}");
            let built = same.build().err().map(|built| built.to_string());
            let is_same = words == "another store" || built == Some(error);
            assert!(is_same, "{built:?}");
        }
        let error = layer.reconfigure(RateLimitLayer::builder(), |layer| layer.enabled(false));
        assert_contains(error.expect_err("no policy"), ["without a policy"]);
        assert_eq!(used(&limiter, "p").await, 3);
        assert_eq!(used(&limiter, "q").await, 3);
        assert!(limiter.check(KEY).cost(6).await.is_admitted());
        assert!(!limiter.check(KEY).await.is_admitted());
        // A clone of the limiter's store is no other store.
        let same = world.builder().policy(policy("p", "20/h burst 10"));
        limiter.reconfigure(same).expect("its own store");
        assert_eq!(limiter.policies()[0].quota().amount(), 20);
    }
}

#[tokio::test]
async fn access_lists_and_skip_rules_are_replaced_too() {
    let limiter = World::memory().limiter([policy("p", "10/h")]);
    let request = Request::get("/health").body(()).expect("a request");
    let parts = request.into_parts().0;
    let address = [192, 0, 2, 1].into();
    let check = || limiter.check(KEY).address(address).parts(&parts);
    let one = || settings([policy("p", "10/h")]);
    let listed = || AddressList::new(["192.0.2.0/24"]).expect("a list");
    let changes = limiter.reconfigure(one().deny(listed())).expect("valid");
    assert_eq!(changes.settings().len(), 1, "{changes}");
    assert!(!check().await.is_admitted());
    for lifted in [one().allow(listed()), one().skip_path("/health")] {
        limiter.reconfigure(lifted).expect("valid");
        assert!(check().cost(11).await.is_admitted());
    }
    limiter.reconfigure(one()).expect("valid");
    assert!(check().await.is_admitted());
    assert_eq!(used(&limiter, "p").await, 1);
}

#[tokio::test]
async fn connections_and_cached_rejections_stay_but_those_of_altered_policies() {
    const BY_STORE: Option<DecisionSource> = Some(DecisionSource::Store);
    const FROM_CACHE: Option<DecisionSource> = Some(DecisionSource::RejectionCache);
    let server = Server::start();
    let store = RedisStore::builder().url(server.url());
    // Rejections are cached for longer than the test takes; overrides would be read by a connection of their own.
    let store = store.timeout(TEST_TIMEOUT).overrides(false);
    let store = store.rejection_cache_staleness(secs(3_600)).built();
    let one = || window("p", "1/month");
    let limiter = settings([one()]).store(store).built();
    let rejected_from = async || {
        let decision = limiter.check(KEY).await;
        (!decision.is_admitted()).then(|| decision.source())
    };
    let connections = || {
        let list = server.command(&["CLIENT", "LIST"]).text();
        let others = list.lines().filter(|line| !line.contains("cmd=client"));
        let ids = others.filter_map(|line| line.split(' ').next());
        ids.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!(rejected_from().await, None);
    assert_eq!(rejected_from().await, BY_STORE);
    let before = (connections(), server.calls("evalsha"));
    for n in 1..=20 {
        // Other settings of the limiter, and of the policy besides what it counts.
        let missing = [MissingKey::Reject, MissingKey::Skip][n % 2];
        let settings = settings([one().missing_key(missing)]).skip_path("/a");
        limiter.reconfigure(settings).expect("valid");
        assert_eq!(rejected_from().await, FROM_CACHE, "change {n}");
    }
    assert_eq!((connections(), server.calls("evalsha")), before);
    replace(&limiter, [window("p", "2/month")]);
    assert_eq!(rejected_from().await, None, "2 a month");
    assert_eq!(rejected_from().await, BY_STORE);
    limiter.reset(KEY).await.expect("a response");
    replace(&limiter, [one()]);
    assert_eq!(rejected_from().await, None, "it was reset");
    // Of several policies, one altered one is enough.
    replace(&limiter, [one(), window("q", "1/month")]);
    assert_eq!(rejected_from().await, BY_STORE);
    assert_eq!(rejected_from().await, FROM_CACHE);
    replace(&limiter, [window("p", "9/month"), window("q", "1/month")]);
    assert_eq!(rejected_from().await, None, "9 a month");
}

#[tokio::test]
async fn what_was_counted_in_process_for_a_failed_store_stays() {
    let with_fallback =
        |policies: Vec<Policy>| settings(policies).on_store_error(LocalFallback::shared_by(1));
    let store = StubStore::unreachable();
    let p = |quota| window("p", quota);
    let limiter = with_fallback(vec![p("10/month")]).store(store).built();
    assert_eq!(limiter.check(KEY).times(4).await.admitted(), 4);
    for (policies, admitted) in [
        (vec![p("10/month"), window("q", "90/month")], 6),
        (vec![p("15/month")], 5),
    ] {
        limiter.reconfigure(with_fallback(policies)).expect("valid");
        assert_eq!(limiter.check(KEY).times(20).await.admitted(), admitted);
    }
}

#[tokio::test]
async fn shadow_statistics_stay_with_a_kept_policy_and_start_afresh_with_an_altered_one() {
    let shadow = |quota| window("s", quota).shadow();
    let limiter = World::memory().limiter([window("p", "100/h"), shadow("2/h")]);
    assert!(limiter.check(KEY).times(5).await.is_admitted());
    for (next, expected) in [(shadow("2/h"), (5, 3)), (shadow("3/h"), (0, 0))] {
        replace(&limiter, [next, window("p", "200/h")]);
        let stats = limiter.shadow_stats("s").expect("a shadow");
        assert_eq!((stats.evaluated, stats.would_reject), expected);
    }
    // In force as a limit, it rejects by what the shadow counted.
    replace(&limiter, [window("p", "200/h"), window("s", "2/h")]);
    assert!(!limiter.check(KEY).await.is_admitted());
}

#[tokio::test]
async fn each_setting_of_a_layer_is_replaced_with_the_policies_for_services_made_before() {
    let layer = World::memory().layer([window("p", "1/h")]);
    let layer = layer.headers(RateLimitHeaders::x_ratelimit());
    let app = app(&layer);
    assert_eq!(get_from(&app).await.field("x-ratelimit-limit"), "1");
    assert_eq!(get_from(&app).await.status, StatusCode::TOO_MANY_REQUESTS);
    let two = || layer_settings([window("p", "2/h")]);
    let changes = layer
        .reconfigure(two(), |layer| {
            let layer = layer.rejections(Rejections::OpenAi);
            layer.on_rejection(|rejected: &Rejected, _| {
                (rejected.status(), "slower").into_response()
            })
        })
        .expect("valid");
    let changed: Vec<_> = changes.settings().collect();
    for setting in ["headers", "rejections", "on_rejection"] {
        assert!(changed.contains(&setting), "{changes}");
    }
    let answer = get_from(&app).await;
    let limit = answer.field("x-ratelimit-limit");
    assert_eq!((answer.status, limit), (StatusCode::OK, ""));
    assert_eq!(answer.field("ratelimit-policy"), r#""p";q=2;w=3600"#);
    let answer = get_from(&app).await;
    let retry = answer.field("x-should-retry");
    assert_eq!((&*answer.body, retry), ("slower", "false"));
    // What is not set has its default.
    layer.reconfigure(two(), |layer| layer).expect("valid");
    let answer = get_from(&app).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.field("content-type"), "application/problem+json");
    let enable = |enabled| layer.reconfigure(two(), |layer| layer.enabled(enabled));
    let changes = enable(false).expect("valid");
    assert_eq!(changes.to_string(), "enabled: altered\np: kept");
    assert_eq!(get_from(&app).await.status, StatusCode::OK);
    assert!(!enable(true).expect("valid").is_empty());
    assert!(enable(true).expect("valid").is_empty());
    assert_eq!(get_from(&app).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(used(layer.limiter(), "p").await, 2);
}

#[tokio::test]
async fn each_of_two_layers_over_one_limiter_keeps_its_settings_and_has_the_new_policies() {
    let limiter = World::memory().limiter([window("p", "100/h")]);
    let first = RateLimitLayer::new(limiter.clone()).headers(RateLimitHeaders::x_ratelimit());
    let second = RateLimitLayer::from(limiter.clone()).headers(RateLimitHeaders::draft());
    let apps = [app(&first), app(&second)];
    for limit in ["200", "300", "400"] {
        let policies = [window("p", &format!("{limit}/h"))];
        if limit == "300" {
            let same = |layer: RateLimitLayer| layer.headers(RateLimitHeaders::x_ratelimit());
            let changes = first.reconfigure(layer_settings(policies), same);
            changes.expect("valid");
        } else {
            replace(&limiter, policies);
        }
        let [one, other] = [get_from(&apps[0]).await, get_from(&apps[1]).await];
        assert_eq!(one.field("x-ratelimit-limit"), limit);
        assert!(other.field("ratelimit-policy").contains(limit), "{limit}");
        assert_eq!(other.field("x-ratelimit-limit"), "");
    }
    assert_eq!(used(&limiter, "p").await, 6);
}

#[tokio::test]
async fn a_closure_may_replace_the_policies_that_it_is_part_of() {
    let limiter = World::memory().limiter([policy("p", "1/h")]);
    let of_closure = limiter.clone();
    let replacing = policy("p", "10/h").cost_with(move |_| {
        replace(&of_closure, [policy("p", "20/h"), policy("q", "9/h")]);
        2
    });
    replace(&limiter, [replacing]);
    let parts = Request::new(()).into_parts().0;
    let decision = limiter.check(KEY).parts(&parts).await;
    assert_eq!(decision.policy("p").expect("p").limit(), 10);
    assert!(decision.policy("q").is_none());
    assert_eq!(used(&limiter, "p").await, 4, "the share stays");
}
