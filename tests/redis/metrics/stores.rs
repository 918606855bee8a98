//! The metrics of the store, and of its failures.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
};

use tollgate::observe::{StoreCallEvent, StoreStats};
use tollgate_tests::{prelude::*, stores::limiter};

use crate::metrics::support::*;

fn policy() -> Policy {
    daily("api", 3)
}

/// A limiter that rejects while its store fails.
fn rejecting(observed: &Observed, store: impl Store) -> Limiter {
    let builder = observed.limiter().store(store);
    limiter(builder.on_store_error(OnStoreError::Reject), [policy()])
}

#[tokio::test]
async fn calls_their_time_and_the_requests_in_them_are_counted_by_server() {
    let (server, observed) = (Server::start(), Observed::default());
    let limiter = on(&server, &observed, [policy()]);
    let mut rng = Rng::new(0);
    let checks = (0..100).map(|_| limiter.check(random_key(&mut rng)).into_future());
    join_all(checks).await;
    let exposition = observed.exposition();
    let node = server.addr().to_string();
    let of_node = |series: &str| value(&exposition, &format!("{series} node={node}"));
    let calls = |result: &str| of_node(&format!("store_calls_total result={result}"));
    // The server did not know the script at first, which is no failure.
    let scripts = server.calls("eval");
    assert!(scripts >= 1);
    assert_eq!(
        [calls("ok"), calls("repeated"), calls("error")],
        [server.calls("evalsha") as f64, scripts as f64, 0.0]
    );
    assert_eq!(value(&exposition, "store_errors_total"), 0.0);
    assert_eq!(of_node("batch_requests_sum"), 100.0);
    assert_eq!(of_node("batch_requests_count"), calls("ok"));
    let timed = of_node("store_call_seconds_count");
    assert_eq!(timed, calls("ok") + calls("repeated"));
    assert_eq!(of_node("circuit_breaker_state"), 0.0);
    assert!(of_node("store_connections") >= 1.0);
    let decided = value(&exposition, "decision_seconds_count source=store");
    assert_eq!(decided, 100.0);
}

/// The value of a metric of calls that failed, and of those by code.
fn failures(observed: &Observed, code: &str) -> [f64; 2] {
    let of_code = format!("store_errors_total code={code}");
    ["store_calls_total result=error", &of_code].map(|series| value_now(observed, series))
}

#[tokio::test]
async fn a_call_whose_requests_fail_within_the_script_is_counted_as_a_failure() {
    let (server, observed) = (Server::start(), Observed::default());
    let limiter = rejecting(&observed, redis(&server));
    assert!(limiter.check("alice").await.is_admitted());
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).ok();
    assert!(!limiter.check("bob").await.is_admitted());
    assert_eq!(failures(&observed, "oom"), [1.0, 1.0]);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    let key = server.keys().concat();
    server.command(&["SET", &key, "of another program"]).ok();
    assert!(!limiter.check("alice").await.is_admitted());
    assert_eq!(failures(&observed, "corrupt_key"), [2.0, 1.0]);
    assert!(limiter.check("bob").await.is_admitted());
    assert_eq!(failures(&observed, "corrupt_key"), [2.0, 1.0]);
}

