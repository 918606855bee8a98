//! What one slot charged and another rejected is refunded, also if it can't be at once.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use testkit::{Cluster, Proxy};
use tokio::{task::JoinHandle, time::sleep_until};
use tollgate::{
    Ban, Concurrency, Decision, DecisionSource, Keys, Limiter, Policy, Quota, RedisStore,
    StoreError,
};

use crate::cluster::{
    faults::{apart, proxy_before},
    support::{
        MasterKeys, StrategyKind, TEST_TIMEOUT, admitted_by_store, calls, limiter, store_error,
        until, used,
    },
};

/// A cluster with two nodes behind proxies, and limiters on one store: under one policy on each of them, of which the second
/// has nothing left; and under another on the first alone.
struct Scene {
    cluster: Cluster,
    master_keys: MasterKeys,
    proxies: [Proxy; 2],
    store: RedisStore,
    both: Limiter,
    beside: Limiter,
}

impl Scene {
    async fn set(deadline: Duration) -> Self {
        let cluster = Cluster::start_with(3, 0, apart);
        let master_keys = MasterKeys::find(&cluster, "back").await;
        let proxies = [
            proxy_before(&cluster, 0).await,
            proxy_before(&cluster, 1).await,
        ];
        let store = RedisStore::builder()
            .cluster([cluster.nodes()[2].url()])
            .timeout(deadline)
            .rejection_cache_staleness(Duration::ZERO)
            .no_circuit_breaker();
        let store = store.build().expect("a store");
        let policies = [
            StrategyKind::Fixed.policy("a", "9/month"),
            StrategyKind::Fixed.policy("b", "1/month"),
        ];
        let scene = Self {
            both: limiter(store.clone(), policies),
            beside: limiter(
                store.clone(),
                [StrategyKind::Fixed.policy("beside", "1000/month")],
            ),
            store,
            cluster,
            master_keys,
            proxies,
        };
        until("both are known", async || scene.send().await.is_admitted()).await;
        assert!(admitted_by_store(&scene.send_beside().await));
        scene
    }

