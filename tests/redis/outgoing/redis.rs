//! On Redis, where other processes may be faster, and results take a while.

use testkit::Clock;
use tollgate_tests::{prelude::*, until::TEST_TIMEOUT, world::START};

use crate::outgoing::support::*;

/// A server whose clock stands still.
pub(crate) fn server() -> (Clock, Server) {
    let clock = Clock::at(START);
    let server = Server::builder().clock(&clock).start();
    (clock, server)
}

/// On connections of its own.
pub(crate) fn on(server: &Server, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO);
    limiter_on(store.built(), policies)
}

#[tokio::test]
async fn two_queues_share_a_quota_and_never_exceed_it() {
    for quota in [
        window("p", "5/50ms"),
        policy("p", "5/50ms").strategy(SlidingLog),
    ] {
        let (clock, server) = server();
        let limiters = [(); 2].map(|()| on(&server, [quota.clone()]));
        let turns = Arc::new(AtomicU64::new(0));
        let mut waiting = JoinSet::new();
        for n in 0..40 {
            let (limiter, turns) = (limiters[n % 2].clone(), turns.clone());
            waiting.spawn(async move {
                let _ = wait(&limiter).await.expect("a turn");
                turns.fetch_add(1, Ordering::SeqCst);
            });
        }
        for round in 1..=8 {
            // The server's clock is frozen, so each round is one window.
            let had = || turns.load(Ordering::SeqCst);
            until("the quota is used", async || had() >= 5 * round).await;
            // The sleeping waiters call the store again, both of them.
            let sent = server.calls("evalsha");
            if round < 8 {
                let looked = async || server.calls("evalsha") >= sent + 6;
                until("both look again", looked).await;
            }
            assert_eq!(had(), 5 * round);
            // Redis expires a key in the millisecond after its last.
            clock.advance(ms(51));
        }
        waiting.join_all().await;
        assert_eq!(server.immortal_keys(), [""; 0]);
    }
}

#[tokio::test]
async fn the_charge_of_a_waiter_is_refunded_wherever_it_is_dropped() {
    let (clock, server) = server();
    let limiter = on(&server, [window("p", "2/300ms")]);
    let _ = wait(&limiter).cost(2).await.expect("all");
    let waiting = limiter.clone();
    let mut head = tokio::spawn(async move { wait(&waiting).await });
    let sent = server.calls("evalsha");
    until("it is called", async || server.calls("evalsha") > sent).await;
    let mut behind = queued(wait(&limiter));
    clock.advance(ms(301));
    let _ = (&mut head).await.expect("no panic").expect("admitted");
    server.pause();
    still_waits(&mut behind);
    // It is dropped on a thread without the runtime, while its call is in flight.
    let dropped = thread::spawn(move || drop(behind)).join();
    dropped.expect("no panic");
    server.resume();
    until("it is refunded", async || left(&limiter, "p").await == 1).await;
}

#[tokio::test]
async fn a_store_that_hangs_holds_no_waiter_longer_than_its_timeout() {
    let server = Server::start();
    let store = RedisStore::builder().url(server.url()).timeout(ms(1_000));
    let builder = Limiter::builder().store(store.built());
    let builder = builder.on_store_error(OnStoreError::Admit);
    let limiter = stores::limiter(builder, [policy("p", "1/hour burst 1")]);
    let _ = wait(&limiter).await.expect("the first");
    server.pause();
    let mut waiting = JoinSet::new();
    for _ in 0..200 {
        let limiter = limiter.clone();
        waiting.spawn(async move { wait(&limiter).await.map(drop) });
    }
    let start = Instant::now();
    let admitted = waiting.join_all().await;
    assert!(admitted.iter().all(Result::is_ok), "{admitted:?}");
    // One after the other they would take 200 seconds.
    assert!(start.elapsed() < secs(100));
    server.resume();
}
