//! Where counts live.
//!
//! [`MemoryStore`](crate::MemoryStore) counts in process. [`RedisStore`](crate::RedisStore) (feature `redis`) counts for
//! any number of processes.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use smallvec::SmallVec;

use self::health::HealthReport;
pub use self::units::Units;
use crate::{
    clock::Timestamp,
    error::{InvalidValue, StoreError},
    key::Key,
    strategy::{ChargeReceipt, QuotaStatus, RetryAfter, Rule, Snapshot},
};

pub(crate) mod health;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
mod room;
pub(crate) mod units;

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

/// What a policy's rule is known by in its store. Cheap to clone.
#[derive(Clone)]
pub struct LimitHandle(Arc<Opened>);

struct Opened {
    /// Told from every other's, also of limits that are no more.
    number: u64,
    policy: Box<str>,
    rule: Arc<dyn Rule>,
    follows_wall_clock: bool,
    records_caller: bool,
    permit_ttl: Option<Duration>,
    context: Box<dyn Any + Send + Sync>,
}

impl LimitHandle {
    /// A limit, and what its store needs to find it again.
    pub fn new(policy: &str, rule: Arc<dyn Rule>, context: impl Any + Send + Sync) -> Self {
        static ACCOUNTS: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(Opened {
            number: ACCOUNTS.fetch_add(1, Ordering::Relaxed),
            policy: policy.into(),
            follows_wall_clock: rule.follows_wall_clock(),
            records_caller: rule.records_caller(),
            permit_ttl: rule.permit_ttl(),
            rule,
            context: Box::new(context),
        }))
    }

    /// The policy's name.
    pub fn policy(&self) -> &str {
        &self.0.policy
    }

    /// How it is counted.
    pub fn rule(&self) -> &dyn Rule {
        &*self.0.rule
    }

    /// What a request of `cost` units may expect at `now`, by `snapshot` and the rule. A request that costs nothing waits for
    /// nothing, also in debt.
    pub fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: Units) -> QuotaStatus {
        let status = self.rule().status(snapshot, now, cost.get());
        let retry_after = if cost.is_zero() {
            RetryAfter::Now
        } else {
            status.retry_after
        };
        QuotaStatus {
            retry_after,
            ..status
        }
    }

    /// Whether its rule [follows the wall clock](Rule::follows_wall_clock).
    pub fn follows_wall_clock(&self) -> bool {
        self.0.follows_wall_clock
    }

    /// Whether its rule [records callers](Rule::records_caller).
    pub fn records_caller(&self) -> bool {
        self.0.records_caller
    }

    /// The [permit TTL](Rule::permit_ttl) of its rule.
    pub fn permit_ttl(&self) -> Option<Duration> {
        self.0.permit_ttl
    }

    /// What its store noted on it, if it is that store's.
    pub fn context<T: Any>(&self) -> Option<&T> {
        self.0.context.downcast_ref()
    }

    /// Tells this limit from every other.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }
}

impl fmt::Debug for LimitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitHandle")
            .field("policy", &self.policy())
            .field("rule", &self.rule())
            .finish_non_exhaustive()
    }
}

/// What is asked about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Charge every line for as many of so many equal requests as there is room for under every one: one, as a rule.
    Acquire(u32),
    /// Charge nothing, and tell how it stands.
    Peek,
    /// Charge every line, past what is left if need be: down to a debt of at most one capacity.
    ForceAcquire,
    /// Give units of each line's receipt back, as far as time has not, parts of a unit included.
    Refund,
    /// Charge the lines without a receipt as [`ForceAcquire`](Op::ForceAcquire) does, and refund the others as
    /// [`Refund`](Op::Refund) does: all lines of one [shard](Store::shard), or none.
    Settle,
    /// Forget each line's key, and tell how it stood.
    Reset,
    /// Let the permit that each line's caller holds live on.
    Renew,
}

impl Op {
    /// What it does to one line.
    pub(crate) fn of_line(self, line: &CounterOp<'_>) -> Self {
        match self {
            Self::Settle if line.receipt.remaining > 0 => Self::Refund,
            Self::Settle => Self::ForceAcquire,
            other => other,
        }
    }

    /// Whether the wait of a request that was rejected before may be another one after it.
    #[cfg(feature = "redis")]
    pub(crate) fn lifts(self) -> bool {
        matches!(
            self,
            Self::Refund | Self::Settle | Self::Reset | Self::ForceAcquire
        )
    }
}

/// One policy's part of a request.
#[derive(Clone, Copy, Debug)]
pub struct CounterOp<'a> {
    /// What it is counted by.
    pub limit: &'a LimitHandle,
    /// Who is asking.
    pub key: Key,
    /// How many units of each request: any number up to [`Units::MAX`], also more than there can be room for.
    pub units: Units,
    /// Only to give back: what was charged.
    pub receipt: ChargeReceipt,
    /// The caller to store with the charge, where the rule [records it](Rule::records_caller).
    pub caller: Key,
    /// What a [`Acquire`](Op::Acquire) does under this policy.
    pub mode: CounterMode,
}

impl<'a> CounterOp<'a> {
    /// The line of a request for one unit, signed with its own key.
    pub(crate) fn plain(limit: &'a LimitHandle, key: Key) -> Self {
        Self {
            limit,
            key,
            units: Units::ONE,
            receipt: ChargeReceipt::NONE,
            caller: key,
            mode: CounterMode::Charge,
        }
    }
}

