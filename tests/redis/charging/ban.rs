//! Keys that are rejected too often, and then blocked.

use tollgate_tests::prelude::*;

use crate::charging::support::*;

pub(crate) const MICRO: Duration = Duration::from_micros(1);

/// Three rejections a minute are too many; a ban lasts for ten minutes, then twenty, at most thirty.
pub(crate) fn abuse() -> Policy {
    let lasting = Ban::for_duration(secs(600)).max_duration(secs(1_800));
    ban("abuse", "3/min", lasting)
}

/// The same policy, by which each key of a call counts by itself.
pub(crate) fn by_key(policy: Policy) -> Policy {
    policy.key(extract::peer())
}

/// Nothing passes under it once one has.
pub(crate) fn once() -> Policy {
    window("once", "1/365days")
}

/// Sends a request, and returns its wait; `None` if it is admitted.
pub(crate) async fn wait(limiter: &Limiter, key: Key) -> Option<Duration> {
    let decision = limiter.check(key).await;
    if admitted_by_store(&decision) {
        return None;
    }
    let rejected = decision.into_result().expect_err("a rejection");
    Some(rejected.retry_after().duration().expect("a wait"))
}

/// The same, for ten minutes each time, by a name of its own.
pub(crate) fn abuse_named(name: &str) -> Policy {
    ban(name, "3/min", Ban::for_duration(secs(600)))
}

/// How long the ban lasts, if there is one.
pub(crate) async fn banned(limiter: &Limiter, key: Key) -> Option<Duration> {
    let seen = limiter.peek([("abuse", key)]).await.expect("a response");
    let policy = seen.policy("abuse").expect("a policy");
    assert_eq!(seen.would_admit(), !policy.rejected(), "{seen:?}");
    policy
        .rejected()
        .then(|| policy.retry_after().duration().expect("a wait"))
}

/// Sees to how long the ban lasts.
#[track_caller]
pub(crate) fn is_banned(limiter: &Limiter, expected: Option<Duration>) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move { assert_eq!(banned(limiter, KEY).await, expected, "at {caller}") }
}

/// How many rejections are left.
pub(crate) async fn left(limiter: &Limiter, key: Key) -> u64 {
    let seen = limiter.peek([("abuse", key)]).await.expect("a response");
    seen.policy("abuse").expect("a policy").remaining()
}

pub(crate) async fn reject(limiter: &Limiter, times: usize) {
    for _ in 0..times {
        assert!(wait(limiter, KEY).await.is_some());
    }
}

#[tokio::test]
async fn a_key_rejected_too_often_is_blocked_for_its_retry_after() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "1/s"), abuse()].map(by_key));
        assert_eq!(wait(&limiter, KEY).await, None);
        assert_eq!(wait(&limiter, KEY).await, Some(secs(1)));
        assert_eq!(wait(&limiter, KEY).await, Some(secs(1)));
        assert_eq!(left(&limiter, KEY).await, 1);
        // The third rejection has the wait of the ban that it starts.
        assert_eq!(wait(&limiter, KEY).await, Some(secs(600)));
        world.advance(secs(600) - MICRO);
        assert_eq!(wait(&limiter, KEY).await, Some(MICRO));
        assert_eq!(wait(&limiter, Key::new("other")).await, None);
        world.no_key_is_immortal();
        world.advance(MICRO);
        assert_eq!(wait(&limiter, KEY).await, None);
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn a_blocked_request_is_rejected_by_the_ban_and_charged_nothing() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "1/s"), abuse()]);
        reject_after_one(&limiter, 3).await;
        world.advance(secs(60));
        let decision = limiter.check(KEY).await;
        assert!(matches!(decision.kind(), DecisionKind::Rejected));
        let rejected = decision.policies().filter(|v| v.rejected());
        let names: Vec<_> = rejected.map(|v| v.policy().to_owned()).collect();
        assert_eq!(names, ["abuse"]);
        let seen = limiter.peek([("p", KEY)]).await.expect("a response");
        assert_eq!(seen.policy("p").expect("a policy").remaining(), 1);
    }
}

