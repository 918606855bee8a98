//! What becomes of what was used when a policy changes under live keys: every cell of `docs/changing-policies.md`.

use std::time::Duration;

use tollgate::{Concurrency, Key, Limiter, Policy, Quota, Retry};

use crate::support::{By, START, World, ask, counted, fresh_key, left, ms, secs};

/// Ten seconds past a full hour.
const NOW: u64 = START + 10_000_000;

/// A change of one policy in one store: the limiter as it was, and as it is.
struct Change {
    old: Limiter,
    new: Limiter,
    key: Key,
}

impl Change {
    /// At `NOW`, `used` units are used by the old policy.
    async fn after(
        world: &World,
        used: u64,
        (old, from): (By, &str),
        (new, to): (By, &str),
    ) -> Self {
        world.set(NOW);
        let change = Self {
            old: world.single(old, from),
            new: world.single(new, to),
            key: fresh_key(),
        };
        assert!(counted(&change.old.charge(change.key, used).await));
        change
    }

    async fn left(&self) -> u64 {
        left(&self.new, self.key).await
    }

    /// The wait that who asks under the new policy is told; zero if he passes.
    async fn wait(&self) -> Duration {
        let seen = self.new.peek(self.key).await;
        let verdict = seen.verdicts().next().expect("a verdict");
        verdict.retry_after().expect("a wait")
    }
}

/// The same change for a strategy and a store.
async fn for_all(
    strategies: &[By],
    used: u64,
    from: &str,
    to: &str,
    expect: impl AsyncFn(&World, By, &Change),
) {
    for world in World::both() {
        for by in strategies {
            let change = Change::after(&world, used, (*by, from), (*by, to)).await;
            expect(&world, *by, &change).await;
        }
    }
}

const EVEN: [By; 2] = [By::Gcra, By::Bucket];
const COUNTED: [By; 6] = [
    By::Fixed,
    By::Calendar,
    By::List,
    By::Log,
    By::Sliding(1),
    By::Sliding(10),
];

// More or fewer requests in the same period.

#[tokio::test]
async fn with_other_requests_an_even_rate_keeps_the_share_that_was_used() {
    for_all(&EVEN, 6, "10/min", "20/min", async |world, by, change| {
        assert_eq!(change.left().await, 20 - 12, "{by:?} on {}", world.name());
    })
    .await;
    for_all(&EVEN, 6, "10/min", "5/min", async |world, by, change| {
        assert_eq!(change.left().await, 5 - 3, "{by:?} on {}", world.name());
    })
    .await;
}

#[tokio::test]
async fn with_other_requests_what_was_counted_stays_counted() {
    for_all(
        &COUNTED,
        6,
        "10/min",
        "20/min",
        async |world, by, change| {
            assert_eq!(change.left().await, 14, "{by:?} on {}", world.name());
            assert_eq!(ask(&change.new, change.key, 30).await, 14);
        },
    )
    .await;
    for_all(&COUNTED, 6, "10/min", "5/min", async |world, by, change| {
        assert_eq!(
            change.left().await,
            0,
            "{by:?} on {}: never below zero",
            world.name()
        );
        let expected = match by {
            // Its window began with its first request; the calendar's with the minute.
            By::Fixed | By::List | By::Log => secs(60),
            By::Calendar => secs(50),
            // Four of six are in when the two-counter window has slid by a third: ceil(6 x 40/60) = 4.
            By::Sliding(1) => secs(50 + 20),
            // And here when the bucket of 6 s, in its fifth second, has.
            _ => secs(56) + secs(2),
        };
        assert_eq!(change.wait().await, expected, "{by:?} on {}", world.name());
        world.advance(expected);
        assert!(counted(&change.new.check(change.key).await), "{by:?}");
    })
    .await;
}

// Another burst.

