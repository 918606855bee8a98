//! Bans that all processes know of, by hand too.

use tollgate_tests::{load, prelude::*};

use crate::charging::{
    ban::{MICRO, abuse, banned, by_key, is_banned, left, once, reject, wait},
    support::*,
};

#[tokio::test]
async fn a_ban_holds_in_all_processes() {
    let world = World::redis();
    let process = || load::limiter(stores::redis(world.server()), [once(), abuse()]);
    let [a, b] = [process(), process()];
    assert_eq!(wait(&a, KEY).await, None);
    reject(&a, 2).await;
    reject(&b, 1).await;
    assert_eq!(banned(&a, KEY).await, Some(secs(600)));
    a.unblock(KEY).await.expect("a response");
    assert_eq!(banned(&b, KEY).await, None);
    b.block(KEY, secs(5)).await.expect("a response");
    assert_eq!(wait(&a, KEY).await, Some(secs(365 * 86_400)));
    assert_eq!(banned(&a, KEY).await, Some(secs(5)));
}

#[tokio::test]
async fn a_manual_ban_lasts_as_long_as_configured_and_can_be_lifted() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "100/s"), abuse()].map(by_key));
        let (alice, bob) = (Key::new("alice"), Key::new("bob"));
        for time in [secs(86_400 * 365), secs(5), ms(1_500)] {
            // The last call counts, whether its ban is longer or shorter.
            limiter.block(alice, time).await.expect("a ban");
            assert_eq!(wait(&limiter, alice).await, Some(time));
        }
        assert_eq!(wait(&limiter, bob).await, None);
        world.no_key_is_immortal();
        world.advance(ms(1_500) - MICRO);
        assert_eq!(wait(&limiter, alice).await, Some(MICRO));
        world.advance(MICRO);
        assert_eq!(wait(&limiter, alice).await, None);
        for lift in ["unblock", "unblock by name", "reset", "reset by name"] {
            limiter.block(alice, secs(60)).await.expect("a ban");
            assert_eq!(wait(&limiter, alice).await, Some(secs(60)));
            let before = match lift {
                "unblock" => limiter.unblock(alice).await,
                "unblock by name" => limiter.unblock([("abuse", alice), ("p", alice)]).await,
                "reset" => limiter.reset(alice).await,
                _ => limiter.reset([("abuse", alice)]).await,
            };
            let before = before.expect("a response");
            let lifted = before.policy("abuse").expect("the ban").retry_after();
            assert_eq!(lifted, RetryAfter::In(secs(60)), "{lift}");
            assert_eq!(before.policies().len(), if lift == "reset" { 2 } else { 1 });
            assert_eq!(wait(&limiter, alice).await, None, "{lift}");
        }
        // A reset of another policy lifts none.
        limiter.block(alice, secs(60)).await.expect("a ban");
        let _ = limiter.reset([("p", alice)]).await.expect("a response");
        assert_eq!(wait(&limiter, alice).await, Some(secs(60)));
        let nothing = limiter.unblock(bob).await.expect("nothing to lift");
        assert!(nothing.would_admit());
    }
}

#[tokio::test]
async fn prolonged_bans_end_at_the_latest_of_all_instants_in_any_order_and_process() {
    for world in World::both() {
        let [a, b] = [(); 2].map(|()| world.limiter([even("p", "100/s"), abuse()]));
        for (limiter, time, left) in [
            (&a, secs(60), secs(60)),
            (&b, secs(5), secs(60)),
            (&b, secs(90), secs(90)),
            (&a, secs(90), secs(90)),
            (&a, ms(1), secs(90)),
        ] {
            limiter.prolong_block(KEY, time).await.expect("a ban");
            for limiter in [&a, &b] {
                assert_eq!(wait(limiter, KEY).await, Some(left));
            }
        }
        world.no_key_is_immortal();
        world.advance(secs(50));
        // 40 s are left: one that says the same later, and one that says less.
        a.prolong_block(KEY, secs(40)).await.expect("a ban");
        b.prolong_block(KEY, secs(39)).await.expect("a ban");
        assert_eq!(wait(&a, KEY).await, Some(secs(40)));
        // A block sets the end, also to an earlier one.
        a.block(KEY, secs(7)).await.expect("a ban");
        assert_eq!(wait(&b, KEY).await, Some(secs(7)));
        world.advance(secs(7));
        assert_eq!(wait(&b, KEY).await, None);
        b.prolong_block(KEY, secs(3)).await.expect("a ban");
        assert_eq!(wait(&a, KEY).await, Some(secs(3)));
        a.unblock(KEY).await.expect("a response");
        assert_eq!(wait(&b, KEY).await, None);
    }
}

