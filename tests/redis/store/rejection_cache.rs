//! A cached rejection rejects without a call of the server, and for no longer than the server would.

use testkit::Clock as ServerClock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tollgate::clock::Clock;
use tollgate_tests::prelude::*;

use crate::store::support::*;

pub(crate) const BOUND: Duration = Duration::from_secs(1);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The cache goes by the server's clock, which only moves when it is set.
#[derive(Debug)]
pub(crate) struct SameTime(pub(crate) ServerClock);

impl Clock for SameTime {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.micros() as i64)
    }
}

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
    assert_eq!(
        (rejected.is_admitted(), rejected.source()),
        (false, DecisionSource::Store)
    );
    rejected
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
        assert_eq!(rejected.source(), DecisionSource::RejectionCache);
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
        sent += u64::from(rejected.source() == DecisionSource::Store);
        // It's read when the last time is half a bound ago.
        if step % 2 == 1 {
            epoch_is_read(&server, reads + 1).await;
        }
    }
    assert_eq!((sent, server.calls("evalsha")), (1, 1));
    clock.set(START + 20_000_000);
    let admitted = limiter.check(key()).await;
    assert_eq!(
        (admitted.is_admitted(), admitted.source()),
        (true, DecisionSource::Store)
    );
}

#[tokio::test]
async fn a_refund_by_this_process_is_available_at_once() {
    let (clock, server) = world();
    let limiter = three_a_minute(store(&server, &clock));
    let _ = use_up(&limiter).await;
    let _ = limiter.reset(key()).await.expect("a response");
    assert!(limiter.check(key()).await.is_admitted());

    let _ = limiter.reset(key()).await.expect("a response");
    let mut paid = limiter.check(key()).await;
    for _ in 0..2 {
        assert!(limiter.check(key()).await.is_admitted());
    }
    assert!(!limiter.check(key()).await.is_admitted());
    assert_eq!(
        limiter.check(key()).await.source(),
        DecisionSource::RejectionCache
    );
    assert_eq!(paid.refund(1).await.expect("a response")[0].units(), 1);
    assert!(limiter.check(key()).await.is_admitted());
}

#[tokio::test]
async fn a_refund_by_another_process_is_available_within_the_bound() {
    let (clock, server) = world();
    let here = three_a_minute(store(&server, &clock));
    let there = three_a_minute(store(&server, &clock));
    let _ = use_up(&here).await;
    epoch_is_read(&server, 1).await;
    // Sent once more, since the epoch is known.
    clock.advance(BOUND);
    assert_eq!(here.check(key()).await.source(), DecisionSource::Store);
    let _ = there.reset(key()).await.expect("a response");
    assert_eq!(
        here.check(key()).await.source(),
        DecisionSource::RejectionCache
    );
    clock.advance(BOUND);
    assert!(here.check(key()).await.is_admitted());
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
    assert_eq!(said(&rejected), (DecisionSource::Store, each.clone()));
    let rejected = limiter.check(key()).await;
    assert_eq!(said(&rejected), (DecisionSource::RejectionCache, each));
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
            assert_eq!(
                (rejected.is_admitted(), rejected.source()),
                (false, DecisionSource::Store)
            );
        }
        drop(admitted);
    }
}

/// Keys by the dozen, on a server whose clock runs, and on connections that are cut again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_under_512_tasks_while_connections_are_cut() {
    const LIMIT: u64 = 50;
    let server = Server::start();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let store = store.build().expect("a store");
    let quota = Quota::requests(LIMIT).per_day();
    let limiter = limiter(store, [Policy::new("p", quota)]);
    let tasks: Vec<_> = (0..512)
        .map(|task| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let (mut admitted, mut faults) = (0_u64, 0);
                for round in 0..40 {
                    let key = Key::new(format!("{}", (task + round) % 12));
                    let decision = limiter.check(key).await;
                    match decision.source() {
                        DecisionSource::Store | DecisionSource::RejectionCache => {
                            admitted += u64::from(decision.is_admitted())
                        }
                        _ => faults += 1,
                    }
                }
                (admitted, faults)
            })
        })
        .collect();
    let mut cuts = 0;
    while tasks.iter().any(|task| !task.is_finished()) && cuts < 20 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        cuts += 1;
        tokio::time::sleep(ms(5)).await;
    }
    let (mut admitted, mut faults) = (0, 0);
    for task in tasks {
        let (passed, failed) = task.await.expect("it ends");
        (admitted, faults) = (admitted + passed, faults + failed);
    }
    // The charge of a call whose reply was cut off has admitted no request.
    assert!(
        admitted <= 12 * LIMIT,
        "{admitted} admitted, {faults} faults, {cuts} cuts"
    );
    assert!(
        admitted + faults >= 12 * LIMIT,
        "{admitted} admitted, {faults} faults"
    );
}