#[tokio::test]
async fn with_another_burst_an_even_rate_keeps_the_units_that_were_used() {
    for_all(
        &EVEN,
        6,
        "10/min",
        "10/min burst 20",
        async |world, by, change| {
            assert_eq!(change.left().await, 14, "{by:?} on {}", world.name());
        },
    )
    .await;
    for_all(
        &EVEN,
        16,
        "10/min burst 20",
        "10/min",
        async |world, by, change| {
            assert_eq!(change.left().await, 0);
            // Six more than the new burst are waited for, and then one.
            assert_eq!(
                change.wait().await,
                secs(7 * 6),
                "{by:?} on {}",
                world.name()
            );
        },
    )
    .await;
    // More than twice the new burst is no debt that it could have made: all of it is used, and no more.
    for_all(
        &EVEN,
        20,
        "10/min burst 20",
        "10/min burst 5",
        async |world, by, change| {
            assert_eq!(change.wait().await, secs(6), "{by:?} on {}", world.name());
        },
    )
    .await;
}

#[test]
fn a_burst_of_its_own_is_a_mistake_where_windows_are_counted() {
    for world in World::both() {
        for by in COUNTED {
            let error = world
                .builder()
                .policy(by.policy("p", "10/min burst 20"))
                .build();
            let error = error.expect_err("a mistake");
            assert_eq!(error.policy(), Some("p"));
            assert!(error.valid().contains("leave it out"), "{by:?}: {error}");
        }
    }
}

// A longer period.

#[tokio::test]
async fn with_a_longer_period_an_even_rate_keeps_the_time_that_was_used() {
    for_all(&EVEN, 6, "10/min", "10/h", async |world, by, change| {
        // 36 seconds are a tenth of what a unit now takes.
        assert_eq!(change.left().await, 9, "{by:?} on {}", world.name());
        world.advance(secs(36));
        assert_eq!(change.left().await, 10, "{by:?} on {}", world.name());
    })
    .await;
}

#[tokio::test]
async fn with_a_longer_period_a_window_that_is_open_ends_when_it_was_to_end() {
    for_all(
        &[By::Fixed, By::List],
        6,
        "10/min",
        "10/h",
        async |world, by, change| {
            assert_eq!(
                ask(&change.new, change.key, 20).await,
                4,
                "{by:?} on {}",
                world.name()
            );
            assert_eq!(change.wait().await, secs(60));
            world.advance(secs(60));
            assert_eq!(ask(&change.new, change.key, 20).await, 10);
            assert_eq!(
                change.wait().await,
                secs(3_600),
                "{by:?} on {}",
                world.name()
            );
        },
    )
    .await;
}

#[tokio::test]
async fn with_a_longer_period_all_that_is_remembered_counts_in_it() {
    let sliding = [By::Calendar, By::Log, By::Sliding(1), By::Sliding(10)];
    for_all(&sliding, 10, "10/min", "10/h", async |world, by, change| {
        let expected = match by {
            By::Log => secs(3_600),
            By::Calendar => secs(3_590),
            By::Sliding(1) => secs(3_590 + 360),
            _ => secs(3_590 + 36),
        };
        assert_eq!(change.wait().await, expected, "{by:?} on {}", world.name());
        // Also when its own time to live, of the shorter period, would have passed.
        for step in [1, 60, 120] {
            world.advance(secs(step));
            assert_eq!(
                ask(&change.new, change.key, 1).await,
                0,
                "{by:?} on {}",
                world.name()
            );
        }
        world.set(NOW + expected.as_micros() as u64 - 1);
        assert_eq!(
            ask(&change.new, change.key, 1).await,
            0,
            "{by:?} on {}",
            world.name()
        );
        world.set(NOW + expected.as_micros() as u64);
        assert_eq!(
            ask(&change.new, change.key, 1).await,
            1,
            "{by:?} on {}",
            world.name()
        );
    })
    .await;
}

// A shorter period.

#[tokio::test]
async fn with_a_shorter_period_an_even_rate_is_used_up_at_most() {
    for_all(&EVEN, 6, "10/h", "10/min", async |world, by, change| {
        assert_eq!(change.left().await, 0, "{by:?} on {}", world.name());
        assert_eq!(ask(&change.new, change.key, 1).await, 0);
        assert_eq!(change.wait().await, secs(6), "{by:?} on {}", world.name());
        world.advance(secs(60));
        assert_eq!(
            ask(&change.new, change.key, 20).await,
            10,
            "{by:?} on {}",
            world.name()
        );
    })
    .await;
}

