//! Settlements that meet an outage: kept where nothing waits for them, and an error where something does.

use crate::faults::support::*;
use tollgate::limiter::UnitMeter;
use tollgate_tests::clocks::of_own_process;

/// Nothing refills before the window ends.
fn limiter(store: RedisStore) -> Limiter {
    let policy = policy(1_000).strategy(FixedWindow).cost(200);
    under(policy, store, OnStoreError::Reject)
}

/// A request that was charged 200, and used `units`.
async fn metered(limiter: &Limiter, units: u64) -> (Admission, UnitMeter) {
    let admission = limiter.admit(KEY).await.expect("room");
    let mut meter = admission.policy("p").expect("a policy").meter();
    meter.add(units);
    (admission, meter)
}

#[tokio::test]
async fn a_meter_that_is_dropped_in_an_outage_is_settled_after_it() {
    for (units, outside) in [(5, false), (5, true), (300, false), (300, true)] {
        let (server, network) = network();
        let (limiter, other) = (limiter(through(&network)), limiter(store(&server)));
        let (admission, meter) = metered(&limiter, units).await;
        network.cut();
        opened(&limiter).await;
        match outside {
            true => thread::spawn(move || drop(meter)).join().expect("no panic"),
            false => drop(meter),
        }
        let error = limiter.shutdown(ms(50)).await;
        let error = error.expect_err("an outage");
        assert_eq!(error.operations(), 1);
        network.pass();
        flushed(&limiter).await;
        assert_eq!(used_on_the_store(&other, KEY).await, units);
        let health = limiter.health_check().await;
        assert_eq!((health.dropped_refunds(), health.unconfirmed()), (0, 0));
        drop(admission);
    }
}

/// It responds to all that writes nothing.
#[tokio::test]
async fn a_meter_that_is_dropped_while_the_server_does_not_write_is_settled_when_it_does() {
    for (setting, units) in [("maxmemory", 5), ("min-replicas-to-write", 300)] {
        let server = Server::start();
        let limiter = limiter(builder(server.url()).built());
        let (admission, meter) = metered(&limiter, units).await;
        order(&server, &["CONFIG", "SET", setting, "1"]);
        drop(meter);
        // Its reply comes with that to the settlement, or after it.
        assert_eq!(used_on_the_store(&limiter, KEY).await, 200, "{setting}");
        order(&server, &["CONFIG", "SET", setting, "0"]);
        flushed(&limiter).await;
        assert_eq!(used_on_the_store(&limiter, KEY).await, units, "{setting}");
        drop(admission);
    }
}

/// Its reply was lost, and it was carried out.
#[test]
fn a_settlement_without_a_reply_is_counted_and_logged_as_uncertain_and_counts_as_made() {
    in_own_process(async || {
        let (log, _guard) = Log::of_warnings();
        let (server, network) = network();
        let (limiter, other) = (limiter(through_here(&network)), limiter(store(&server)));
        let (admission, meter) = metered(&limiter, 5).await;
        network.halve();
        drop(meter);
        let is_uncertain = async || limiter.health_check().await.unconfirmed() == 1;
        until("it is uncertain", is_uncertain).await;
        network.pass();
        resumed(&limiter).await;
        assert_eq!(used_on_the_store(&other, KEY).await, 5);
        drop(admission);
        let [line] = &log.lines("may not have been settled")[..] else {
            panic!("{}", log.text());
        };
        assert_contains(line, ["policy=\"p\""]);

        for (first, again) in [(5, 400), (300, 300)] {
            let _ = limiter.reset(KEY).await.expect("a response");
            let admission = limiter.admit(KEY).await.expect("room");
            let policy = admission.policy("p").expect("a policy");
            network.halve();
            let error = policy.settle(first).await.expect_err("a lost answer");
            assert!(error.may_have_run(), "{error}");
            network.pass();
            resumed(&limiter).await;
            assert_eq!(used_on_the_store(&limiter, KEY).await, first);
            // It counts as settled, and is not settled twice.
            policy.settle(again).await.expect("a response");
            assert_eq!(used_on_the_store(&limiter, KEY).await, again);
            admission
                .settle_each([("p", 100)])
                .await
                .expect("a response");
            assert_eq!(used_on_the_store(&limiter, KEY).await, 100);
        }
    });
}

