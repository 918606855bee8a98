//! Keys that are refused too often, and then blocked.

use std::time::Duration;

use futures_util::future::join_all;
use tollgate::{
    Ban, Charge, Denied, Key, Limiter, Policy, Quota, RedisStore, Ruling, StoreError, extract,
    outcome,
};

use crate::support::{KEY, World, answer, counted, even, fault, ms, pass, secs, text, window};

const MICRO: Duration = Duration::from_micros(1);

/// Three refusals a minute are too many; a ban lasts for ten minutes, then twenty, at most thirty.
fn abuse() -> Policy {
    let ban = Ban::lasting(secs(600)).up_to(secs(1_800));
    let policy = Policy::new("abuse", "3/min".parse::<Quota>().expect("a quota"));
    policy.strategy(ban).key(extract::global())
}

/// Nothing passes under it once one has.
fn once() -> Policy {
    window("once", "1/365days")
}

/// Asks, and returns how long to wait; nothing if it's admitted.
async fn wait(limiter: &Limiter, key: Key) -> Option<Duration> {
    let decision = limiter.check(key).await;
    if counted(&decision) {
        return None;
    }
    let refused = decision.into_result().expect_err("a refusal");
    Some(refused.retry_after().expect("a wait"))
}

/// How long the ban lasts, if there is one.
async fn banned(limiter: &Limiter, key: Key) -> Option<Duration> {
    let seen = limiter.peek([("abuse", key)]).await;
    let verdict = seen.verdict("abuse").expect("a verdict");
    assert_eq!(seen.is_admitted(), !verdict.refused(), "{seen:?}");
    verdict
        .refused()
        .then(|| verdict.retry_after().expect("a wait"))
}

/// How many refusals are left.
async fn left(limiter: &Limiter, key: Key) -> u64 {
    let seen = limiter.peek([("abuse", key)]).await;
    seen.verdict("abuse").expect("a verdict").remaining()
}

async fn refuse(limiter: &Limiter, times: usize) {
    for _ in 0..times {
        assert!(wait(limiter, KEY).await.is_some());
    }
}

#[tokio::test]
async fn a_key_that_is_refused_too_often_is_blocked_and_told_for_how_long() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "1/s"), abuse()]);
        assert_eq!(wait(&limiter, KEY).await, None);
        assert_eq!(wait(&limiter, KEY).await, Some(secs(1)));
        assert_eq!(wait(&limiter, KEY).await, Some(secs(1)), "{}", world.name());
        assert_eq!(left(&limiter, KEY).await, 1);
        // The third is told of the ban that it brings about.
        assert_eq!(wait(&limiter, KEY).await, Some(secs(600)));
        world.advance(secs(600) - MICRO);
        assert_eq!(wait(&limiter, KEY).await, Some(MICRO), "{}", world.name());
        assert_eq!(wait(&limiter, Key::new("other")).await, None);
        world.no_key_is_immortal();
        world.advance(MICRO);
        assert_eq!(wait(&limiter, KEY).await, None, "{}", world.name());
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn who_is_blocked_is_refused_by_the_ban_and_pays_nothing() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "1/s"), abuse()]);
        refuse_after_one(&limiter, 3).await;
        world.advance(secs(60));
        let decision = limiter.check(KEY).await;
        assert!(matches!(decision.ruling(), Ruling::Exhausted));
        let refused = decision.verdicts().filter(|v| v.refused());
        let names: Vec<_> = refused.map(|v| v.policy().to_owned()).collect();
        assert_eq!(names, ["abuse"], "{}", world.name());
        let seen = limiter.peek([("p", KEY)]).await;
        assert_eq!(seen.verdict("p").expect("a verdict").remaining(), 1);
    }
}

async fn refuse_after_one(limiter: &Limiter, times: usize) {
    assert_eq!(wait(limiter, KEY).await, None);
    refuse(limiter, times).await;
}

