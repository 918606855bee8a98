//! What survives a change: connections, the circuit breaker, cached rejections, shadow statistics, and what was counted in process.

use testkit::Proxy;
use tollgate::store::RedisStoreBuilder;
use tollgate_tests::prelude::*;

use crate::reconfigure::support::*;

fn builder(url: String) -> RedisStoreBuilder {
    RedisStore::builder()
        .url(url)
        .timeout(TEST_TIMEOUT)
        .connections(1)
        // They are read in the background, by a connection of their own.
        .overrides(false)
}

/// A limiter that caches rejections for longer than the test takes.
fn caching(server: &Server, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let store = builder(server.url()).rejection_cache_staleness(secs(3_600));
    settings(policies).store(store.built()).built()
}

/// Where a check is rejected from; `None` if it is admitted.
async fn rejected_from(limiter: &Limiter) -> Option<DecisionSource> {
    let decision = limiter.check(KEY).await;
    (!decision.is_admitted()).then(|| decision.source())
}

const FROM_CACHE: Option<DecisionSource> = Some(DecisionSource::RejectionCache);

/// The store rejects, and then the cache.
async fn is_cached_from_now_on(limiter: &Limiter) {
    assert_eq!(rejected_from(limiter).await, Some(DecisionSource::Store));
    assert_eq!(rejected_from(limiter).await, FROM_CACHE);
}

#[tokio::test]
async fn a_cached_rejection_of_a_kept_policy_still_needs_no_call_of_the_server() {
    let server = Server::start();
    let limiter = caching(&server, [window("p", "1/month")]);
    assert_eq!(rejected_from(&limiter).await, None);
    is_cached_from_now_on(&limiter).await;
    let before = server.calls("evalsha");
    for n in 1..=20 {
        // Other settings of the limiter, and of the policy besides what it counts.
        let missing = [MissingKey::Reject, MissingKey::Skip][n % 2];
        let settings = settings([window("p", "1/month").missing_key(missing)]);
        let changes = limiter.reconfigure(settings.skip_path("/a"));
        changes.expect("valid");
        assert_eq!(rejected_from(&limiter).await, FROM_CACHE, "change {n}");
    }
    assert_eq!(server.calls("evalsha"), before);
}

#[tokio::test]
async fn a_cached_rejection_of_an_altered_policy_is_not_used() {
    let server = Server::start();
    let (one, two) = (|| window("p", "1/month"), || window("p", "2/month"));
    let limiter = caching(&server, [one()]);
    assert_eq!(rejected_from(&limiter).await, None);
    is_cached_from_now_on(&limiter).await;
    replace(&limiter, [two()]);
    assert_eq!(rejected_from(&limiter).await, None, "2 a month");
    is_cached_from_now_on(&limiter).await;
    limiter.reset(KEY).await.expect("a response");
    replace(&limiter, [one()]);
    assert_eq!(rejected_from(&limiter).await, None, "it was reset");
    // Of several policies, one altered one is enough.
    replace(&limiter, [one(), window("q", "1/month")]);
    is_cached_from_now_on(&limiter).await;
    replace(&limiter, [window("p", "9/month"), window("q", "1/month")]);
    assert_eq!(rejected_from(&limiter).await, None);
    let other = window("q", "1/month").strategy(tollgate::ListWindow);
    replace(&limiter, [window("p", "9/month"), other]);
    assert_eq!(rejected_from(&limiter).await, None, "another strategy");
}

#[tokio::test]
async fn a_reset_after_the_change_invalidates_what_was_cached_before_it() {
    let server = Server::start();
    let limiter = caching(&server, [window("p", "1/month")]);
    assert_eq!(rejected_from(&limiter).await, None);
    is_cached_from_now_on(&limiter).await;
    replace(&limiter, [window("q", "9/month"), window("p", "1/month")]);
    limiter.reset([("p", KEY)]).await.expect("a response");
    let only_p = limiter.check([("p", KEY)]).await;
    assert!(only_p.is_admitted(), "{only_p:?}");
}

/// The ids of the server's connections, but the one that asks.
fn connections(server: &Server) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST"]).text();
    let others = list.lines().filter(|line| !line.contains("cmd=client"));
    let mut ids: Vec<_> = others
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn connections_stay_the_same_ones() {
    let server = Server::start();
    let limiter = caching(&server, [window("p", "1000/month")]);
    assert!(limiter.check(KEY).await.is_admitted());
    let before = connections(&server);
    assert!(!before.is_empty());
    for n in 1..200 {
        let p = window("p", &format!("{}/month", 1_000 + n));
        replace(&limiter, [p, window("q", "5000/month")]);
        assert!(limiter.check(KEY).await.is_admitted());
    }
    assert_eq!(connections(&server), before);
}

