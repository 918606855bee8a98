//! Clients whose clock is days or years away from the server's: the side that computes the calendar has the wrong day.

use tollgate::{
    store::Units,
    strategy::{ChargeReceipt, Strategy},
};
use tollgate_tests::{prelude::*, scene::refund};

use super::support::*;

/// Policies of every kind of window, each with a quota of 2, and when their windows end that are open at [`THEN`].
fn policies() -> [(Policy, u64); 5] {
    let zone = CalendarWindow::zone;
    let sunday = zone("Europe/Berlin").week_starts_on(Weekday::Sunday);
    let kolkata = CalendarWindow::east_of_utc(secs(330 * 60));
    let policy = |name: &str, text, windows: CalendarWindow| {
        Policy::new(name, quota(text)).strategy(windows)
    };
    let day = policy("day", "2/day", zone("America/New_York"));
    let gap = policy("gap", "2/day", zone("America/Sao_Paulo"));
    [
        (day, 1_541_394_000),                                 // 2018-11-05 00:00 -05:00
        (policy("week", "2/week", sunday), 1_541_890_800),    // 2018-11-11 Sun 00:00 +01:00
        (policy("month", "2/month", kolkata), 1_543_602_600), // 2018-12-01 00:00 +05:30
        (policy("hour", "2/h", CalendarWindow::utc()), 1_541_329_200), // 11:00
        (gap, 1_541_383_200),                                 // 2018-11-05 00:00 -02:00
    ]
}

/// 2018-11-04 Sun 10:15 UTC.
const THEN: u64 = 1_541_326_500 * SECOND;

/// A server whose clock shows that; this machine's is years ahead.
fn world_then() -> World {
    let world = World::redis();
    world.set(THEN);
    world
}

fn limiter(world: &World) -> Limiter {
    world.limiter(policies().map(|(policy, _)| policy))
}

async fn peeked_ends_are_right(limiter: &Limiter) {
    let seen = limiter.peek(KEY).await.expect("a response");
    ends_are_right(seen.policies());
}

#[track_caller]
fn ends_are_right<'a>(verdicts: impl ExactSizeIterator<Item = PolicyDecision<'a>>) {
    assert_eq!(verdicts.len(), 5);
    for (policy, (_, ends)) in verdicts.zip(policies()) {
        let reset = policy.reset_after().as_micros() as u64;
        assert_eq!(reset, ends * SECOND - THEN, "{policy:?}");
    }
}

#[tokio::test]
async fn the_first_request_of_a_client_that_is_years_ahead_gets_the_right_windows() {
    let world = world_then();
    let (server, limiter) = (world.server(), limiter(&world));
    let first = limiter.check(KEY).await;
    assert!(admitted_by_store(&first));
    ends_are_right(first.policies());
    // Each batch that found no script is two calls.
    let sent = server.calls("evalsha") + server.calls("eval");
    assert!(sent <= 4, "asked again more than once: {sent} calls");
    server.reset_stats();
    // The month is the last to open again.
    let month = 1_543_602_600 * SECOND - THEN;
    assert_eq!(exhaust(&limiter, KEY, 9).await, (1, month));
    assert_eq!(server.calls("evalsha"), 2, "it has learned the time");
    peeked_ends_are_right(&limiter).await;
}

#[tokio::test]
async fn peeks_charges_and_resets_learn_the_servers_time_like_a_request() {
    for first in 0..3 {
        let world = world_then();
        let limiter = limiter(&world);
        let status = match first {
            0 => limiter.peek(KEY).await,
            1 => limiter.charge(KEY, 1).await,
            _ => limiter.reset(KEY).await,
        };
        assert!(admitted_by_store(&status));
        assert!(admitted_by_store(&limiter.check(KEY).await));
        peeked_ends_are_right(&limiter).await;
    }
}

/// After a step back the refund is the first operation.
#[tokio::test]
async fn a_charge_in_another_window_is_not_refunded_into_this_one() {
    for then in [THEN + 40 * DAY, THEN - 40 * DAY] {
        let world = world_then();
        let limiter = world.limiter([policies()[0].0.clone()]);
        let mut charged = limiter.check(KEY).await;
        assert!(admitted_by_store(&charged));
        world.set(then);
        let is_later = then > THEN;
        if is_later {
            assert_eq!(exhaust(&limiter, KEY, 9).await.0, 2);
        }
        assert_eq!(refund(&mut charged, 1).await, 0);
        if is_later {
            assert_eq!(exhaust(&limiter, KEY, 9).await.0, 0);
        }
    }
}