#[tokio::test]
async fn with_a_shorter_period_a_window_that_is_open_ends_one_new_period_after_the_next_touch() {
    for_all(
        &[By::Fixed, By::List],
        10,
        "10/h",
        "10/min",
        async |world, by, change| {
            world.advance(secs(600));
            assert_eq!(ask(&change.new, change.key, 1).await, 0);
            assert_eq!(change.wait().await, secs(60), "{by:?} on {}", world.name());
            world.advance(secs(59));
            assert_eq!(change.wait().await, secs(1), "{by:?} on {}", world.name());
            world.advance(secs(1));
            assert_eq!(
                ask(&change.new, change.key, 20).await,
                10,
                "{by:?} on {}",
                world.name()
            );
        },
    )
    .await;
}

#[tokio::test]
async fn with_a_shorter_period_what_lies_within_it_counts() {
    let sliding = [By::Calendar, By::Log, By::Sliding(1), By::Sliding(10)];
    for_all(&sliding, 10, "10/h", "10/min", async |world, by, change| {
        let expected = match by {
            By::Log => secs(60),
            By::Calendar => secs(50),
            By::Sliding(1) => secs(50 + 6),
            _ => secs(56) + ms(600),
        };
        assert_eq!(ask(&change.new, change.key, 1).await, 0);
        assert_eq!(change.wait().await, expected, "{by:?} on {}", world.name());
        world.advance(expected);
        assert_eq!(
            ask(&change.new, change.key, 1).await,
            1,
            "{by:?} on {}",
            world.name()
        );
    })
    .await;
    // What is older than the new period does not, where it's known how old it is.
    for_all(
        &[By::Log],
        10,
        "10/h",
        "10/min",
        async |world, by, change| {
            world.advance(secs(60));
            assert_eq!(
                ask(&change.new, change.key, 20).await,
                10,
                "{by:?} on {}",
                world.name()
            );
        },
    )
    .await;
}

// Other buckets.

#[tokio::test]
async fn with_other_buckets_what_was_counted_counts_in_those_at_hand() {
    for world in World::both() {
        for (old, new) in [(1, 10), (10, 1), (10, 20), (20, 10), (3, 7)] {
            let (old, new) = ((By::Sliding(old), "10/min"), (By::Sliding(new), "10/min"));
            let quotas = (old.1.replace("min", "21s"), new.1.replace("min", "21s"));
            let by = ((old.0, &*quotas.0), (new.0, &*quotas.1));
            if (old.0, new.0) == (By::Sliding(10), By::Sliding(20))
                || (old.0, new.0) == (By::Sliding(20), By::Sliding(10))
            {
                let change = Change::after(&world, 6, old, new).await;
                assert_eq!(
                    ask(&change.new, change.key, 20).await,
                    4,
                    "{old:?} to {new:?}"
                );
                continue;
            }
            let change = Change::after(&world, 6, by.0, by.1).await;
            assert_eq!(change.left().await, 4, "{by:?} on {}", world.name());
            // None is forgotten in any order of asking.
            let mut all = 6;
            for limiter in [&change.new, &change.old, &change.new, &change.old] {
                all += ask(limiter, change.key, 3).await;
            }
            assert_eq!(all, 10, "{by:?} on {}", world.name());
        }
        // More or fewer buckets of the same width.
        let change = Change::after(
            &world,
            10,
            (By::Sliding(10), "10/10s"),
            (By::Sliding(20), "10/20s"),
        )
        .await;
        assert_eq!(change.wait().await, ms(20_100), "{}", world.name());
        world.advance(ms(20_099));
        assert_eq!(ask(&change.new, change.key, 1).await, 0, "{}", world.name());
        world.advance(ms(1));
        assert_eq!(ask(&change.new, change.key, 1).await, 1, "{}", world.name());
    }
}

// Another strategy.

