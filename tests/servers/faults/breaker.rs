//! The breaker: an outage costs no deadlines, one probe finds out when it is over, and rejections are no failures.

use crate::faults::{error_codes::Connection, support::*};
use tokio::{task::JoinSet, time::sleep};
use tollgate::observe::{BreakerState, Event, Observer};

const UNITS: u64 = 1_000_000;

fn is_connection_error(decision: &Decision) -> bool {
    matches!(store_error(decision), StoreError::Connection { .. })
}

#[tokio::test]
async fn three_consecutive_failures_open_it_and_two_do_not() {
    let (_server, proxy) = network();
    let limiter = rejecting(through(&proxy), UNITS);
    for _ in 0..3 {
        proxy.cut();
        for _ in 0..2 {
            assert!(is_connection_error(&limiter.check(KEY).await));
        }
        proxy.pass();
        assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    }
    proxy.cut();
    for _ in 0..3 {
        store_error(&limiter.check(KEY).await);
    }
    assert!(is_open(&limiter));
}

#[tokio::test]
async fn rejections_and_errors_of_one_key_do_not_open_it() {
    let server = Server::start();
    let store = builder(server.url()).overrides(false).built();
    let limiter = rejecting(store, 1);
    let check = async |key: &str| limiter.check(Key::new(key)).await;
    assert!(check("mine").await.is_admitted());
    let connection = Connection::only(&server).await;
    let key = server.only_key();
    order(&server, &["DEL", &key]);
    order(&server, &["SADD", &key, "something else"]);
    let _ = check("spent").await;
    for _ in 0..20 {
        let error = store_error(&check("mine").await);
        assert_eq!(error.code(), "corrupt_key");
        let rejected = check("spent").await;
        assert_eq!(rejected.source(), DecisionSource::Store);
        assert!(matches!(rejected.kind(), DecisionKind::Rejected));
    }
    for _ in 0..20 {
        store_error(&check("mine").await);
    }
    // A script that the server has lost is sent again, and no request notices.
    order(&server, &["SCRIPT", "FLUSH"]);
    assert!(check("fresh").await.is_admitted());
    connection.is_kept(&server);
}

/// Requests that wait for a batch when it opens are decided, too.
#[tokio::test]
async fn a_request_queued_when_it_opens_does_not_wait_for_its_deadline() {
    let (server, proxy) = network();
    // Nothing else is sent.
    let store = builder(url(proxy.addr())).overrides(false);
    let limiter = rejecting(store.circuit_breaker_threshold(1).built(), UNITS);
    resumed(&limiter).await;
    server.pause();
    let check = |n| tokio::spawn(limiter.check(Key::new(format!("{n}"))).into_future());
    let before = proxy.forwarded();
    let first = check(0);
    until("it is in flight", async || proxy.forwarded() > before).await;
    // More keys than the batches in flight hold.
    let others: Vec<_> = (1..=600).map(check).collect();
    tokio::task::yield_now().await;
    proxy.cut();
    proxy.hold();
    assert!(is_connection_error(&first.await.expect("a response")));
    let mut queued = 0;
    for other in others {
        let decision = other.await.expect("a response");
        let is_queued = store_error(&decision).code() == "circuit_open";
        assert!(is_queued || is_connection_error(&decision));
        queued += u32::from(is_queued);
    }
    assert!(queued >= 600 - 3 * 128, "{queued}");
}

/// A request that is sent late has less than half of its time left, since the one before it took most of it.
#[tokio::test]
async fn a_request_that_is_sent_with_little_time_left_does_not_open_it() {
    let time = StillTime::new();
    let server = Server::start();
    let store = builder(server.url()).circuit_breaker_threshold(1);
    let limiter = rejecting(here(store), UNITS);
    let check = || tokio::spawn(limiter.check(KEY).into_future());
    let calls = || server.calls("evalsha");
    loop {
        let known = check().await.expect("a response");
        assert_eq!(known.source(), DecisionSource::Store);
        let before = calls();
        server.pause();
        let first = check();
        time.settle().await;
        time.advance(TEST_TIMEOUT / 10).await;
        let second = check();
        time.settle().await;
        time.advance(TEST_TIMEOUT * 7 / 10).await;
        // The reply to the first is there before this thread reads it and sends the second.
        server.resume();
        testkit::until("the first runs", || (calls() > before).then_some(()));
        // A reply may be written after that of a later command.
        order(&server, &["PING"]);
        server.pause();
        let first = first.await.expect("a response");
        assert_eq!(first.source(), DecisionSource::Store, "{first:?}");
        time.settle().await;
        time.advance(TEST_TIMEOUT * 35 / 100).await;
        let second = second.await.expect("a response");
        server.resume();
        if second.source() != DecisionSource::Store {
            assert_eq!(store_error(&second).code(), "timeout");
            break;
        }
    }
    let next = limiter.check(KEY).await;
    assert_eq!(next.source(), DecisionSource::Store, "{next:?}");
}

