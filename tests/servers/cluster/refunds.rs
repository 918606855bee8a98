//! What one slot charged and another rejected is refunded, also if it can't be at once.

use tokio::{
    runtime::Handle,
    sync::{Mutex, MutexGuard},
    task::JoinHandle,
};
use tollgate::{limiter::Keys, redis::RedisStoreBuilder};

use crate::cluster::{faults::proxy_before, support::*};

/// A cluster with two nodes behind proxies, which the tests use in turn: it takes seconds to start.
struct Ground {
    cluster: Cluster,
    proxies: [Proxy; 2],
}

/// Limiters on one store: under one policy on each of the two nodes, of which the second has nothing left; and under another on
/// the first alone.
struct Scene {
    ground: MutexGuard<'static, Option<Ground>>,
    master_keys: MasterKeys,
    store: RedisStore,
    both: Limiter,
    beside: Limiter,
}

impl Scene {
    /// `name` distinguishes its keys from those of other tests.
    async fn set(name: &str) -> Self {
        Self::with(name, |store| store).await
    }

    async fn with(name: &str, with: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder) -> Self {
        static GROUND: Mutex<Option<Ground>> = Mutex::const_new(None);
        let mut ground = GROUND.lock().await;
        if ground.is_none() {
            let cluster = Cluster::start_with(3, 0, apart);
            let proxies = [
                proxy_before(&cluster, 0).await,
                proxy_before(&cluster, 1).await,
            ];
            *ground = Some(Ground { cluster, proxies });
        }
        let cluster = &ground.as_ref().expect("it is set").cluster;
        let master_keys = MasterKeys::find(cluster, name).await;
        let store = builder([cluster.nodes()[2].url()]).no_circuit_breaker();
        let store = with(store).built();
        let policies = [Fixed.policy("a", "9/month"), Fixed.policy("b", "1/month")];
        let beside = [Fixed.policy("beside", "1000/month")];
        let scene = Self {
            both: limiter(store.clone(), policies),
            beside: limiter(store.clone(), beside),
            store,
            master_keys,
            ground,
        };
        until("both are known", async || scene.send().await.is_admitted()).await;
        assert!(admitted_by_store(&scene.send_beside().await));
        scene
    }

    fn proxy(&self, node: usize) -> &Proxy {
        &self.ground.as_ref().expect("it is set").proxies[node]
    }

    /// How often a node ran a script.
    fn calls(&self, node: usize) -> u64 {
        calls(&self.ground.as_ref().expect("it is set").cluster.nodes()[node])
    }

    /// A key on each of the two nodes.
    fn keys(&self) -> [(&'static str, Key); 2] {
        [
            ("a", self.master_keys.key(0)),
            ("b", self.master_keys.key(1)),
        ]
    }

    fn send(&self) -> impl Future<Output = Decision> + Send + 'static {
        self.both.check(self.keys()).into_future()
    }

