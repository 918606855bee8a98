//! Whatever quota takes over from whatever other.

use tollgate_tests::prelude::*;

use super::support::*;

/// The longest wait for one unit that a quota can make by itself: in debt, or out of a full bucket.
fn max_wait(strategy: StrategyKind, quota: Quota) -> Duration {
    let period = quota.period();
    let interval = period / quota.amount() as u32;
    match strategy.counting() {
        Counting::EvenRate => interval * (quota.capacity() as u32 + 1) + ms(1),
        Counting::OpenedWindows | Counting::CalendarWindows | Counting::Log => period + ms(1),
        Counting::Buckets(buckets) => period + period / buckets,
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

/// A key from `NOW` on, under each quota of each strategy, and each other quota to which it changes.
async fn each_change(play: impl AsyncFn(&World, StrategyKind, [&str; 2])) {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let has = |quota: &&str| strategy.is_even() || !quota.contains("burst");
            for from in QUOTAS.into_iter().filter(has) {
                for to in QUOTAS.into_iter().filter(has).filter(|to| *to != from) {
                    world.set(NOW);
                    play(&world, strategy, [from, to]).await;
                    if let Some(server) = world.redis_server() {
                        server.flush();
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn no_change_of_quota_locks_a_key_out_gives_more_than_a_burst_or_leaves_a_key() {
    each_change(async |world, strategy, [from, to]| {
        for later in [0, 45] {
            world.set(NOW);
            let _case = Case(format!("from {from}, {later} s later"));
            let old = world.scene(strategy, from);
            old.charge(quota(from).capacity() + 1).await;
            let new = old.under(to);
            let (capacity, max_wait) = (quota(to).capacity(), max_wait(strategy, quota(to)));
            world.advance(secs(later) + Duration::from_micros(123));

            // A peek returns the wait that holds for a check, too.
            let peeked = new.wait().await;
            assert!(peeked <= max_wait, "{peeked:?}");
            let admitted = new.times(1_000).await;
            let RetryAfter::In(wait) = new.check(1).await.retry_after() else {
                panic!("not rejected after {admitted}");
            };
            assert!(admitted <= capacity, "{admitted}");
            assert_eq!(admitted > 0, peeked.is_zero(), "{peeked:?}, {admitted}");
            assert!(admitted > 0 || peeked == wait, "{peeked:?}, {wait:?}");
            assert!(wait <= max_wait, "{wait:?}");

            let max_ttl = max_ttl(strategy, quota(to));
            if let Some(server) = world.redis_server() {
                let ttl = server.command(&["PTTL", &server.only_key()]).int();
                let most = max_ttl.as_millis() as i64;
                assert!((1..=most).contains(&ttl), "{ttl} of {most}");
            }

            world.advance(wait - Duration::from_micros(1));
            assert_eq!(new.send(1).await, 0, "before {wait:?}");
            world.advance(Duration::from_micros(1));
            assert_eq!(new.send(1).await, 1, "after {wait:?}");
            world.advance(max_ttl);
            assert_eq!(new.left().await, capacity);
            if let Some(server) = world.redis_server() {
                server.flush();
            }
        }
    })
    .await;
}

/// Not even without a peek, if the first request after the step passes: what it finds ahead of it must not stay there.
#[tokio::test]
async fn a_clock_that_stepped_back_while_units_were_left_locks_no_key_out() {
    each("10/min", async |stepped| {
        let (world, strategy) = (stepped.world, stepped.strategy);
        let as_new = world.scene(strategy, "10/min");
        world.set(NOW + 3_600_000_000);
        assert_eq!(stepped.send(4).await, 4);
        world.set(NOW);
        for _ in 0..8 {
            // A client that keeps sending keeps its key alive, and with it whatever is in it.
            stepped.send(1).await;
            as_new.send(1).await;
            world.advance(secs(20));
        }
        assert_eq!(stepped.left().await, as_new.left().await);
    })
    .await;
}

/// What the newest bucket holds may have been charged by another request.
#[tokio::test]
async fn a_refund_after_a_clock_stepped_back_takes_no_units_of_a_later_bucket() {
    each_of(&[StrategyKind::Sliding(10)], "10/min", async |scene| {
        let mut first = scene.check(5).await;
        scene.world.advance(secs(6));
        assert!(scene.admits(3).await);
        scene.world.set(START);
        assert_eq!(refund(&mut first, 5).await, 0);
    })
    .await;
}

/// While a change is rolled out, processes with the old quota and with the new one send requests in turns.
#[tokio::test]
async fn alternating_quotas_admit_no_more_than_the_larger_one() {
    for (from, to) in [
        ("10/min", "10/h"),
        ("10/h", "10/day"),
        ("10/min", "6/min"),
        ("10/min", "10/90s"),
        ("10/s", "10/day"),
    ] {
        each(from, async |old| {
            // An even rate stores time, which another period counts otherwise; see the docs.
            if old.strategy.is_even() && to != "6/min" {
                return;
            }
            let (new, mut all) = (old.under(to), 0);
            for _ in 0..12 {
                all += old.send(2).await;
                all += new.send(2).await;
            }
            assert!(all <= 10, "{all}");
        })
        .await;
    }
}

/// No stored number is negative, and every key ends.
fn check_values(scene: &Scene<'_>) {
    scene.world.no_key_is_immortal();
    let Some(server) = scene.world.redis_server() else {
        return;
    };
    for key in server.keys() {
        if server.command(&["TYPE", &key]).text() == "string" {
            let value = server.command(&["GET", &key]);
            // Some servers end a key as soon as its last millisecond begins.
            let is_gone = value.is_nil();
            let value = if is_gone { String::new() } else { value.text() };
            assert!(!value.starts_with('-') && !value.contains(":-"), "{value}");
        }
    }
}

#[tokio::test]
async fn a_refund_across_a_change_is_never_more_than_was_charged() {
    each_change(async |world, strategy, [from, to]| {
        let old = world.scene(strategy, from);
        let new = old.under(to);
        let mut charged = old.check(1).await;
        let before = new.left().await;
        let taken = new.send(2).await;
        let given = refund(&mut charged, 1).await;
        let after = new.left().await;
        assert!(given <= 1 && after <= quota(to).capacity(), "{after} left");
        if given == 0 {
            assert_eq!(after, before - taken);
        }
        check_values(&new);
    })
    .await;
}