/// More requests of different keys come than the batches in flight hold, so that each later batch is sent with little time left.
#[tokio::test]
async fn a_silent_server_opens_it_however_many_requests_come() {
    const TIMEOUT: Duration = secs(2);
    let server = Server::start();
    let store = builder(server.url()).timeout(TIMEOUT);
    let limiter = rejecting(store.built(), UNITS);
    resumed(&limiter).await;
    server.pause();
    let (start, mut checks) = (Instant::now(), JoinSet::new());
    let mut sent = 0;
    until("it opens", async || {
        // 1,000 a second.
        while sent < start.elapsed().as_millis() {
            checks.spawn(limiter.check(Key::new(format!("{sent}"))).into_future());
            sent += 1;
        }
        sleep(ms(5)).await;
        is_open(&limiter)
    })
    .await;
    println!("open after {:.1?}", start.elapsed());
    server.resume();
}

/// No request waits for them, and each of them waits for its reply for nearly as long as a request does. A paused server replies to `PING`, and holds what may write:
/// a probe has to do what requests do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_open_no_request_waits_and_few_probes_are_sent_at_once_and_none_once_the_store_is_gone()
 {
    let (server, proxy) = network();
    let store = builder(url(proxy.addr())).overrides(false).built();
    let limiters = [(); 4].map(|()| rejecting(store.clone(), UNITS));
    for limiter in &limiters {
        resumed(limiter).await;
    }
    proxy.cut();
    opened(&limiters[0]).await;
    order(&server, &PAUSE_WRITES);
    proxy.pass();
    let (before, mut most) = (connected(&server), 0);
    until("eight probes", async || {
        for limiter in &limiters {
            let error = error_at_once(limiter);
            let next_probe = secs(0)..=secs(1);
            assert!(
                matches!(&error, Some(StoreError::CircuitOpen { retry_after, .. }) if next_probe.contains(retry_after)),
                "{error:?}"
            );
        }
        assert_eq!(held_by_pause(&server, "evalsha"), 0);
        most = most.max(held_by_pause(&server, "eval"));
        connected(&server) >= before + 8
    })
    .await;
    // The next one goes after half a second, though the last one has no result yet.
    assert!(most <= 6, "{most} at once");
    drop((limiters, store));
    let none_is_left = async || held_by_pause(&server, "eval") == 0;
    until("none is left", none_is_left).await;
}

#[tokio::test]
async fn all_stores_of_a_process_share_one_thread() {
    let limiters: Vec<_> = (0..300).map(|_| rejecting(nowhere(), UNITS)).collect();
    join_all(limiters.iter().map(opened)).await;
    let threads = fs::read_dir("/proc/self/task").expect("Linux");
    let names = threads.map(|thread| {
        let name = thread.expect("a thread").path().join("comm");
        fs::read_to_string(name).unwrap_or_default()
    });
    assert_eq!(names.filter(|name| name.trim() == "tollgate").count(), 1);
}

/// Holds the last reference to a store until its circuit breaker is probed.
#[derive(Debug, Default)]
struct Owner(Mutex<Option<Limiter>>);

impl Observer for Owner {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::BreakerChanged {
            state: BreakerState::HalfOpen,
            ..
        } = event
        {
            drop(self.0.lock().expect("no panic").take());
        }
    }
}

#[tokio::test]
async fn an_observer_may_drop_the_last_reference_to_the_store_that_is_probed() {
    let owner = Arc::new(Owner::default());
    let limiter = Limiter::builder()
        .store(nowhere())
        .policy(policy(UNITS))
        .on_store_error(OnStoreError::Reject)
        .observe(owner.clone())
        .built();
    opened(&limiter).await;
    *owner.0.lock().expect("no panic") = Some(limiter);
    let is_dropped = async || owner.0.lock().expect("no panic").is_none();
    until("the store is dropped", is_dropped).await;
    // The thread goes on.
    let server = Server::start();
    let limiter = rejecting(store(&server), UNITS);
    server.kill();
    opened(&limiter).await;
    server.restart();
    resumed(&limiter).await;
}

