//! Keys that are rejected too often, and then blocked; blocks by hand.

use tollgate_tests::{load, prelude::*};

use crate::charging::support::*;

const MICRO: Duration = Duration::from_micros(1);

/// A policy that blocks clients that are rejected more often than three times a minute.
fn ban(lasting: Ban) -> Policy {
    let policy = Policy::new("abuse", quota("3/min")).strategy(lasting);
    policy.key(extract::peer())
}

/// A ban that lasts for ten minutes, then twenty, at most thirty.
fn abuse() -> Policy {
    ban(Ban::for_duration(secs(600)).max_duration(secs(1_800)))
}

/// Nothing passes under it once one has.
fn once() -> Policy {
    window("once", "1/365days")
}

/// Sends a request, and returns its wait; `None` if it is admitted.
async fn wait(limiter: &Limiter) -> Option<Duration> {
    let decision = limiter.check(KEY).await;
    let is_admitted = admitted_by_store(&decision);
    let wait = decision.retry_after().duration().expect("a wait");
    (!is_admitted).then_some(wait)
}

/// How long the ban lasts, if there is one.
async fn banned(limiter: &Limiter) -> Option<Duration> {
    let seen = limiter.peek([("abuse", KEY)]).await.expect("a response");
    let policy = seen.count("abuse");
    assert_eq!(seen.would_admit(), !policy.rejected(), "{seen:?}");
    let wait = policy.retry_after().duration().expect("a wait");
    policy.rejected().then_some(wait)
}

/// How many rejections are left.
async fn left(limiter: &Limiter) -> u64 {
    let seen = limiter.peek([("abuse", KEY)]).await;
    seen.expect("a response").left("abuse")
}

async fn reject(limiter: &Limiter, times: u64) {
    for _ in 0..times {
        assert!(wait(limiter).await.is_some());
    }
}

#[tokio::test]
async fn a_key_rejected_too_often_is_blocked_twice_as_long_each_time_by_all_processes() {
    for world in World::both() {
        let [here, there] = [(); 2].map(|()| world.limiter([even("p", "1/s"), abuse()]));
        for ban in [600, 1_200, 1_800, 1_800].map(secs) {
            assert_eq!(left(&here).await, 3);
            let waits = [(); 3].map(|()| wait(&here));
            assert_eq!(join_all(waits).await, [None, Some(secs(1)), Some(secs(1))]);
            assert_eq!(left(&there).await, 1);
            // The rejection that begins the ban has its wait.
            assert_eq!(wait(&there).await, Some(ban));
            world.advance(ban - MICRO);
            assert_eq!(wait(&here).await, Some(MICRO));
            world.advance(MICRO);
        }
        // The last ban counts for as long as it lasted.
        world.advance(secs(1_800) - MICRO);
        assert_eq!(wait(&here).await, None);
        reject(&here, 3).await;
        assert_eq!(banned(&there).await, Some(secs(1_800)));
        world.no_key_is_immortal();
        world.advance(secs(3_600) + ms(2));
        let keys = world.redis_server().map_or(Vec::new(), Server::keys);
        assert!(!keys.iter().any(|key| key.contains("x1")), "{keys:?}");
        assert_eq!(wait(&here).await, None);
        reject(&here, 3).await;
        assert_eq!(banned(&there).await, Some(secs(600)));
    }
}

#[tokio::test]
async fn a_rejection_by_several_policies_counts_once_and_one_by_a_ban_in_no_other_ban() {
    for world in World::both() {
        let other = window("q", "1/365days").charge_rejected(true);
        let longer = Policy::new("longer", quota("9/min")).strategy(Ban::for_duration(secs(600)));
        let longer = longer.key(extract::global());
        let limiter = world.limiter([once(), other, abuse(), longer]);
        assert_eq!(limiter.check(KEY).times(3).await.admitted(), 1);
        assert_eq!(all_used(&limiter, ["abuse", "longer"]).await, [2, 2]);
        assert_eq!(limiter.check(KEY).times(5).await.admitted(), 0);
        assert_eq!(used(&limiter, "longer").await, 3);
        assert_eq!(banned(&limiter).await, Some(secs(600)));
        // A banned key's requests of no cost are rejected too.
        let free = limiter.check(KEY).cost(0).await;
        assert!(!admitted_by_store(&free) && free.count("abuse").rejected());
    }
}

