//! All IO on Redis, on one thread.
//!
//! Threads of the application push requests into the [`Inbox`] of a lane, and read what the IO thread publishes: an open circuit
//! breaker, cached rejections, leases. One task for each store on the thread's runtime, the [`Actor`](actor::Actor), owns all else, and without locks:
//! lanes, servers with their connections and circuit breakers, the slot map of a cluster, and adjustments to be sent again.
//!
//! 1. [`Io::execute`] pushes a [`PendingRequest`] into its lane's inbox. There is one lane for a server, and one for each hash tag of a
//!    cluster.
//! 2. `actor` drains the inbox; `lane` says when the next batch leaves and fills it; the batch is encoded as one `EVALSHA`
//!    and handed to the connection of the lane's `node`.
//! 3. `calls` decodes the reply and fills the response slot of each request, or does what `error_class` says about an error. `kept::fail` is
//!    the end of a request without a reply: it says what is sent again.
//!
//! Request, call and connection end independently. A request ends at its deadline, the store's timeout after its arrival. A call ends with
//! its reply or its connection, or after `lane::MIN_CALL_TIMEOUT`. A connection ends when it breaks, or when the server is silent (`node`) and
//! the calls on it have ended. Opening one (`connections`), a probe, the slot map (`slots`) and a sentinel's reply (`sentinel`) have timeouts of
//! their own; a [`Command`] brings its own.
//!
//! No turn of the actor awaits a server. Replies, its timer and the `Notify` of [`Io`] wake it. It ends once the store is dropped.
//!
//! `wire` is how a server is called; tests script it. `server` is where connections come from.

use std::{
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use hashbrown::DefaultHashBuilder;
use redis::{Cmd, FromRedisValue, Value};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::Instant,
};

use self::{
    actor::Actor,
    inbox::{PushOutcome, RequestQueue},
    server::Servers,
    wire::RedisWire,
};
use super::{
    error_class,
    hash_tags::HashTags,
    rejection_cache::{CacheToken, RejectionCache},
    request::{
        Followers, PendingRequest, RequestState, Retry, UndeliveredGuard, ended,
        op::{CounterOps, OwnedCounterOp},
    },
    script::{Script, ScriptRegistry},
};
use crate::{
    background::background_runtime,
    clock::{Clock, SystemClock, Timestamp},
    error::StoreError,
    key::Key,
    observe::{NodeStats, Observer, SharedObservers},
    store::{Completion, Op, OpResult, StoreResponse},
    sync::{CachePadded, lock, read},
};

mod actor;
mod breaker;
mod calls;
mod commands;
mod connections;
mod deadline_timer;
pub(crate) mod events;
mod inbox;
mod kept;
mod lane;
mod node;
pub(crate) mod opener;
mod sentinel;
pub(crate) mod server;
#[cfg(test)]
mod simulation;
pub(crate) mod slots;
pub(crate) mod tls;
mod wire;

pub(crate) use self::sentinel::Sentinel;

const NO_THREAD: StoreError =
    StoreError::NoRuntime("the store on Redis needs a thread, which could not be started");

/// What the threads of the application have of a store's IO.
pub(crate) struct Io {
    pub(super) scripts: RwLock<ScriptRegistry>,
    pub(super) rejection_cache: RejectionCache,
    pub(super) observers: Arc<SharedObservers>,
    pub(super) server_clock: Arc<ServerClock>,
    pub(super) adjustments: AdjustmentTotals,
    /// The servers that have keys, written by the actor.
    pub(super) nodes: Mutex<Vec<NodeStats>>,
    settings: IoSettings,
    hasher: DefaultHashBuilder,
    /// One for each lane.
    inboxes: Box<[CachePadded<Inbox>]>,
    commands: Mutex<CommandQueue>,
    /// Wakes the actor: enough requests are in an inbox, a command waits, or the store is dropped. Replies and its timer wake it, too.
    wake: Notify,
    /// The requests that the actor has drained and not sent.
    drained: AtomicUsize,
    is_started: AtomicBool,
    /// Taken by the actor, which the first request starts.
    servers: Mutex<Option<Servers>>,
    /// Whether the store is dropped.
    is_closed: AtomicBool,
}