/// The refund is sent twice, since the windows of the second limit are those of another time at first. If the first limit were
/// refunded each time, the units of another charge would be lost.
#[tokio::test]
async fn a_refund_that_is_sent_again_refunds_each_limit_once() {
    let sliding = SlidingWindow::buckets(1);
    let strategies: [&dyn Strategy; 6] = [
        &Gcra,
        &TokenBucket,
        &FixedWindow,
        &ListWindow,
        &SlidingLog,
        &sliding,
    ];
    for strategy in strategies {
        let world = world_then();
        let store = RedisStore::builder().url(world.server().url());
        let store = store.timeout(TEST_TIMEOUT).built();
        let terms = Terms::default();
        let yearly = strategy.bind(&Quota::requests(100).per(365 * secs(86_400)), &terms);
        let new_york = CalendarWindow::zone("America/New_York");
        let daily = new_york.bind(&quota("50/day"), &terms);
        let limits = [("yearly", yearly), ("daily", daily)].map(|(name, rule)| {
            let rule = rule.expect("a rule");
            store.register(name, rule).expect("a limit")
        });
        let execute = async |op, receipts: [ChargeReceipt; 2]| {
            let counters = [0, 1].map(|index| {
                let counter = CounterOp::new(&limits[index], KEY);
                let counter = counter.with_units(Units::new(5));
                counter.with_receipt(receipts[index])
            });
            let result = match store.execute(op, &counters) {
                StoreResponse::Ready(result) => result,
                StoreResponse::Pending(response) => response.await,
            };
            result.expect("a result")
        };
        let none = [ChargeReceipt::NONE; 2];
        let charged = execute(Op::Acquire(1), none).await;
        let receipts = [0, 1].map(|index| {
            let snapshot = &charged.counters()[index].snapshot;
            let window = limits[index].rule().window_id(snapshot, charged.at);
            ChargeReceipt::new(charged.at, 5).with_window_id(window)
        });
        assert_eq!(execute(Op::Acquire(1), none).await.admitted, 1);
        world.set(THEN + 3 * DAY);
        let refunded = execute(Op::Refund, receipts).await;
        let units = [0, 1].map(|index| refunded.counters()[index].units);
        assert_eq!(units, [5, 0], "{strategy:?}: the day has ended");
        let left = execute(Op::Peek, none).await;
        let yearly = limits[0].rule();
        let status = yearly.status(&left.counters()[0].snapshot, left.at, 1);
        assert_eq!(status.remaining, 95, "{strategy:?}");
    }
}

/// Each of many keys is admitted exactly its quota, however its requests are batched.
async fn many_keys(limiter: &Limiter, name: &str) {
    let tasks: Vec<_> = (0..900)
        .map(|request| {
            let key = Key::new(format!("{name}{}", request % 300));
            tokio::spawn(limiter.check(key).into_future())
        })
        .collect();
    let mut admitted = [0; 300];
    for (request, task) in tasks.into_iter().enumerate() {
        let decision = task.await.expect("a task that ends well");
        if admitted_by_store(&decision) {
            admitted[request % 300] += 1;
            ends_are_right(decision.policies());
        }
    }
    assert_eq!(admitted, [2; 300], "{name}");
}

#[tokio::test]
async fn batches_of_many_keys_get_the_right_windows_at_once() {
    let world = world_then();
    let limiter = limiter(&world);
    many_keys(&limiter, "years-").await;
    for (name, days) in [("back-", -300_i64), ("forth-", 1_000)] {
        // Somewhere else, so that the workers' idea of the time is wrong, and back for the request.
        world.step(days * DAY as i64);
        assert!(admitted_by_store(&limiter.check(Key::new(name)).await));
        world.set(THEN);
        many_keys(&limiter, name).await;
    }
}

/// Some keys under one policy, some under all: one batch of several segments, part of which is sent again.
#[tokio::test]
async fn stale_requests_of_a_batch_are_sent_again_and_the_others_completed() {
    let world = world_then();
    let skipping = |(policy, _): (Policy, u64)| policy.missing_key(MissingKey::Skip);
    let limiter = world.limiter(policies().map(skipping));
    let check = |name: &str, n: usize| {
        let key = Key::new(format!("key{n}"));
        let keys: Keys = match name {
            "all" => key.into(),
            name => [(name, key)].into(),
        };
        tokio::spawn(limiter.check(keys).into_future())
    };
    let names = ["hour", "all", "month", "hour", "gap"];
    let tasks: Vec<_> = (0..100).map(|n| check(names[n % 5], n)).collect();
    for task in tasks {
        let decision = task.await.expect("a task that ends well");
        assert!(admitted_by_store(&decision), "{decision:?}");
        for verdict in decision.policies() {
            let all = policies();
            let own = all.iter().find(|(p, _)| p.name() == verdict.policy());
            let ends_in = own.expect("it").1 * SECOND - THEN;
            let reset = verdict.reset_after().as_micros() as u64;
            assert_eq!((reset, verdict.remaining()), (ends_in, 1), "{verdict:?}");
        }
    }
}