#[tokio::test]
async fn under_another_strategy_all_is_new_and_the_old_key_ends_by_itself() {
    for world in World::both() {
        for old in By::ALL {
            for new in By::ALL {
                if matches!((old, new), (By::Sliding(_), By::Sliding(_))) || old == new {
                    continue;
                }
                let change = Change::after(&world, 10, (old, "10/min"), (new, "10/min")).await;
                assert_eq!(
                    ask(&change.new, change.key, 20).await,
                    10,
                    "{old:?} to {new:?}"
                );
                // And back: nothing of it was touched.
                assert_eq!(left(&change.old, change.key).await, 0, "{new:?} to {old:?}");
                world.advance(secs(121));
                if let Some(server) = world.redis_server() {
                    assert_eq!(server.keys(), [""; 0], "{old:?} to {new:?}");
                }
                assert_eq!(
                    left(&change.old, change.key).await,
                    10,
                    "{old:?} on {}",
                    world.name()
                );
            }
        }
    }
}

// Whatever changes.

/// The longest wait for one unit that a quota can make by itself: in debt, or out of a full bucket.
fn longest(by: By, quota: Quota) -> Duration {
    let period = quota.period();
    let interval = period / quota.units() as u32;
    match by {
        By::Gcra | By::Bucket => interval * (quota.capacity() as u32 + 1) + ms(1),
        By::Fixed | By::Calendar | By::List | By::Log => period + ms(1),
        By::Sliding(buckets) => period + period / buckets,
    }
}