#[tokio::test]
async fn asking_on_while_it_lasts_makes_no_ban_longer_and_writes_nothing() {
    for world in World::both() {
        let counts = window("counts", "10/365days").denied(Denied::Counts);
        let limiter = world.limiter([counts, abuse()]);
        assert_eq!(limiter.check(KEY).times(13).await.admitted(), 10);
        world.advance(secs(1));
        if let Some(server) = world.redis_server() {
            server.reset_stats();
        }
        for _ in 0..50 {
            assert!(wait(&limiter, KEY).await.is_some());
        }
        if let Some(server) = world.redis_server() {
            assert_eq!(server.calls("set"), 0);
            assert_eq!(server.calls("evalsha"), 50, "one trip a request");
        }
        assert_eq!(banned(&limiter, KEY).await, Some(secs(599)));
        world.advance(secs(599));
        assert_eq!(banned(&limiter, KEY).await, None, "{}", world.name());
        assert_eq!(left(&limiter, KEY).await, 3);
    }
}

#[tokio::test]
async fn bans_double_up_to_a_bound_and_start_over_after_a_quiet_while() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        assert_eq!(wait(&limiter, KEY).await, None);
        for expected in [600, 1_200, 1_800, 1_800] {
            refuse(&limiter, 3).await;
            assert_eq!(banned(&limiter, KEY).await, Some(secs(expected)));
            world.advance(secs(expected));
        }
        // The last one is remembered for as long as it lasted.
        world.advance(secs(1_800) - MICRO);
        refuse(&limiter, 3).await;
        assert_eq!(banned(&limiter, KEY).await, Some(secs(1_800)));
        world.advance(secs(3_600));
        refuse(&limiter, 3).await;
        assert_eq!(
            banned(&limiter, KEY).await,
            Some(secs(600)),
            "{}",
            world.name()
        );
        world.no_key_is_immortal();
        world.advance(secs(1_200) + ms(2));
        if let Some(server) = world.redis_server() {
            let keys = server.keys();
            assert!(!keys.iter().any(|key| key.contains("x1")), "{keys:?}");
        }
    }
}

#[tokio::test]
async fn a_short_ban_is_remembered_for_a_period() {
    for world in World::both() {
        let ban = Policy::new("abuse", "3/min".parse::<Quota>().expect("a quota"));
        let ban = ban.strategy(Ban::lasting(secs(1))).key(extract::global());
        let limiter = world.limiter([once(), ban]);
        refuse_after_one(&limiter, 3).await;
        world.advance(secs(1) + secs(60) - MICRO);
        refuse(&limiter, 3).await;
        assert_eq!(
            banned(&limiter, KEY).await,
            Some(secs(2)),
            "{}",
            world.name()
        );
        world.advance(secs(2) + secs(60));
        refuse(&limiter, 3).await;
        assert_eq!(
            banned(&limiter, KEY).await,
            Some(secs(1)),
            "{}",
            world.name()
        );
    }
}

#[tokio::test]
async fn refusals_count_within_one_period_of_the_first() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        refuse_after_one(&limiter, 2).await;
        world.advance(secs(60) - MICRO);
        assert_eq!(left(&limiter, KEY).await, 1, "{}", world.name());
        world.advance(MICRO);
        assert_eq!(left(&limiter, KEY).await, 3, "{}", world.name());
        refuse(&limiter, 2).await;
        assert_eq!(banned(&limiter, KEY).await, None);
        refuse(&limiter, 1).await;
        assert_eq!(banned(&limiter, KEY).await, Some(secs(600)));
    }
}

#[tokio::test]
async fn a_refusal_counts_once_whatever_it_costs_and_however_many_refuse_it() {
    for world in World::both() {
        let policies = [once(), window("q", "1/365days").denied(Denied::Counts)];
        let [p, q] = policies;
        let limiter = world.limiter([p, q, abuse().cost(7)]);
        assert_eq!(wait(&limiter, KEY).await, None);
        assert!(!counted(&limiter.check(KEY).cost(1).await));
        assert_eq!(left(&limiter, KEY).await, 2, "{}", world.name());
        assert!(!counted(&limiter.check(KEY).cost(100).await));
        assert_eq!(left(&limiter, KEY).await, 1, "{}", world.name());
        // What passes doesn't count, and a look neither.
        assert!(counted(&limiter.check(KEY).cost(0).await));
        assert!(!limiter.peek(KEY).await.is_admitted());
        assert_eq!(left(&limiter, KEY).await, 1, "{}", world.name());
        // Who is banned doesn't pass for free.
        refuse(&limiter, 1).await;
        let free = limiter.check(KEY).cost(0).await;
        assert!(!counted(&free) && free.verdict("abuse").expect("a verdict").refused());
        let refused = free.into_result().expect_err("a refusal");
        assert_eq!(refused.retry_after(), Some(secs(600)), "{}", world.name());
    }
}