#[tokio::test]
async fn a_block_is_one_of_its_key_and_is_lifted_by_an_unblock_and_by_a_reset_of_its_policy() {
    for world in World::both() {
        let policies = [even("p", "100/s").key(extract::peer()), abuse()];
        let limiter = world.limiter(policies);
        let other = Key::new("bob");
        for lift in ["unblock", "unblock by name", "reset", "reset by name"] {
            // The last call counts, whether its ban is longer or shorter.
            for time in [secs(86_400), secs(60)] {
                limiter.block(KEY, time).await.expect("a ban");
                assert_eq!(wait(&limiter).await, Some(time));
            }
            assert!(admitted_by_store(&limiter.check(other).await));
            // A reset of another policy lifts none.
            let _ = limiter.reset([("p", KEY)]).await.expect("a response");
            assert_eq!(wait(&limiter).await, Some(secs(60)));
            let before = match lift {
                "unblock" => limiter.unblock(KEY).await,
                "unblock by name" => limiter.unblock([("abuse", KEY), ("p", KEY)]).await,
                "reset" => limiter.reset(KEY).await,
                _ => limiter.reset([("abuse", KEY)]).await,
            };
            let before = before.expect("a response");
            let lifted = before.count("abuse").retry_after();
            assert_eq!(lifted, RetryAfter::In(secs(60)), "{lift}");
            assert_eq!(before.policies().len(), if lift == "reset" { 2 } else { 1 });
            assert_eq!(wait(&limiter).await, None, "{lift}");
        }
        let nothing = limiter.unblock(other).await.expect("nothing to lift");
        assert!(nothing.would_admit());
    }
}

#[tokio::test]
async fn a_ban_for_rejections_is_prolonged_by_hand_and_only_lifted_ones_are_forgotten() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        assert_eq!(wait(&limiter).await, None);
        reject(&limiter, 3).await;
        for (time, left) in [(5, 600), (900, 900)] {
            let prolonged = limiter.prolong_block(KEY, secs(time)).await;
            prolonged.expect("a ban");
            assert_eq!(banned(&limiter).await, Some(secs(left)));
        }
        world.advance(secs(900));
        // A block by hand does not count.
        limiter.block(KEY, secs(1)).await.expect("a ban");
        world.advance(secs(1));
        reject(&limiter, 3).await;
        assert_eq!(banned(&limiter).await, Some(secs(1_200)));
        let _ = limiter.unblock(KEY).await.expect("a response");
        reject(&limiter, 3).await;
        assert_eq!(banned(&limiter).await, Some(secs(600)));
    }
}

#[tokio::test]
async fn a_cached_rejection_follows_when_its_ban_is_prolonged() {
    let world = World::redis();
    let store = RedisStore::builder().url(world.server().url());
    let store = store.rejection_cache_staleness(secs(3_600));
    let store = store.timeout(TEST_TIMEOUT).built();
    let limiter = load::limiter(store, [even("p", "100/s"), abuse()]);
    for time in [secs(60), secs(600)] {
        limiter.prolong_block(KEY, time).await.expect("a ban");
        let rejected = limiter.admit(KEY).await.expect_err("banned");
        assert_eq!(rejected.retry_after(), RetryAfter::In(time));
        assert!(!limiter.check(KEY).await.is_admitted());
    }
}

