//! What the tests share: stores whose clock only moves when it is set, and counts by a peek.

use testkit::Clock as ServerClock;
use tollgate::outcome::{self, RequestEnd};

pub(crate) use tollgate_tests::prelude::*;
use tollgate_tests::{counting_clock::CountingClock, world::START};

/// The TTL of an unrenewed permit, by the store's clock.
pub(crate) const PERMIT_TTL: Duration = ms(300);

/// A store, and its clock.
pub(crate) enum World {
    Memory(MemoryStore, CountingClock),
    Redis(RedisStore, Server, ServerClock),
}

impl World {
    pub(crate) fn memory() -> Self {
        let clock = CountingClock::at(START);
        let store = MemoryStore::builder().clock(clock.clone()).build();
        Self::Memory(store, clock)
    }

    fn redis() -> Self {
        let clock = ServerClock::at(START);
        let server = Server::builder().clock(&clock).start();
        // One worker sends in order: a caller that sees a permit free sees what was settled before. Rejections are
        // cached by this process's clock, and only the server's is set.
        let store = RedisStore::builder()
            .url(server.url())
            .connections(1)
            .rejection_cache_staleness(Duration::ZERO);
        let store = store.timeout(TEST_TIMEOUT).built();
        Self::Redis(store, server, clock)
    }

    pub(crate) fn both() -> [Self; 2] {
        [Self::memory(), Self::redis()]
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Memory(..) => "in process",
            Self::Redis(..) => "on Redis",
        }
    }

    pub(crate) fn builder(&self) -> LimiterBuilder {
        let builder = Limiter::builder().on_store_error(OnStoreError::Reject);
        match self {
            Self::Memory(store, _) => builder.store(store.clone()),
            Self::Redis(store, ..) => builder.store(store.clone()),
        }
    }

    /// A limiter that reports store failures.
    #[track_caller]
    pub(crate) fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        let policies = policies.into_iter();
        let builder = policies.fold(self.builder(), LimiterBuilder::policy);
        builder.built()
    }

    pub(crate) fn advance(&self, by: Duration) {
        match self {
            Self::Memory(_, clock) => clock.time.advance(by),
            Self::Redis(_, _, clock) => clock.advance(by),
        }
    }

    /// Waits for the heartbeats of `n` permits that begin after this is called.
    pub(crate) async fn until_heartbeats(&self, n: u64) {
        let seen = || match self {
            Self::Memory(_, clock) => clock.reads(),
            // The server's own count of renewals and releases.
            Self::Redis(_, server, _) => server.calls("zmscore"),
        };
        // One round may have begun before.
        let enough = seen() + 2 * n;
        until("heartbeats come", async || seen() >= enough).await;
    }
}

/// A limit of `n` requests in flight, all together.
pub(crate) fn permit_policy(n: u64, life: Duration) -> Policy {
    let policy = Policy::new("permits", Quota::concurrent(n)).key(extract::global());
    policy.strategy(Concurrency::with_ttl(life))
}

/// `n` requests an hour, all together.
pub(crate) fn hourly(name: &str, n: u64) -> Policy {
    let policy = Policy::new(name, Quota::requests(n).per_hour());
    policy.strategy(FixedWindow).key(extract::global())
}

/// How many units of these policies are used.
async fn used_of<const N: usize>(limiter: &Limiter, policies: [&str; N]) -> [u64; N] {
    let seen = limiter.peek(Key::global()).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    policies.map(|name| seen.used(name))
}

/// How many units of `policy` are used.
pub(crate) async fn used(limiter: &Limiter, policy: &str) -> u64 {
    let [used] = used_of(limiter, [policy]).await;
    used
}

/// Waits until this many permits are taken.
#[track_caller]
pub(crate) fn until_taken(limiter: &Limiter, permits: u64) -> impl Future<Output = ()> {
    until("so many permits are taken", async move || {
        used(limiter, "permits").await == permits
    })
}

/// What is charged under each policy of [`ChargedLayer`]: reserved for successes and for failures, and charged on response for
/// successes and for failures.
pub(crate) type Charged = [u64; 4];

pub(crate) const IN_FLIGHT: Charged = [1, 1, 0, 0];
pub(crate) const SUCCESS: Charged = [1, 0, 1, 0];
pub(crate) const FAILURE: Charged = [0, 1, 0, 1];
/// Its outcome is not known: charged whatever the outcome would have been.
pub(crate) const DROPPED: Charged = [1, 1, 1, 1];
pub(crate) const NOTHING: Charged = [0, 0, 0, 0];

const CHARGES: [&str; 4] = [
    "reserve success",
    "reserve failure",
    "response success",
    "response failure",
];

/// How a request ended, with its HTTP status and its gRPC code.
pub(crate) type Ended = (RequestEnd, Option<u16>, Option<i32>);

/// A layer with a policy of every mode and outcome, and an in-flight limit, which shows when a request is over.
pub(crate) struct ChargedLayer {
    pub(crate) layer: RateLimitLayer,
    ended: Arc<Mutex<Vec<Ended>>>,
}

impl ChargedLayer {
    pub(crate) fn new(world: &World) -> Self {
        Self::when_dropped(world, true)
    }

    pub(crate) fn when_dropped(world: &World, charges: bool) -> Self {
        let [
            reserve_success,
            reserve_failure,
            response_success,
            response_failure,
        ] = CHARGES;
        let ended = Arc::<Mutex<Vec<Ended>>>::default();
        let record = ended.clone();
        let sees = hourly("sees", 9).charge_after(move |outcome| {
            let status = outcome.status().map(|status| status.as_u16());
            let seen = (outcome.end(), status, outcome.grpc_status());
            record.lock().expect("no panic").push(seen);
            false
        });
        let policies = [
            hourly(reserve_success, 9).refund_unless(outcome::success),
            hourly(reserve_failure, 9).refund_unless(outcome::failure),
            hourly(response_success, 9).charge_after(outcome::success),
            hourly(response_failure, 9).charge_after(outcome::failure),
            sees,
        ];
        let policies = policies.map(|policy| policy.charge_dropped(charges));
        // No test outlasts the TTL: a permit that is free was released.
        let permit = permit_policy(9, secs(3_600));
        let limiter = world.limiter(policies.into_iter().chain([permit]));
        Self {
            layer: RateLimitLayer::new(limiter),
            ended,
        }
    }

    async fn charged(&self) -> Charged {
        used_of(self.layer.limiter(), CHARGES).await
    }

    /// What is charged for the one request in flight.
    pub(crate) async fn in_flight(&self) -> Charged {
        until_taken(self.layer.limiter(), 1).await;
        self.charged().await
    }

    /// Waits until no request is in flight; returns what it was charged and how it ended, if that is known, and resets
    /// both.
    pub(crate) async fn settled(&self) -> (Charged, Option<Ended>) {
        until_taken(self.layer.limiter(), 0).await;
        let charged = self.charged().await;
        let reset = self.layer.limiter().reset(Key::global()).await;
        let _ = reset.expect("a response");
        let mut ended = std::mem::take(&mut *self.ended.lock().expect("no panic"));
        assert!(ended.len() <= 1, "settled twice: {ended:?}");
        (charged, ended.pop())
    }
}