/// The settings of a store's IO.
#[derive(Clone, Debug)]
pub(crate) struct IoSettings {
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    /// The failures in a row that open a circuit breaker; `None`: it never opens.
    pub(crate) breaker_threshold: Option<std::num::NonZeroU32>,
    pub(crate) tags: Option<HashTags>,
    /// The runtime of the actor in place of the thread's.
    pub(crate) runtime: Option<Handle>,
}

/// Numbers of adjustments without a waiter.
#[derive(Debug, Default)]
pub(crate) struct AdjustmentTotals {
    /// In an inbox, a backlog or a call.
    undelivered: Arc<AtomicUsize>,
    /// Kept by the actor, to be sent again.
    kept: AtomicUsize,
    /// Dropped so far.
    dropped: AtomicU64,
    /// Sent without a reply so far, and not sent again.
    unconfirmed: AtomicU64,
}

impl AdjustmentTotals {
    /// Adjustments that are kept or in flight.
    pub(super) fn queued(&self) -> usize {
        // One that moves between the two states meanwhile is counted by one of these reads.
        let before = self.undelivered.load(Ordering::Acquire);
        let kept = self.kept.load(Ordering::Acquire);
        kept + before.max(self.undelivered.load(Ordering::Acquire))
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn unconfirmed(&self) -> u64 {
        self.unconfirmed.load(Ordering::Relaxed)
    }
}

/// An estimate of the server's clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    /// How far it is ahead of this machine's, in microseconds.
    offset_us: AtomicI64,
}

impl ServerClock {
    /// Notes what the server's clock shows now.
    pub(super) fn set(&self, now: Timestamp) {
        let offset = now
            .as_micros()
            .saturating_sub(SystemClock.now().as_micros());
        self.offset_us.store(offset, Ordering::Relaxed);
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        SystemClock
            .now()
            .shifted(self.offset_us.load(Ordering::Relaxed))
    }
}

/// Where threads push the requests of a lane.
#[derive(Debug, Default)]
struct Inbox {
    queue: Mutex<RequestQueue<PendingRequest>>,
    /// The open circuit breaker of the lane's server.
    open: ArcSwapOption<OpenBreaker>,
}

/// A circuit breaker that is open, as request threads see it.
#[derive(Debug)]
struct OpenBreaker {
    next_probe: Instant,
    cause: Option<Arc<StoreError>>,
}

impl OpenBreaker {
    fn error(&self, now: Instant) -> StoreError {
        StoreError::CircuitOpen {
            retry_after: self.next_probe.saturating_duration_since(now),
            cause: self.cause.clone(),
        }
    }
}

/// Commands that wait for the actor.
#[derive(Debug, Default)]
struct CommandQueue {
    waiting: Vec<Command>,
    is_closed: bool,
}

/// An idempotent command, which takes no lane.
#[derive(Debug)]
enum Command {
    Run {
        target: Target,
        cmd: Cmd,
        timeout: Duration,
        reply: oneshot::Sender<Result<Value, StoreError>>,
    },
    /// Asks for each server that has keys, with the first hash tag that it has.
    Servers(oneshot::Sender<Result<Vec<ServerRef>, StoreError>>),
}

impl Command {
    fn fail(self, error: StoreError) {
        match self {
            Self::Run { reply, .. } => drop(reply.send(Err(error))),
            Self::Servers(reply) => drop(reply.send(Err(error))),
        }
    }
}

/// The server that a command is sent to.
#[derive(Clone, Debug)]
enum Target {
    /// The one that has the keys of a hash tag.
    Tag(usize),
    /// The one with this name, or none.
    Name(Arc<str>),
}