/// How long a key may live: until a debt is paid, or until its newest bucket has left.
fn longest_life(by: By, quota: Quota) -> Duration {
    let interval = quota.period() / quota.units() as u32;
    match by {
        By::Gcra | By::Bucket => interval * 2 * quota.capacity() as u32 + ms(1),
        _ => longest(by, quota) + ms(1),
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

fn quotas(by: By) -> impl Iterator<Item = &'static str> {
    QUOTAS
        .into_iter()
        .filter(move |quota| by.has_burst() || !quota.contains("burst"))
}

#[tokio::test]
async fn no_change_locks_anybody_out_gives_more_than_a_burst_or_leaves_a_key_behind() {
    for world in World::both() {
        for by in By::ALL {
            for from in quotas(by) {
                for to in quotas(by).filter(|to| *to != from) {
                    for later in [0, 45] {
                        let quota: Quota = to.parse().expect(to);
                        let case = format!(
                            "{by:?} {from} to {to}, {later} s later, on {}",
                            world.name()
                        );
                        let old: Quota = from.parse().expect(from);
                        let change =
                            Change::after(&world, old.capacity() + 1, (by, from), (by, to)).await;
                        world.advance(secs(later) + Duration::from_micros(123));

                        // Whoever looks is told what holds for who asks, too.
                        let told = change.wait().await;
                        assert!(told <= longest(by, quota), "{case}: {told:?}");
                        let admitted = change.new.check(change.key).times(1_000).await.admitted();
                        let Retry::After(wait) = change.new.check(change.key).await.retry() else {
                            panic!("{case}");
                        };
                        assert!(admitted <= quota.capacity(), "{case}: {admitted}");
                        assert_eq!(
                            admitted > 0,
                            told.is_zero(),
                            "{case}: {told:?}, then {admitted}"
                        );
                        assert!(wait <= longest(by, quota), "{case}: {wait:?}");

                        if let Some(server) = world.redis_server() {
                            let ttls: Vec<_> = server
                                .keys()
                                .iter()
                                .map(|key| server.command(&["PTTL", key]).int())
                                .collect();
                            let most = longest_life(by, quota).as_millis() as i64;
                            assert!(
                                ttls.len() == 1 && (1..=most).contains(&ttls[0]),
                                "{case}: {ttls:?} of {most}"
                            );
                        }

                        world.advance(wait - Duration::from_micros(1));
                        assert_eq!(
                            ask(&change.new, change.key, 1).await,
                            0,
                            "{case}, before {wait:?}"
                        );
                        world.advance(Duration::from_micros(1));
                        assert_eq!(
                            ask(&change.new, change.key, 1).await,
                            1,
                            "{case}, after {wait:?}"
                        );
                        world.advance(longest_life(by, quota));
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

/// Who only looks is told what holds: after a change, too, and after the clock stepped back.
#[tokio::test]
async fn a_look_is_as_honest_as_a_refusal() {
    for world in World::both() {
        for by in By::ALL {
            for (from, to) in [
                ("10/h", "10/min"),
                ("10/min", "10/h"),
                ("100/min", "3/min"),
                ("10/s", "10/min"),
            ] {
                let used = from.parse::<Quota>().expect(from).capacity();
                let change = Change::after(&world, used, (by, from), (by, to)).await;
                let told = change.wait().await;
                world.advance(told);
                let admitted = change.new.check(change.key).await;
                assert!(
                    counted(&admitted),
                    "{by:?} {from} to {to} on {}: {admitted:?}",
                    world.name()
                );
            }
            let change = Change::after(&world, 10, (by, "10/min"), (by, "10/min")).await;
            world.set(NOW - 3_600_000_000);
            let told = change.wait().await;
            world.advance(told);
            let admitted = change.new.check(change.key).await;
            assert!(
                counted(&admitted),
                "{by:?} on {}, an hour back: {admitted:?}",
                world.name()
            );
        }
    }
}

/// Not even if nobody looks, and the first to ask after the step passes: what he finds ahead of him must not stay there.
#[tokio::test]
async fn a_clock_that_stepped_back_while_some_was_left_locks_nobody_out() {
    for world in World::both() {
        for by in By::ALL {
            let limiter = world.single(by, "10/min");
            let [key, other] = [fresh_key(), fresh_key()];
            world.set(NOW + 3_600_000_000);
            assert_eq!(ask(&limiter, key, 4).await, 4);
            world.set(NOW);
            for _ in 0..8 {
                // Who goes on asking keeps his key alive, and with it whatever is in it.
                ask(&limiter, key, 1).await;
                ask(&limiter, other, 1).await;
                world.advance(secs(20));
            }
            let [left, as_new] = [left(&limiter, key).await, left(&limiter, other).await];
            assert_eq!(left, as_new, "{by:?} on {}", world.name());
        }
    }
}

#[tokio::test]
async fn a_calendar_window_whose_key_lost_its_end_is_over_when_it_is_over() {
    let world = World::redis();
    for quota in ["10/min", "10/day"] {
        world.set(NOW);
        let limiter = world.single(By::Calendar, quota);
        let key = fresh_key();
        assert_eq!(ask(&limiter, key, 20).await, 10);
        let seen = limiter.peek(key).await;
        let ends = seen.verdicts().next().expect("a verdict").reset_after();
        for name in world.server().keys() {
            world.server().command(&["PERSIST", &name]).ok();
        }
        // In its first microsecond, the next window is as good as new.
        world.advance(ends);
        assert_eq!(left(&limiter, key).await, 10, "{quota}");
        assert_eq!(ask(&limiter, key, 20).await, 10, "{quota}");
        world.server().flush();
    }
}

/// While a change is rolled out, processes with the old quota and with the new one ask in turns.
#[tokio::test]
async fn while_both_quotas_are_asked_in_turns_no_more_passes_than_the_larger_allows() {
    for world in World::both() {
        for by in By::ALL {
            for (from, to) in [
                ("10/min", "10/h"),
                ("10/h", "10/day"),
                ("10/min", "6/min"),
                ("10/min", "10/90s"),
                ("10/s", "10/day"),
            ] {
                // An even rate remembers time, which another period counts otherwise; see the docs.
                if by.has_burst() && to != "6/min" {
                    continue;
                }
                let change = Change::after(&world, 0, (by, from), (by, to)).await;
                let mut all = 0;
                for _ in 0..12 {
                    all += ask(&change.old, change.key, 2).await;
                    all += ask(&change.new, change.key, 2).await;
                }
                assert!(
                    all <= 10,
                    "{by:?} {from} and {to} on {}: {all}",
                    world.name()
                );
            }
        }
    }
}

#[tokio::test]
async fn what_is_given_back_across_a_change_is_never_more_than_was_taken() {
    for world in World::both() {
        for by in By::ALL {
            for from in quotas(by) {
                for to in quotas(by).filter(|to| *to != from) {
                    let change = Change::after(&world, 0, (by, from), (by, to)).await;
                    let mut charged = change.old.check(change.key).await;
                    assert!(counted(&charged));
                    let before = change.left().await;
                    let taken = ask(&change.new, change.key, 2).await;
                    let given = change.old.refund(&mut charged, 1).await.expect("a refund");
                    let capacity = to.parse::<Quota>().expect(to).capacity();
                    let after = change.left().await;
                    assert!(given[0] <= 1, "{by:?} {from} to {to}");
                    assert!(after <= capacity, "{by:?} {from} to {to}: {after} left");
                    if given == [0] {
                        assert_eq!(after, before - taken, "{by:?} {from} to {to}");
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
                                    "{by:?}: {value}"
                                );
                            }
                        }
                        assert_eq!(server.immortal_keys(), [""; 0], "{by:?} {from} to {to}");
                        server.flush();
                    }
                }
            }
        }
    }
}

// Requests in flight.

fn places(world: &World, concurrent: u64, life: Duration) -> Limiter {
    let policy = Policy::new("p", Quota::concurrent(concurrent));
    world.limiter([policy.strategy(Concurrency::life(life))])
}

#[tokio::test]
async fn with_another_number_of_places_those_in_flight_keep_theirs() {
    for world in World::both() {
        let key = fresh_key();
        let [three, two, five] = [3, 2, 5].map(|n| places(&world, n, secs(30)));
        let mut flying = Vec::new();
        for _ in 0..3 {
            flying.push(three.check(key).await);
        }
        assert!(flying.iter().all(counted));
        assert_eq!(left(&two, key).await, 0, "never below zero");
        assert!(!counted(&two.check(key).await));
        assert_eq!(left(&five, key).await, 2, "{}", world.name());
        flying.truncate(2);
        let given_back = async || left(&five, key).await == 3;
        while !given_back().await {
            tokio::task::yield_now().await;
        }
        assert!(!counted(&two.check(key).await), "two are in flight");
    }
}

#[tokio::test]
async fn with_a_shorter_life_permits_live_for_one_new_life_from_the_next_touch() {
    for world in World::both() {
        let key = fresh_key();
        let (long, short) = (places(&world, 1, secs(600)), places(&world, 1, secs(30)));
        let flying = long.check(key).await;
        assert!(counted(&flying));
        world.advance(secs(100));
        assert!(!counted(&short.check(key).await));
        world.advance(secs(29));
        assert!(!counted(&short.check(key).await));
        world.advance(secs(2));
        let next = short.check(key).await;
        assert!(counted(&next), "{}", world.name());
        if let Some(server) = world.redis_server() {
            assert_eq!(server.immortal_keys(), [""; 0]);
        }
        drop((flying, next));
    }
}

#[tokio::test]
async fn with_a_longer_life_permits_live_as_long_as_they_were_to_unless_renewed() {
    for world in World::both() {
        let key = fresh_key();
        let (short, long) = (places(&world, 1, secs(30)), places(&world, 1, secs(600)));
        let flying = short.check(key).await;
        assert!(counted(&flying));
        world.advance(secs(29));
        assert!(!counted(&long.check(key).await));
        world.advance(secs(2));
        assert!(counted(&long.check(key).await), "{}", world.name());
        drop(flying);
    }
}

#[tokio::test]
async fn from_a_rate_to_requests_in_flight_all_is_new() {
    for world in World::both() {
        for by in By::ALL {
            let key = fresh_key();
            world.set(NOW);
            let (rate, flight) = (world.single(by, "10/min"), places(&world, 10, secs(30)));
            assert_eq!(ask(&rate, key, 10).await, 10);
            assert_eq!(left(&flight, key).await, 10, "{by:?}");
            assert_eq!(left(&rate, key).await, 0, "{by:?} on {}", world.name());
        }
    }
}
