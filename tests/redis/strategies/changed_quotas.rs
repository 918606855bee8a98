//! Whatever quota takes over from whatever other.

use std::time::Duration;

use tollgate::{Quota, RetryAfter};

use crate::strategies::{
    changed_policies::{Change, NOW},
    support::{StrategyKind, World, admitted_by_store, fresh_key, left, ms, secs, send},
};

/// The longest wait for one unit that a quota can make by itself: in debt, or out of a full bucket.
fn max_wait(strategy: StrategyKind, quota: Quota) -> Duration {
    let period = quota.period();
    let interval = period / quota.amount() as u32;
    match strategy {
        StrategyKind::Gcra | StrategyKind::Bucket => {
            interval * (quota.capacity() as u32 + 1) + ms(1)
        }
        StrategyKind::Fixed | StrategyKind::Calendar | StrategyKind::List | StrategyKind::Log => {
            period + ms(1)
        }
        StrategyKind::Sliding(buckets) => period + period / buckets,
    }
}

/// How long a key may live: until a debt is paid, its newest bucket has left, or its window is past.
fn max_ttl(strategy: StrategyKind, quota: Quota) -> Duration {
    let interval = quota.period() / quota.amount() as u32;
    match strategy {
        StrategyKind::Bucket => interval * 2 * quota.capacity() as u32 + ms(1),
        // To the next full minute.
        StrategyKind::Gcra => interval * 2 * quota.capacity() as u32 + secs(60),
        // A window is kept after its end, for as long as it lasted.
        StrategyKind::Calendar => 2 * quota.period() + ms(1),
        _ => max_wait(strategy, quota) + ms(1),
    }
}

const QUOTAS: [&str; 7] = [
    "10/min",
    "3/min",
    "100/min",
    "10/day",
    "2/s",
    "7/90s",
    "10/min burst 40",
];

pub(crate) fn quotas(strategy: StrategyKind) -> impl Iterator<Item = &'static str> {
    QUOTAS
        .into_iter()
        .filter(move |quota| strategy.has_burst() || !quota.contains("burst"))
}

#[tokio::test]
async fn no_change_of_quota_locks_a_key_out_gives_more_than_a_burst_or_leaves_a_key() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            for from in quotas(strategy) {
                for to in quotas(strategy).filter(|to| *to != from) {
                    for later in [0, 45] {
                        let quota: Quota = to.parse().expect(to);
                        let case = format!(
                            "{strategy:?} {from} to {to}, {later} s later, on {}",
                            world.name()
                        );
                        let old: Quota = from.parse().expect(from);
                        let change = Change::after(
                            &world,
                            old.capacity() + 1,
                            (strategy, from),
                            (strategy, to),
                        )
                        .await;
                        world.advance(secs(later) + Duration::from_micros(123));

                        // A peek returns the wait that holds for a check, too.
                        let peeked = change.wait().await;
                        assert!(peeked <= max_wait(strategy, quota), "{case}: {peeked:?}");
                        let admitted = change.new.check(change.key).times(1_000).await.admitted();
                        let RetryAfter::In(wait) = change.new.check(change.key).await.retry_after()
                        else {
                            panic!("{case}");
                        };
                        assert!(admitted <= quota.capacity(), "{case}: {admitted}");
                        assert_eq!(
                            admitted > 0,
                            peeked.is_zero(),
                            "{case}: {peeked:?}, then {admitted}"
                        );
                        assert!(wait <= max_wait(strategy, quota), "{case}: {wait:?}");

                        if let Some(server) = world.redis_server() {
                            let ttls: Vec<_> = server
                                .keys()
                                .iter()
                                .map(|key| server.command(&["PTTL", key]).int())
                                .collect();
                            let most = max_ttl(strategy, quota).as_millis() as i64;
                            assert!(
                                ttls.len() == 1 && (1..=most).contains(&ttls[0]),
                                "{case}: {ttls:?} of {most}"
                            );
                        }

                        world.advance(wait - Duration::from_micros(1));
                        assert_eq!(
                            send(&change.new, change.key, 1).await,
                            0,
                            "{case}, before {wait:?}"
                        );
                        world.advance(Duration::from_micros(1));
                        assert_eq!(
                            send(&change.new, change.key, 1).await,
                            1,
                            "{case}, after {wait:?}"
                        );
                        world.advance(max_ttl(strategy, quota));
                        assert_eq!(change.left().await, quota.capacity(), "{case}");
                        if let Some(server) = world.redis_server() {
                            server.flush();
                        }
                    }
                }
            }
        }
    }
}