/// A server, and a hash tag of keys that it has.
#[derive(Clone, Debug)]
pub(crate) struct ServerRef {
    pub(crate) name: Arc<str>,
    pub(crate) tag: usize,
}

impl Io {
    pub(super) fn new(
        settings: IoSettings,
        servers: Servers,
        server_clock: Arc<ServerClock>,
        rejection_cache: RejectionCache,
    ) -> Arc<Self> {
        let lanes = settings.tags.as_ref().map_or(1, HashTags::len);
        let name = servers.single_name();
        let node = name.map(|name| NodeStats::new(name, crate::observe::BreakerState::Closed, 0));
        Arc::new(Self {
            scripts: ScriptRegistry::new().into(),
            rejection_cache,
            observers: Arc::default(),
            server_clock,
            adjustments: AdjustmentTotals::default(),
            nodes: Mutex::new(node.into_iter().collect()),
            settings,
            hasher: DefaultHashBuilder::default(),
            inboxes: (0..lanes).map(|_| CachePadded::default()).collect(),
            commands: Mutex::default(),
            wake: Notify::new(),
            drained: AtomicUsize::new(0),
            is_started: AtomicBool::new(false),
            servers: Mutex::new(Some(servers)),
            is_closed: AtomicBool::new(false),
        })
    }

    pub(super) fn prefix(&self) -> &str {
        &self.settings.prefix
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// The hash tags of keys, on a cluster.
    pub(crate) fn tags(&self) -> Option<&HashTags> {
        self.settings.tags.as_ref()
    }

    /// The hash tag of a key: zero, except on a cluster.
    pub(crate) fn tag_of(&self, key: &Key) -> usize {
        self.tags().map_or(0, |tags| tags.of(key))
    }

    /// Whether the keys of a request are in several slots of a cluster.
    #[inline]
    pub(crate) fn spans_slots<'a>(&self, mut keys: impl ExactSizeIterator<Item = &'a Key>) -> bool {
        let Some(tags) = self.tags().filter(|_| keys.len() > 1) else {
            return false;
        };
        let first = keys.next().map(|key| tags.of(key));
        keys.any(|key| Some(tags.of(key)) != first)
    }

    /// The current time by the clock of deadlines.
    pub(super) fn now(&self) -> Instant {
        match &self.settings.runtime {
            // A test may have stopped the clock of its runtime.
            Some(_) => Instant::now(),
            None => Instant::from_std(std::time::Instant::now()),
        }
    }

    /// The deadline of a request that arrives now.
    pub(crate) fn deadline(&self) -> Instant {
        self.now() + self.timeout()
    }

    pub(super) fn script(&self) -> Arc<Script> {
        read(&self.scripts).current()
    }

    /// The runtime of the store's IO.
    pub(super) fn runtime(&self) -> Option<Handle> {
        self.settings.runtime.clone().or_else(background_runtime)
    }