/// A server that replies `OK` to everything, which no script does.
fn server_of_nonsense() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                // A command is `*3`, and then two lines for each of its words, which hold no line ends here.
                while let Some(line) = lines.next() {
                    let words = line.strip_prefix('*').and_then(|words| words.parse().ok());
                    let words: usize = words.expect("a command");
                    lines.by_ref().take(2 * words).for_each(drop);
                    (&stream).write_all(b"+OK\r\n").expect("sent");
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_reply_that_cannot_be_read_is_counted_as_a_failure() {
    let observed = Observed::default();
    let store = RedisStore::builder().url(format!("redis://{}", server_of_nonsense()));
    let limiter = rejecting(&observed, store.timeout(TEST_TIMEOUT).built());
    assert!(!limiter.check("alice").await.is_admitted());
    let failed = value_now(&observed, "requests_total outcome=store_failed");
    assert_eq!((failed, failures(&observed, "garbled")), (1.0, [1.0, 1.0]));
}

#[tokio::test]
async fn cached_rejections_are_counted_and_have_a_source_of_their_own() {
    let (server, observed) = (Server::start(), Observed::default());
    let limiter = on(&server, &observed, [policy()]);
    send(&limiter, 10).await;
    let rejected = |source| {
        let series = format!("requests_total outcome=rejected source={source}");
        value_now(&observed, &series)
    };
    assert_eq!(rejected("store") + rejected("rejection_cache"), 7.0);
    assert!(rejected("rejection_cache") >= 1.0);
    assert_eq!(value_now(&observed, "rejection_cache_entries"), 1.0);
}

#[tokio::test]
async fn a_failing_store_shows_by_errors_its_circuit_breaker_and_uncounted_requests() {
    let (server, observed) = (Server::start(), Observed::default());
    let limiter = on(&server, &observed, [policy()]);
    assert!(limiter.check("alice").await.is_admitted());
    let node = server.addr().to_string();
    let state = || value_now(&observed, &format!("circuit_breaker_state node={node}"));
    assert_eq!(state(), 0.0);
    server.kill();
    let mut asked = 0;
    until("the circuit breaker opens", async || {
        asked += 1;
        assert!(limiter.check("alice").await.is_admitted());
        state() > 0.0
    })
    .await;
    let exposition = observed.exposition();
    let uncounted = value(&exposition, "admitted_uncounted_total");
    let by_fallback = value(
        &exposition,
        "requests_total outcome=admitted source=fallback",
    );
    assert_eq!([uncounted, by_fallback], [f64::from(asked); 2]);
    let series = format!("store_calls_total node={node} result=error");
    let failed = value(&exposition, &series);
    let by_code = value(&exposition, "store_errors_total");
    assert!(failed >= 1.0 && by_code == failed, "{failed}, {by_code}");
    server.restart();
    until("the circuit breaker closes", async || {
        drop(limiter.check("alice").await);
        state() == 0.0
    })
    .await;
}

#[tokio::test]
async fn requests_that_are_rejected_for_a_failed_store_have_an_outcome_of_their_own() {
    let observed = Observed::default();
    let limiter = rejecting(&observed, StubStore::unreachable());
    assert!(limiter.admit("alice").await.is_err());
    let failed = value_now(&observed, "requests_total outcome=store_failed");
    let uncounted = value_now(&observed, "admitted_uncounted_total");
    assert_eq!((failed, uncounted), (1.0, 0.0));
}

#[tokio::test]
async fn servers_beyond_the_64th_share_a_label() {
    let observed = Observed::default();
    let error = StoreError::server("OOM", "");
    for number in 0..200 {
        let node = format!("10.0.0.{number}:6379");
        let call = StoreCallEvent::new(&node, ms(1)).with_ops(2, 2);
        observed.metrics.on_store_call(&call);
        observed.metrics.on_store_call(&call.with_error(&error));
    }
    let exposition = observed.exposition();
    let connections = exposition.find("tollgate_store_connections", &[]);
    assert_eq!(connections.count(), 65);
    for (series, expected) in [
        ("store_calls_total node=10.0.0.63:6379", 2.0),
        ("store_calls_total node=other result=ok", 136.0),
        ("store_calls_total", 400.0),
        ("store_errors_total code=oom", 200.0),
    ] {
        assert_eq!(value(&exposition, series), expected, "{series}");
    }
}

#[tokio::test]
async fn refunds_that_were_dropped_and_unconfirmed_ones_are_counters_of_their_own() {
    let observed = Observed::default();
    let store = StubStore::with_stats(|| {
        let mut state = StoreStats::default();
        (state.dropped_refunds, state.unconfirmed_refunds) = (3, 5);
        state
    });
    let _limiter = rejecting(&observed, store);
    assert_eq!(value_now(&observed, "refunds_dropped_total"), 3.0);
    assert_eq!(value_now(&observed, "refunds_unconfirmed_total"), 5.0);
}