/// A peek returns what holds: after a change, too, and after the clock stepped back.
#[tokio::test]
async fn a_peek_reports_the_same_wait_as_a_rejection() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            for (from, to) in [
                ("10/h", "10/min"),
                ("10/min", "10/h"),
                ("100/min", "3/min"),
                ("10/s", "10/min"),
            ] {
                let used = from.parse::<Quota>().expect(from).capacity();
                let change = Change::after(&world, used, (strategy, from), (strategy, to)).await;
                let wait = change.wait().await;
                world.advance(wait);
                let admitted = change.new.check(change.key).await;
                assert!(
                    admitted_by_store(&admitted),
                    "{strategy:?} {from} to {to} on {}: {admitted:?}",
                    world.name()
                );
            }
            let change =
                Change::after(&world, 10, (strategy, "10/min"), (strategy, "10/min")).await;
            world.set(NOW - 3_600_000_000);
            let wait = change.wait().await;
            world.advance(wait);
            let admitted = change.new.check(change.key).await;
            assert!(
                admitted_by_store(&admitted),
                "{strategy:?} on {}, an hour back: {admitted:?}",
                world.name()
            );
        }
    }
}

/// Not even without a peek, if the first request after the step passes: what it finds ahead of it must not stay there.
#[tokio::test]
async fn a_clock_that_stepped_back_while_units_were_left_locks_no_key_out() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.single(strategy, "10/min");
            let [key, other] = [fresh_key(), fresh_key()];
            world.set(NOW + 3_600_000_000);
            assert_eq!(send(&limiter, key, 4).await, 4);
            world.set(NOW);
            for _ in 0..8 {
                // A client that keeps sending keeps its key alive, and with it whatever is in it.
                send(&limiter, key, 1).await;
                send(&limiter, other, 1).await;
                world.advance(secs(20));
            }
            let [left, as_new] = [left(&limiter, key).await, left(&limiter, other).await];
            assert_eq!(left, as_new, "{strategy:?} on {}", world.name());
        }
    }
}

/// A rejected request charges nothing; still, units refill from the step on.
#[tokio::test]
async fn a_rejection_after_a_clock_stepped_back_has_an_exact_wait() {
    for world in World::both() {
        for strategy in [
            StrategyKind::Gcra,
            StrategyKind::Bucket,
            StrategyKind::Fixed,
        ] {
            let name = format!("{strategy:?} on {}", world.name());
            let limiter = world.single(strategy, "10/min");
            let key = fresh_key();
            world.set(NOW + 3_600_000_000);
            assert_eq!(send(&limiter, key, 20).await, 10, "{name}");
            world.set(NOW);
            let rejected = limiter.check(key).await;
            let wait = rejected.retry_after().duration().expect("a wait");
            world.advance(wait);
            assert_eq!(send(&limiter, key, 1).await, 1, "{name}: {wait:?}");
        }
    }
}

