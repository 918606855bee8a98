//! The permits of in-flight limits that requests of this process hold, and the task that renews them.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    cross_slot,
    io::Io,
    request::{Followers, Retry, limit::io_of, op::CounterOps},
};
use crate::{
    error::StoreError,
    store::{Op, StoreResponse},
    sync::lock,
};

/// How often a permit is renewed within its TTL.
const HEARTBEATS_PER_TTL: u32 = 3;

/// How often renewals that failed are retried between two heartbeats.
const RETRIES_PER_HEARTBEAT: u32 = 8;

/// The longest interval between heartbeats is a third of this: the longest TTL of built-in permits.
const MAX_TTL: Duration = Duration::from_secs(86_400);

/// Upper bound of the renewals in flight: a request that is sent meanwhile waits behind no more than these.
const MAX_RENEWALS: usize = 128;

/// The permits that requests hold. While there are any, a task on the IO thread renews them.
#[derive(Debug)]
pub(super) struct PermitRegistry {
    registry: Mutex<Registry>,
    io: Weak<Io>,
    /// Sends the renewal of one request's permits.
    send: fn(&CounterOps) -> StoreResponse,
}

#[derive(Debug)]
struct Registry {
    /// By the number of the request.
    permits: HashMap<u64, CounterOps>,
    last_id: u64,
    /// The shortest TTL of the store's limits: under a policy whose TTL was changed, each request shortens the permits that were taken
    /// before to the shorter one.
    ttl: Duration,
    heartbeat: Option<JoinHandle<()>>,
}

/// The permits of one request. Dropping it ends their renewals.
#[derive(Debug)]
pub(super) struct RegisteredPermits {
    registry: Arc<PermitRegistry>,
    id: u64,
}

impl PermitRegistry {
    pub(super) fn new(io: &Arc<Io>) -> Arc<Self> {
        Arc::new(Self::with(Arc::downgrade(io), send_renewal))
    }

    fn with(io: Weak<Io>, send: fn(&CounterOps) -> StoreResponse) -> Self {
        let registry = Registry {
            permits: HashMap::new(),
            last_id: 0,
            ttl: MAX_TTL,
            heartbeat: None,
        };
        Self {
            registry: Mutex::new(registry),
            io,
            send,
        }
    }

    /// Renews these permits until the returned value is dropped.
    pub(super) fn add(self: &Arc<Self>, counters: CounterOps) -> RegisteredPermits {
        let mut registry = lock(&self.registry);
        registry.last_id += 1;
        let id = registry.last_id;
        if !counters.is_empty() {
            registry.permits.insert(id, counters);
            self.start(&mut registry);
        }
        drop(registry);
        RegisteredPermits {
            registry: self.clone(),
            id,
        }
    }

    /// Renews all permits as often as this TTL needs it.
    pub(super) fn shorten_ttl(self: &Arc<Self>, ttl: Duration) {
        let mut registry = lock(&self.registry);
        if ttl < registry.ttl {
            registry.ttl = ttl;
            registry.stop();
            if !registry.permits.is_empty() {
                self.start(&mut registry);
            }
        }
    }

    /// Starts the task that renews the permits, if none runs.
    fn start(self: &Arc<Self>, registry: &mut Registry) {
        let heartbeat = registry.heartbeat.as_ref();
        if heartbeat.is_none_or(JoinHandle::is_finished) {
            let task = self.clone().run(registry.ttl / HEARTBEATS_PER_TTL);
            let runtime = self.io.upgrade().and_then(|io| io.runtime());
            #[cfg(test)]
            let runtime = runtime.or_else(|| tokio::runtime::Handle::try_current().ok());
            registry.heartbeat = runtime.map(|runtime| runtime.spawn(task));
        }
    }

    /// Renews the permits at each interval. It is aborted when there are none.
    async fn run(self: Arc<Self>, interval: Duration) {
        let (mut next, mut failed) = (Instant::now() + interval, Vec::new());
        loop {
            let retry = Instant::now() + interval / RETRIES_PER_HEARTBEAT;
            let is_heartbeat = failed.is_empty() || next <= retry;
            sleep_until(if is_heartbeat { next } else { retry }).await;
            let mut due = mem::take(&mut failed);
            if is_heartbeat {
                next = Instant::now() + interval;
                due = lock(&self.registry).permits.keys().copied().collect();
            }
            failed = self.renew(due).await;
        }
    }

    /// Renews permits that are still held, some at a time; returns the ids of those that could not be renewed.
    async fn renew(&self, due: Vec<u64>) -> Vec<u64> {
        let mut failed = Vec::new();
        for ids in due.chunks(MAX_RENEWALS) {
            for (id, response) in self.send(ids) {
                if response.result().await.is_err() {
                    failed.push(id);
                }
            }
        }
        failed
    }

    fn send(&self, ids: &[u64]) -> Vec<(u64, StoreResponse)> {
        let registry = lock(&self.registry);
        let permits = ids.iter();
        let held = permits.filter_map(|id| Some((*id, registry.permits.get(id)?.clone())));
        let held: Vec<_> = held.collect();
        drop(registry);
        let calls = held.into_iter();
        calls
            .map(|(id, permits)| (id, (self.send)(&permits)))
            .collect()
    }
}

impl Registry {
    fn stop(&mut self) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.abort();
        }
    }
}

impl Drop for RegisteredPermits {
    fn drop(&mut self) {
        let mut registry = lock(&self.registry.registry);
        registry.permits.remove(&self.id);
        if registry.permits.is_empty() {
            registry.stop();
        }
    }
}