#[tokio::test]
async fn what_is_asked_at_once_counts_as_much_as_one_after_the_other() {
    for world in World::both() {
        for (asked, expected) in [(6, Err(1)), (7, Ok(secs(600))), (40, Ok(secs(600)))] {
            let limiter = world.limiter([window("p", "4/365days"), abuse()]);
            let check = || limiter.check(KEY);
            let seen = async || banned(&limiter, KEY).await.ok_or(left(&limiter, KEY).await);

            let _ = limiter.reset(KEY).await;
            assert_eq!(check().times(asked).await.admitted(), 4);
            assert_eq!(seen().await, expected, "{asked} on {}", world.name());

            let _ = limiter.reset(KEY).await;
            let decisions = join_all((0..asked).map(|_| check().into_future())).await;
            assert_eq!(decisions.iter().filter(|d| counted(d)).count(), 4);
            assert_eq!(seen().await, expected, "{asked} on {}", world.name());
        }
    }
}

#[tokio::test]
async fn the_refusals_of_a_ban_count_in_no_other() {
    for world in World::both() {
        let other = abuse_named("other");
        let limiter = world.limiter([even("p", "1/s"), abuse(), other]);
        let [bad, good] = ["bad", "good"].map(Key::new);
        limiter
            .block([("abuse", bad)], secs(60))
            .await
            .expect("a ban");
        for _ in 0..10 {
            let keys = [("p", KEY), ("abuse", bad), ("other", good)];
            assert!(!counted(&limiter.check(keys).await));
        }
        let seen = limiter.peek([("other", good)]).await;
        let verdict = seen.verdict("other").expect("a verdict");
        assert_eq!(verdict.remaining(), 3, "{}", world.name());
    }
}

fn abuse_named(name: &str) -> Policy {
    let policy = Policy::new(name, "3/min".parse::<Quota>().expect("a quota"));
    let policy = policy.strategy(Ban::lasting(secs(600)));
    policy.key(extract::global())
}

#[tokio::test]
async fn all_processes_know_of_a_ban() {
    let world = World::redis();
    let url = world.redis_server().expect("a server").url();
    let process = || {
        let store = RedisStore::builder().url(&url).deadline(secs(20));
        let builder = Limiter::builder().store(store.build().expect("a store"));
        let builder = builder.policy(once()).policy(abuse());
        builder.build().expect("a limiter")
    };
    let [a, b] = [process(), process()];
    assert_eq!(wait(&a, KEY).await, None);
    refuse(&a, 2).await;
    refuse(&b, 1).await;
    assert_eq!(banned(&a, KEY).await, Some(secs(600)));
    a.unblock(KEY).await.expect("an answer");
    assert_eq!(banned(&b, KEY).await, None);
    b.block(KEY, secs(5)).await.expect("an answer");
    assert_eq!(wait(&a, KEY).await, Some(secs(365 * 86_400)));
    assert_eq!(banned(&a, KEY).await, Some(secs(5)));
}

#[tokio::test]
async fn a_ban_by_hand_lasts_as_long_as_it_says_and_is_lifted() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "100/s"), abuse()]);
        let (alice, bob) = (Key::new("alice"), Key::new("bob"));
        for time in [secs(86_400 * 365), secs(5), ms(1_500)] {
            // The last word counts, be it longer or shorter.
            limiter.block(alice, time).await.expect("a ban");
            assert_eq!(wait(&limiter, alice).await, Some(time), "{}", world.name());
        }
        assert_eq!(wait(&limiter, bob).await, None);
        world.no_key_is_immortal();
        world.advance(ms(1_500) - MICRO);
        assert_eq!(wait(&limiter, alice).await, Some(MICRO));
        world.advance(MICRO);
        assert_eq!(wait(&limiter, alice).await, None, "{}", world.name());

        for lift in ["unblock", "unblock by name", "reset", "reset by name"] {
            limiter.block(alice, secs(60)).await.expect("a ban");
            assert_eq!(wait(&limiter, alice).await, Some(secs(60)));
            match lift {
                "unblock" => limiter.unblock(alice).await.expect("an answer"),
                "unblock by name" => {
                    let named = [("abuse", alice), ("p", alice)];
                    limiter.unblock(named).await.expect("an answer");
                }
                "reset" => assert_eq!(limiter.reset(alice).await.verdicts().len(), 2),
                _ => drop(limiter.reset([("abuse", alice)]).await),
            }
            assert_eq!(wait(&limiter, alice).await, None, "{lift} {}", world.name());
        }
        // A reset of another policy lifts none.
        limiter.block(alice, secs(60)).await.expect("a ban");
        let _ = limiter.reset([("p", alice)]).await;
        assert_eq!(wait(&limiter, alice).await, Some(secs(60)));
        limiter.unblock(bob).await.expect("nothing to lift");
    }
}

