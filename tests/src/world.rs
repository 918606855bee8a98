//! Limiters of either store on a clock that only moves when it is set, and what is done to one key under each strategy.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use futures_util::future::join_all;
use testkit::{Clock as ServerClock, Server};
use tokio::{runtime::Handle, task::JoinSet};
use tollgate::{
    Admission, Concurrency, Decision, Key, Limiter, MemoryStore, OnStoreError, Policy, Quota,
    RateLimitLayer, RedisStore, Rejected,
    limiter::{Keys, LimiterBuilder},
    observe::DecisionSource,
    redis::RedisStoreBuilder,
    store::{CounterOp, Op, Store, StoreResponse},
    strategy::{Strategy, Terms},
};

pub use crate::until::TEST_TIMEOUT;
use crate::{
    clocks::TwoClocks, results::admitted_by_store, strategy_kind::StrategyKind, until::until,
};

/// A full hour, 2027-01-15 08:00:00 UTC.
pub const START: u64 = 1_800_000_000_000_000;

pub const KEY: Key = Key::global();

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A store and its clock.
pub struct World {
    store: Backing,
    time: Time,
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("failed on {}", self.name());
        }
    }
}

enum Backing {
    Memory(MemoryStore),
    Redis(RedisStore, Server),
}

enum Time {
    Local(TwoClocks),
    Server(ServerClock),
}

impl World {
    pub fn memory() -> Self {
        let clock = TwoClocks::at(START as i64);
        Self {
            store: Backing::Memory(MemoryStore::builder().clock(clock.clone()).build()),
            time: Time::Local(clock),
        }
    }

    /// Without overrides, so that the server is called for requests alone.
    pub fn redis() -> Self {
        Self::on_redis(|store| store.overrides(false))
    }

    /// As [`redis`](Self::redis), with the store's IO on the current runtime: of one thread, requests of one turn share a batch.
    pub fn redis_on_this_runtime() -> Self {
        Self::on_redis(|store| store.overrides(false).runtime(Handle::current()))
    }

    fn on_redis(set: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder) -> Self {
        let clock = ServerClock::at(START);
        let server = Server::builder().clock(&clock).start();
        let store = RedisStore::builder()
            .url(server.url())
            .timeout(TEST_TIMEOUT)
            // Rejections are cached by this process's clock, and only the server's is set.
            .rejection_cache_staleness(Duration::ZERO);
        Self {
            store: Backing::Redis(set(store).build().expect("a store"), server),
            time: Time::Server(clock),
        }
    }

    /// One on each store, one after the other: the one in which a test panics prints its name.
    pub fn both() -> impl Iterator<Item = Self> {
        [Self::memory, Self::redis].into_iter().map(|world| world())
    }

    pub fn both_with_overrides() -> impl Iterator<Item = Self> {
        let on_redis = || Self::on_redis(|store| store);
        [Self::memory, on_redis].into_iter().map(|world| world())
    }

    pub fn name(&self) -> &'static str {
        match self.store {
            Backing::Memory(_) => "memory",
            Backing::Redis(..) => "redis",
        }
    }

    /// The server, if there is one.
    pub fn redis_server(&self) -> Option<&Server> {
        match &self.store {
            Backing::Memory(_) => None,
            Backing::Redis(_, server) => Some(server),
        }
    }

    #[track_caller]
    pub fn server(&self) -> &Server {
        self.redis_server().expect("a world on Redis")
    }

    pub fn builder(&self) -> LimiterBuilder {
        let builder = Limiter::builder().on_store_error(OnStoreError::Reject);
        match &self.store {
            Backing::Memory(store) => builder.store(store.clone()),
            Backing::Redis(store, _) => builder.store(store.clone()),
        }
    }

    pub fn store(&self) -> &dyn Store {
        match &self.store {
            Backing::Memory(store) => store,
            Backing::Redis(store, _) => store,
        }
    }

    /// Takes one of a key's permits under a policy, as a process that was killed: it is neither renewed nor released.
    pub async fn leak_permit(&self, policy: &str, (key, permits): (Key, u64), ttl: Duration) {
        let rule = Concurrency::with_ttl(ttl).bind(&Quota::concurrent(permits), &Terms::default());
        let limit = self.store().register(policy, rule.expect("a rule"));
        let limit = limit.expect("a limit");
        let permit = CounterOp::new(&limit, key).with_caller(fresh_key());
        let taken = match self.store().execute(Op::Acquire(1), &[permit]) {
            StoreResponse::Ready(taken) => taken,
            StoreResponse::Pending(taken) => taken.await,
        };
        assert_eq!(taken.expect("a response").admitted, 1);
    }

    /// A limiter on this store that reports store failures.
    #[track_caller]
    pub fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        let policies = policies.into_iter();
        let builder = policies.fold(self.builder(), LimiterBuilder::policy);
        builder.build().expect("a limiter")
    }

    /// A limiter under one policy `p`.
    #[track_caller]
    pub fn single(&self, strategy: StrategyKind, quota: &str) -> Limiter {
        self.limiter([strategy.policy("p", quota)])
    }

    /// A layer on this store that reports store failures.
    #[track_caller]
    pub fn layer(&self, policies: impl IntoIterator<Item = Policy>) -> RateLimitLayer {
        RateLimitLayer::new(self.limiter(policies))
    }

    /// Every key on the server ends by itself.
    #[track_caller]
    pub fn no_key_is_immortal(&self) {
        if let Some(server) = self.redis_server() {
            assert_eq!(server.immortal_keys(), Vec::<String>::new());
        }
    }

    pub fn set(&self, micros: u64) {
        match &self.time {
            Time::Local(clock) => clock.pass(micros as i64 - clock.micros()),
            Time::Server(clock) => clock.set(micros),
        }
    }

    pub fn now(&self) -> u64 {
        match &self.time {
            Time::Local(clock) => clock.micros() as u64,
            Time::Server(clock) => clock.micros(),
        }
    }

    pub fn advance(&self, by: Duration) {
        self.set(self.now() + by.as_micros() as u64);
    }
}

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

    pub async fn admit(&self, cost: u64) -> Result<Admission, Rejected> {
        self.limiter.admit(self.key).cost(cost).await
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
pub async fn refund(charged: &Admission, units: u64) -> u64 {
    charged.refund(units).await.expect("a refund")[0].units()
}

/// How many requests are sent at once. A key is leased if there are ten within 100 ms, so these suffice on a slow machine too.
const REQUESTS: usize = 100;

/// Sends requests of one key until a lease admits some; returns how many the store has admitted.
pub async fn until_leased(limiter: &Limiter, keys: impl Into<Keys>, cost: u64) -> u64 {
    let (keys, mut by_store) = (keys.into(), 0);
    until("a lease admits requests", async || {
        let check = |_| limiter.check(keys.clone()).cost(cost).into_future();
        let decisions = join_all((0..REQUESTS).map(check)).await;
        assert!(decisions.iter().all(Decision::is_admitted));
        let from = |source| decisions.iter().filter(move |own| own.source() == source);
        by_store += from(DecisionSource::Store).count() as u64;
        from(DecisionSource::Lease).count() > 0
    })
    .await;
    by_store
}