fn send_renewal(permits: &CounterOps) -> StoreResponse {
    let Some(io) = io_of(permits) else {
        return StoreResponse::Ready(Err(StoreError::Unsupported("a store that was dropped")));
    };
    if io.spans_slots(permits.iter().map(|permit| &permit.key)) {
        return cross_slot::execute(&io, Op::Renew, permits.clone());
    }
    let (deadline, followers) = (io.deadline(), Followers::default());
    match io.execute(
        Op::Renew,
        permits.clone(),
        deadline,
        followers,
        Retry::Never,
    ) {
        Ok(response) => StoreResponse::Pending(response.into()),
        Err(error) => StoreResponse::Ready(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    };

    use tokio::time::sleep;

    use super::*;
    use crate::{
        Concurrency, Key,
        redis::request::op::OwnedCounterOp,
        store::{CounterOp, LimitHandle, OpResult},
    };

    const TTL: Duration = Duration::from_secs(12);

    /// Renewals that take a millisecond each, and fail while the store does.
    #[derive(Default)]
    struct Renewals {
        fails: AtomicBool,
        done: AtomicUsize,
        under_way: AtomicUsize,
        most_under_way: AtomicUsize,
        /// When each permit was taken or renewed.
        renewed_at: Mutex<HashMap<Key, Instant>>,
    }

    impl Renewals {
        fn send(&'static self, permit: &CounterOps) -> StoreResponse {
            let under_way = self.under_way.fetch_add(1, SeqCst) + 1;
            self.most_under_way.fetch_max(under_way, SeqCst);
            let (key, fails) = (permit[0].key, self.fails.load(SeqCst));
            StoreResponse::pending(async move {
                sleep(Duration::from_millis(1)).await;
                self.under_way.fetch_sub(1, SeqCst);
                if fails {
                    return Err(StoreError::Timeout { may_have_run: true });
                }
                self.done.fetch_add(1, SeqCst);
                let before = lock(&self.renewed_at).insert(key, Instant::now());
                assert!(
                    before.is_none_or(|before| before.elapsed() < TTL),
                    "it had expired"
                );
                Ok(OpResult::new(Default::default(), 0, []))
            })
        }

        fn none_has_expired(&self) -> bool {
            let renewed_at = lock(&self.renewed_at);
            renewed_at
                .values()
                .all(|renewed_at| renewed_at.elapsed() < TTL)
        }
    }

    fn permit(key: usize) -> CounterOps {
        let limit = LimitHandle::unregistered(Concurrency::new(), "1 concurrent");
        let permit = CounterOp::new(&limit, Key::new(format!("{key}")));
        CounterOps::from_iter([OwnedCounterOp::of(&permit)])
    }

    /// Renews the permits of `n` requests in this runtime, by its clock.
    fn hold(
        n: usize,
        renewals: &Renewals,
        send: fn(&CounterOps) -> StoreResponse,
    ) -> Vec<RegisteredPermits> {
        let permits = Arc::new(PermitRegistry::with(Weak::new(), send));
        let task = tokio::spawn(permits.clone().run(TTL / HEARTBEATS_PER_TTL));
        lock(&permits.registry).heartbeat = Some(task);
        let hold = |key| {
            let permit = permit(key);
            lock(&renewals.renewed_at).insert(permit[0].key, Instant::now());
            permits.add(permit)
        };
        (0..n).map(hold).collect()
    }

    /// All of them at once would pass the timeout, and so would the requests behind them.
    #[tokio::test(start_paused = true)]
    async fn permits_are_renewed_a_few_at_a_time() {
        static RENEWALS: LazyLock<Renewals> = LazyLock::new(Renewals::default);
        let held = hold(1_000, &RENEWALS, |permit| RENEWALS.send(permit));
        sleep(TTL / 2).await;
        let most = RENEWALS.most_under_way.load(SeqCst);
        assert!((1..=128).contains(&most), "{most} renewals at once");
        assert_eq!(RENEWALS.done.load(SeqCst), held.len());
    }

    #[tokio::test(start_paused = true)]
    async fn permits_survive_outages_of_half_their_ttl() {
        static RENEWALS: LazyLock<Renewals> = LazyLock::new(Renewals::default);
        for begins in 0..24 {
            let _held = hold(5, &RENEWALS, |permit| RENEWALS.send(permit));
            sleep(TTL * begins / 24).await;
            RENEWALS.fails.store(true, SeqCst);
            sleep(TTL / 2).await;
            RENEWALS.fails.store(false, SeqCst);
            sleep(TTL).await;
            assert!(RENEWALS.none_has_expired(), "{begins}");
        }
    }

    /// A renewal that failed is not sent again for a released permit.
    #[tokio::test(start_paused = true)]
    async fn released_permits_are_not_renewed_again() {
        static RENEWALS: LazyLock<Renewals> = LazyLock::new(Renewals::default);
        let mut held = hold(5, &RENEWALS, |permit| RENEWALS.send(permit));
        RENEWALS.fails.store(true, SeqCst);
        sleep(TTL / HEARTBEATS_PER_TTL + Duration::from_millis(2)).await;
        held.truncate(1);
        RENEWALS.fails.store(false, SeqCst);
        sleep(TTL / HEARTBEATS_PER_TTL).await;
        let done = RENEWALS.done.load(SeqCst);
        assert!((1..=2).contains(&done), "{done} renewals of one permit");
    }

    #[tokio::test]
    async fn a_shorter_ttl_is_in_force_at_once() {
        static RENEWALS: LazyLock<Renewals> = LazyLock::new(Renewals::default);
        let permits = Arc::new(PermitRegistry::with(Weak::new(), |permit| {
            RENEWALS.send(permit)
        }));
        let _held = permits.add(permit(0));
        permits.shorten_ttl(Duration::from_millis(100));
        while RENEWALS.done.load(SeqCst) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}