    fn send(&self) -> impl Future<Output = Decision> + Send + 'static {
        let keys = [
            ("a", self.master_keys.key(0)),
            ("b", self.master_keys.key(1)),
        ];
        self.both.check(keys).into_future()
    }

    fn send_beside(&self) -> impl Future<Output = Decision> + Send + 'static {
        self.beside.check(self.master_keys.key(0)).into_future()
    }

    /// Sends a request under both policies: one charges, and the other gets no reply.
    async fn send_and_charge(
        &self,
        pending: impl Future<Output = Decision> + Send + 'static,
    ) -> JoinHandle<Decision> {
        let node = &self.cluster.nodes()[0];
        let before = calls(node);
        self.proxies[1].hold();
        let pending = tokio::spawn(pending);
        until("the first is called", async || calls(node) > before).await;
        // Behind it on the same connection: the reply to it has been read by now, too.
        assert!(admitted_by_store(&self.send_beside().await));
        pending
    }

    /// One admitted request is charged, and no other.
    async fn refunded(&self) {
        until("the charge is refunded", async || {
            let seen = self
                .both
                .peek([("a", self.master_keys.key(0))])
                .await
                .expect("a response");
            let left = seen.policy("a").map(|policy| policy.remaining());
            seen.source() == DecisionSource::Store && left == Some(8)
        })
        .await;
        let keys = [
            ("a", self.master_keys.key(0)),
            ("b", self.master_keys.key(1)),
        ];
        assert_eq!(used(&self.both, keys).await, [1, 1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_that_fails_is_made_when_its_node_is_back() {
    let scene = Scene::set(TEST_TIMEOUT).await;
    let pending = scene.send_and_charge(scene.send()).await;
    scene.proxies[0].cut();
    for _ in 0..2 {
        let decision = scene.send_beside().await;
        assert!(matches!(store_error(&decision), StoreError::Connection(_)));
    }
    // Now the other rejects.
    scene.proxies[1].pass();
    let decision = pending.await.expect("a response");
    assert_eq!(decision.source(), DecisionSource::Fallback, "{decision:?}");
    scene.proxies[0].pass();
    scene.refunded().await;
}

/// Each is named in the store: a refund of some of them is of the same ones later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_whose_release_fails_are_free_when_their_node_is_back() {
    let scene = Scene::set(TEST_TIMEOUT).await;
    let hour = Concurrency::with_ttl(Duration::from_secs(3_600));
    let permits = |name, many| Policy::new(name, Quota::concurrent(many)).strategy(hour);
    let permits = limiter(scene.store.clone(), [permits("a", 9), permits("b", 1)]);
    let keys = [
        ("a", scene.master_keys.key(0)),
        ("b", scene.master_keys.key(1)),
    ];
    let pending = permits.check(keys).times(3).into_future();
    let pending = scene.send_and_charge(pending).await;
    scene.proxies[0].cut();
    let decision = scene.send_beside().await;
    assert!(matches!(store_error(&decision), StoreError::Connection(_)));
    // Now the other admits one of the three.
    scene.proxies[1].pass();
    let decision = pending.await.expect("a response");
    assert_eq!(decision.source(), DecisionSource::Fallback, "{decision:?}");
    scene.proxies[0].pass();
    until("all are free", async || {
        permits.peek(keys).await.is_ok_and(|seen| {
            let free = ["a", "b"].map(|name| Some(seen.policy(name)?.remaining()));
            free == [Some(9), Some(1)]
        })
    })
    .await;
}

/// A request to a node that is silent now has more time than the one whose charge is to be refunded there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_past_its_deadline_behind_refunds_to_the_same_node() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let scene = Scene::set(TIMEOUT).await;
    let start = Instant::now();
    let pending = scene.send_and_charge(scene.send()).await;
    sleep_until((start + TIMEOUT * 3 / 4).into()).await;
    scene.proxies[0].hold();
    let beside = tokio::spawn(scene.send_beside());
    // The other's batch is in flight. The second node rejects.
    let asks = scene.proxies[0].forwarded();
    sleep_until((start + TIMEOUT * 7 / 8).into()).await;
    assert_eq!(scene.proxies[0].forwarded(), asks);
    scene.proxies[1].pass();
    let decision = pending.await.expect("a response");
    let took = start.elapsed();
    assert_eq!(decision.source(), DecisionSource::Fallback, "{decision:?}");
    assert!(took < TIMEOUT * 3 / 2, "{took:?}");
    assert!(matches!(
        store_error(&beside.await.expect("a response")),
        StoreError::Timeout
    ));
    scene.proxies[0].pass();
    scene.refunded().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_request_is_counted_if_it_is_rejected() {
    let scene = Scene::set(TEST_TIMEOUT).await;
    let ban = Policy::new("ban", "3/month".parse().expect("a quota"));
    let policies = [
        StrategyKind::Fixed.policy("b", "1/month"),
        StrategyKind::Log
            .policy("counts", "2/month")
            .charge_rejected(true),
        ban.strategy(Ban::for_duration(Duration::from_secs(60))),
    ];
    let limiter = limiter(scene.store.clone(), policies);
    let [first, second] = [0, 1].map(|place| scene.master_keys.key(place));
    let under: Keys = [("b", second), ("counts", first), ("ban", first)].into();
    let before = calls(&scene.cluster.nodes()[0]);
    scene.proxies[1].hold();
    let pending = tokio::spawn(limiter.check(under).into_future());
    until("the first is called", async || {
        calls(&scene.cluster.nodes()[0]) > before
    })
    .await;
    pending.abort();
    assert!(pending.await.is_err_and(|error| error.is_cancelled()));
    scene.proxies[1].pass();
    let here: Keys = [("counts", first), ("ban", first)].into();
    until("the rejection is counted, and nothing else", async || {
        used(&limiter, here.clone()).await == [0, 1]
    })
    .await;
}