    fn send_beside(&self) -> impl Future<Output = Decision> + Send + 'static {
        self.beside.check(self.master_keys.key(0)).into_future()
    }

    /// Sends a request under both policies: one charges, and the other gets no reply.
    async fn send_and_charge<T: Send + 'static>(
        &self,
        pending: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let before = self.calls(0);
        self.proxy(1).hold();
        let pending = tokio::spawn(pending);
        until("the first is called", async || self.calls(0) > before).await;
        // Behind it on the same connection: the reply to it has been read by now, too.
        assert!(admitted_by_store(&self.send_beside().await));
        pending
    }

    /// Cuts a node off, until its connection is found broken.
    async fn unreachable(&self, node: usize) {
        self.proxy(node).cut();
        for _ in 0..2 {
            self.fail(node).await;
        }
    }

    /// Sends a request to a node that is cut off.
    async fn fail(&self, node: usize) {
        let seen = self.beside.peek(self.master_keys.key(node)).await;
        assert!(seen.is_err(), "{seen:?}");
    }

    /// One admitted request is charged, and no other.
    async fn refunded(&self) {
        until("the charge is refunded", async || {
            let seen = self.both.peek([self.keys()[0]]).await.expect("a response");
            seen.source() == DecisionSource::Store && seen.left("a") == 8
        })
        .await;
        assert_eq!(used(&self.both, self.keys()).await, [1, 1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_that_fails_is_made_when_its_node_is_back() {
    let scene = Scene::set("fails").await;
    let pending = scene.send_and_charge(scene.send()).await;
    scene.proxy(0).cut();
    for _ in 0..2 {
        let decision = scene.send_beside().await;
        assert_eq!(store_error(&decision).code(), "connection");
    }
    // Now the other rejects.
    scene.proxy(1).pass();
    let decision = pending.await.expect("a response");
    assert!(!admitted_by_store(&decision), "{decision:?}");
    scene.proxy(0).pass();
    scene.refunded().await;
}

/// What was charged in the other slot is refunded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_by_hand_that_one_node_does_not_get_is_not_made_there_later() {
    let scene = Scene::set("hand").await;
    let by_hand = ["a", "b"].map(|name| Fixed.policy(name, "9/month"));
    let by_hand = limiter(scene.store.clone(), by_hand);
    let keys = scene.keys();
    assert_eq!(used(&by_hand, keys).await, [1, 1]);
    scene.proxy(1).cut();
    for _ in 0..2 {
        let peeked = by_hand.peek([keys[1]]).await;
        drop(peeked.expect_err("no connection"));
    }
    let charged = by_hand.charge(keys, 2).await;
    drop(charged.expect_err("no connection"));
    scene.proxy(1).pass();
    let sent = by_hand.shutdown(TEST_TIMEOUT).await;
    sent.expect("nothing is left");
    assert_eq!(used(&by_hand, keys).await, [1, 1]);
}

/// Each is named in the store: a refund of some of them is of the same ones later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_whose_release_fails_are_free_when_their_node_is_back() {
    let scene = Scene::set("permits").await;
    let hour = Concurrency::with_ttl(secs(3_600));
    let permits = |name, many| Policy::new(name, Quota::concurrent(many)).strategy(hour);
    let permits = limiter(scene.store.clone(), [permits("a", 9), permits("b", 1)]);
    let keys = scene.keys();
    let pending = join_all((0..3).map(|_| permits.admit(keys).into_future()));
    let pending = scene.send_and_charge(pending).await;
    scene.proxy(0).cut();
    let decision = scene.send_beside().await;
    assert_eq!(store_error(&decision).code(), "connection");
    // Now the other admits one of the three.
    scene.proxy(1).pass();
    let held = pending.await.expect("a response");
    assert_eq!(held.iter().filter(|one| admitted_by_store(one)).count(), 1);
    drop(held);
    scene.proxy(0).pass();
    until("all are free", async || {
        let seen = permits.peek(keys).await;
        seen.is_ok_and(|seen| [seen.left("a"), seen.left("b")] == [9, 1])
    })
    .await;
}

/// A request to a node that is silent now has more time than the one whose charge is to be refunded there.
#[tokio::test]
async fn no_request_waits_past_its_deadline_behind_refunds_to_the_same_node() {
    let scene = Scene::with("deadline", |store| store.runtime(Handle::current())).await;
    let pending = scene.send_and_charge(scene.send()).await;
    let time = StillTime::new();
    time.advance(TEST_TIMEOUT * 3 / 4).await;
    scene.proxy(0).hold();
    let beside = tokio::spawn(scene.send_beside());
    time.settle().await;
    // The other's batch is in flight. The second node rejects, and its reply is read before that to a later call.
    scene.proxy(1).pass();
    drop(scene.both.peek([scene.keys()[1]]).await.expect("a reply"));
    time.settle().await;
    time.advance(TEST_TIMEOUT * 3 / 8).await;
    time.until("it ends", || pending.is_finished()).await;
    assert!(!beside.is_finished());
    let decision = pending.await.expect("a response");
    assert!(!admitted_by_store(&decision), "{decision:?}");
    time.advance(TEST_TIMEOUT).await;
    let beside = beside.await.expect("a response");
    assert_eq!(store_error(&beside).code(), "timeout");
    time.end();
    scene.proxy(0).pass();
    scene.refunded().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_while_it_is_refunded_is_refunded_once() {
    let scene = Scene::set("once").await;
    scene.proxy(1).hold();
    let mut pending = Box::pin(scene.send());
    assert!((&mut pending).now_or_never().is_none());
    // Behind it: the reply of the first node has been read.
    assert!(admitted_by_store(&scene.send_beside().await));
    scene.proxy(0).hold();
    scene.proxy(1).pass();
    drop(scene.both.peek([scene.keys()[1]]).await.expect("a reply"));
    // Now it has both replies, and sends the refund.
    assert!((&mut pending).now_or_never().is_none());
    drop(pending);
    scene.proxy(0).pass();
    assert_eq!(used(&scene.both, scene.keys()).await, [1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_request_is_counted_if_it_is_rejected() {
    let scene = Scene::set("dropped").await;
    let ban = Policy::new("ban", quota("3/month"));
    let policies = [
        Fixed.policy("b", "1/month"),
        Log.policy("counts", "2/month").charge_rejected(true),
        ban.strategy(Ban::for_duration(secs(60))),
    ];
    let limiter = limiter(scene.store.clone(), policies);
    let [first, second] = [0, 1].map(|place| scene.master_keys.key(place));
    let under: Keys = [("b", second), ("counts", first), ("ban", first)].into();
    let before = scene.calls(0);
    scene.proxy(1).hold();
    let pending = tokio::spawn(limiter.check(under).into_future());
    until("the first is called", async || scene.calls(0) > before).await;
    pending.abort();
    assert!(pending.await.is_err_and(|error| error.is_cancelled()));
    scene.proxy(1).pass();
    let here: Keys = [("counts", first), ("ban", first)].into();
    let counted = async || used(&limiter, here.clone()).await == [0, 1];
    until("the rejection is counted, and nothing else", counted).await;
}

/// One slot replies no more, and the other can't be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_that_may_have_been_made_in_one_slot_is_not_said_to_have_changed_nothing() {
    let scene = Scene::set("may_have_run").await;
    scene.unreachable(1).await;
    scene.proxy(0).halve();
    let charged = scene.both.charge(scene.keys(), 2).await;
    let Err(CallError::Store(error)) = charged else {
        panic!("{charged:?}");
    };
    assert!(error.may_have_run(), "{error}");
    scene.proxy(0).pass();
    scene.proxy(1).pass();
    until("both reply", async || {
        let seen = scene.both.peek(scene.keys()).await;
        seen.is_ok_and(|seen| [seen.used("a"), seen.used("b")] == [3, 1])
    })
    .await;
}

/// The caller leaves while it waits for the other slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_failed_in_one_slot_is_made_by_the_next_one() {
    let scene = Scene::set("settled").await;
    let policies = ["c", "d"].map(|name| Fixed.policy(name, "100/month").cost(5));
    let limiter = limiter(scene.store.clone(), policies);
    let keys = [
        ("c", scene.master_keys.key(0)),
        ("d", scene.master_keys.key(1)),
    ];
    let admission = limiter.admit(keys).await.expect("room");
    scene.unreachable(1).await;
    scene.proxy(0).hold();
    let mut settling = Box::pin(admission.settle_each([("c", 2), ("d", 2)]));
    assert!((&mut settling).now_or_never().is_none());
    // Behind the settlement.
    scene.fail(1).await;
    assert!((&mut settling).now_or_never().is_none());
    drop(settling);
    scene.proxy(0).pass();
    scene.proxy(1).pass();
    until("it is settled", async || {
        admission.settle_each([("c", 2), ("d", 2)]).await.is_ok()
    })
    .await;
    assert_eq!(used(&limiter, keys).await, [2, 2]);
}
