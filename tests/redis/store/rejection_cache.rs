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

pub(crate) fn store(server: &Server, clock: &ServerClock) -> RedisStore {
    // The version of overrides is read by the command that reads the epoch.
    let store = RedisStore::builder().url(server.url()).overrides(false);
    let store = store.rejection_cache_clock(SameTime(clock.clone()));
    store
        .rejection_cache_staleness(BOUND)
        .timeout(TEST_TIMEOUT)
        .built()
}

pub(crate) fn three_a_minute(store: RedisStore) -> Limiter {
    limiter(store, [Policy::new("p", Quota::requests(3).per_minute())])
}

pub(crate) fn key() -> Key {
    Key::new("k")
}

/// Whether a request is admitted, where that is decided, and how long it would have to wait under `p`.
pub(crate) type Outcome = (bool, DecisionSource, Option<Duration>);

pub(crate) async fn result(limiter: &Limiter, cost: u64) -> Outcome {
    let decision = limiter.check(key()).cost(cost).await;
    let wait = match decision.policy("p").map(|policy| policy.retry_after()) {
        Some(RetryAfter::In(wait)) => Some(wait),
        _ => None,
    };
    (decision.is_admitted(), decision.source(), wait)
}

pub(crate) async fn use_up(limiter: &Limiter) -> Option<Duration> {
    for _ in 0..3 {
        assert!(limiter.check(key()).await.is_admitted());
    }
    let (is_admitted, source, wait) = result(limiter, 1).await;
    assert_eq!((is_admitted, source), (false, Store));
    wait
}

/// Where a request is decided.
pub(crate) async fn source(limiter: &Limiter) -> DecisionSource {
    limiter.check(key()).await.source()
}

/// Waits until the store has read the epoch so often, which the background thread does.
pub(crate) async fn epoch_is_read(server: &Server, reads: u64) {
    until("the epoch is read", async || server.calls("get") >= reads).await;
    background_goes_on();
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
    let (clock, server) = on_a_clock();
    let limiter = three_a_minute(store(&server, &clock));
    assert_eq!(use_up(&limiter).await, Some(ms(20_000)));
    // The epoch is read by a call of its own.
    epoch_is_read(&server, 1).await;
    server.reset_stats();
    // The first rejection is from before the epoch was known, and is sent once more.
    clock.advance(ms(400));
    for _ in 0..100 {
        let rejected = result(&limiter, 1).await;
        assert_eq!(rejected, (false, RejectionCache, Some(ms(19_600))));
    }
    assert_eq!(limiter.check(key()).await.left("p"), 0);
    assert_eq!(server.calls("evalsha"), 0);
    let mut sent = 0;
    for step in 1..=40 {
        clock.advance(ms(450));
        let reads = server.calls("get");
        let (is_admitted, source, _) = result(&limiter, 1).await;
        assert!(!is_admitted);
        sent += u64::from(source == Store);
        // It's read when the last time is half a bound ago.
        if step % 2 == 1 {
            epoch_is_read(&server, reads + 1).await;
        }
    }
    assert_eq!((sent, server.calls("evalsha")), (1, 1));
    clock.set(START + 20_000_000);
    let (is_admitted, source, _) = result(&limiter, 1).await;
    assert_eq!((is_admitted, source), (true, Store));
}

#[tokio::test]
async fn a_cached_rejection_reports_each_policy_as_the_store_did() {
    let (clock, server) = on_a_clock();
    let policies = [
        Policy::new("few", Quota::requests(1).per_minute()),
        Policy::new("many", Quota::requests(9).per_minute()),
    ];
    let limiter = limiter(store(&server, &clock), policies);
    assert!(limiter.check(key()).await.is_admitted());
    for source in [Store, RejectionCache] {
        let rejected = limiter.check(key()).await;
        assert_eq!(rejected.source(), source);
        assert_eq!(["few", "many"].map(|name| rejected.left(name)), [0, 8]);
        assert_eq!(rejected.policies().len(), 2);
        let error = rejected.into_result().expect_err("a rejection");
        assert_eq!(error.retry_after(), RetryAfter::In(ms(60_000)));
    }
}

/// A policy whose rejections count has the last word on those of all.
#[tokio::test]
async fn charged_rejections_and_in_flight_limits_always_call_the_store() {
    let (clock, server) = on_a_clock();
    let a_minute = |name: &str, requests| Policy::new(name, Quota::requests(requests).per_minute());
    let counts = |requests| a_minute("counts", requests).charge_rejected(true);
    for policies in [
        vec![counts(1)],
        vec![Policy::new("permits", Quota::concurrent(1))],
        vec![a_minute("few", 1), counts(9)],
    ] {
        server.flush();
        let limiter = limiter(store(&server, &clock), policies);
        let admitted = limiter.check(key()).await;
        assert!(admitted.is_admitted());
        for _ in 0..3 {
            let rejected = limiter.check(key()).await;
            assert_eq!((rejected.is_admitted(), rejected.source()), (false, Store));
        }
        drop(admitted);
    }
}