#[tokio::test]
async fn a_ban_for_rejections_is_prolonged_and_never_shortened() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        assert_eq!(wait(&limiter, KEY).await, None);
        reject(&limiter, 3).await;
        limiter.prolong_block(KEY, secs(5)).await.expect("a ban");
        assert_eq!(banned(&limiter, KEY).await, Some(secs(600)));
        limiter.prolong_block(KEY, secs(900)).await.expect("a ban");
        assert_eq!(banned(&limiter, KEY).await, Some(secs(900)));
        world.advance(secs(900));
        // The next one is the second.
        reject(&limiter, 3).await;
        is_banned(&limiter, Some(secs(1_200))).await;
    }
}

#[tokio::test]
async fn a_rejection_that_is_cached_under_a_ban_follows_when_it_is_prolonged() {
    let world = World::redis();
    let store = RedisStore::builder().url(world.server().url());
    let store = store
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(secs(3_600));
    let store = store.build().expect("a store");
    let limiter = load::limiter(store, [even("p", "100/s"), abuse()]);
    limiter.prolong_block(KEY, secs(60)).await.expect("a ban");
    for time in [secs(60), secs(600)] {
        limiter.prolong_block(KEY, time).await.expect("a ban");
        let rejected = limiter.admit(KEY).await.expect_err("banned");
        assert_eq!(rejected.retry_after(), RetryAfter::In(time));
        assert!(!limiter.check(KEY).await.is_admitted());
    }
}

#[tokio::test]
async fn a_manual_ban_does_not_lengthen_later_ones_and_lifting_it_forgets_them() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        assert_eq!(wait(&limiter, KEY).await, None);
        limiter.block(KEY, secs(1)).await.expect("a ban");
        world.advance(secs(1));
        reject(&limiter, 3).await;
        is_banned(&limiter, Some(secs(600))).await;
        limiter.block(KEY, secs(1)).await.expect("a ban");
        world.advance(secs(1));
        reject(&limiter, 3).await;
        is_banned(&limiter, Some(secs(1_200))).await;
        limiter.unblock(KEY).await.expect("a response");
        reject(&limiter, 3).await;
        is_banned(&limiter, Some(secs(600))).await;
    }
}

#[tokio::test]
async fn blocking_by_a_limiter_without_a_ban_is_an_error() {
    for world in World::both() {
        let unsupported = |result: Result<(), CallError>| {
            let error = result.expect_err("an error");
            assert!(
                matches!(error, CallError::Store(StoreError::Unsupported(_))),
                "{error}"
            );
        };
        let no_ban = |result: Result<(), CallError>| {
            let error = result.expect_err("an error");
            assert!(matches!(error, CallError::NotABan { .. }), "{error}");
            assert_eq!(
                error.to_string(),
                "none of the policies [\"once\"] is a ban: block and unblock require one, such as \
                 Policy::block_list(\"blocked\")"
            );
        };
        let none = world.limiter([once()]);
        let limiter = world.limiter([once(), abuse()]);
        let handle = limiter.policy("once").expect("a policy");
        no_ban(none.block(KEY, secs(1)).await);
        no_ban(none.prolong_block(KEY, secs(1)).await);
        no_ban(none.unblock(KEY).await.map(drop));
        no_ban(limiter.block([("once", KEY)], secs(1)).await);
        no_ban(handle.prolong_block(KEY, secs(1)).await);
        no_ban(handle.unblock(KEY).await.map(drop));
        for time in [Duration::ZERO, Duration::MAX] {
            unsupported(limiter.block(KEY, time).await);
            unsupported(limiter.prolong_block(KEY, time).await);
        }
        assert_eq!(banned(&limiter, KEY).await, None);
    }
    // An error of the store is returned, whatever becomes of requests then.
    let nowhere = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let limiter = load::limiter(nowhere, [abuse()]);
    let blocked = limiter.block(KEY, secs(1)).await;
    blocked.expect_err("a store error");
    limiter.unblock(KEY).await.expect_err("a store error");
}

