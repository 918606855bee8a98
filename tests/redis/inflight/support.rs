//! What the tests share.

use testkit::Clock as ServerClock;
use tollgate::clock::Clock;
use tollgate_tests::{counting_clock::CountingClock, prelude::*};

/// Permits for requests in flight.
pub(crate) const MAX_PERMITS: u64 = 10;

/// The TTL of an unrenewed permit, by the store's clock.
pub(crate) const PERMIT_TTL: Duration = ms(300);

/// A TTL that no test outlasts: a permit that is free within it was released.
pub(crate) const LONG_TTL: Duration = secs(3_600);

/// Neither on a second nor on a millisecond.
const START: u64 = 1_750_000_000_123_457;

/// A limit of [`MAX_PERMITS`] on all requests together.
pub(crate) fn permit_policy(life: Duration) -> Policy {
    permit_policy_of(MAX_PERMITS, life)
}

pub(crate) fn permit_policy_of(n: u64, life: Duration) -> Policy {
    let policy = Policy::new("permits", Quota::concurrent(n)).key(extract::global());
    policy.strategy(Concurrency::with_ttl(life))
}

/// A store of either kind, on a clock that only moves when it is set.
pub(crate) enum World {
    Memory(MemoryStore, CountingClock),
    Redis(Server, ServerClock),
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("failed {}", self.name());
        }
    }
}

impl World {
    /// One on each store, one after the other: the one in which a test panics prints its name.
    pub(crate) fn both() -> impl Iterator<Item = Self> {
        [Self::memory, Self::redis].into_iter().map(|world| world())
    }

    pub(crate) fn memory() -> Self {
        let clock = CountingClock::at(START);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        Self::Memory(store, clock)
    }

    pub(crate) fn redis() -> Self {
        let clock = ServerClock::at(START);
        let server = Server::builder().clock(&clock).start();
        Self::Redis(server, clock)
    }

    /// A limiter of these policies that reports store failures; on Redis with its own connections, one for each
    /// runtime.
    pub(crate) fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        let builder = match self {
            Self::Memory(store, _) => Limiter::builder().store(store.clone()),
            Self::Redis(server, _) => Limiter::builder().store(store(server.url())),
        };
        build(builder, policies)
    }

    #[track_caller]
    pub(crate) fn server(&self) -> &Server {
        match self {
            Self::Memory(..) => panic!("a world in process"),
            Self::Redis(server, _) => server,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Memory(..) => "in process",
            Self::Redis(..) => "on Redis",
        }
    }

    pub(crate) fn advance(&self, by: Duration) {
        match self {
            Self::Memory(_, clock) => clock.time.advance(by),
            Self::Redis(_, clock) => clock.advance(by),
        }
    }

    pub(crate) fn rewind(&self, by: Duration) {
        match self {
            Self::Memory(_, clock) => clock.time.set(clock.time.now() - by),
            Self::Redis(_, clock) => clock.rewind(by),
        }
    }

    /// Waits for the heartbeats of `n` requests in flight that begin after this is called.
    pub(crate) async fn until_heartbeats(&self, n: u64) {
        let seen = || match self {
            Self::Memory(_, clock) => clock.reads(),
            // The server's own count of what is done to each permit, renewals and releases only.
            Self::Redis(server, _) => server.calls("zmscore"),
        };
        // One round may have begun before.
        let enough = seen() + 2 * n;
        until("heartbeats come", async || seen() >= enough).await;
    }
}

pub(crate) fn store(url: String) -> RedisStore {
    // Rejections are cached by this process's clock, and only the server's is set.
    let store = RedisStore::builder()
        .url(url)
        .timeout(TEST_TIMEOUT)
        .connections(1)
        .rejection_cache_staleness(Duration::ZERO);
    store.built()
}

pub(crate) fn build(
    builder: LimiterBuilder,
    policies: impl IntoIterator<Item = Policy>,
) -> Limiter {
    stores::limiter(builder.on_store_error(OnStoreError::Reject), policies)
}

pub(crate) async fn check(limiter: &Limiter) -> Decision {
    limiter.check(KEY).await
}

/// Takes one permit after the other until rejected.
pub(crate) async fn fill(limiter: &Limiter) -> Vec<Decision> {
    let mut held = Vec::new();
    loop {
        let decision = check(limiter).await;
        if !admitted_by_store(&decision) {
            return held;
        }
        held.push(decision);
        assert!(held.len() <= 2 * MAX_PERMITS as usize, "no end to it");
    }
}

/// How many units of `policy` are left.
pub(crate) async fn left_of(limiter: &Limiter, policy: &str) -> u64 {
    let seen = limiter.peek(KEY).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    seen.left(policy)
}

/// How many permits are free.
pub(crate) async fn free(limiter: &Limiter) -> u64 {
    left_of(limiter, "permits").await
}

/// Waits until this many permits are free: a release is not awaited where it is made.
#[track_caller]
pub(crate) fn until_free(limiter: &Limiter, permits: u64) -> impl Future<Output = ()> {
    until("permits are free", async move || {
        free(limiter).await == permits
    })
}

/// Takes `n` permits that are neither renewed nor released: the runtime of their holders has ended.
pub(crate) fn leak_permits(limiter: &Limiter, n: usize) {
    let limiter = limiter.clone();
    let thread = std::thread::spawn(move || {
        let runtime = current_thread();
        let held = runtime.block_on(async {
            let mut held = Vec::new();
            for _ in 0..n {
                let decision = check(&limiter).await;
                assert!(admitted_by_store(&decision), "{decision:?}");
                held.push(decision);
            }
            held
        });
        drop(runtime);
        std::mem::forget(held);
        // A renewal that it had sent has been made when another connection has a response.
        let seen = current_thread().block_on(limiter.peek(KEY).into_future());
        assert!(seen.is_ok(), "{seen:?}");
    });
    thread.join().expect("a thread that ends well");
}

/// How many permits the server stores, expired ones included.
#[track_caller]
pub(crate) fn stored_permits(server: &Server) -> i64 {
    let units = server.command(&["ZSCORE", &server.only_key(), "="]).text();
    -units.parse::<i64>().expect("a whole number")
}

/// The requests that hold permits.
#[track_caller]
pub(crate) fn holders(server: &Server) -> Vec<String> {
    let holders = ["ZRANGEBYSCORE", &server.only_key(), "0", "+inf"];
    let holders = server.command(&holders).list().into_iter();
    holders.map(testkit::Reply::text).collect()
}

/// When each request's permits expire, in microseconds, the next first.
#[track_caller]
pub(crate) fn expiries(server: &Server) -> Vec<u64> {
    let key = server.only_key();
    let range = ["ZRANGEBYSCORE", &key, "0", "+inf", "WITHSCORES"];
    let texts = server.command(&range).list().into_iter();
    let scores = texts.map(testkit::Reply::text).skip(1).step_by(2);
    scores
        .map(|score| score.parse().expect("whole microseconds"))
        .collect()
}
