//! The epoch is read twice per bound at most, whatever comes of it.

use testkit::Proxy;
use tollgate_tests::prelude::*;

use crate::store::support::*;

const BOUND: Duration = secs(1);

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000))
}

fn one_a_week(url: String, clock: &ManualClock) -> Limiter {
    let store = RedisStore::builder()
        .url(url)
        // Their version is read by the command that reads the epoch.
        .max_overrides(0)
        .timeout(TEST_TIMEOUT)
        .rejection_cache_clock(clock.clone())
        .rejection_cache_staleness(BOUND);
    let policy = Policy::new("p", Quota::requests(1).per_week());
    limiter(store.build().expect("a store"), [policy])
}

async fn ask(limiter: &Limiter) -> Decision {
    limiter.check("k").await
}

/// Rejected once, by the server.
async fn rejected(limiter: &Limiter) {
    assert!(ask(limiter).await.is_admitted());
    let rejected = ask(limiter).await;
    assert_eq!(
        (rejected.is_admitted(), rejected.source()),
        (false, DecisionSource::Store)
    );
}

/// How often a command was turned away before it ran.
fn rejected_calls(server: &Server, command: &str) -> u64 {
    let line = server.info("commandstats", &format!("cmdstat_{command}"));
    let line = line.unwrap_or_default();
    let count = line.rsplit("rejected_calls=").next();
    let count = count.and_then(|count| count.split(',').next()?.parse().ok());
    count.unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_epoch_is_not_read_at_each_rejection() {
    let (server, clock) = (Server::start(), clock());
    server.acl("keys", "pw", "~tg:g3:* +@all");
    let limiter = one_a_week(server.url_as("keys", "pw"), &clock);
    rejected(&limiter).await;
    until("it is requested", async || {
        rejected_calls(&server, "eval") > 0
    })
    .await;
    for _ in 0..20 {
        for _ in 0..20 {
            assert_eq!(ask(&limiter).await.source(), DecisionSource::RejectionCache);
        }
        // The reader gets to it.
        server.command(&["PING"]).ok();
        tokio::task::yield_now().await;
    }
    assert_eq!(rejected_calls(&server, "eval"), 1);
    clock.advance(BOUND / 2);
    // The first read may not have ended for this process.
    until("it is tried again", async || {
        assert_eq!(ask(&limiter).await.source(), DecisionSource::RejectionCache);
        rejected_calls(&server, "eval") == 2
    })
    .await;
}

#[test]
fn a_runtime_that_ends_during_an_epoch_read_leaves_it_to_the_next() {
    let (server, clock) = (Server::start(), clock());
    let proxy = Proxy::to(server.addr());
    let limiter = one_a_week(format!("redis://{}", proxy.addr()), &clock);
    let first = multi_thread(1);
    first.block_on(async {
        rejected(&limiter).await;
        until("it is read", async || server.calls("get") > 0).await;
        clock.advance(BOUND / 2);
        proxy.hold();
        assert_eq!(ask(&limiter).await.source(), DecisionSource::RejectionCache);
    });
    drop(first);
    proxy.pass();
    clock.advance(BOUND / 2);
    server.reset_stats();
    multi_thread(1).block_on(async {
        let sent = limiter.check("k").into_future();
        assert_eq!(sent.await.source(), DecisionSource::Store);
        until("it is read again", async || server.calls("eval") > 0).await;
    });
}

/// As if there were none: a rejection older than the bound is not used.
#[tokio::test]
async fn without_the_right_to_info_a_rejection_is_cached_for_the_bound() {
    let (server, clock) = (Server::start(), clock());
    server.acl("few", "pw", "~tg:* +@all -info");
    let limiter = one_a_week(server.url_as("few", "pw"), &clock);
    rejected(&limiter).await;
    for _ in 0..4 {
        assert_eq!(ask(&limiter).await.source(), DecisionSource::RejectionCache);
        let calls = server.calls("eval");
        clock.advance(BOUND);
        assert_eq!(ask(&limiter).await.source(), DecisionSource::Store);
        until("it is requested", async || server.calls("eval") > calls).await;
    }
}

#[tokio::test]
async fn an_epoch_that_is_long_or_has_no_ttl_is_replaced() {
    let long = "x".repeat(1_000);
    for set in [
        &["SET", "tg:gen", "for ever"][..],
        &["SET", "tg:gen", &long, "PX", "3600000"],
    ] {
        let (server, clock) = (Server::start(), clock());
        server.command(set).ok();
        rejected(&one_a_week(server.url(), &clock)).await;
        let value = || server.command(&["GET", "tg:gen"]).text();
        until("it is another one", async || value() != set[2]).await;
        assert!(value().len() <= 64);
        assert_eq!(server.immortal_keys(), [""; 0]);
    }
}