#[tokio::test]
async fn clients_see_how_long_they_are_blocked_and_no_quota_of_a_block_list() {
    let draft_06 = [
        "ratelimit-policy",
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
    ];
    let x = [
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ];
    let draft = &draft_06[..1];
    for (format, names, expected) in [
        (RateLimitHeaders::draft(), draft, &["\"p\";q=2;w=3600"][..]),
        (
            RateLimitHeaders::draft(),
            &["ratelimit"],
            &["\"p\";r=2;t=0, \"locked\";r=0;t=60"],
        ),
        (RateLimitHeaders::draft().closest(), draft, &[""]),
        (
            RateLimitHeaders::draft().closest(),
            &["ratelimit"],
            &["\"locked\";r=0;t=60"],
        ),
        (
            RateLimitHeaders::draft_06(),
            &draft_06,
            &["2;w=3600", "0", "0", "60"],
        ),
        (
            RateLimitHeaders::draft_06().closest(),
            &draft_06,
            &["", "0", "0", "60"],
        ),
        (RateLimitHeaders::x_ratelimit(), &x, &["0", "0", "60"]),
    ] {
        let list = Policy::block_list("locked").key(extract::global());
        let limiter = World::memory().limiter([window("p", "2/h"), list]);
        let layer = RateLimitLayer::new(limiter.clone()).headers(format.clone());
        let locked = limiter.policy("locked").expect("a policy");
        locked.block(KEY, secs(60)).await.expect("a block");
        let rejected = respond(&layer, text(200)).await;
        assert_eq!(rejected.status(), 429);
        assert_eq!(rejected.headers()["retry-after"], "60");
        let field = |name: &&str| match rejected.headers().get(*name) {
            Some(value) => value.to_str().expect("ASCII").to_owned(),
            None => String::new(),
        };
        let shown: Vec<_> = names.iter().map(field).collect();
        assert_eq!(shown, expected, "{format:?}");
    }
}

#[tokio::test]
async fn a_block_list_counts_no_rejections_and_manual_blocks_last_until_lifted() {
    for world in World::both() {
        let list = Policy::block_list("locked").key(extract::global());
        let limiter = world.limiter([once(), list]);
        for _ in 0..50 {
            let _ = limiter.check(KEY).await;
            let _ = limiter.wait(KEY, Duration::ZERO).await;
        }
        let _ = limiter.charge([("locked", KEY)], 50).await;
        let locked = limiter.policy("locked").expect("a policy");
        let seen = locked.peek(KEY).await.expect("a response");
        assert!(seen.would_admit(), "{seen:?}");
        locked.block(KEY, secs(30)).await.expect("blocked");
        let rejected = limiter.admit([("locked", KEY)]).await;
        let rejected = rejected.expect_err("a rejection");
        assert_eq!(rejected.retry_after(), RetryAfter::In(secs(30)));
        // Of another policy alone: the block stays.
        let other = limiter.policy("once").expect("a policy");
        let _ = other.reset(KEY).await.expect("a response");
        let _ = limiter.reset([("once", KEY)]).await.expect("a response");
        assert!(limiter.admit(KEY).await.is_err());
        locked.unblock(KEY).await.expect("lifted");
        assert!(limiter.admit(KEY).await.is_ok());
        locked.block(KEY, secs(30)).await.expect("blocked");
        world.advance(secs(30));
        assert!(limiter.admit([("locked", KEY)]).await.is_ok());
        // A reset of all policies of the key lifts it too.
        locked.block(KEY, secs(30)).await.expect("blocked");
        let _ = limiter.reset(KEY).await.expect("a response");
        assert!(limiter.admit(KEY).await.is_ok());
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn rejections_elsewhere_are_charged_to_a_ban_only_by_its_name() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "100/h"), abuse()]);
        let _ = limiter.charge(KEY, 50).await.expect("a response");
        assert_eq!(left(&limiter, KEY).await, 3);
        let charge = async |units| {
            let charged = limiter.charge([("abuse", KEY)], units).await;
            let _ = charged.expect("a response");
        };
        charge(2).await;
        assert_eq!(left(&limiter, KEY).await, 1);
        charge(1).await;
        assert_eq!(wait(&limiter, KEY).await, Some(secs(600)));
        charge(9).await;
        assert_eq!(wait(&limiter, KEY).await, Some(secs(600)));
    }
}