    /// The error of a request for these keys, if a circuit breaker is open.
    pub(crate) fn find_open_breaker<'a>(
        &self,
        mut keys: impl Iterator<Item = &'a Key>,
    ) -> Option<StoreError> {
        keys.find_map(|key| self.check_breaker(self.tag_of(key)).err())
    }

    /// The error of a request to the server of a hash tag's keys, if its circuit breaker is open.
    pub(super) fn check_breaker(&self, tag: usize) -> Result<(), StoreError> {
        match &*self.inboxes[tag].open.load() {
            None => Ok(()),
            Some(open) => Err(open.error(self.now())),
        }
    }

    /// Executes an operation on keys of one slot.
    ///
    /// # Errors
    ///
    /// [`StoreError::CircuitOpen`] while the circuit breaker is open, [`StoreError::Overloaded`] if too many requests wait, and
    /// [`StoreError::NoRuntime`] if the IO thread can't be started.
    #[inline]
    pub(crate) fn execute(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        deadline: Instant,
        followers: Followers,
        retry: Retry,
    ) -> StoreResponse {
        let (tag, hash) = self.invalidate_and_route(op, &counters);
        if retry != Retry::Always
            && let Err(error) = self.check_breaker(tag)
        {
            return StoreResponse::Ready(Err(error));
        }
        let state = RequestState::with_followers(op, counters, deadline, hash, followers);
        let (mut request, response) = PendingRequest::with_response(state);
        request.retry = retry;
        match self.push(tag, request) {
            Ok(()) => StoreResponse::Pending(response),
            Err(error) => StoreResponse::Ready(Err(error)),
        }
    }

    /// Executes an operation for which no task waits. `completion` gets its result; an adjustment that did not run is sent again, and
    /// drops it.
    pub(crate) fn execute_detached(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        completion: Option<Completion>,
    ) {
        self.push_detached(op, counters, completion, Retry::IfUnread);
    }

    /// Executes an operation for which no task waits, and which is not sent again. `completion` gets its result, or an error.
    pub(crate) fn execute_once(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        completion: impl FnOnce(Result<OpResult, StoreError>) + Send + 'static,
    ) {
        let completion = Some(Completion::new(completion));
        self.push_detached(op, counters, completion, Retry::Never);
    }

    fn push_detached(
        self: &Arc<Self>,
        op: Op,
        counters: CounterOps,
        completion: Option<Completion>,
        retry: Retry,
    ) {
        let (tag, hash) = self.invalidate_and_route(op, &counters);
        let has_waiter = completion.is_some();
        let followers = Followers {
            completion,
            ..Followers::default()
        };
        let state = RequestState::with_followers(op, counters, self.deadline(), hash, followers);
        // One that can't be pushed has failed.
        let _ = self.push(tag, PendingRequest::new(state, has_waiter, retry));
    }

    /// Invalidates the cached rejections of keys that the operation may give units. Returns the lane and a hash of the keys.
    #[inline]
    fn invalidate_and_route(&self, op: Op, counters: &CounterOps) -> (usize, u64) {
        if op.may_admit_sooner() {
            self.rejection_cache
                .invalidate(counters.iter().map(OwnedCounterOp::cache_key));
        }
        let hashes = counters
            .iter()
            .map(|counter| self.hasher.hash_one(counter.key));
        let hash = hashes.reduce(|all, hash| all.rotate_left(5) ^ hash);
        let tag = counters
            .first()
            .map_or(0, |counter| self.tag_of(&counter.key));
        (tag, hash.unwrap_or(0))
    }

    /// Counts an operation that must not be lost as undelivered until it completes.
    #[inline]
    fn undelivered(&self, op: Op) -> Option<UndeliveredGuard> {
        match op {
            Op::Acquire(_) | Op::Peek | Op::Renew => None,
            Op::Adjust | Op::Reset => Some(UndeliveredGuard::new(&self.adjustments.undelivered)),
        }
    }

    /// Pushes a request into its lane's inbox. If that fails, its waiter gets the same error.
    fn push(self: &Arc<Self>, tag: usize, mut request: PendingRequest) -> Result<(), StoreError> {
        request.undelivered = self.undelivered(request.op);
        if let Err(error) = self.start() {
            request.fail(error.clone());
            return Err(error);
        }
        let drained = match request.op {
            // A refund or a release gives back what an earlier request took.
            Op::Adjust => 0,
            _ => self.drained.load(Ordering::Relaxed),
        };
        let pushed = lock(&self.inboxes[tag].queue).push(request, drained);
        let (request, error) = match pushed {
            PushOutcome::Wait => return Ok(()),
            PushOutcome::Wake => {
                self.wake.notify_one();
                return Ok(());
            }
            PushOutcome::Closed(request) => (request, ended()),
            PushOutcome::Full(request) => (request, StoreError::Overloaded),
        };
        if request.op == Op::Adjust && request.is_retried(false) {
            self.adjustments.dropped.fetch_add(1, Ordering::Relaxed);
        }
        request.fail(error.clone());
        Err(error)
    }

    /// Has the actor drain the inboxes now: requests were pushed whose deadline is less than a timeout away.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Starts the actor unless it was started.
    #[inline]
    fn start(self: &Arc<Self>) -> Result<(), StoreError> {
        if self.is_started.load(Ordering::Acquire) {
            return Ok(());
        }
        self.start_actor()
    }

    #[cold]
    fn start_actor(self: &Arc<Self>) -> Result<(), StoreError> {
        let runtime = self.runtime().ok_or(NO_THREAD)?;
        if let Some(servers) = lock(&self.servers).take() {
            let actor = Actor::new(self.clone(), servers, RedisWire::new(runtime.clone()));
            drop(runtime.spawn(actor.run()));
            self.is_started.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Runs an idempotent command on the server that has the keys of a hash tag.
    pub(super) async fn run<T: FromRedisValue>(
        self: &Arc<Self>,
        tag: usize,
        cmd: Cmd,
        timeout: Duration,
    ) -> Result<T, StoreError> {
        self.run_on(Target::Tag(tag), cmd, timeout).await
    }

    /// Runs an idempotent command on a certain server.
    pub(super) async fn run_on_server<T: FromRedisValue>(
        self: &Arc<Self>,
        server: &ServerRef,
        cmd: Cmd,
        timeout: Duration,
    ) -> Result<T, StoreError> {
        let target = Target::Name(server.name.clone());
        self.run_on(target, cmd, timeout).await
    }

    async fn run_on<T: FromRedisValue>(
        self: &Arc<Self>,
        target: Target,
        cmd: Cmd,
        timeout: Duration,
    ) -> Result<T, StoreError> {
        let (reply, value) = oneshot::channel();
        self.command(Command::Run {
            target,
            cmd,
            timeout,
            reply,
        })?;
        let value = value.await.unwrap_or_else(|_| Err(ended()))?;
        T::from_redis_value(value).map_err(|error| error_class::to_store_error(&error.into()))
    }

    /// Each server that has keys, once, with the first hash tag that it has, in the order of these.
    pub(super) async fn servers(self: &Arc<Self>) -> Result<Vec<ServerRef>, StoreError> {
        let (reply, servers) = oneshot::channel();
        self.command(Command::Servers(reply))?;
        servers.await.unwrap_or_else(|_| Err(ended()))
    }

    fn command(self: &Arc<Self>, command: Command) -> Result<(), StoreError> {
        self.start()?;
        let mut commands = lock(&self.commands);
        if commands.is_closed {
            return Err(ended());
        }
        commands.waiting.push(command);
        drop(commands);
        self.wake.notify_one();
        Ok(())
    }

    /// Calls an observer or logs: on the thread of events, or at once if the actor runs on a test's runtime.
    pub(super) fn defer(&self, event: impl FnOnce() + Send + 'static) {
        match &self.settings.runtime {
            Some(_) => event(),
            None => events::defer(event),
        }
    }

    /// Reports an event to the observers.
    fn report(&self, event: impl Fn(&dyn Observer) + Send + 'static) {
        if !self.observers.is_empty() {
            let observers = self.observers.clone();
            self.defer(move || observers.notify(event));
        }
    }

    /// Caches the rejection of a request with this deadline.
    pub(crate) fn cache_rejection(
        &self,
        counters: &CounterOps,
        deadline: Instant,
        result: &OpResult,
        cache_token: CacheToken,
    ) {
        // The deadline was set when the request arrived.
        let age = self.deadline().saturating_duration_since(deadline);
        let counters = counters.iter().map(OwnedCounterOp::cache_key);
        self.rejection_cache
            .insert(counters, result, cache_token, age);
    }

    /// Whether the store is dropped.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Has the actor end when it has nothing left to do, after a timeout at most: the store is dropped.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