#[tokio::test]
async fn a_ban_by_hand_makes_later_ones_no_longer_and_lifting_it_forgets_them() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        assert_eq!(wait(&limiter, KEY).await, None);
        limiter.block(KEY, secs(1)).await.expect("a ban");
        world.advance(secs(1));
        refuse(&limiter, 3).await;
        assert_eq!(
            banned(&limiter, KEY).await,
            Some(secs(600)),
            "{}",
            world.name()
        );
        limiter.block(KEY, secs(1)).await.expect("a ban");
        world.advance(secs(1));
        refuse(&limiter, 3).await;
        assert_eq!(
            banned(&limiter, KEY).await,
            Some(secs(1_200)),
            "{}",
            world.name()
        );
        limiter.unblock(KEY).await.expect("an answer");
        refuse(&limiter, 3).await;
        assert_eq!(
            banned(&limiter, KEY).await,
            Some(secs(600)),
            "{}",
            world.name()
        );
    }
}

#[tokio::test]
async fn who_cannot_ban_says_so() {
    for world in World::both() {
        let unsupported = |result: Result<(), StoreError>| {
            let error = result.expect_err("an error");
            assert!(matches!(error, StoreError::Unsupported(_)), "{error}");
        };
        let none = world.limiter([once()]);
        unsupported(none.block(KEY, secs(1)).await);
        unsupported(none.unblock(KEY).await);
        let limiter = world.limiter([once(), abuse()]);
        unsupported(limiter.block([("once", KEY)], secs(1)).await);
        unsupported(limiter.block(KEY, Duration::ZERO).await);
        unsupported(limiter.block(KEY, Duration::MAX).await);
        assert_eq!(banned(&limiter, KEY).await, None);
    }
    // A fault of the store is told, whatever becomes of requests then.
    let nowhere = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let limiter = Limiter::builder().store(nowhere).policy(abuse());
    let limiter = limiter.build().expect("a limiter");
    limiter.block(KEY, secs(1)).await.expect_err("a fault");
    limiter.unblock(KEY).await.expect_err("a fault");
}

#[tokio::test]
async fn refusals_that_were_made_elsewhere_are_charged_by_name_alone() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "100/h"), abuse()]);
        let _ = limiter.charge(KEY, 50).await;
        assert_eq!(left(&limiter, KEY).await, 3, "{}", world.name());
        let _ = limiter.charge([("abuse", KEY)], 2).await;
        assert_eq!(left(&limiter, KEY).await, 1, "{}", world.name());
        let _ = limiter.charge([("abuse", KEY)], 1).await;
        assert_eq!(wait(&limiter, KEY).await, Some(secs(600)));
        let _ = limiter.charge([("abuse", KEY)], 9).await;
        assert_eq!(wait(&limiter, KEY).await, Some(secs(600)));
    }
}

#[tokio::test]
async fn over_http_a_ban_is_a_429_and_clients_see_nothing_of_it_before() {
    for world in World::both() {
        let layer = world.layer([even("p", "1/s"), abuse()]);
        let passed = answer(&layer, text(200)).await;
        assert_eq!(passed.headers()["ratelimit"], "\"p\";r=0;t=1");
        for (policies, retry_after) in [("p", "1"), ("p", "1"), ("p, abuse", "600")] {
            let refused = answer(&layer, text(200)).await;
            assert_eq!(refused.status(), 429);
            assert_eq!(refused.headers()["retry-after"], retry_after);
            let fields = refused.headers()["ratelimit-policy"]
                .to_str()
                .expect("text");
            let names: Vec<_> = fields
                .split(", ")
                .filter_map(|f| f.split('"').nth(1))
                .collect();
            assert_eq!(names.join(", "), policies, "{}", world.name());
        }
        world.advance(secs(100));
        let refused = answer(&layer, text(200)).await;
        assert_eq!(refused.status(), 429);
        assert_eq!(refused.headers()["retry-after"], "500");
        layer.limiter().unblock(KEY).await.expect("an answer");
        assert_eq!(pass(&layer, text(200)).await, 200, "{}", world.name());
    }
}

