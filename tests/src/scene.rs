//! One key under one policy: most of what is promised holds for every strategy, in both stores.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use tokio::task::JoinSet;
use tollgate::{Decision, Key, Limiter, observe::DecisionSource};

use crate::{
    results::admitted_by_store,
    strategy_kind::StrategyKind,
    world::{START, World},
};

/// What a part of a test is about, printed if it fails.
pub struct Case(pub String);

impl Drop for Case {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("failed: {}", self.0);
        }
    }
}

/// A key under a policy `p`.
pub struct Scene<'a> {
    pub world: &'a World,
    pub strategy: StrategyKind,
    pub limiter: Limiter,
    pub key: Key,
    _case: Case,
}

/// Each strategy under this quota in each store, from [`START`] on.
pub async fn each(quota: &str, play: impl AsyncFn(&Scene<'_>)) {
    each_of(&StrategyKind::ALL, quota, play).await;
}

pub async fn each_of(strategies: &[StrategyKind], quota: &str, play: impl AsyncFn(&Scene<'_>)) {
    for world in World::both() {
        each_in(&world, strategies, quota, &play).await;
    }
}

/// Each strategy under this quota in one store, of which the keys are removed afterwards.
pub async fn each_in(
    world: &World,
    strategies: &[StrategyKind],
    quota: &str,
    play: impl AsyncFn(&Scene<'_>),
) {
    for strategy in strategies {
        world.set(START);
        play(&world.scene(*strategy, quota)).await;
        if let Some(server) = world.redis_server() {
            server.flush();
        }
    }
}

impl World {
    #[track_caller]
    pub fn scene(&self, strategy: StrategyKind, quota: &str) -> Scene<'_> {
        let limiter = self.single(strategy, quota);
        Scene::new(self, strategy, limiter, fresh_key(), quota)
    }

    /// Moves the clock, back if `micros` is negative.
    pub fn step(&self, micros: i64) {
        let then = self.now().checked_add_signed(micros);
        self.set(then.expect("an instant since 1970"));
    }
}

impl<'a> Scene<'a> {
    fn new(
        world: &'a World,
        strategy: StrategyKind,
        limiter: Limiter,
        key: Key,
        quota: &str,
    ) -> Self {
        let case = Case(format!("{strategy:?}, {quota}, {}", world.name()));
        Self {
            world,
            strategy,
            limiter,
            key,
            _case: case,
        }
    }

    /// Sends `n` requests, one after the other; returns how many were admitted.
    pub async fn send(&self, n: u64) -> u64 {
        send(&self.limiter, self.key, n).await
    }

    /// Sends a request of this cost; returns whether it was admitted.
    pub async fn admits(&self, cost: u64) -> bool {
        admitted_by_store(&self.check(cost).await)
    }

    pub async fn check(&self, cost: u64) -> Decision {
        self.limiter.check(self.key).cost(cost).await
    }

    /// Charges units past what is left.
    pub async fn charge(&self, units: u64) {
        let charged = self.limiter.charge(self.key, units).await;
        assert!(admitted_by_store(&charged.expect("a response")));
    }

    pub async fn left(&self) -> u64 {
        left(&self.limiter, self.key).await
    }

    pub async fn reset(&self) {
        let _ = self.limiter.reset(self.key).await.expect("a response");
    }
}

/// A key that no case before had.
pub fn fresh_key() -> Key {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    Key::new(format!("case-{next}"))
}

/// Sends `n` requests, one after the other; returns how many were admitted.
pub async fn send(limiter: &Limiter, key: Key, n: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..n {
        admitted += u64::from(admitted_by_store(&limiter.check(key).await));
    }
    admitted
}

/// Sends `n` requests at once; returns how many were admitted.
pub async fn send_concurrently(limiter: &Limiter, key: Key, n: u64) -> u64 {
    let mut tasks = JoinSet::new();
    for _ in 0..n {
        tasks.spawn(limiter.check(key).into_future());
    }
    let decisions = tasks.join_all().await;
    let admitted = decisions.iter().filter(|one| admitted_by_store(one));
    admitted.count() as u64
}

/// What is left under the first policy.
pub async fn left(limiter: &Limiter, key: Key) -> u64 {
    let seen = limiter.peek(key).cost(1).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    let left = seen.policies().next().map(|policy| policy.remaining());
    left.expect("a policy")
}

/// The units that a refund of the only policy's charge gave back.
pub async fn refund(charged: &mut Decision, units: u64) -> u64 {
    charged.refund(units).await.expect("a refund")[0].units()
}