/// How many probes a server has had, those included that it would not run.
fn probes(server: &Server) -> u64 {
    let line = server.info("commandstats", "cmdstat_eval");
    let line = line.unwrap_or_default();
    let fields = line.split(',').filter_map(|field| field.split_once('='));
    let counts = fields.filter(|(name, _)| ["calls", "rejected_calls"].contains(name));
    counts
        .filter_map(|(_, count)| count.parse::<u64>().ok())
        .sum()
}

/// However many probes go, the breaker stays open.
async fn stays_open(limiter: &Limiter, server: &Server) {
    // A replica answers peeks.
    until("the breaker opens", async || {
        store_error(&limiter.check(KEY).await);
        is_open(limiter)
    })
    .await;
    let before = probes(server);
    until("four more probes", async || {
        assert!(is_open(limiter));
        probes(server) >= before + 4
    })
    .await;
}

/// It rejects a key whose quota is used up.
#[tokio::test]
async fn a_full_server_is_used_nevertheless() {
    let server = Server::builder()
        .arg("maxmemory-policy", "noeviction")
        .start();
    let proxy = Proxy::to(server.addr());
    let limiter = rejecting(through(&proxy), 1);
    assert!(limiter.check(Key::new("spent")).await.is_admitted());
    proxy.cut();
    opened(&limiter).await;
    order(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    proxy.pass();
    until("it is called again", async || {
        let decision = limiter.check(Key::new("spent")).await;
        decision.source() == DecisionSource::Store && !decision.is_admitted()
    })
    .await;
    let error = store_error(&limiter.check(Key::new("new")).await);
    assert_eq!(error.code(), "oom");
}

/// Of a replica, by a user with rights to the keys with the prefix alone, and none to remove them.
#[tokio::test]
async fn a_probe_needs_no_more_rights_than_counting_and_leaves_nothing_behind() {
    let server = Server::start();
    let rights = "~ab:* +@all -del -config";
    server.acl("gate", "secret", rights);
    let store = builder(server.url_as("gate", "secret")).prefix("ab:");
    let limiter = rejecting(store.built(), UNITS);
    order(&server, &DEMOTE);
    stays_open(&limiter, &server).await;
    order(&server, &PROMOTE);
    resumed(&limiter).await;
    assert_eq!(server.immortal_keys(), [""; 0]);
    let is_clean = async || server.keys() == ["ab:g3:p:whoever"];
    until("nothing is left but what was counted", is_clean).await;
}

/// Each reply takes longer than a probe is waited for before the next one goes, and there are two.
#[tokio::test]
async fn a_server_with_a_slow_network_is_found() {
    let (_server, proxy) = network();
    let limiter = rejecting(through(&proxy), UNITS);
    proxy.cut();
    opened(&limiter).await;
    proxy.delay(ms(700));
    resumed(&limiter).await;
}

#[tokio::test]
async fn a_late_reply_to_a_probe_closes_the_breaker() {
    let server = Server::start();
    let limiter = rejecting(hasty(server.url()), UNITS);
    resumed(&limiter).await;
    order(&server, &PAUSE_WRITES);
    opened(&limiter).await;
    // Requests are sent by `EVALSHA`.
    let is_sent = async || held_by_pause(&server, "eval") > 0;
    until("there is a probe", is_sent).await;
    order(&server, &UNPAUSE);
    until("its reply closes it", async || !is_open(&limiter)).await;
}

/// A call that was sent to a server that was replaced gets no reply from its successor.
#[tokio::test]
async fn no_request_waits_until_its_deadline_for_a_probe_without_a_reply() {
    let (_server, proxy) = network();
    let store = builder(url(proxy.addr())).overrides(false);
    let limiter = rejecting(store.built(), UNITS);
    proxy.cut();
    opened(&limiter).await;
    proxy.hold();
    let are_sent = async || proxy.connections() >= 6;
    until(
        "as many probes without a reply as are sent at once",
        are_sent,
    )
    .await;
    proxy.hold_open();
    let back = Instant::now();
    resumed(&limiter).await;
    println!("resumed {:?} after the server's return", back.elapsed());
    assert!(back.elapsed() < TEST_TIMEOUT / 3);
}
