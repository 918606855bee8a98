//! What the tests share: processes on clocks that are set, and limiters that hold units.

use std::pin::pin;

use futures_util::future::{Either, select};
use testkit::Clock;
use tokio::runtime::Handle;
use tollgate::{observe::LeaseStats, redis::RedisStoreBuilder};
use tollgate_tests::clocks::of_own_process;
pub(crate) use tollgate_tests::strategy_kind::StrategyKind::{
    Calendar, Fixed, Gcra, List, Log, Sliding,
};
pub(crate) use tollgate_tests::{
    clocks::{real_pause, until},
    load::limiter,
    prelude::*,
    world::KEY,
};

/// The TTL of leases, unless a test says otherwise. No time passes unless a test lets it pass.
pub(crate) const TTL: Duration = secs(10);

/// What the clocks show first, in microseconds: half a second before a multiple of ten seconds.
pub(crate) const BEGIN: u64 = 1_799_999_999_500_000;

/// Strategies that count exactly, without what refills.
pub(crate) const EXACT: [StrategyKind; 5] = [Fixed, Calendar, List, Log, Sliding(10)];

/// A process whose clocks stand still until they are set, and a server whose clock does. So any requests are at a rate for leases,
/// and no lease ends by itself.
pub(crate) struct Scene {
    pub(crate) clock: Clock,
    pub(crate) server_clock: Clock,
    pub(crate) server: Server,
}

/// Runs a test in a process of its own, on a runtime of one thread.
#[track_caller]
pub(crate) fn scene<F: AsyncFnOnce(Scene)>(test: F) {
    if let Some(clock) = of_own_process::<F>(Timers::Stopped) {
        current_thread().block_on(test(Scene::new(clock)));
    }
}

/// Runs a test with runtimes of its own, in a process of its own. Only its wall clock is set with [`Timers::Real`].
#[track_caller]
pub(crate) fn scene_with<F: FnOnce(Scene)>(timers: Timers, test: F) {
    if let Some(clock) = of_own_process::<F>(timers) {
        test(Scene::new(clock));
    }
}

impl Scene {
    fn new(clock: Clock) -> Self {
        clock.set(BEGIN);
        let server_clock = Clock::at(BEGIN);
        Self {
            clock,
            server: Server::builder().clock(&server_clock).start(),
            server_clock,
        }
    }

    /// Lets time pass here and on the server.
    pub(crate) fn advance(&self, by: Duration) {
        self.server_clock.advance(by);
        self.clock.advance(by);
    }

    /// Waits for a future while time passes, a millisecond at a time.
    pub(crate) async fn wait<T>(&self, future: impl IntoFuture<Output = T>) -> T {
        wait_while(future, || self.advance(ms(1))).await
    }

    /// Shuts a limiter down, while time passes here, and none on the server.
    pub(crate) async fn shut_down(&self, limiter: &Limiter) {
        let ended = wait_while(limiter.shutdown(TEST_TIMEOUT), || self.clock.advance(ms(1)));
        ended.await.expect("the store replies");
    }

    /// Lets so much time pass that leases are refunded, before they end; returns when they are.
    pub(crate) async fn refund_leases(&self, limiters: &[Limiter]) {
        for limiter in limiters {
            // A lease that is on its way is granted before this is answered: all keys share a lane.
            let _ = limiter.peek(KEY).await;
        }
        self.advance(TTL * 9 / 10);
        until_nothing_is_held(limiters).await;
    }

    pub(crate) fn store(&self) -> RedisStore {
        store(&self.server)
    }

    pub(crate) fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        limiter(self.store(), policies)
    }

    /// A limiter on connections of its own, under a policy `p` with [leases](leased).
    pub(crate) fn single(&self, strategy: StrategyKind, quota: &str) -> Limiter {
        self.limiter([leased(strategy, "p", quota)])
    }

    /// Such a limiter with its IO on the test's runtime: no reply is read while the test does not wait.
    pub(crate) fn single_here(&self, strategy: StrategyKind, quota: &str) -> Limiter {
        let store = builder(self.server.url()).runtime(Handle::current());
        limiter(store.built(), [leased(strategy, "p", quota)])
    }
}