pub(crate) async fn reject_after_one(limiter: &Limiter, times: usize) {
    assert_eq!(wait(limiter, KEY).await, None);
    reject(limiter, times).await;
}

#[tokio::test]
async fn requests_during_a_ban_neither_extend_it_nor_write() {
    for world in World::both() {
        let counts = window("counts", "10/365days").charge_rejected(true);
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
            assert_eq!(server.calls("evalsha"), 50, "one call a request");
        }
        assert_eq!(banned(&limiter, KEY).await, Some(secs(599)));
        world.advance(secs(599));
        assert_eq!(banned(&limiter, KEY).await, None);
        assert_eq!(left(&limiter, KEY).await, 3);
    }
}

#[tokio::test]
async fn bans_double_up_to_a_maximum_and_start_over_after_a_quiet_period() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        assert_eq!(wait(&limiter, KEY).await, None);
        for expected in [600, 1_200, 1_800, 1_800] {
            reject(&limiter, 3).await;
            assert_eq!(banned(&limiter, KEY).await, Some(secs(expected)));
            world.advance(secs(expected));
        }
        // The last ban counts for as long as it lasted.
        world.advance(secs(1_800) - MICRO);
        reject(&limiter, 3).await;
        assert_eq!(banned(&limiter, KEY).await, Some(secs(1_800)));
        world.advance(secs(3_600));
        reject(&limiter, 3).await;
        is_banned(&limiter, Some(secs(600))).await;
        world.no_key_is_immortal();
        world.advance(secs(1_200) + ms(2));
        if let Some(server) = world.redis_server() {
            let keys = server.keys();
            assert!(!keys.iter().any(|key| key.contains("x1")), "{keys:?}");
        }
    }
}

/// How often a key was banned shares a number with its rejections in what the store returns.
#[tokio::test]
async fn a_key_that_was_banned_a_hundred_times_has_its_rejections_counted_as_before() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        assert_eq!(wait(&limiter, KEY).await, None);
        for bans in 1..=120 {
            assert_eq!(left(&limiter, KEY).await, 3, "{bans}");
            reject(&limiter, 3).await;
            let length = [600, 1_200].get(bans - 1).map_or(secs(1_800), |s| secs(*s));
            is_banned(&limiter, Some(length)).await;
            world.advance(length);
        }
    }
}

#[tokio::test]
async fn a_short_ban_counts_for_a_whole_period() {
    for world in World::both() {
        let short = ban("abuse", "3/min", Ban::for_duration(secs(1)));
        let limiter = world.limiter([once(), short]);
        reject_after_one(&limiter, 3).await;
        world.advance(secs(1) + secs(60) - MICRO);
        reject(&limiter, 3).await;
        is_banned(&limiter, Some(secs(2))).await;
        world.advance(secs(2) + secs(60));
        reject(&limiter, 3).await;
        is_banned(&limiter, Some(secs(1))).await;
    }
}

#[tokio::test]
async fn rejections_count_within_one_period_of_the_first() {
    for world in World::both() {
        let limiter = world.limiter([once(), abuse()]);
        reject_after_one(&limiter, 2).await;
        world.advance(secs(60) - MICRO);
        assert_eq!(left(&limiter, KEY).await, 1);
        world.advance(MICRO);
        assert_eq!(left(&limiter, KEY).await, 3);
        reject(&limiter, 2).await;
        assert_eq!(banned(&limiter, KEY).await, None);
        reject(&limiter, 1).await;
        assert_eq!(banned(&limiter, KEY).await, Some(secs(600)));
    }
}

