//! Stores on a clock that only moves when it is set, and the decisions on requests to them.

use std::{mem, sync::PoisonError};

use testkit::Clock as ServerClock;
use tollgate::limiter::PermitGuard;
use tollgate_tests::prelude::*;

use crate::shared::SameTime;

/// Neither on a second nor on a millisecond.
pub(crate) const START: u64 = 1_800_000_000_123_457;

/// A server, and a clock that it shares with stores in process.
pub(crate) struct World {
    pub(crate) server: Server,
    server_clock: ServerClock,
    clock: ManualClock,
}

impl World {
    pub(crate) fn new() -> Self {
        let server_clock = ServerClock::at(START);
        Self {
            server: Server::builder().clock(&server_clock).start(),
            server_clock,
            clock: ManualClock::at(Timestamp::from_micros(START as i64)),
        }
    }

    pub(crate) fn memory(&self) -> MemoryStore {
        MemoryStore::builder().clock(self.clock.clone()).build()
    }

    /// A store on the server that caches rejections for so long.
    pub(crate) fn redis(&self, staleness: Duration) -> RedisStore {
        let store = RedisStore::builder()
            .url(self.server.url())
            .timeout(TEST_TIMEOUT)
            .rejection_cache_clock(SameTime(self.server_clock.clone()))
            .rejection_cache_staleness(staleness);
        store.build().expect("a store")
    }

    /// Sets all clocks, also back.
    pub(crate) fn pass(&self, micros: i64) {
        let now = self.server_clock.micros().saturating_add_signed(micros);
        self.server_clock.set(now);
        self.clock.set(Timestamp::from_micros(now as i64));
    }

    /// All keys of policies, each with its value and its expiry. Tasks that earlier requests have begun may create the key that
    /// invalidates cached rejections.
    pub(crate) fn dump(&self) -> Vec<String> {
        const SCRIPT: &str = "
            local found = {}
            for _, key in ipairs(redis.call('KEYS', '*:*:*')) do
                local value = redis.sha1hex(redis.call('DUMP', key))
                found[#found + 1] = key .. ' ' .. value .. ' ' .. redis.call('PTTL', key)
            end
            table.sort(found)
            return found";
        let found = self.server.command(&["EVAL", SCRIPT, "0"]).list();
        found.into_iter().map(|line| line.text()).collect()
    }
}

/// A layer of a limiter, and what its requests have got.
pub(crate) struct Layered {
    pub(crate) limiter: Limiter,
    pub(crate) store: Arc<dyn Store>,
    layer: RateLimitLayer,
    decided: Arc<Mutex<Option<Decision>>>,
    /// Of the requests in flight.
    permits: Arc<Mutex<Vec<PermitGuard>>>,
}

impl Layered {
    pub(crate) fn new(
        store: impl Store + Clone,
        settings: impl FnOnce(LimiterBuilder) -> LimiterBuilder,
    ) -> Self {
        let builder = Limiter::builder().store(store.clone());
        let builder = builder.on_store_error(OnStoreError::Reject);
        let limiter = settings(builder).build().expect("a limiter");
        let decided = Arc::<Mutex<Option<Decision>>>::default();
        let rejected = decided.clone();
        let layer = RateLimitLayer::new(limiter.clone()).on_rejection(
            move |rejection: &Rejected, _: &Parts| {
                *lock(&rejected) = Some(rejection.decision().clone());
                let response = Response::builder().status(rejection.status());
                response.body(String::new()).expect("a response")
            },
        );
        Self {
            limiter,
            store: Arc::new(store),
            layer,
            decided,
            permits: Arc::default(),
        }
    }

    /// Sends a request through the layer, and returns its decision. Permits are held until they are released.
    pub(crate) async fn send(&self, parts: &Parts) -> Decision {
        let (decided, permits) = (self.decided.clone(), self.permits.clone());
        let service = ServiceBuilder::new().layer(self.layer.clone()).service_fn(
            move |request: Request<String>| {
                let admission = request
                    .extensions()
                    .get::<Admission>()
                    .expect("an admission");
                *lock(&decided) = admission.decisions().pop();
                lock(&permits).push(admission.hold_permits());
                async { Ok::<_, Infallible>(Response::new(String::new())) }
            },
        );
        let request = Request::from_parts(parts.clone(), String::new());
        let Ok(_response) = service.oneshot(request).await;
        let decided = mem::take(&mut *lock(&self.decided));
        self.store.flush().await;
        decided.expect("a decision")
    }

    /// Ends all requests in flight but so many of the newest.
    pub(crate) async fn end_requests(&self, but: usize) {
        let ended: Vec<_> = {
            let mut permits = lock(&self.permits);
            let ended = permits.len().saturating_sub(but);
            permits.drain(..ended).collect()
        };
        drop(ended);
        self.store.flush().await;
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
