//! A request whose timeout passes before it is sent is not sent.

use testkit::Proxy;
use tokio::time::sleep;
use tollgate_tests::prelude::*;

use crate::store::support::*;

const TIMEOUT: Duration = ms(1_500);

/// It shares a batch with others, which waits for its connection for longer than the request does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_times_out_while_its_batch_connects_is_not_sent() {
    let server = Server::start();
    for attempt in 0.. {
        // A busy machine may take too long for the last one, too: with more time it does not.
        let time = TIMEOUT * (1 << attempt);
        let proxy = Proxy::to(server.addr());
        let store = RedisStore::builder()
            .url(format!("redis://{}", proxy.addr()))
            .timeout(time)
            .no_circuit_breaker();
        let limiter = limiter(
            store.build().expect("a store"),
            [StrategyKind::Fixed.policy("p", "9/week")],
        );
        let ask = |name: &str| {
            let key = Key::new(format!("{name}{attempt}"));
            tokio::spawn(limiter.check(key).into_future())
        };
        proxy.hold();
        let first = ask("first");
        // These two go together, once the first has given up.
        sleep(time / 5).await;
        let late = ask("late");
        sleep(time / 2).await;
        let last = ask("last");
        for gone in [first, late] {
            let decision = gone.await.expect("a response");
            assert!(matches!(store_error(&decision), StoreError::Timeout));
        }
        proxy.pass();
        let decision = last.await.expect("a response");
        if decision.source() != DecisionSource::Store {
            assert!(time < TEST_TIMEOUT, "{decision:?}");
            continue;
        }
        assert!(decision.is_admitted());
        let keys = server.keys();
        assert!(keys.iter().any(|key| key.contains("last")), "{keys:?}");
        assert!(!keys.iter().any(|key| key.contains("late")), "{keys:?}");
        return;
    }
}

const DAY: Duration = secs(86_400);

/// It came before those whose batch is in flight when its own returns, and has less time than they.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_to_be_sent_again_fails_at_its_own_deadline() {
    for attempt in 0.. {
        // A busy machine may not tell the deadlines apart: with more time it does.
        let time = secs(3 << attempt);
        let (clock, server) = on_a_clock();
        let proxy = Proxy::to(server.addr());
        let store = RedisStore::builder()
            .url(format!("redis://{}", proxy.addr()))
            .timeout(time)
            .rejection_cache_staleness(Duration::ZERO)
            .connections(1)
            .no_circuit_breaker();
        let store = store.build().expect("a store");
        let daily = limiter(
            store.clone(),
            [StrategyKind::Calendar.policy("daily", "9/day")],
        );
        let weekly = limiter(store, [StrategyKind::Fixed.policy("weekly", "9/week")]);
        for limiter in [&daily, &weekly] {
            until("it is connected", async || {
                limiter.check(KEY).await.source() == DecisionSource::Store
            })
            .await;
        }
        // The next one is sent with the wrong day.
        clock.advance(40 * DAY);
        proxy.delay(time / 2);
        let again = tokio::spawn(daily.check(KEY).into_future());
        until("it is to be sent again", async || {
            proxy.delayed() > 0 || again.is_finished()
        })
        .await;
        server.pause();
        sleep(time / 3).await;
        // Enough for one more call, and no third one.
        let later = (0..40).map(|key| {
            let check = weekly.check(Key::new(key.to_string()));
            tokio::spawn(check.into_future())
        });
        let later: Vec<_> = later.collect();
        let in_time = !again.is_finished();
        let decision = again.await.expect("a response");
        let waiting = later.iter().filter(|task| !task.is_finished()).count();
        server.resume();
        if in_time && waiting == 40 {
            assert!(matches!(store_error(&decision), StoreError::Timeout));
            return;
        }
        assert!(time < TEST_TIMEOUT, "{waiting} of 40 wait");
    }
}
