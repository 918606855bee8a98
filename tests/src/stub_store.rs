//! A store in process of which a test replaces a part.

use std::{fmt, future::ready, sync::Arc, time::Duration};

use tollgate::{
    Key, MemoryStore, StoreError,
    error::InvalidValue,
    limiter::Override,
    observe::StoreStats,
    store::{
        CallersFuture, Completion, CounterOp, KeepAlive, LimitHandle, Op, OpResult, OverrideFuture,
        OverrideTable, Store, StoreAdmin, StoreResponse,
    },
    strategy::Rule,
};

type Pass = dyn Fn(Op, Result<OpResult, StoreError>) -> StoreResponse + Send + Sync;

/// A store in process that lists no blocked keys, and whose responses and state are the test's.
#[derive(Clone)]
pub struct StubStore {
    counts: MemoryStore,
    /// The response to an operation; that of the store in process if it is `None`.
    respond: Arc<dyn Fn(Op) -> Option<StoreResponse> + Send + Sync>,
    /// What becomes of a response of the store in process.
    pass: Arc<Pass>,
    /// How long detached operations take.
    detached_delay: Duration,
    stats: Arc<dyn Fn() -> StoreStats + Send + Sync>,
    has_admin: bool,
}

impl Default for StubStore {
    fn default() -> Self {
        Self::responding(|_| None)
    }
}

impl StubStore {
    pub fn responding(
        respond: impl Fn(Op) -> Option<StoreResponse> + Send + Sync + 'static,
    ) -> Self {
        Self {
            counts: MemoryStore::new(),
            respond: Arc::new(respond),
            pass: Arc::new(|_, result| StoreResponse::Ready(result)),
            detached_delay: Duration::ZERO,
            stats: Arc::new(StoreStats::default),
            has_admin: true,
        }
    }

    /// Counts in this store.
    pub fn on(self, counts: MemoryStore) -> Self {
        Self { counts, ..self }
    }

    /// Sets what becomes of each response of the store in process, such as a later one.
    pub fn passing(
        self,
        pass: impl Fn(Op, Result<OpResult, StoreError>) -> StoreResponse + Send + Sync + 'static,
    ) -> Self {
        let pass = Arc::new(pass);
        Self { pass, ..self }
    }

    /// Delays detached operations, in a task.
    pub fn detached_delay(self, detached_delay: Duration) -> Self {
        Self {
            detached_delay,
            ..self
        }
    }

    /// A store that operators can ask nothing of.
    pub fn without_admin() -> Self {
        Self {
            has_admin: false,
            ..Self::default()
        }
    }

    /// A store that fails every operation.
    pub fn failing(error: StoreError) -> Self {
        Self::responding(move |_| Some(StoreResponse::Ready(Err(error.clone()))))
    }

    /// A store that cannot be reached.
    pub fn unreachable() -> Self {
        Self::failing(StoreError::connection("127.0.0.1:1: refused"))
    }

    pub fn with_stats(stats: impl Fn() -> StoreStats + Send + Sync + 'static) -> Self {
        Self {
            stats: Arc::new(stats),
            ..Self::default()
        }
    }
}

impl fmt::Debug for StubStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StubStore").finish_non_exhaustive()
    }
}

impl Store for StubStore {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.counts.register(policy, rule)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        (self.respond)(op).unwrap_or_else(|| match self.counts.execute(op, counters) {
            StoreResponse::Ready(result) => (self.pass)(op, result),
            later => later,
        })
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>], completion: Option<Completion>) {
        if (self.respond)(op).is_some() {
            return;
        }
        if self.detached_delay.is_zero() {
            return self.counts.execute_detached(op, counters, completion);
        }
        for counter in counters {
            let (store, delay) = (self.counts.clone(), self.detached_delay);
            let (limit, key, receipt) = (counter.limit.clone(), counter.key, counter.receipt);
            let (units, caller, mode) = (counter.units, counter.caller, counter.mode);
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let mut later = CounterOp::new(&limit, key).with_units(units);
                later.receipt = receipt;
                let later = later.with_caller(caller).with_mode(mode);
                store.execute_detached(op, &[later], None);
            });
        }
    }

    fn keep_alive(&self, counters: &[CounterOp<'_>]) -> Option<KeepAlive> {
        self.counts.keep_alive(counters)
    }

    fn stats(&self) -> StoreStats {
        (self.stats)()
    }

    fn admin(&self) -> Option<&dyn StoreAdmin> {
        self.has_admin.then_some(self)
    }
}

impl StoreAdmin for StubStore {
    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        self.counts.callers(limit, key)
    }

    fn overrides(&self) -> Option<&OverrideTable> {
        self.counts.overrides()
    }

    /// Fails as a reset does.
    fn set_override(&self, policy: &str, key: &Key, setting: Option<Override>) -> OverrideFuture {
        match (self.respond)(Op::Reset) {
            Some(StoreResponse::Ready(Err(error))) => Box::pin(ready(Err(error.into()))),
            _ => self.counts.set_override(policy, key, setting),
        }
    }
}
