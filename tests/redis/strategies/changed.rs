//! What becomes of what was used when a policy changes under live keys, in the figures of `docs/changing-policies.md`. The
//! differential test reconfigures policies among random operations; here is what it has no model of.

use StrategyKind::{Bucket, Calendar, Fixed, Gcra, List, Log, Sliding};
use tollgate_tests::prelude::*;

use super::support::*;

/// A key of this strategy and quota, from 10 s after a full hour on, under another quota.
async fn changes(
    from: (StrategyKind, &str),
    used: u64,
    to: (StrategyKind, &str),
    then: (u64, u64),
) {
    let (left, wait) = (then.0, ms(then.1));
    for world in World::both() {
        let _case = Case(format!("{from:?}, {used} used, {to:?}"));
        world.set(START + 10_000_000);
        let old = world.scene(from.0, from.1);
        old.charge(used).await;
        let new = world.single(to.0, to.1);
        if !wait.is_zero() {
            // A debt that the new quota could not have made is cut by a request.
            assert_eq!(send(&new, old.key, 1).await, 0);
        }
        let seen = new.peek(old.key).await.expect("a response");
        let found = (seen.left("p"), seen.count("p").retry_after().duration());
        assert_eq!(found, (left, Some(wait)));
        if !wait.is_zero() {
            world.advance(wait - Duration::from_micros(1));
            assert_eq!(send(&new, old.key, 1).await, 0, "early");
            world.advance(Duration::from_micros(1));
            assert_eq!(send(&new, old.key, 1).await, 1, "late");
        }
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn under_another_quota_counts_stay_as_the_table_of_strategies_has_it() {
    let even: &[_] = &[Gcra, Bucket];
    let opened: &[_] = &[Fixed, List];
    for (strategies, from, used, to, then) in [
        (even, "10/min", 6, "20/min", (8, 0)),
        (even, "10/min", 6, "5/min", (2, 0)),
        (even, "10/min", 6, "10/min burst 20", (14, 0)),
        // Six more than the new burst are waited for, and then one.
        (even, "10/min burst 20", 16, "10/min", (0, 42_000)),
        // No debt that the new burst could have made: all of it is used.
        (even, "10/min burst 20", 20, "10/min burst 5", (0, 6_000)),
        (even, "10/min", 6, "10/h", (9, 0)),
        (even, "10/h", 6, "10/min", (0, 6_000)),
        (opened, "10/min", 6, "20/min", (14, 0)),
        (opened, "10/min", 6, "5/min", (0, 60_000)),
        (opened, "10/min", 10, "10/h", (0, 60_000)),
        (opened, "10/h", 10, "10/min", (0, 60_000)),
        (&[Log], "10/min", 10, "10/h", (0, 3_600_000)),
        (&[Log], "10/h", 10, "10/min", (0, 60_000)),
        (&[Calendar], "10/min", 10, "10/h", (0, 3_590_000)),
        (&[Calendar], "10/h", 10, "10/min", (0, 50_000)),
        (&[Sliding(1)], "10/min", 10, "10/h", (0, 3_950_000)),
        (&[Sliding(1)], "10/h", 10, "10/min", (0, 56_000)),
        (&[Sliding(10)], "10/min", 10, "10/h", (0, 3_626_000)),
        (&[Sliding(10)], "10/h", 10, "10/min", (0, 56_600)),
    ] {
        for strategy in strategies {
            changes((*strategy, from), used, (*strategy, to), then).await;
        }
    }
    // Other buckets, and more of the same width.
    for (from, to) in [(1, 10), (10, 1), (3, 7)] {
        let [from, to] = [from, to].map(|buckets| (Sliding(buckets), "10/21s"));
        changes(from, 6, to, (4, 0)).await;
    }
    let more = (Sliding(20), "10/20s");
    changes((Sliding(10), "10/10s"), 10, more, (0, 20_100)).await;
}

#[tokio::test]
async fn under_another_strategy_counts_start_anew_and_the_old_ones_count_on_the_way_back() {
    each("10/min", async |old| {
        for other in [Gcra, Bucket, Fixed, Calendar, List, Log, Sliding(1)] {
            let counts_alike = |strategy| matches!(strategy, Sliding(_));
            if other == old.strategy || counts_alike(other) && counts_alike(old.strategy) {
                continue;
            }
            old.reset().await;
            old.charge(10).await;
            let new = old.world.single(other, "10/min");
            assert_eq!(left(&new, old.key).await, 10, "{other:?}");
            assert_eq!(old.left().await, 0, "{other:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn counted_rejections_and_bans_stay_and_the_next_ban_follows_the_new_settings() {
    for world in World::both() {
        let policies = |quota: &str, ban: u64| {
            let ban = Ban::for_duration(secs(ban)).max_duration(secs(ban));
            let abuse = Policy::new("abuse", super::support::quota(quota)).strategy(ban);
            [Fixed.policy("daily", "1/day"), abuse]
        };
        let limiter = world.limiter(policies("3/min", 600));
        let reconfigure = |quota: &str, ban: u64| {
            let policies = policies(quota, ban).into_iter();
            let builder = policies.fold(Limiter::builder(), LimiterBuilder::policy);
            limiter.reconfigure(builder).expect("valid policies");
        };
        let banned_for = async || {
            let seen = limiter.peek(KEY).await.expect("a response");
            let wait = seen.count("abuse").retry_after().duration();
            (seen.left("abuse"), wait.expect("a wait"))
        };
        // One request is admitted, two are rejected.
        assert_eq!(send(&limiter, KEY, 3).await, 1);
        reconfigure("5/min", 600);
        assert_eq!(banned_for().await, (3, secs(0)));
        assert_eq!(send(&limiter, KEY, 3).await, 0);
        reconfigure("1/min", 60);
        assert_eq!(banned_for().await.1, secs(600));
        world.advance(secs(600));
        assert_eq!(send(&limiter, KEY, 1).await, 0);
        assert_eq!(banned_for().await.1, secs(60));
    }
}

#[tokio::test]
async fn with_another_ttl_permits_expire_by_the_shorter_one() {
    const SHORT: Duration = secs(3_600);
    const LONG: Duration = secs(36_000);
    for world in World::both() {
        // A shorter one begins with the next operation; before a longer one, an unrenewed permit keeps its expiry.
        for (old, new, operation_after) in [(LONG, SHORT, SHORT), (SHORT, LONG, SHORT - secs(1))] {
            let key = fresh_key();
            world.leak_permit("p", (key, 1), old).await;
            let permit = Policy::new("p", Quota::concurrent(1));
            let limiter = world.limiter([permit.strategy(Concurrency::with_ttl(new))]);
            world.advance(operation_after);
            assert!(!admitted_by_store(&limiter.admit(key).await));
            if operation_after == SHORT {
                world.advance(SHORT - secs(1));
                assert!(!admitted_by_store(&limiter.admit(key).await));
            }
            world.advance(secs(2));
            assert!(admitted_by_store(&limiter.admit(key).await));
        }
    }
}
