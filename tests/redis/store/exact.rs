//! No more than the quota, no less, and an exact `Retry-After`.

use testkit::Clock;
use tollgate_tests::prelude::*;

use crate::store::support::*;

/// How long each of these periods may be, in seconds.
const PERIOD_SECONDS: [(&str, i64); 3] = [("min", 60), ("h", 3_600), ("month", 31 * 86_400)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_what_was_admitted_is_charged_whatever_each_request_costs() {
    let (_clock, server) = on_a_clock();
    for (strategy, quota) in each_with(EACH, ["1000/min", "1000/month"]) {
        server.flush();
        let limiters = [0, 1].map(|_| single(&server, strategy, quota));
        let tasks = (0..32_u64).map(|task| {
            let limiter = limiters[task as usize % 2].clone();
            tokio::spawn(async move {
                let mut charged = 0;
                for step in 0..60 {
                    // Some cost more than there ever is.
                    let cost = [1, 2, 3, 7, 1_001][(task + step) as usize % 5];
                    let decision = limiter.check("key").cost(cost).await;
                    charged += cost * u64::from(admitted_by_store(&decision));
                    if step % 4 == 0 {
                        used(&limiter, "key").await;
                    }
                }
                charged
            })
        });
        let charged: u64 = all(tasks).await.iter().sum();
        // Those that cost one fill up what the others leave.
        assert_eq!(charged, 1_000, "{strategy:?}, {quota}");
        let used = used(&limiters[0], "key").await;
        assert_eq!(used, [1_000], "{strategy:?}, {quota}");
        assert_eq!(server.immortal_keys(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_several_policies_each_is_charged_only_for_requests_that_all_admit() {
    let (_clock, server) = on_a_clock();
    for period in ["min", "month"] {
        server.flush();
        // The dearest gives out first, after 666 requests: each of the others would have admitted more.
        let limiters = [0, 1].map(|_| {
            let quota = |units| format!("{units}/{period}");
            let tenant = StrategyKind::Gcra.policy("tenant", &quota(900));
            let user = StrategyKind::Fixed.policy("user", &quota(100));
            let bytes = StrategyKind::Gcra.policy("bytes", &quota(2_000)).cost(3);
            limiter(store(&server), [tenant, user, bytes])
        });
        let keys = |user: u64| {
            let user = ("user", Key::new(format!("user-{user}")));
            [
                ("tenant", Key::new("acme")),
                user,
                ("bytes", Key::new("acme")),
            ]
        };
        let tasks = (0..64_u64).map(|task| {
            let limiter = limiters[task as usize % 2].clone();
            tokio::spawn(async move {
                let mut admitted = [0; 8];
                for step in 0..60 {
                    let user = (task + step) % 8;
                    let decision = limiter.check(keys(user)).await;
                    admitted[user as usize] += u64::from(admitted_by_store(&decision));
                }
                admitted
            })
        });
        let mut admitted = [0; 8];
        for more in all(tasks).await {
            let sums = admitted.iter_mut().zip(more);
            sums.for_each(|(sum, more)| *sum += more);
        }
        assert_eq!(admitted.iter().sum::<u64>(), 666, "{admitted:?}");
        for (user, admitted) in (0..).zip(admitted) {
            let used = used(&limiters[0], keys(user)).await;
            assert_eq!(used, [666, admitted, 1_998], "user {user}");
        }
    }
}

#[tokio::test]
async fn a_retry_at_retry_after_is_admitted_and_an_earlier_one_is_not() {
    use StrategyKind::{Bucket, Calendar, Fixed, Gcra, List, Log, Sliding};
    let (clock, server) = on_a_clock();
    for (strategy, quotas) in [
        (Gcra, "10/s burst 3, 7/min, 3/h burst 5, 298508/s burst 10"),
        (Fixed, "3/10s, 1/ms, 4/month"),
        (Bucket, "10/s burst 3, 7/min"),
        (Calendar, "3/10s, 4/day, 4/month"),
        (List, "3/10s, 1/ms"),
        (Log, "3/10s, 1/ms"),
        (Sliding(1), "3/10s, 7/min"),
    ] {
        for quota in quotas.split(", ") {
            let limiter = single(&server, strategy, quota);
            let capacity = limiter.policies()[0].quota().capacity();
            for cost in 1..=capacity.min(3) {
                let _case = Case(format!("{strategy:?} {quota}, cost {cost}"));
                server.flush();
                clock.set(START + cost * 1_111);
                // Apart in a log, and yet not as slow as the fastest refills.
                let apart = Duration::from_micros(u64::from(strategy == Log));
                // The second time it begins where the first wait ended.
                for _ in 0..3 {
                    exhaust_and_wait(&limiter, cost, apart, (&clock, &server)).await;
                }
            }
        }
    }
}

/// Sends requests until one is rejected, and others at the end of its wait and a moment earlier.
async fn exhaust_and_wait(
    limiter: &Limiter,
    cost: u64,
    apart: Duration,
    (clock, server): (&Clock, &Server),
) {
    let check = || limiter.check("key").cost(cost).into_future();
    let mut rejected = check().await;
    for admitted in 0.. {
        if !admitted_by_store(&rejected) {
            break;
        }
        assert!(admitted <= 20, "no end");
        clock.advance(apart);
        rejected = check().await;
    }
    let wait = rejected.retry_after().duration().expect("a wait");
    let (now, wait) = (clock.micros(), wait.as_micros() as u64);
    // A server may remove a key as soon as its last millisecond begins.
    let ends = server.expires_at(&server.only_key()) as u64 * 1_000;
    let full = now + rejected.count("p").reset_after().as_micros() as u64;
    assert!(ends >= full, "{ends} at {now}");
    for early in [1_000, 1].into_iter().filter(|early| *early <= wait) {
        clock.set(now + wait - early);
        assert!(!admitted_by_store(&check().await), "{early} µs early");
    }
    clock.set(now + wait);
    assert!(admitted_by_store(&check().await), "late");
}

/// Steps of every size; those about as long as a period are the hard ones.
#[tokio::test]
async fn the_wait_after_a_step_back_of_any_size_is_exact() {
    const PERIOD: Duration = secs(60);
    let (clock, server) = on_a_clock();
    for strategy in EACH {
        let limiter = single(&server, strategy, "10/min");
        for seconds in [1, 5, 6, 7, 30, 59, 60, 61, 90, 119, 120, 121, 600] {
            let _case = Case(format!("{strategy:?} by {seconds} s"));
            server.flush();
            clock.set(START);
            for _ in 0..10 {
                assert!(admitted_by_store(&limiter.check("key").await));
            }
            clock.rewind(secs(seconds));
            let rejected = limiter.check("key").await;
            assert!(!admitted_by_store(&rejected));
            let wait = rejected.retry_after().duration().expect("a wait");
            let longest = match strategy.counting() {
                // Windows end on whole milliseconds.
                Counting::OpenedWindows => PERIOD + ms(1),
                // After a step back over the end of a window, the next one stays the current one until it ends.
                Counting::CalendarWindows => 2 * PERIOD,
                // Out of a full bucket, the first unit slides in the next one.
                Counting::Buckets(1) => PERIOD + PERIOD / 10,
                // A step that could be a debt is treated as one: GCRA then waits for it, and for its next unit.
                _ if strategy == StrategyKind::Gcra => PERIOD + PERIOD / 10,
                _ => PERIOD,
            };
            assert!(wait <= longest, "{wait:?}");
            clock.advance(wait - Duration::from_micros(1));
            assert!(!admitted_by_store(&limiter.check("key").await));
            clock.advance(Duration::from_micros(1));
            assert!(admitted_by_store(&limiter.check("key").await));
        }
    }
}

#[tokio::test]
async fn a_ttl_that_is_lost_or_too_long_is_repaired_by_a_rejection_and_a_crossing_charge() {
    let (clock, server) = on_a_clock();
    let touches = "admit, reject, reject what costs too much, admit for free, charge, refund";
    for (strategy, (period, seconds)) in each_with(EACH, PERIOD_SECONDS) {
        let limiter = single(&server, strategy, &format!("10/{period}"));
        let check = |cost| limiter.admit("key").cost(cost).into_future();
        // Too long: left by a clock that stepped back, or by a quota of a longer period.
        for (touch, lost) in touches
            .split(", ")
            .flat_map(|touch| [(touch, true), (touch, false)])
        {
            let _case = Case(format!("{strategy:?}, 10/{period}, {touch}, lost: {lost}"));
            server.flush();
            clock.set(START);
            let first = check(6).await.expect("room");
            let key = server.only_key();
            assert_eq!(server.immortal_keys(), [""; 0]);
            let done = match lost {
                true => server.command(&["PERSIST", &key]),
                false => server.command(&["PEXPIRE", &key, "9999999999"]),
            };
            assert_eq!(done.int(), 1);
            match touch {
                // Where units come back within seconds, the next request that needs a later end mends it.
                "admit" if (strategy, period) == (StrategyKind::Gcra, "min") => {
                    for _ in 0..11 {
                        assert!(admitted_by_store(&check(1).await));
                        clock.advance(secs(6));
                    }
                }
                "admit" => assert!(admitted_by_store(&check(1).await)),
                "reject" => assert!(!admitted_by_store(&check(5).await)),
                "reject what costs too much" => assert!(!admitted_by_store(&check(11).await)),
                "admit for free" => assert!(admitted_by_store(&check(0).await)),
                "charge" => assert!(admitted_by_store(&limiter.charge("key", 9).await)),
                _ => drop(first.refund(2).await.expect("a response")),
            }
            let ttl = server.command(&["PTTL", &key]).int();
            // A debt of one capacity takes two periods to drain; a bucket stays for the one after it.
            let most = 2 * seconds * 1_000 + 64_000;
            assert!((1..=most).contains(&ttl), "{ttl} ms");
        }
    }
}

/// Not even until it is touched again, which may be never.
#[tokio::test]
async fn no_charge_and_no_refund_leaves_a_key_immortal() {
    let (clock, server) = on_a_clock();
    for (strategy, quota) in each_with(EACH, quotas(10)) {
        let _case = Case(format!("{strategy:?}, {quota}"));
        server.flush();
        let limiter = single(&server, strategy, &quota);
        let no_key_is_immortal =
            |after: &str| assert_eq!(server.immortal_keys(), [""; 0], "{after}");
        assert!(admitted_by_store(&limiter.check("key").cost(2).await));
        no_key_is_immortal("the first charge");
        let second = limiter.admit("key").cost(4).await.expect("room");
        no_key_is_immortal("the second charge");
        for units in [1, 3] {
            second.refund(units).await.expect("a response");
            no_key_is_immortal("a refund");
        }
        assert!(admitted_by_store(&limiter.charge("key", 9).await));
        no_key_is_immortal("a debt");
        // A window that was refunded in full counts zero, and has a TTL like any other.
        server.flush();
        let admission = limiter.admit("key").cost(6).await.expect("room");
        let given = admission.refund(6).await.expect("a response");
        assert_eq!(given[0].units(), 6);
        for key in &server.keys() {
            server.command(&["PERSIST", key]).ok();
        }
        assert!(!admitted_by_store(&limiter.check("key").cost(11).await));
        clock.advance(secs(1));
        no_key_is_immortal("a rejection at zero");
    }
}

#[tokio::test]
async fn every_key_in_redis_names_its_policy_also_if_the_callers_part_is_hashed() {
    let (_clock, server) = on_a_clock();
    let long = "a name of sixty-four characters, the most that a policy may have";
    let shown = long.replace(' ', "%20").replace(',', "%2C");
    let keys = [
        Key::new("a"),
        Key::new("a-user-of-23-characters"),
        Key::new("x".repeat(1_000)),
        Key::secret("token"),
        Key::ip("2001:db8:ffff:ffff::1".parse().expect("an address")),
        Key::tuple([Key::new("tenant"), Key::new("user")]),
        KEY,
        Key::missing(),
    ];
    for (name, strategy) in each_with(["p", "per-tenant", long], EACH) {
        let limiter = limiter(store(&server), [strategy.policy(name, "10/h")]);
        for key in keys {
            assert!(admitted_by_store(&limiter.check(key).await));
        }
    }
    let keys = server.keys();
    assert_eq!(keys.len(), 3 * EACH.len() * 8);
    for key in keys {
        let [prefix, _format, policy, own] = &key.splitn(4, ':').collect::<Vec<_>>()[..] else {
            panic!("{key}");
        };
        assert_eq!(*prefix, "tg");
        assert!(["p", "per-tenant", &shown].contains(policy), "{key}");
        assert!((1..=23).contains(&own.len()), "{key}");
    }
}