#[tokio::test]
async fn blocking_is_an_error_without_a_ban_and_for_no_time_or_for_ever() {
    for world in World::both() {
        let none = world.limiter([once()]);
        let limiter = world.limiter([once(), abuse()]);
        let handle = limiter.policy("once").expect("a policy");
        for result in [
            none.block(KEY, secs(1)).await,
            none.prolong_block(KEY, secs(1)).await,
            none.unblock(KEY).await.map(drop),
            limiter.block([("once", KEY)], secs(1)).await,
            handle.prolong_block(KEY, secs(1)).await,
            handle.unblock(KEY).await.map(drop),
        ] {
            let error = result.expect_err("no ban");
            assert!(matches!(error, CallError::NotABan { .. }), "{error}");
        }
        for time in [Duration::ZERO, Duration::MAX] {
            for result in [
                limiter.block(KEY, time).await,
                limiter.prolong_block(KEY, time).await,
            ] {
                let error = result.expect_err("no such time");
                let is_typed = matches!(error, CallError::Store(StoreError::Unsupported(_)));
                assert!(is_typed, "{error}");
            }
        }
        assert_eq!(banned(&limiter).await, None);
    }
}

#[tokio::test]
async fn over_http_a_ban_is_a_429_and_is_invisible_before() {
    for world in World::both() {
        let layer = world.layer([even("p", "1/s"), abuse().key(extract::global())]);
        let passed = respond(&layer, text(200)).await;
        assert_eq!(passed.headers()["ratelimit"], "\"p\";r=0;t=1");
        for (pause, names, retry_after, problem) in [
            (0, "p", "1", "#quota-exceeded"),
            (0, "p", "1", "#quota-exceeded"),
            (0, "p, abuse", "600", "#abnormal-usage-detected"),
            // It alone rejects, and nothing is charged.
            (100, "p, abuse", "500", "#abnormal-usage-detected"),
        ] {
            world.advance(secs(pause));
            let rejected = respond(&layer, text(200)).await;
            assert_eq!(rejected.status(), 429);
            assert_eq!(rejected.headers()["retry-after"], retry_after);
            let fields = rejected.headers()["ratelimit-policy"].to_str();
            let fields = fields.expect("text").split(", ");
            let shown: Vec<_> = fields.filter_map(|f| f.split('"').nth(1)).collect();
            assert_eq!(shown.join(", "), names);
            let body = rejected.into_body().collect().await.expect("a body");
            let body: Value = serde_json::from_slice(&body.to_bytes()).expect("problem details");
            let kind = body["type"].as_str().expect("a type");
            assert!(kind.ends_with(problem), "{kind}");
        }
        let decision = layer.limiter().check(KEY).await;
        let rejected = decision.policies().filter(PolicyDecision::rejected);
        let names: Vec<_> = rejected.map(|policy| policy.policy().to_owned()).collect();
        assert_eq!((names, decision.left("p")), (vec!["abuse".to_owned()], 1));
        let _ = layer.limiter().unblock(KEY).await.expect("a response");
        assert_eq!(pass(&layer, text(200)).await, 200);
    }
}

#[tokio::test]
async fn clients_see_how_long_they_are_blocked_and_no_quota_of_a_block_list() {
    let shown = async |format: RateLimitHeaders, names: [&str; 3]| {
        let list = Policy::block_list("locked").key(extract::global());
        let limiter = World::memory().limiter([window("p", "2/h"), list]);
        let layer = RateLimitLayer::new(limiter.clone()).headers(format);
        let locked = limiter.policy("locked").expect("a policy");
        locked.block(KEY, secs(60)).await.expect("a block");
        let rejected = respond(&layer, text(200)).await;
        assert_eq!(rejected.status(), 429);
        names.map(|name| rejected.headers()[name].to_str().expect("ASCII").to_owned())
    };
    let draft = ["retry-after", "ratelimit-policy", "ratelimit"];
    let expected = [
        "60",
        r#""p";q=2;w=3600"#,
        r#""p";r=2;t=0, "locked";r=0;t=60"#,
    ];
    assert_eq!(shown(RateLimitHeaders::draft(), draft).await, expected);
    let names = ["limit", "remaining", "reset"].map(|name| format!("x-ratelimit-{name}"));
    let names = names.each_ref().map(String::as_str);
    let format = RateLimitHeaders::x_ratelimit();
    assert_eq!(shown(format, names).await, ["0", "0", "60"]);
}

