//! Keys that are rejected too often, and then blocked.

use tollgate_tests::{prelude::*, script::duration};

use crate::charging::support::*;

pub(crate) const MICRO: Duration = Duration::from_micros(1);

/// Three rejections a minute are too many; a ban lasts for ten minutes, then twenty, at most thirty.
pub(crate) fn abuse() -> Policy {
    let lasting = Ban::for_duration(secs(600)).max_duration(secs(1_800));
    ban("abuse", "3/min", lasting)
}

/// The same, for ten minutes each time, by a name of its own.
fn abuse_named(name: &str) -> Policy {
    ban(name, "3/min", Ban::for_duration(secs(600)))
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

/// How long the ban lasts, if there is one.
pub(crate) async fn banned(limiter: &Limiter, key: Key) -> Option<Duration> {
    let seen = limiter.peek([("abuse", key)]).await.expect("a response");
    let policy = seen.count("abuse");
    assert_eq!(seen.would_admit(), !policy.rejected(), "{seen:?}");
    policy
        .rejected()
        .then(|| policy.retry_after().duration().expect("a wait"))
}

/// How many rejections are left.
pub(crate) async fn left(limiter: &Limiter, key: Key) -> u64 {
    let seen = limiter.peek([("abuse", key)]).await;
    seen.expect("a response").left("abuse")
}

pub(crate) async fn reject(limiter: &Limiter, times: u64) {
    for _ in 0..times {
        assert!(wait(limiter, KEY).await.is_some());
    }
}

pub(crate) async fn reject_after_one(limiter: &Limiter, times: u64) {
    assert_eq!(wait(limiter, KEY).await, None);
    reject(limiter, times).await;
}

/// Plays a scenario of one key on each store, under policies of which one is [`abuse`]. Steps stand between commas:
/// - `+60s`: the clock moves on
/// - `admit`: a request is admitted; `reject 3`: so many are rejected; `wait 60s`: one is, and has this wait
/// - `times 8: 1`: of 8 requests that one call sends, 1 is admitted
/// - `banned 60s`, `free`, `left 3` rejections: as a peek has it
/// - `block 60s`, `prolong 60s`, `unblock`; `charge 2` rejections from elsewhere
/// - `there wait 60s`: the same step through another limiter
pub(crate) async fn play(policies: impl IntoIterator<Item = Policy> + Clone, script: &str) {
    for world in World::both() {
        let [here, there] = [(); 2].map(|()| world.limiter(policies.clone()));
        for step in script.split(", ") {
            let _case = Case(format!("{step:?} of {script:?}"));
            match step.strip_prefix("there ") {
                Some(step) => take(step, &world, &there).await,
                None => take(step, &world, &here).await,
            }
            world.no_key_is_immortal();
        }
    }
}

async fn take(step: &str, world: &World, limiter: &Limiter) {
    let (verb, argument) = step.split_once(' ').unwrap_or((step, ""));
    let number = || argument.parse::<u64>().expect(step);
    match verb {
        "admit" => assert_eq!(wait(limiter, KEY).await, None),
        "reject" => reject(limiter, number()).await,
        "wait" => assert_eq!(wait(limiter, KEY).await, Some(duration(argument))),
        "times" => {
            let (sent, admitted) = argument.split_once(": ").expect(step);
            let sent = limiter.check(KEY).times(sent.parse().expect(step)).await;
            assert_eq!(sent.admitted().to_string(), admitted);
        }
        "banned" => assert_eq!(banned(limiter, KEY).await, Some(duration(argument))),
        "free" => assert_eq!(banned(limiter, KEY).await, None),
        "left" => assert_eq!(left(limiter, KEY).await, number()),
        "block" => limiter.block(KEY, duration(argument)).await.expect("a ban"),
        "prolong" => {
            let prolonged = limiter.prolong_block(KEY, duration(argument)).await;
            prolonged.expect("a ban");
        }
        "unblock" => drop(limiter.unblock(KEY).await.expect("a response")),
        "charge" => {
            let charged = limiter.charge([("abuse", KEY)], number()).await;
            let _ = charged.expect("a response");
        }
        by => world.advance(duration(by.strip_prefix('+').expect(step))),
    }
}

/// The third rejection has the wait of the ban that it starts.
#[tokio::test]
async fn a_key_rejected_too_often_is_blocked_for_its_retry_after() {
    let script = "admit, wait 1s, wait 1s, left 1, wait 600s, +599999999us, wait 1us, +1us, admit";
    play([even("p", "1/s"), abuse()], script).await;
}

#[tokio::test]
async fn a_blocked_request_is_rejected_by_the_ban_and_charged_nothing() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "1/s"), abuse()]);
        reject_after_one(&limiter, 3).await;
        world.advance(secs(60));
        let decision = limiter.check(KEY).await;
        assert!(matches!(decision.kind(), DecisionKind::Rejected));
        let rejected = decision.policies().filter(PolicyDecision::rejected);
        let names: Vec<_> = rejected.map(|policy| policy.policy().to_owned()).collect();
        assert_eq!(names, ["abuse"]);
        let seen = limiter.peek([("p", KEY)]).await.expect("a response");
        assert_eq!(seen.left("p"), 1);
    }
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
        reject(&limiter, 50).await;
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
    let [first, second, longest] =
        [600, 1_200, 1_800].map(|s| format!("reject 3, banned {s}s, +{s}s"));
    // The last ban counts for as long as it lasted.
    let last = "+1799999999us, reject 3, banned 1800s, +3600s, reject 3, banned 600s";
    let script = format!("admit, {first}, {second}, {longest}, {longest}, {last}");
    play([once(), abuse()], &script).await;
}

