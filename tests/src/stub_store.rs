//! A store in process of which a test replaces a part.

use std::{fmt, future::ready, sync::Arc};

use tollgate::{
    Key, MemoryStore, StoreError,
    error::InvalidValue,
    limiter::Override,
    observe::StoreStats,
    store::{
        CallersFuture, Completion, CounterOp, KeepAlive, LimitHandle, Op, OverrideFuture,
        OverrideTable, Store, StoreAdmin, StoreResponse,
    },
    strategy::Rule,
};

/// A store in process that lists no blocked keys, and whose responses and state are the test's.
#[derive(Clone)]
pub struct StubStore {
    counts: MemoryStore,
    /// The response to an operation; that of the store in process if it is `None`.
    respond: Arc<dyn Fn(Op) -> Option<StoreResponse> + Send + Sync>,
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
            stats: Arc::new(StoreStats::default),
            has_admin: true,
        }
    }

    /// Counts in this store.
    pub fn on(self, counts: MemoryStore) -> Self {
        Self { counts, ..self }
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
        (self.respond)(op).unwrap_or_else(|| self.counts.execute(op, counters))
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>], completion: Option<Completion>) {
        if (self.respond)(op).is_none() {
            self.counts.execute_detached(op, counters, completion);
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