/// Waits for a future; each millisecond or so of real time something is done.
async fn wait_while<T>(future: impl IntoFuture<Output = T>, mut advance: impl FnMut()) -> T {
    let mut future = pin!(future.into_future());
    loop {
        match select(future, pin!(real_pause())).await {
            Either::Left((output, _)) => return output,
            Either::Right(((), rest)) => future = rest,
        }
        advance();
    }
}

pub(crate) fn builder(url: impl Into<String>) -> RedisStoreBuilder {
    RedisStore::builder()
        .url(url)
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO)
}

/// A store that calls Redis for each request, also for rejected keys.
pub(crate) fn store(server: &Server) -> RedisStore {
    builder(server.url()).built()
}

/// A policy with leases.
pub(crate) fn leased(strategy: StrategyKind, name: &str, quota: &str) -> Policy {
    let lease = Lease::max_units(64).ttl(TTL);
    strategy.policy(name, quota).lease(lease)
}

/// The units of a policy's leases.
pub(crate) fn leases(limiter: &Limiter, policy: &str) -> Option<LeaseStats> {
    let mut all = limiter.stats().store.leases.into_iter();
    all.find(|stats| &*stats.policy == policy)
}

/// The units of leases under policy `p`: zero, if there were none.
pub(crate) fn stats(limiter: &Limiter) -> [u64; 5] {
    leases(limiter, "p").map_or([0; 5], |it| {
        [it.held, it.granted, it.spent, it.refunded, it.lapsed]
    })
}

/// The units that are held under policy `p`: also those of leases that have ended, and of refunds without a response.
pub(crate) fn held(limiter: &Limiter) -> u64 {
    stats(limiter)[0]
}

/// Sends requests until this process holds some units of a key under policy `p`, and none are on their way; returns how many were
/// admitted. Units of other keys may be refunded meanwhile.
pub(crate) async fn hold(limiter: &Limiter, key: Key) -> u64 {
    let [_, granted_before, spent_before, ..] = stats(limiter);
    let used_before = used(limiter, key).await;
    let (mut admitted, mut by_store) = (0, 0);
    loop {
        let [_, granted, spent, ..] = stats(limiter);
        if granted + spent_before >= granted_before + spent + 6 {
            break;
        }
        let decision = limiter.check(key).await;
        assert!(decision.is_admitted(), "{decision:?}");
        admitted += 1;
        by_store += u64::from(decision.source() == DecisionSource::Store);
    }
    until("no lease is on its way", async || {
        let charged = used(limiter, key).await - used_before;
        charged == by_store + stats(limiter)[1] - granted_before
    })
    .await;
    admitted
}

/// The admission of a request by a lease, and how many others were admitted before.
pub(crate) async fn admit_by_lease(limiter: &Limiter, key: Key) -> (Admission, u64) {
    let before = hold(limiter, key).await;
    let admission = limiter.admit(key).await.expect("room");
    assert_eq!(admission.decisions()[0].source(), DecisionSource::Lease);
    (admission, before)
}

/// Sends so many requests one by one; returns how many were admitted, and how many of them by leases.
pub(crate) async fn send(limiter: &Limiter, requests: u64) -> (u64, u64) {
    let (mut admitted, mut by_lease) = (0, 0);
    for _ in 0..requests {
        let decision = limiter.check(KEY).await;
        admitted += u64::from(decision.is_admitted());
        by_lease += u64::from(decision.source() == DecisionSource::Lease);
    }
    (admitted, by_lease)
}

/// Waits until no limiter holds units under policy `p`; checks what became of those that were granted.
pub(crate) async fn until_nothing_is_held(limiters: &[Limiter]) {
    until("all units are spent, refunded or lapsed", async || {
        limiters.iter().all(|limiter| {
            let [held, granted, spent, refunded, lapsed] = stats(limiter);
            held == 0 && granted == spent + refunded + lapsed
        })
    })
    .await;
}

/// What is used of policy `p` by the store's count: the units of leases count as used.
pub(crate) async fn used(limiter: &Limiter, key: Key) -> u64 {
    used_of(limiter, key, "p").await
}

pub(crate) async fn used_of(limiter: &Limiter, key: Key, policy: &str) -> u64 {
    let seen = limiter.peek(key).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    seen.used(policy)
}

/// Waits until so many units are used by the store's count.
pub(crate) async fn until_used(limiter: &Limiter, key: Key, units: u64) {
    let what = format!("{units} units are used");
    until(&what, async || used(limiter, key).await == units).await;
}