#[tokio::test]
async fn nothing_is_left_of_a_ban_that_no_longer_counts() {
    let world = World::redis();
    let limiter = world.limiter([once(), abuse()]);
    reject_after_one(&limiter, 3).await;
    world.advance(secs(1_200) + ms(2));
    let keys = world.server().keys();
    assert!(!keys.iter().any(|key| key.contains("x1")), "{keys:?}");
}

/// How often a key was banned shares a number with its rejections in what the store returns.
#[tokio::test]
async fn a_key_that_was_banned_a_hundred_times_has_its_rejections_counted_as_before() {
    let [first, second, longest] =
        [600, 1_200, 1_800].map(|s| format!("left 3, reject 3, banned {s}s, +{s}s"));
    let more = format!(", {longest}").repeat(118);
    play(
        [once(), abuse()],
        &format!("admit, {first}, {second}{more}"),
    )
    .await;
}

#[tokio::test]
async fn a_short_ban_counts_for_a_whole_period() {
    let short = ban("abuse", "3/min", Ban::for_duration(secs(1)));
    let twice = "admit, reject 3, +60999999us, reject 3, banned 2s";
    let script = format!("{twice}, +62s, reject 3, banned 1s");
    play([once(), short], &script).await;
}

#[tokio::test]
async fn rejections_count_within_one_period_of_the_first() {
    let expired = "admit, reject 2, +59999999us, left 1, +1us, left 3";
    let script = format!("{expired}, reject 2, free, reject 1, banned 600s");
    play([once(), abuse()], &script).await;
}

#[tokio::test]
async fn a_rejection_counts_once_whatever_its_cost_and_however_many_policies_reject() {
    for world in World::both() {
        let other = window("q", "1/365days").charge_rejected(true);
        let limiter = world.limiter([once(), other, abuse().cost(7)]);
        assert_eq!(wait(&limiter, KEY).await, None);
        for (cost, remaining) in [(1, 2), (100, 1)] {
            assert!(!admitted_by_store(&limiter.check(KEY).cost(cost).await));
            assert_eq!(left(&limiter, KEY).await, remaining);
        }
        // Admitted requests do not count, and neither does a peek.
        assert!(admitted_by_store(&limiter.check(KEY).cost(0).await));
        assert!(!limiter.peek(KEY).await.expect("a response").would_admit());
        assert_eq!(left(&limiter, KEY).await, 1);
        // A banned key's requests of no cost are rejected too.
        reject(&limiter, 1).await;
        let free = limiter.check(KEY).cost(0).await;
        assert!(!admitted_by_store(&free) && free.count("abuse").rejected());
        let rejected = free.into_result().expect_err("a rejection");
        assert_eq!(rejected.retry_after(), RetryAfter::In(secs(600)));
    }
}

#[tokio::test]
async fn the_rejections_of_one_ban_count_in_no_other() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "1/s"), abuse(), abuse_named("other")]);
        let [bad, good] = ["bad", "good"].map(Key::new);
        let blocked = limiter.block([("abuse", bad)], secs(60)).await;
        blocked.expect("a ban");
        for _ in 0..10 {
            let keys = [("p", KEY), ("abuse", bad), ("other", good)];
            assert!(!admitted_by_store(&limiter.check(keys).await));
        }
        let seen = limiter.peek([("other", good)]).await;
        assert_eq!(seen.expect("a response").left("other"), 3);
    }
}

/// A call for many requests, and calls of their own that are sent together, are counted as those that are made one by one.
#[tokio::test]
async fn concurrent_requests_make_no_debt_once_a_ban_begins() {
    for world in World::both() {
        let debt = even("debt", "8/hour").charge_rejected(true);
        let limiter = world.limiter([debt, abuse(), abuse_named("other")]);
        let seen_and_reset = async || {
            let seen = limiter.peek(KEY).await.expect("a response");
            let counts = seen
                .policies()
                .map(|policy| (policy.remaining(), policy.reset_after()));
            let counts: Vec<_> = counts.collect();
            let _ = limiter.reset(KEY).await.expect("a response");
            counts
        };
        for (sent, wait) in [(10, 4_500), (11, 4_950), (15, 4_950)] {
            for _ in 0..sent {
                let _ = limiter.check(KEY).await;
            }
            let one_by_one = seen_and_reset().await;
            assert_eq!(one_by_one[0].1, secs(wait));
            assert_eq!(limiter.check(KEY).times(sent).await.admitted(), 8);
            assert_eq!(seen_and_reset().await, one_by_one, "{sent}");
            join_all((0..sent).map(|_| limiter.check(KEY).into_future())).await;
            assert_eq!(seen_and_reset().await, one_by_one, "{sent}");
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
        assert_eq!(banned(&limiter, KEY).await, Some(secs(600)));
    }
}

/// A ban counts each of them, also where a policy records the callers of no more than its quota.
#[tokio::test]
async fn a_ban_counts_more_concurrent_requests_than_a_list_holds() {
    let list = together(StrategyKind::List, "list", "1/365days");
    play(
        [list, abuse()],
        "times 3: 1, left 1, times 1: 0, banned 600s",
    )
    .await;
}