#[tokio::test]
async fn a_rejection_counts_once_whatever_its_cost_and_however_many_policies_reject() {
    for world in World::both() {
        let policies = [once(), window("q", "1/365days").charge_rejected(true)];
        let [p, q] = policies;
        let limiter = world.limiter([p, q, abuse().cost(7)]);
        assert_eq!(wait(&limiter, KEY).await, None);
        assert!(!admitted_by_store(&limiter.check(KEY).cost(1).await));
        assert_eq!(left(&limiter, KEY).await, 2);
        assert!(!admitted_by_store(&limiter.check(KEY).cost(100).await));
        assert_eq!(left(&limiter, KEY).await, 1);
        // Admitted requests do not count, and neither does a peek.
        assert!(admitted_by_store(&limiter.check(KEY).cost(0).await));
        assert!(!limiter.peek(KEY).await.expect("a response").would_admit());
        assert_eq!(left(&limiter, KEY).await, 1);
        // A banned key's requests of no cost are rejected too.
        reject(&limiter, 1).await;
        let free = limiter.check(KEY).cost(0).await;
        assert!(!admitted_by_store(&free) && free.policy("abuse").expect("a policy").rejected());
        let rejected = free.into_result().expect_err("a rejection");
        assert_eq!(rejected.retry_after(), RetryAfter::In(secs(600)));
    }
}

#[tokio::test]
async fn the_rejections_of_one_ban_count_in_no_other() {
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
            assert!(!admitted_by_store(&limiter.check(keys).await));
        }
        let seen = limiter.peek([("other", good)]).await.expect("a response");
        let policy = seen.policy("other").expect("a policy");
        assert_eq!(policy.remaining(), 3);
    }
}

/// A call for many requests, and calls of their own that are sent together, are counted as those that are made one by one.
#[tokio::test]
async fn concurrent_requests_make_no_debt_once_a_ban_begins() {
    for world in World::both() {
        let limiter = world.limiter([
            even("debt", "8/hour").charge_rejected(true),
            abuse(),
            abuse_named("other").key(extract::global()),
        ]);
        let seen = async || {
            let seen = limiter.peek(KEY).await.expect("a response");
            let left = seen.policies().map(|policy| {
                let name = policy.policy().to_owned();
                (name, policy.remaining(), policy.reset_after())
            });
            left.collect::<Vec<_>>()
        };
        for (sent, wait) in [(10, 4_500), (11, 4_950), (15, 4_950)] {
            for _ in 0..sent {
                let _ = limiter.check(KEY).await;
            }
            let one_by_one = seen().await;
            assert_eq!(one_by_one[0].2, secs(wait));

            let _ = limiter.reset(KEY).await.expect("a response");
            assert_eq!(limiter.check(KEY).times(sent).await.admitted(), 8);
            assert_eq!(seen().await, one_by_one, "{sent}");

            let _ = limiter.reset(KEY).await.expect("a response");
            join_all((0..sent).map(|_| limiter.check(KEY).into_future())).await;
            assert_eq!(seen().await, one_by_one, "{sent}");
            let _ = limiter.reset(KEY).await.expect("a response");
        }
    }
}

#[tokio::test]
async fn of_concurrent_requests_no_ban_counts_those_after_another_one_began() {
    for world in World::both() {
        let longer = ban("longer", "9/min", Ban::for_duration(secs(600)));
        let limiter = world.limiter([once(), abuse(), longer]);
        assert_eq!(limiter.check(KEY).times(8).await.admitted(), 1);
        assert_eq!(used(&limiter, "longer").await, 3);
        is_banned(&limiter, Some(secs(600))).await;
    }
}

/// A ban counts each of them, also where a policy records the callers of no more than its quota.
#[tokio::test]
async fn a_ban_counts_more_concurrent_requests_than_a_list_holds() {
    for world in World::both() {
        let limiter = world.limiter([together(StrategyKind::List, "list", "1/365days"), abuse()]);
        assert_eq!(limiter.check(KEY).times(3).await.admitted(), 1);
        assert_eq!(left(&limiter, KEY).await, 1);
        assert_eq!(limiter.check(KEY).times(1).await.admitted(), 0);
        is_banned(&limiter, Some(secs(600))).await;
    }
}
