//! What others left under a policy's key is left alone, and admits no request.

use tollgate::limiter::OnMisconfiguration;
use tollgate_tests::{prelude::*, results::CallResult};

use crate::store::support::*;

const STRINGS: [&str; 15] = [
    "nan",
    // Nothing can be added to it.
    "9223372036854775807",
    "1e30",
    "-5",
    "",
    " 5",
    "0x10",
    "1234567890123456789012345678901234567890",
    "5.0",
    "5\n",
    "+5",
    ":",
    "1:2:3",
    "nan:1",
    "1:-1",
];

/// Puts a value under `key` in place of its own: each type in turn, with a TTL and without.
fn plantings(server: &Server, key: &str, mut with: impl FnMut(&str)) {
    let list: &[&str] = &["RPUSH", key, "nan", "-5"];
    let hash: &[&str] = &["HSET", key, "count", "5"];
    let strings = STRINGS.map(|value| ["SET", key, value]);
    let strings = strings.iter().map(|args| &args[..]);
    for (index, plant) in [list, hash].into_iter().chain(strings).enumerate() {
        server.command(&["DEL", key]).ok();
        server.command(plant).ok();
        if index % 2 == 0 {
            server.command(&["PEXPIRE", key, "5000000"]).ok();
        }
        let before = contents(server, key);
        with(plant.last().expect("a value"));
        assert_eq!(contents(server, key), before, "after {plant:?}");
    }
}

#[track_caller]
fn assert_foreign(decision: &impl CallResult, name: &str) {
    let error = store_error(decision);
    let is_foreign = matches!(&error, StoreError::CorruptKey { key, .. } if key.contains(name));
    assert!(is_foreign, "{error:?}");
}

#[test]
fn a_foreign_value_fails_its_request_and_no_other_of_the_batch() {
    let (_clock, server) = on_a_clock();
    let runtime = Runtime::new().expect("a runtime");
    for (strategy, quota) in each_with(EACH, quotas(10_000)) {
        server.flush();
        let limiter = single(&server, strategy, &quota);
        assert!(runtime.block_on(async { admitted_by_store(&limiter.check("planted").await) }));
        let name = server.only_key();
        let mut rounds = 0;
        plantings(&server, &name, |value| {
            rounds += 1;
            runtime.block_on(async {
                let (others, first, second) = tokio::join!(
                    check_at_once(&limiter, 0..20_u64),
                    limiter.check("planted"),
                    limiter.check("fine"),
                );
                assert_foreign(&first, &name);
                let mut fine = others.iter().chain([&second]);
                assert!(fine.all(|one| admitted_by_store(one)), "beside {value:?}");
            });
        });
        runtime.block_on(async {
            for key in ["fine", "7"] {
                assert_eq!(used(&limiter, key).await, [rounds], "{strategy:?}, {quota}");
            }
        });
    }
}

#[test]
fn no_operation_changes_a_foreign_value() {
    let (_clock, server) = on_a_clock();
    let runtime = Runtime::new().expect("a runtime");
    for (strategy, quota) in each_with(EACH, quotas(100)) {
        server.flush();
        let limiter = single(&server, strategy, &quota);
        let admit = async || limiter.admit("planted").cost(60).await;
        let charged = runtime.block_on(admit()).expect("room");
        let name = server.only_key();
        plantings(&server, &name, |value| {
            runtime.block_on(async {
                let (peek, charge, reset, costly) = tokio::join!(
                    limiter.peek("planted"),
                    limiter.charge("planted", 3),
                    limiter.reset("planted"),
                    limiter.check("planted").cost(99),
                );
                for status in [peek, charge, reset] {
                    assert_foreign(&status, &name);
                }
                assert_foreign(&costly, &name);
                let refund = charged.refund(1).await;
                let is_foreign = matches!(refund, Err(StoreError::CorruptKey { .. }));
                assert!(is_foreign, "{value:?}: {refund:?}");
            });
        });
    }
}

#[test]
fn beside_a_foreign_value_no_other_policy_is_charged() {
    let (_clock, server) = on_a_clock();
    let runtime = Runtime::new().expect("a runtime");
    for (order, quota) in each_with(PAIRS, quotas(100)) {
        for foreign in [0, 1] {
            server.flush();
            let both = pair(&server, order, &quota);
            let keys = |name: &str| {
                let mut keys = [("first", Key::new("whole")), ("second", Key::new("whole"))];
                keys[foreign].1 = Key::new(name);
                keys
            };
            let names = runtime.block_on(async {
                assert!(admitted_by_store(&both.check(keys("fine")).await));
                let before = server.keys();
                assert!(admitted_by_store(&both.check(keys("planted")).await));
                let mut after = server.keys();
                after.retain(|key| !before.contains(key));
                after
            });
            let [name] = &names[..] else {
                panic!("one key more: {names:?}")
            };
            let mut expected = 2;
            plantings(&server, name, |value| {
                runtime.block_on(async {
                    let (bad, good) = tokio::join!(
                        both.check(keys("planted")).cost(7),
                        both.check(keys("fine")),
                    );
                    assert_foreign(&bad, name);
                    assert!(admitted_by_store(&good), "beside {value:?}");
                    expected += 1;
                    let used = used(&both, keys("fine")).await;
                    assert_eq!(used[1 - foreign], expected, "beside {value:?}");
                });
            });
        }
    }
}

#[test]
fn a_request_is_admitted_past_a_foreign_value_by_the_fallback_and_the_log_names_the_key() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    // For all threads: whether a callsite is enabled may be decided by a thread that listens for nothing. No other
    // test's key is `logged`.
    tracing::subscriber::set_global_default(subscriber).expect("the first one");
    let runtime = current_thread();
    let (_clock, server) = on_a_clock();
    for (strategy, quota) in each_with(EACH, quotas(10)) {
        server.flush();
        let builder = Limiter::builder().store(store(&server));
        let builder = builder.on_misconfiguration(OnMisconfiguration::AsStoreError);
        let limiter = stores::limiter(builder, [strategy.policy("p", &quota)]);
        let check = || runtime.block_on(limiter.check("logged").into_future());
        assert!(admitted_by_store(&check()));
        let name = server.only_key();
        plantings(&server, &name, |value| {
            let decision = check();
            assert!(decision.is_admitted(), "{value:?}: {decision:?}");
            assert_eq!(decision.source(), DecisionSource::Fallback, "{value:?}");
            assert_eq!(decision.policies().len(), 0);
        });
        let lines = log.lines(&name);
        assert!(lines.iter().any(|line| line.contains("ERROR")), "{lines:?}");
    }
}

#[tokio::test]
async fn a_settlement_that_nobody_waits_for_is_given_up_and_counted_if_its_key_is_foreign() {
    let (_clock, server) = on_a_clock();
    let limiter = single(&server, StrategyKind::Gcra, "10/h");
    let admission = limiter.admit("key").await.expect("room");
    let mut meter = admission.policy("p").expect("a policy").meter();
    meter.add(5);
    let key = server.only_key();
    server.command(&["SET", &key, "nan"]).ok();
    drop(meter);
    let is_given_up = async || limiter.health_check().await.dropped_refunds() == 1;
    until("it is given up", is_given_up).await;
    assert_eq!(limiter.stats().store.queued_refunds, 0);
}
