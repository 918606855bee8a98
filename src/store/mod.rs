//! Where counts live.
//!
//! [`MemoryStore`](crate::MemoryStore) counts in process. [`RedisStore`](crate::RedisStore) (feature `redis`) counts for
//! any number of processes.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use self::health::HealthReport;
pub use self::units::Units;
use crate::{
    clock::Timestamp,
    error::{InvalidValue, StoreError},
    key::Key,
    strategy::{Rule, Snapshot},
};

mod handle;
pub(crate) mod health;
pub mod memory;
mod op;
#[cfg(feature = "redis")]
pub mod redis;
mod response;
mod room;
pub(crate) mod units;

pub use handle::LimitHandle;
pub use op::{CounterMode, CounterOp, Op};
#[cfg(feature = "redis")]
pub(crate) use response::PollResponse;
pub use response::{CounterResult, DecisionSource, OpResult, PendingResponse, StoreResponse};

/// Where counts live. Built-in stores share their counts among their clones.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Opens a limit for what `rule` counts under a policy's name. Rules of one policy (other quotas for other
    /// callers, say) whose tags are equal share their keys.
    ///
    /// # Errors
    ///
    /// If this store can't count by that rule.
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue>;

    /// Asks about one request: all of its lines at one instant, or none.
    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse;

    /// Takes `units` for one request under one limit that doesn't [record callers](Rule::records_caller), if the answer can be known at a
    /// glance: what most requests ask, of a store that is near. Where it returns `None`, and does nothing,
    /// [`execute`](Store::execute) is asked for the same.
    fn glance(&self, limit: &LimitHandle, key: &Key, units: Units) -> Option<Glance> {
        let _ = (limit, key, units);
        None
    }

    /// Which server counts a key. What is asked of one server is done together or not at all; of several, each does its part.
    fn shard(&self, key: &Key) -> usize {
        let _ = key;
        0
    }

    /// The callers whose charges under a key count now, in order, one for each unit; none where the rule doesn't
    /// [record them](Rule::records_caller).
    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture;

    /// Looks at itself, and tries each limit on a key that nobody else uses, which it removes. A store that can't be wrong
    /// about anything finds nothing.
    fn health_check(&self, limits: &[LimitHandle]) -> HealthFuture {
        let _ = limits;
        Box::pin(std::future::ready(HealthReport::default()))
    }

    /// A number that stores have in common if they share their counts, as clones do, and others don't; `None` if that is not
    /// known. A request that is charged twice under one policy is found by it.
    fn id(&self) -> Option<u64> {
        None
    }

    /// What a wall clock showed at an instant of this store's clock: the same, for a store whose clock is a wall clock.
    fn wall(&self, at: Timestamp) -> Timestamp {
        at
    }

    /// Completes when nothing is [queued](Store::queued) any more, and sends what can be sent until then.
    fn flush(&self) -> FlushFuture {
        Box::pin(std::future::ready(()))
    }

    /// Refunds and charges that wait to be sent, or for the answer to their being sent.
    fn queued(&self) -> u64 {
        0
    }

    /// Does what [`execute`](Store::execute) does without an answer, and without waiting for one: what is given back when nobody can wait.
    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]);
}

/// What a [`glance`](Store::glance) takes.
#[derive(Clone, Copy, Debug)]
pub struct Glance {
    /// Whether there was room. If so it is charged.
    pub fits: bool,
    /// The instant it was judged at, on the clock that the rule counts by.
    pub at: Timestamp,
    /// The key's state after it.
    pub snapshot: Snapshot,
}

/// The callers that a store is asked for.
pub type CallersFuture = Pin<Box<dyn Future<Output = Result<Vec<Key>, StoreError>> + Send>>;

/// That nothing is queued any more.
pub type FlushFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a store finds out about itself.
pub type HealthFuture = Pin<Box<dyn Future<Output = HealthReport> + Send>>;
