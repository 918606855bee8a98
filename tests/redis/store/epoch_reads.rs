//! The epoch is read twice per bound at most, whatever comes of it.

use tollgate_tests::prelude::*;

use crate::store::support::*;

const BOUND: Duration = secs(1);

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000))
}

fn one_a_week(url: String, clock: &ManualClock) -> Limiter {
    // The version of overrides is read by the command that reads the epoch.
    let store = RedisStore::builder().url(url).overrides(false);
    let store = store.rejection_cache_clock(clock.clone());
    let store = store.rejection_cache_staleness(BOUND).timeout(TEST_TIMEOUT);
    let policy = Policy::new("p", Quota::requests(1).per_week());
    limiter(store.built(), [policy])
}

async fn ask(limiter: &Limiter) -> Decision {
    limiter.check("k").await
}

/// Rejected once, by the server.
async fn rejected(limiter: &Limiter) {
    assert!(ask(limiter).await.is_admitted());
    assert!(!admitted_by_store(&ask(limiter).await));
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
    let is_requested = async || rejected_calls(&server, "eval") > 0;
    until("it is requested", is_requested).await;
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
fn the_epoch_is_read_although_the_runtime_of_the_request_is_not_driven() {
    let (server, clock) = (Server::start(), clock());
    let limiter = one_a_week(server.url(), &clock);
    let runtime = current_thread();
    runtime.block_on(async {
        rejected(&limiter).await;
        until("it is read", async || server.calls("get") > 0).await;
    });
    let calls = server.calls("get");
    clock.advance(BOUND / 2);
    testkit::until("it is read again", || {
        // Decided at its first poll, after which the runtime does nothing.
        let decision = runtime.block_on(ask(&limiter));
        assert_eq!(decision.source(), DecisionSource::RejectionCache);
        (server.calls("get") > calls).then_some(())
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
        background_goes_on();
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
