//! Who runs out of time before his question is sent, is not asked about.

use std::{future::IntoFuture, time::Duration};

use testkit::{Proxy, Server};
use tokio::time::sleep;
use tollgate::{Key, RedisStore, Source, StoreError};

use crate::support::{By, fault, limiter};

const DEADLINE: Duration = Duration::from_millis(1_500);

/// He shares a trip with others, which waits for its connection for longer than he does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_ran_out_of_time_while_his_trip_was_connecting_leaves_it() {
    let server = Server::start();
    for try_again in 0.. {
        let proxy = Proxy::to(server.addr());
        let store = RedisStore::builder()
            .url(format!("redis://{}", proxy.addr()))
            .deadline(DEADLINE)
            .no_breaker();
        let limiter = limiter(
            store.build().expect("a store"),
            [By::Fixed.policy("p", "9/week")],
        );
        let ask = |name: &str| {
            let key = Key::new(format!("{name}{try_again}"));
            tokio::spawn(limiter.check(key).into_future())
        };
        proxy.hold();
        let first = ask("first");
        // These two go together, once the first has given up.
        sleep(DEADLINE / 5).await;
        let late = ask("late");
        sleep(DEADLINE / 2).await;
        let last = ask("last");
        for gone in [first, late] {
            let decision = gone.await.expect("an answer");
            assert!(matches!(fault(&decision), StoreError::Timeout));
        }
        proxy.pass();
        let decision = last.await.expect("an answer");
        if decision.source() != Source::Store {
            // The machine was busy elsewhere.
            assert!(try_again < 5, "{decision:?}");
            continue;
        }
        assert!(decision.is_admitted());
        let keys = server.keys();
        assert!(keys.iter().any(|key| key.contains("last")), "{keys:?}");
        assert!(!keys.iter().any(|key| key.contains("late")), "{keys:?}");
        return;
    }
}