/// What a [`Acquire`](Op::Acquire) does under one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterMode {
    /// Charges what it admits.
    #[default]
    Charge,
    /// Sees that there is room, and charges nothing.
    Check,
    /// Charges what it admits, and what it refuses for want of room under this policy too: down to a debt of at most one
    /// capacity, or, where the rule [stores each unit](Rule::stores_each_unit), no debt.
    ChargeRejectedToo,
    /// Sees that there is room, and charges its units for each request that other lines refuse: under a rule that
    /// [counts rejections](Rule::counts_rejections). Without room it refuses, whatever its units are, and nothing is charged
    /// for what it refuses: of several requests at once, the refused ones count under all lines until its room is used up.
    /// It has no units where a request will be asked about again, so that it isn't refused yet.
    ///
    /// Whatever answers in place of the store must not keep refusals from such a line, unless it was this line that
    /// refused.
    CountRejections,
    /// Refuses nothing, and charges what it would admit if it stood in the place of another line, or beside them all.
    Shadow {
        /// The place of the line that it would stand for.
        replaces: Option<usize>,
        /// Whether it charges, or only sees that there is room.
        charges: bool,
    },
}

impl CounterMode {
    /// Whether it refuses nothing, and counts by itself.
    pub(crate) fn is_shadow(self) -> bool {
        matches!(self, Self::Shadow { .. })
    }
}

/// A store's answer, at once or later.
#[must_use]
pub enum StoreResponse {
    /// Known at once.
    Ready(Result<OpResult, StoreError>),
    /// Being asked for. Dropping it withdraws the question; what it had charged is given back.
    Pending(PendingResponse),
}

impl StoreResponse {
    /// What a future will answer.
    pub fn pending(
        answer: impl Future<Output = Result<OpResult, StoreError>> + Send + 'static,
    ) -> Self {
        Self::Pending(PendingResponse(Answering::Future(Box::pin(answer))))
    }
}

/// An answer that is being asked for.
#[must_use = "dropping it withdraws the question"]
pub struct PendingResponse(Answering);

enum Answering {
    Future(Pin<Box<dyn Future<Output = Result<OpResult, StoreError>> + Send>>),
    /// Which needs no memory beside the question's.
    #[cfg(feature = "redis")]
    Redis(redis::Awaited),
}

impl PendingResponse {
    /// One that is there.
    pub(crate) fn now(answer: Result<OpResult, StoreError>) -> Self {
        Self(Answering::Future(Box::pin(std::future::ready(answer))))
    }

    /// One that a lane was asked for.
    #[cfg(feature = "redis")]
    pub(crate) fn asked(awaited: redis::Awaited) -> Self {
        Self(Answering::Redis(awaited))
    }
}

impl Future for PendingResponse {
    type Output = Result<OpResult, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Answering::Future(answer) => answer.as_mut().poll(cx),
            #[cfg(feature = "redis")]
            Answering::Redis(awaited) => awaited.poll_answer(cx),
        }
    }
}

impl fmt::Debug for PendingResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingResponse").finish_non_exhaustive()
    }
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

impl fmt::Debug for StoreResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Self::Pending(_) => f.debug_tuple("Pending").finish_non_exhaustive(),
        }
    }
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The store counted.
    Store,
    /// A denial that the store gave before, and that still holds.
    RejectionCache,
    /// Not from the store, which could not answer: what the limiter was told to do then.
    Fallback,
    /// Nothing was asked: no policy applied, one found no key, or a list allows or denies it.
    NotChecked,
}

/// What a store answers.
#[derive(Clone, Debug)]
pub struct OpResult {
    /// How many requests of a [`Acquire`](Op::Acquire) were charged.
    pub admitted: u64,
    /// The instant it was judged at, on the store's clock.
    pub at: Timestamp,
    /// How long ago that is at least: zero, but from the [cache](DecisionSource::RejectionCache).
    pub age: Duration,
    /// How many equal requests were admitted at the same instant after this one. What the lines saw is after these.
    pub admitted_after: u64,
    /// Where the answer came from.
    pub source: DecisionSource,
    /// One for each line, in order.
    pub counters: SmallVec<[CounterResult; 1]>,
}

/// What a store answers about one line.
#[derive(Clone, Copy, Debug)]
pub struct CounterResult {
    /// How many units were charged ([`Acquire`](Op::Acquire), [`ForceAcquire`](Op::ForceAcquire)), given back ([`Refund`](Op::Refund)) or renewed.
    pub units: u64,
    /// The key's state after it, or before a [`Reset`](Op::Reset).
    pub snapshot: Snapshot,
    /// How much later than [the answer's instant](OpResult::at) it was judged, in microseconds, by its own clock: several keys
    /// may be on several servers, and a rule may [follow the wall clock](Rule::follows_wall_clock).
    pub clock_skew_us: i64,
}

impl OpResult {
    /// The instant at which a line was judged.
    pub(crate) fn at_line(&self, line: &CounterResult) -> Timestamp {
        self.at.shifted(line.clock_skew_us)
    }
}

impl CounterResult {
    /// What became of a line.
    pub const fn of(units: u64, snapshot: Snapshot) -> Self {
        Self {
            units,
            snapshot,
            clock_skew_us: 0,
        }
    }
}