#[tokio::test]
async fn a_ban_adds_no_trip_and_a_request_that_passes_writes_nothing_to_it() {
    let world = World::redis();
    let server = world.redis_server().expect("a server");
    let limiter = world.limiter([window("p", "2/h"), abuse()]);
    assert_eq!(wait(&limiter, KEY).await, None);
    server.reset_stats();
    assert_eq!(wait(&limiter, KEY).await, None);
    assert_eq!((server.calls("evalsha"), server.calls("set")), (1, 1));
    server.reset_stats();
    refuse(&limiter, 1).await;
    assert_eq!((server.calls("evalsha"), server.calls("set")), (1, 1));
}

#[tokio::test]
async fn when_the_clock_steps_back_a_ban_lasts_no_longer_than_it_was_to() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        refuse_after_one(&limiter, 3).await;
        let other = Key::new("other");
        assert_eq!(wait(&limiter, other).await, None);
        assert!(wait(&limiter, other).await.is_some());
        world.set(world.now() - 3_600_000_000);
        assert_eq!(
            banned(&limiter, KEY).await,
            Some(secs(600)),
            "{}",
            world.name()
        );
        assert_eq!(left(&limiter, other).await, 2, "{}", world.name());
        if let Some(server) = world.redis_server() {
            for key in server.keys().iter().filter(|key| key.contains("x1")) {
                let ttl = server.command(&["PTTL", key]).int();
                assert!(ttl <= 1_200_001, "{key} lives for {ttl} ms");
            }
        }
        world.advance(secs(60));
        assert_eq!(left(&limiter, other).await, 3, "{}", world.name());
        world.advance(secs(540) - MICRO);
        assert_eq!(banned(&limiter, KEY).await, Some(MICRO), "{}", world.name());
        world.advance(MICRO);
        assert_eq!(banned(&limiter, KEY).await, None, "{}", world.name());
    }
}

fn ban_key(world: &World) -> String {
    let keys = world.redis_server().expect("a server").keys();
    let mut bans = keys.into_iter().filter(|key| key.contains("x1"));
    let key = bans.next().expect("a key");
    assert_eq!(bans.next(), None);
    key
}

#[tokio::test]
async fn a_lost_time_to_live_comes_back_with_the_next_touch() {
    let world = World::redis();
    let server = world.redis_server().expect("a server");
    let limiter = world.limiter([once(), abuse()]);
    refuse_after_one(&limiter, 1).await;
    let key = ban_key(&world);
    for refusals in [1, 2] {
        // Refusals that count, then a ban.
        server.command(&["PERSIST", &key]);
        let _ = limiter.check(Key::new("other")).await;
        assert_eq!(server.immortal_keys(), [key.as_str()]);
        let _ = limiter.peek(KEY).await;
        assert_eq!(server.immortal_keys(), [""; 0]);
        refuse(&limiter, refusals).await;
    }
    assert_eq!(banned(&limiter, KEY).await, Some(secs(600)));
    // And one of which nothing is left.
    server.command(&["PERSIST", &key]);
    world.advance(secs(7_200));
    assert_eq!(banned(&limiter, KEY).await, None);
    world.advance(ms(5));
    let keys = server.keys();
    assert!(!keys.contains(&key), "{keys:?}");
}

#[tokio::test]
async fn what_is_foreign_under_a_bans_key_is_left_alone() {
    let world = World::redis();
    let server = world.redis_server().expect("a server");
    let limiter = world.limiter([window("p", "1/h"), abuse()]);
    refuse_after_one(&limiter, 1).await;
    let key = ban_key(&world);
    for foreign in [
        "hello",
        "1 2 3 4",
        "1 2 3 4 5 6",
        "1 2 3 4 -5",
        "1 2 3 4 500",
        "99999999999999999 2 3 4 5",
        "1 2 3 4 5x",
        "1.5 2 3 4 5",
    ] {
        server.command(&["SET", &key, foreign]);
        let decision = limiter.check(KEY).await;
        assert!(
            matches!(fault(&decision), StoreError::Foreign { .. }),
            "{foreign:?}: {decision:?}"
        );
        assert_eq!(server.command(&["GET", &key]).text(), foreign);
    }
    limiter.unblock(KEY).await.expect_err("not ours to delete");
}