#[tokio::test]
async fn a_block_list_counts_no_rejections() {
    for world in World::both() {
        let list = Policy::block_list("locked").key(extract::global());
        let limiter = world.limiter([once(), list]);
        assert_eq!(limiter.check(KEY).times(50).await.admitted(), 1);
        let _ = limiter.charge([("locked", KEY)], 50).await;
        let locked = limiter.policy("locked").expect("a policy");
        assert!(locked.peek(KEY).await.expect("a response").would_admit());
    }
}

#[tokio::test]
async fn a_ban_adds_no_round_trip_and_only_rejections_that_count_write_to_it() {
    let world = World::redis();
    let server = world.server();
    let limiter = world.limiter([window("p", "2/h"), abuse()]);
    assert_eq!(wait(&limiter).await, None);
    // One that is admitted, three that count, and those under the ban.
    for writes in [1, 1, 1, 1, 0, 0] {
        server.reset_stats();
        let _ = wait(&limiter).await;
        assert_eq!((server.calls("evalsha"), server.calls("set")), (1, writes));
    }
    assert_eq!(banned(&limiter).await, Some(secs(600)));
}

#[tokio::test]
async fn a_foreign_value_under_a_bans_key_is_left_alone() {
    let world = World::redis();
    let server = world.server();
    let limiter = world.limiter([window("p", "1/h"), abuse()]);
    assert_eq!(wait(&limiter).await, None);
    reject(&limiter, 1).await;
    let keys = server.keys();
    let key = keys.iter().find(|key| key.contains("x1")).expect("a key");
    let numbers = ["1 2 3 4", "1 2 3 4 5 6", "1 2 3 4 -5", "1 2 3 4 500"];
    let others = [
        "hello",
        "99999999999999999 2 3 4 5",
        "1 2 3 4 5x",
        "1.5 2 3 4 5",
    ];
    for foreign in numbers.into_iter().chain(others) {
        server.command(&["SET", key, foreign]);
        let decision = limiter.check(KEY).await;
        let is_corrupt = matches!(store_error(&decision), StoreError::CorruptKey { .. });
        assert!(is_corrupt, "{foreign:?}: {decision:?}");
        assert_eq!(server.command(&["GET", key]).text(), foreign);
    }
    limiter.unblock(KEY).await.expect_err("not ours to delete");
}

#[tokio::test]
async fn a_rejection_stays_one_when_redis_has_no_memory_to_count_it() {
    let world = World::redis();
    let limiter = world.limiter([window("p", "1/h"), abuse()]);
    let set = |most: &str| {
        let set = ["CONFIG", "SET", "maxmemory", most];
        world.server().command(&set).ok()
    };
    assert_eq!(wait(&limiter).await, None);
    reject(&limiter, 1).await;
    set("1");
    reject(&limiter, 5).await;
    set("0");
    assert_eq!(left(&limiter).await, 2);
    reject(&limiter, 2).await;
    assert_eq!(banned(&limiter).await, Some(secs(600)));
}

#[test]
fn an_impossible_ban_is_a_config_error() {
    let shortened = Ban::for_duration(secs(9)).max_duration(secs(8));
    for (policy, valid) in [
        (ban(Ban::for_duration(Duration::ZERO)), "a millisecond"),
        (ban(Ban::for_duration(Duration::MAX)), "ten years"),
        (ban(shortened), "no shorter"),
        (abuse().charge_rejected(true), "a ban without them"),
        (
            abuse().refund_unless(outcome::success),
            "a ban without them",
        ),
        (abuse().shadow(), "a ban without them"),
        (
            Policy::new("abuse", Quota::concurrent(3)).strategy(Ban::for_duration(secs(1))),
            "\"abuse\"",
        ),
    ] {
        let built = Limiter::builder().policy(once()).policy(policy).build();
        assert_contains(built.expect_err(valid), ["\"abuse\"", valid]);
    }
    // Days and more don't fail.
    let month = ban(Ban::for_duration(secs(30 * 86_400)));
    stores::limiter(Limiter::builder(), [once(), month]);
}