/// Each process logs it once in ten seconds.
#[track_caller]
fn in_own_process<F: AsyncFnOnce()>(test: F) {
    if of_own_process::<F>(Timers::Real).is_some() {
        current_thread().block_on(test());
    }
}

/// An error that says that nothing was done.
#[tokio::test]
async fn nothing_that_is_awaited_in_an_outage_is_sent_later() {
    let (_server, network) = network();
    let limiter = limiter(through(&network));
    let admission = limiter.admit(KEY).await.expect("room");
    let policy = admission.policy("p").expect("a policy");
    network.cut();
    opened(&limiter).await;
    for true_cost in [5, 300] {
        let error = policy.settle(true_cost).await.expect_err("an outage");
        assert_eq!(
            (error.code(), error.may_have_run()),
            ("circuit_open", false)
        );
    }
    let other = Key::new("other");
    let charged = limiter.charge(other, 7).await;
    let Err(CallError::Store(by_hand)) = charged else {
        panic!("{charged:?}");
    };
    let refunded = policy.refund(7).await.map(drop);
    for error in [
        by_hand,
        policy.charge(7).await.expect_err("an outage"),
        refunded.expect_err("an outage"),
    ] {
        assert_eq!(
            (error.code(), error.may_have_run()),
            ("circuit_open", false)
        );
    }
    network.pass();
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&limiter, other).await, 0);
    assert_eq!(used_on_the_store(&limiter, KEY).await, 200);
    policy.settle(220).await.expect("a response");
    assert_eq!(used_on_the_store(&limiter, KEY).await, 220);
}

/// The reply to the first one is awaited for much longer.
#[tokio::test]
async fn a_settlement_without_a_reply_delays_the_next_one_by_the_timeout_alone() {
    let (_server, network) = network();
    let limiter = limiter(here(builder(url(network.addr())).timeout(SHORT_TIMEOUT)));
    let (admission, meter) = metered(&limiter, 5).await;
    let policy = admission.policy("p").expect("a policy");
    network.hold();
    drop(meter);
    let next = tokio::spawn(async move { policy.settle(7).await });
    let time = StillTime::new();
    for _ in 0..2 {
        time.settle().await;
        time.advance(SHORT_TIMEOUT + ms(5)).await;
    }
    time.settle().await;
    assert!(next.is_finished());
    let error = next.await.expect("no panic");
    assert_eq!(error.expect_err("a silent server").code(), "timeout");
}

/// It was to be sent over a connection that takes longer than the timeout to open.
#[tokio::test]
async fn a_settlement_whose_caller_left_before_it_was_sent_is_made_later() {
    let (server, network) = network();
    let (limiter, other) = (limiter(through_here(&network)), limiter(store(&server)));
    let admission = limiter.admit(KEY).await.expect("room");
    let policy = admission.policy("p").expect("a policy");
    network.cut();
    assert!(limiter.peek(KEY).await.is_err());
    network.hold();
    let mut settling = Box::pin(policy.settle(5));
    assert!((&mut settling).now_or_never().is_none());
    let time = StillTime::new();
    time.settle().await;
    drop(settling);
    time.time_out().await;
    time.end();
    network.pass();
    resumed(&limiter).await;
    flushed(&limiter).await;
    assert_eq!(used_on_the_store(&other, KEY).await, 5);
}

/// The deadline of the one has passed before, and that of the other has when the reply is read.
#[tokio::test]
async fn the_reply_to_settlements_counts_if_it_comes_with_the_last_deadline() {
    let (server, network) = network();
    let limiter = limiter(through_here(&network));
    let (first, first_meter) = metered(&limiter, 5).await;
    let (second, second_meter) = metered(&limiter, 7).await;
    let time = StillTime::new();
    network.hold();
    drop(first_meter);
    // Nothing is sent before this task yields.
    assert!(time.advance(ms(20)).now_or_never().is_none());
    drop(second_meter);
    time.settle().await;
    time.advance(TEST_TIMEOUT - ms(10)).await;
    time.settle().await;
    let calls = server.calls("evalsha");
    network.pass();
    testkit::until("they run", || {
        (server.calls("evalsha") > calls).then_some(())
    });
    time.advance(ms(15)).await;
    time.settle().await;
    time.end();
    flushed(&limiter).await;
    assert_eq!(limiter.health_check().await.unconfirmed(), 0);
    drop((first, second));
}