#[tokio::test]
async fn both_stores_say_the_same_of_whoever_goes_on() {
    let mut said = Vec::new();
    for world in World::both() {
        let limiter = world.limiter([even("p", "5/min").denied(Denied::Counts), abuse()]);
        let mut says = Vec::new();
        let mut seed = 7_u64;
        for _ in 0..400 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let (times, pause) = (
                seed >> 61,
                [0, 1, 500, 30_000, 61_000, 700_000][(seed >> 40) as usize % 6],
            );
            match (seed >> 50) % 24 {
                0 => limiter.block(KEY, ms(1 + pause)).await.expect("a ban"),
                1 => limiter.unblock(KEY).await.expect("an answer"),
                2 => drop(limiter.charge([("abuse", KEY)], times).await),
                _ => {}
            }
            let decision = limiter.check(KEY).times(times + 1).await;
            let refusal = decision.retry();
            let seen = limiter.peek(KEY).await;
            let verdict = seen.verdict("abuse").expect("a verdict");
            says.push((
                decision.admitted(),
                refusal,
                verdict.remaining(),
                verdict.retry(),
                verdict.reset_after(),
            ));
            world.advance(ms(pause));
        }
        assert!(says.iter().any(|(_, _, left, ..)| *left == 0));
        assert!(says.iter().any(|(admitted, ..)| *admitted > 0));
        said.push(says);
    }
    for (place, (memory, redis)) in said[0].iter().zip(&said[1]).enumerate() {
        assert_eq!(memory, redis, "{place}");
    }
}

#[tokio::test]
async fn a_ban_that_cannot_be_is_a_mistake() {
    let quota = || "3/min".parse::<Quota>().expect("a quota");
    let build = |policy: Policy| Limiter::builder().policy(once()).policy(policy).build();
    let mistake = |policy: Policy, valid: &str| {
        let error = build(policy).expect_err(valid).to_string();
        assert!(
            error.contains("\"abuse\"") && error.contains(valid),
            "{error}"
        );
    };
    let lasting = |ban| Policy::new("abuse", quota()).strategy(ban);
    mistake(lasting(Ban::lasting(Duration::ZERO)), "a millisecond");
    mistake(lasting(Ban::lasting(Duration::MAX)), "ten years");
    mistake(lasting(Ban::lasting(secs(9)).up_to(secs(8))), "no shorter");
    mistake(abuse().denied(Denied::Counts), "a ban as it is");
    mistake(
        abuse().charge(Charge::reserve(outcome::success)),
        "a ban as it is",
    );
    mistake(abuse().shadow(), "a ban as it is");
    let concurrent = Policy::new("abuse", Quota::concurrent(3));
    build(concurrent.strategy(Ban::lasting(secs(1)))).expect_err("no period");
    // Days and more don't fail, and the bound is never below the first.
    build(lasting(Ban::lasting(secs(30 * 86_400)))).expect("a limiter");
}

#[tokio::test]
async fn a_refusal_stays_one_where_redis_has_no_memory_left_to_count_it() {
    let world = World::redis();
    let server = world.redis_server().expect("a server");
    let policies = [
        window("p", "1/h"),
        abuse(),
        window("new", "9/h").shadow_of("p"),
    ];
    let limiter = world.limiter(policies);
    refuse_after_one(&limiter, 1).await;
    server
        .command(&["SET", "filler", &"x".repeat(1_000_000)])
        .ok();
    let used = server.info("memory", "used_memory").expect("a field");
    let most = used.parse::<u64>().expect("bytes") - 500_000;
    let set = |most: &str| server.command(&["CONFIG", "SET", "maxmemory", most]).ok();
    set(&most.to_string());
    refuse(&limiter, 5).await;
    set("0");
    assert_eq!(left(&limiter, KEY).await, 2);
    refuse(&limiter, 2).await;
    assert_eq!(banned(&limiter, KEY).await, Some(secs(600)));
}