#[tokio::test]
async fn an_open_circuit_breaker_stays_open() {
    let server = Server::start();
    let store = builder(server.url()).built();
    let limiter = settings([window("p", "1000/month")]).store(store).built();
    assert!(limiter.check(KEY).await.is_admitted());
    server.kill();
    let is_open =
        |decision: &Decision| matches!(store_error(decision), StoreError::CircuitOpen { .. });
    until("it opens", async || is_open(&limiter.check(KEY).await)).await;
    for n in 1..20 {
        replace(&limiter, [window("p", &format!("{n}/month"))]);
        let check = tokio::task::unconstrained(limiter.check(KEY).into_future());
        assert!(is_open(&check.now_or_never().expect("without a call")));
    }
    server.restart();
    until("it closes", async || {
        limiter.check(KEY).await.source() == DecisionSource::Store
    })
    .await;
}

#[tokio::test]
async fn shadow_statistics_stay_with_a_kept_policy_and_start_afresh_with_an_altered_one() {
    for world in World::both() {
        let [shadow, other] = ["2/h", "3/h"].map(|quota| window("s", quota).shadow());
        let limiter = world.limiter([window("p", "100/h"), shadow.clone()]);
        for _ in 0..5 {
            assert!(limiter.check(KEY).await.is_admitted());
        }
        let stats = || {
            let stats = limiter.shadow_stats("s").expect("a shadow");
            (stats.evaluated, stats.would_reject)
        };
        assert_eq!(stats(), (5, 3));
        let q = window("q", "9/h").shadow();
        replace(&limiter, [shadow.clone(), window("p", "200/h"), q]);
        assert_eq!(stats(), (5, 3));
        assert!(limiter.check(KEY).await.is_admitted());
        assert_eq!(stats(), (6, 4));
        replace(&limiter, [window("p", "200/h"), other]);
        assert_eq!(stats(), (0, 0), "altered");
        replace(&limiter, [window("p", "200/h")]);
        assert!(limiter.shadow_stats("s").is_none());
        replace(&limiter, [window("p", "200/h"), shadow]);
        assert_eq!(stats(), (0, 0), "added");
        // In force as a limit, it rejects by what the shadow counted.
        replace(&limiter, [window("p", "200/h"), window("s", "2/h")]);
        assert!(!limiter.check(KEY).await.is_admitted());
    }
}

/// A limiter that counts in process while its network is cut, with three units charged on the server before.
async fn cut_off(policy: Policy) -> (Server, Proxy, Limiter) {
    let server = Server::start();
    let network = Proxy::to(server.addr());
    let store = builder(format!("redis://{}", network.addr()));
    let store = store.rejection_cache_staleness(Duration::ZERO).built();
    let limiter = with_fallback([policy]).store(store).built();
    assert!(limiter.check(KEY).cost(3).await.is_admitted());
    network.cut();
    until("the store fails", async || {
        let check = limiter.check(KEY).cost(0).await;
        check.source() == DecisionSource::Fallback
            && matches!(limiter.peek(KEY).await, Err(error) if error.to_string().contains("circuit"))
    })
    .await;
    (server, network, limiter)
}

/// New settings with the same fallback.
fn with_fallback(policies: impl IntoIterator<Item = Policy>) -> LimiterBuilder {
    settings(policies).on_store_error(LocalFallback::shared_by(1))
}

/// How many of `n` requests are admitted in process.
async fn admitted_in_process(limiter: &Limiter, n: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..n {
        let decision = limiter.check(KEY).await;
        assert_eq!(decision.source(), DecisionSource::Fallback, "{decision:?}");
        admitted += u64::from(decision.is_admitted());
    }
    admitted
}

#[tokio::test]
async fn counts_of_the_local_fallback_stay() {
    let (_server, _network, limiter) = cut_off(window("p", "10/month")).await;
    assert_eq!(admitted_in_process(&limiter, 4).await, 4);
    let reconfigure = |settings| limiter.reconfigure(settings).expect("valid");
    let q = window("q", "90/month");
    reconfigure(with_fallback([window("p", "10/month"), q]));
    assert_eq!(admitted_in_process(&limiter, 20).await, 6, "10 in all");
    reconfigure(with_fallback([window("p", "15/month")]));
    assert_eq!(admitted_in_process(&limiter, 20).await, 5, "15 in all");
}
