//! A cached rejection rejects without a call of the server, and for no longer than the server would.

use testkit::Clock as ServerClock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tollgate::observe::DecisionSource::{RejectionCache, Store};
use tollgate_tests::prelude::*;

use crate::{shared::SameTime, store::support::*};

pub(crate) const BOUND: Duration = secs(1);

pub(crate) fn world() -> (ServerClock, Server) {
    let clock = ServerClock::at(START);
    let server = Server::builder().clock(&clock).start();
    (clock, server)
}

pub(crate) fn store(server: &Server, clock: &ServerClock) -> RedisStore {
    let store = RedisStore::builder()
        .url(server.url())
        // Their version is read by the command that reads the epoch.
        .max_overrides(0)
        .timeout(TEST_TIMEOUT);
    let store = store
        .rejection_cache_clock(SameTime(clock.clone()))
        .rejection_cache_staleness(BOUND);
    store.build().expect("a store")
}

pub(crate) fn three_a_minute(store: RedisStore) -> Limiter {
    limiter(store, [Policy::new("p", Quota::requests(3).per_minute())])
}

pub(crate) fn key() -> Key {
    Key::new("k")
}

pub(crate) fn wait(decision: &Decision) -> Option<Duration> {
    match decision.policy("p")?.retry_after() {
        RetryAfter::In(wait) => Some(wait),
        _ => None,
    }
}

pub(crate) async fn use_up(limiter: &Limiter) -> Decision {
    for _ in 0..3 {
        assert!(limiter.check(key()).await.is_admitted());
    }
    let rejected = limiter.check(key()).await;
    assert_eq!((rejected.is_admitted(), rejected.source()), (false, Store));
    rejected
}

/// Whether a request is admitted, and where that is decided.
pub(crate) async fn result(
    limiter: &Limiter,
    cost: u64,
) -> (bool, DecisionSource, Option<Duration>) {
    let decision = limiter.check(key()).cost(cost).await;
    (decision.is_admitted(), decision.source(), wait(&decision))
}

/// Where a request is decided.
pub(crate) async fn source(limiter: &Limiter) -> DecisionSource {
    limiter.check(key()).await.source()
}

/// Waits until the store has read the epoch so often, which it does in the background.
pub(crate) async fn epoch_is_read(server: &Server, reads: u64) {
    until("the epoch is read", async || server.calls("get") >= reads).await;
    wait_for_read_replies(server).await;
}

/// Lets every task go on that waits for a reply received by now: on a runtime of one thread, it does so before more
/// replies are read.
pub(crate) async fn wait_for_read_replies(server: &Server) {
    let mut stream = TcpStream::connect(server.addr()).await.expect("a server");
    for _ in 0..2 {
        stream.write_all(b"PING\r\n").await.expect("a request");
        let mut pong = [0; 7];
        stream.read_exact(&mut pong).await.expect("a response");
        assert_eq!(&pong, b"+PONG\r\n");
    }
}

#[tokio::test]
async fn a_rejected_key_costs_the_server_nothing_until_it_can_be_admitted() {
    let (clock, server) = world();
    let limiter = three_a_minute(store(&server, &clock));
    assert_eq!(wait(&use_up(&limiter).await), Some(ms(20_000)));
    // The epoch is read by a call of its own.
    epoch_is_read(&server, 1).await;
    server.reset_stats();
    // The first rejection is from before the epoch was known, and is sent once more.
    clock.advance(ms(400));
    for _ in 0..100 {
        let rejected = limiter.check(key()).await;
        assert_eq!(rejected.source(), RejectionCache);
        assert_eq!(wait(&rejected), Some(ms(19_600)));
        assert_eq!(rejected.policy("p").expect("a policy").remaining(), 0);
    }
    assert_eq!(server.calls("evalsha"), 0);
    let mut sent = 0;
    for step in 1..=40 {
        clock.advance(ms(450));
        let reads = server.calls("get");
        let rejected = limiter.check(key()).await;
        assert!(!rejected.is_admitted());
        sent += u64::from(rejected.source() == Store);
        // It's read when the last time is half a bound ago.
        if step % 2 == 1 {
            epoch_is_read(&server, reads + 1).await;
        }
    }
    assert_eq!((sent, server.calls("evalsha")), (1, 1));
    clock.set(START + 20_000_000);
    let admitted = limiter.check(key()).await;
    assert_eq!((admitted.is_admitted(), admitted.source()), (true, Store));
}

#[tokio::test]
async fn a_cached_rejection_reports_each_policy_as_the_store_did() {
    let (clock, server) = world();
    let policies = [
        Policy::new("few", Quota::requests(1).per_minute()),
        Policy::new("many", Quota::requests(9).per_minute()),
    ];
    let limiter = limiter(store(&server, &clock), policies);
    assert!(limiter.check(key()).await.is_admitted());
    let said = |decision: &Decision| {
        let verdicts = decision.policies();
        let verdicts = verdicts.map(|policy| (policy.policy().to_owned(), policy.remaining()));
        (decision.source(), verdicts.collect::<Vec<_>>())
    };
    let each = vec![("few".to_owned(), 0), ("many".to_owned(), 8)];
    let rejected = limiter.check(key()).await;
    assert_eq!(said(&rejected), (Store, each.clone()));
    let rejected = limiter.check(key()).await;
    assert_eq!(said(&rejected), (RejectionCache, each));
    let error = rejected.into_result().expect_err("a rejection");
    assert_eq!(error.retry_after(), RetryAfter::In(ms(60_000)));
}

#[tokio::test]
async fn charged_rejections_and_in_flight_limits_always_call_the_store() {
    let (clock, server) = world();
    let counts = Policy::new("p", Quota::requests(1).per_minute()).charge_rejected(true);
    let permit_limiter = Policy::new("p", Quota::concurrent(1));
    for policy in [counts, permit_limiter] {
        server.flush();
        let limiter = limiter(store(&server, &clock), [policy]);
        let admitted = limiter.check(key()).await;
        for _ in 0..3 {
            let rejected = limiter.check(key()).await;
            assert_eq!((rejected.is_admitted(), rejected.source()), (false, Store));
        }
        drop(admitted);
    }
}