/// What the newest bucket holds may have been charged by another request.
#[tokio::test]
async fn a_refund_after_a_clock_stepped_back_takes_no_units_of_a_later_bucket() {
    for world in World::both() {
        let limiter = world.single(StrategyKind::Sliding(10), "10/min");
        world.set(NOW);
        let mut first = limiter.check(fresh_key()).cost(5).await;
        let key = first.policies().next().expect("a policy").key();
        world.advance(secs(6));
        assert!(admitted_by_store(&limiter.check(key).cost(3).await));
        world.set(NOW);
        let refunds = first.refund(5).await.expect("a response");
        assert_eq!(refunds[0].units(), 0, "{}", world.name());
    }
}

#[tokio::test]
async fn a_calendar_window_whose_key_lost_its_ttl_still_ends_on_time() {
    let world = World::redis();
    for quota in ["10/min", "10/day"] {
        world.set(NOW);
        let limiter = world.single(StrategyKind::Calendar, quota);
        let key = fresh_key();
        assert_eq!(send(&limiter, key, 20).await, 10);
        let seen = limiter.peek(key).await.expect("a response");
        let ends = seen.policies().next().expect("a policy").reset_after();
        for name in world.server().keys() {
            world.server().command(&["PERSIST", &name]).ok();
        }
        // In its first microsecond, the next window is as good as new.
        world.advance(ends);
        assert_eq!(left(&limiter, key).await, 10, "{quota}");
        assert_eq!(send(&limiter, key, 20).await, 10, "{quota}");
        world.server().flush();
    }
}

/// While a change is rolled out, processes with the old quota and with the new one send requests in turns.
#[tokio::test]
async fn alternating_quotas_admit_no_more_than_the_larger_one() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            for (from, to) in [
                ("10/min", "10/h"),
                ("10/h", "10/day"),
                ("10/min", "6/min"),
                ("10/min", "10/90s"),
                ("10/s", "10/day"),
            ] {
                // An even rate stores time, which another period counts otherwise; see the docs.
                if strategy.has_burst() && to != "6/min" {
                    continue;
                }
                let change = Change::after(&world, 0, (strategy, from), (strategy, to)).await;
                let mut all = 0;
                for _ in 0..12 {
                    all += send(&change.old, change.key, 2).await;
                    all += send(&change.new, change.key, 2).await;
                }
                assert!(
                    all <= 10,
                    "{strategy:?} {from} and {to} on {}: {all}",
                    world.name()
                );
            }
        }
    }
}

#[tokio::test]
async fn a_refund_across_a_change_is_never_more_than_was_charged() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            for from in quotas(strategy) {
                for to in quotas(strategy).filter(|to| *to != from) {
                    let change = Change::after(&world, 0, (strategy, from), (strategy, to)).await;
                    let mut charged = change.old.check(change.key).await;
                    assert!(admitted_by_store(&charged));
                    let before = change.left().await;
                    let taken = send(&change.new, change.key, 2).await;
                    let given = charged.refund(1).await.expect("a refund")[0].units();
                    let capacity = to.parse::<Quota>().expect(to).capacity();
                    let after = change.left().await;
                    assert!(given <= 1, "{strategy:?} {from} to {to}");
                    assert!(
                        after <= capacity,
                        "{strategy:?} {from} to {to}: {after} left"
                    );
                    if given == 0 {
                        assert_eq!(after, before - taken, "{strategy:?} {from} to {to}");
                    }
                    if let Some(server) = world.redis_server() {
                        for key in server.keys() {
                            let kind = server.command(&["TYPE", &key]).text();
                            if kind == "string" {
                                let value = server.command(&["GET", &key]);
                                // Some servers end a key as soon as its last millisecond begins.
                                let value = if value.is_nil() {
                                    String::new()
                                } else {
                                    value.text()
                                };
                                assert!(
                                    !value.starts_with('-') && !value.contains(":-"),
                                    "{strategy:?}: {value}"
                                );
                            }
                        }
                        assert_eq!(
                            server.immortal_keys(),
                            [""; 0],
                            "{strategy:?} {from} to {to}"
                        );
                        server.flush();
                    }
                }
            }
        }
    }
}

// Requests in flight.
