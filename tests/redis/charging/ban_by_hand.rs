//! Bans that all processes know of, by hand too.

use tollgate_tests::{load, prelude::*};

use crate::charging::{
    ban::{abuse, banned, by_key, left, once, play, reject, wait},
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

/// The last call counts, whether its ban is longer or shorter.
#[tokio::test]
async fn a_manual_ban_lasts_as_long_as_configured() {
    let set = "block 31536000s, wait 31536000s, block 5s, wait 5s, block 1500ms, wait 1500ms";
    let script = format!("{set}, +1499999us, wait 1us, +1us, admit");
    play([even("p", "100/s"), abuse()], &script).await;
}

#[tokio::test]
async fn a_manual_ban_is_one_of_its_key_and_can_be_lifted() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "100/s"), abuse()].map(by_key));
        let (alice, bob) = (Key::new("alice"), Key::new("bob"));
        limiter.block(alice, secs(60)).await.expect("a ban");
        assert_eq!(wait(&limiter, bob).await, None);
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
    let both = |left: &str| format!("wait {left}, there wait {left}");
    let [minute, later] = ["60s", "90s"].map(both);
    let longer =
        format!("prolong 60s, {minute}, there prolong 5s, {minute}, there prolong 90s, {later}");
    let shorter = format!("prolong 90s, {later}, prolong 1ms, {later}");
    // 40 s are left: one that says the same later, and one that says less.
    let same = "+50s, prolong 40s, there prolong 39s, wait 40s";
    // A block sets the end, also to an earlier one.
    let block = "block 7s, there wait 7s, +7s, there admit";
    let end = "there prolong 3s, wait 3s, unblock, there admit";
    let script = format!("{longer}, {shorter}, {same}, {block}, {end}");
    play([even("p", "100/s"), abuse()], &script).await;
}

/// The next one is the second.
#[tokio::test]
async fn a_ban_for_rejections_is_prolonged_and_never_shortened() {
    let prolonged = "admit, reject 3, prolong 5s, banned 600s, prolong 900s, banned 900s";
    let script = format!("{prolonged}, +900s, reject 3, banned 1200s");
    play([once(), abuse()], &script).await;
}

#[tokio::test]
async fn a_rejection_that_is_cached_under_a_ban_follows_when_it_is_prolonged() {
    let world = World::redis();
    let store = RedisStore::builder().url(world.server().url());
    let store = store.rejection_cache_staleness(secs(3_600));
    let store = store.timeout(TEST_TIMEOUT).built();
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
    let first = "admit, block 1s, +1s, reject 3, banned 600s";
    let second = "block 1s, +1s, reject 3, banned 1200s, unblock, reject 3, banned 600s";
    play([once(), abuse()], &format!("{first}, {second}")).await;
}

#[tokio::test]
async fn blocking_by_a_limiter_without_a_ban_is_an_error() {
    for world in World::both() {
        let unsupported = |result: Result<(), CallError>| {
            let error = result.expect_err("an error");
            let is_typed = matches!(error, CallError::Store(StoreError::Unsupported(_)));
            assert!(is_typed, "{error}");
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
    let shown = async |format: RateLimitHeaders, names: &str| {
        let list = Policy::block_list("locked").key(extract::global());
        let limiter = World::memory().limiter([window("p", "2/h"), list]);
        let layer = RateLimitLayer::new(limiter.clone()).headers(format);
        let locked = limiter.policy("locked").expect("a policy");
        locked.block(KEY, secs(60)).await.expect("a block");
        let rejected = respond(&layer, text(200)).await;
        assert_eq!(rejected.status(), 429);
        assert_eq!(rejected.headers()["retry-after"], "60");
        let field = |name: &str| {
            rejected
                .headers()
                .get(name)
                .map_or("", |value| value.to_str().expect("ASCII"))
        };
        names.split(' ').map(field).collect::<Vec<_>>().join(" | ")
    };
    let names = "ratelimit-policy ratelimit";
    let all = r#""p";q=2;w=3600 | "p";r=2;t=0, "locked";r=0;t=60"#;
    assert_eq!(shown(RateLimitHeaders::draft(), names).await, all);
    let names = "x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset";
    assert_eq!(
        shown(RateLimitHeaders::x_ratelimit(), names).await,
        "0 | 0 | 60"
    );
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
    }
    let charged = "charge 2, left 1, charge 1, wait 600s, charge 9, wait 600s";
    play([window("p", "100/h"), abuse()], charged).await;
}
