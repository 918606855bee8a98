//! Counting on Redis, for any number of processes.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    sync::oneshot,
    time::Instant,
};

use self::{
    batch::Known,
    lane::Lane,
    link::Source,
    names::Names,
    question::{OwnLine, Question},
    script::{Script, Scripts},
};
use super::{Account, Ask, Callers, Line, Reply, Store};
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    error::{ConfigError, StoreError, Unfit},
    key::Key,
    strategy::Rule,
};

mod batch;
mod builder;
mod fault;
mod lane;
mod link;
mod names;
mod packed;
mod question;
mod reply;
mod script;

pub use builder::RedisStoreBuilder;

/// Counts on Redis 6.2 or newer, exactly, for any number of processes, by the server's clock.
///
/// Connections come from a [deadpool-redis](deadpool_redis) pool. A few of them, the lanes, carry all requests: on each
/// trip a lane takes along, in one script call, what arrived while its last trip was under way, and equal questions as
/// one. Nothing is connected or spawned before the first request, so an application starts while Redis is down.
///
/// Every question has a [deadline](RedisStoreBuilder::deadline). When it passes, or the server is at fault, the limiter
/// answers as [`on_store_error`](crate::LimiterBuilder::on_store_error) says. A question that timed out may have been
/// charged: at most one request's cost, gone with its period.
///
/// ```no_run
/// use tollgate::{Limiter, Policy, Quota, RedisStore};
///
/// let limiter = Limiter::builder()
///     .store(RedisStore::open("redis://127.0.0.1:6379")?)
///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
///     .build()?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    prefix: String,
    hasher: RandomState,
    lanes: usize,
    /// Each runtime has lanes of its own: a lane lives and dies with the requests it carries.
    sets: Arc<RwLock<Vec<Set>>>,
}

/// The lanes of one runtime.
struct Set {
    runtime: runtime::Id,
    lanes: Vec<Arc<Lane>>,
}

/// What the lanes share.
#[derive(Debug)]
struct Shared {
    source: Source,
    scripts: RwLock<Scripts>,
    deadline: Duration,
    /// How far the server's clock is ahead of this machine's, in microseconds.
    ahead: AtomicI64,
}

impl Shared {
    /// About what the server's clock shows.
    fn server_time(&self) -> Timestamp {
        let ahead = self.ahead.load(Ordering::Relaxed);
        Timestamp::from_micros(SystemClock.now().as_micros().saturating_add(ahead))
    }

    fn note_server_time(&self, at: Timestamp) {
        let ahead = at.as_micros().saturating_sub(SystemClock.now().as_micros());
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    fn script(&self) -> Arc<Script> {
        let scripts = self.scripts.read().unwrap_or_else(PoisonError::into_inner);
        scripts.current()
    }
}

impl RedisStore {
    /// A store on the server that `url` names, such as `redis://user:password@host:6379/0`.
    ///
    /// # Errors
    ///
    /// If the URL isn't one. Nothing is connected yet.
    pub fn open(url: impl Into<String>) -> Result<Self, ConfigError> {
        Self::builder().url(url).build()
    }

    /// A store on a pool that the application already has. The lanes hold at most a quarter of its connections, so it
    /// has to have two at least.
    ///
    /// Set TCP_NODELAY in the pool's manager (`deadpool_redis::Manager::new_with_config`); a store that makes its own
    /// pool does.
    ///
    /// # Errors
    ///
    /// If the pool has fewer than two connections.
    pub fn from_pool(pool: deadpool_redis::Pool) -> Result<Self, ConfigError> {
        Self::builder().pool(pool).build()
    }

    /// A store on a pool of its own, made from deadpool's configuration.
    ///
    /// # Errors
    ///
    /// If there is a mistake in the configuration.
    pub fn from_config(config: deadpool_redis::Config) -> Result<Self, ConfigError> {
        Self::builder().config(config).build()
    }

    /// Starts to build a store.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// The lane of this runtime for these lines. Equal questions share a lane, so that they find each other.
    fn lane(&self, lines: &[Line<'_>]) -> Result<Arc<Lane>, StoreError> {
        if lines
            .iter()
            .any(|line| line.account.context::<Known>().is_none())
        {
            return Err(StoreError::Unsupported("an account opened elsewhere"));
        }
        let outside = StoreError::Unsupported("there is no tokio runtime here");
        let handle = Handle::try_current().map_err(|_| outside.clone())?;
        let inner = &*self.inner;
        let hash = lines
            .first()
            .map_or(0, |line| inner.hasher.hash_one(line.key)) as usize;
        let lane_of = |sets: &[Set]| {
            let set = sets.iter().find(|set| set.runtime == handle.id())?;
            set.lanes.get(hash % set.lanes.len().max(1)).cloned()
        };
        let known = lane_of(&inner.sets.read().unwrap_or_else(PoisonError::into_inner));
        if let Some(lane) = known {
            return Ok(lane);
        }
        let mut sets = inner.sets.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lane_of(&sets) {
            return Ok(lane);
        }
        let lanes = inner.lay();
        sets.push(Set {
            runtime: handle.id(),
            lanes: lanes.clone(),
        });
        let lane = lane_of(&sets);
        // A runtime that is ending drops what is spawned at once, which takes the lanes away again: not under the lock.
        drop(sets);
        inner.start(&handle, lanes);
        lane.ok_or(outside)
    }
}

impl Inner {
    fn lay(&self) -> Vec<Arc<Lane>> {
        let lane = |_| Arc::new(Lane::new(self.shared.clone()));
        (0..self.lanes).map(lane).collect()
    }

    /// Has a runtime drive its lanes.
    fn start(&self, handle: &Handle, lanes: Vec<Arc<Lane>>) {
        for lane in lanes {
            let ends = Ends {
                runtime: handle.id(),
                sets: self.sets.clone(),
            };
            drop(handle.spawn(async move {
                let _ends = ends;
                lane.run().await;
            }));
        }
    }
}

/// Takes a runtime's lanes away when one of them ends, which is when their runtime does.
struct Ends {
    runtime: runtime::Id,
    sets: Arc<RwLock<Vec<Set>>>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        let ended = sets.iter().position(|set| set.runtime == self.runtime);
        let set = ended.map(|place| sets.swap_remove(place));
        // A lane that is dropped answers those who wait in it, and they may look for another: not under the lock.
        drop(sets);
        for lane in set.iter().flat_map(|set| &set.lanes) {
            lane.close();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        for lane in sets.iter().flat_map(|set| &set.lanes) {
            lane.close();
        }
    }
}

impl Store for RedisStore {
    fn open(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<Account, Unfit> {
        let Some(script) = rule.script() else {
            return Err(Unfit::new(
                format!("{rule:?}, which counts in process alone"),
                "a strategy with a half for Redis, or a MemoryStore",
            ));
        };
        let scripts = &self.inner.shared.scripts;
        let mut scripts = scripts.write().unwrap_or_else(PoisonError::into_inner);
        let names = Names::new(&self.inner.prefix, &*rule, policy);
        let known = Known::new(names, scripts.number(script.source), &*rule, &script);
        Ok(Account::new(policy, rule, known))
    }

    fn ask(&self, ask: Ask, lines: &[Line<'_>]) -> Reply {
        let lane = match self.lane(lines) {
            Ok(lane) => lane,
            Err(error) => return Reply::Now(Err(error)),
        };
        let (waiter, answer) = oneshot::channel();
        lane.push(Question {
            ask,
            lines: lines.iter().map(OwnLine::of).collect(),
            deadline: Instant::now() + self.inner.shared.deadline,
            told_time: false,
            waiter: Some(waiter),
        });
        Reply::Later(Box::pin(async move {
            let ended = || StoreError::Connection("the lane has ended".into());
            let delivery = answer.await.map_err(|_| ended())??;
            delivery.read().ok_or_else(ended)
        }))
    }

    fn callers(&self, account: &Account, key: &Key) -> Callers {
        let rule = account.rule();
        let name = account
            .context::<Known>()
            .filter(|_| rule.signs() && rule.life().is_none())
            .map(|known| known.names.of(key));
        let shared = self.inner.shared.clone();
        Box::pin(async move {
            let Some(name) = name else {
                return Ok(Vec::new());
            };
            let list = tokio::time::timeout(shared.deadline, shared.source.list(&name)).await;
            let list = list.map_err(|_| StoreError::Timeout)??;
            // The first entry is the list's header.
            let callers = list.iter().skip(1);
            Ok(callers.filter_map(|by| Key::from_books(by)).collect())
        })
    }

    fn tell(&self, ask: Ask, lines: &[Line<'_>]) {
        if let Ok(lane) = self.lane(lines) {
            lane.tell(ask, lines.iter().map(OwnLine::of).collect());
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.inner.prefix)
            .field("deadline", &self.inner.shared.deadline)
            .field("lanes", &self.inner.lanes)
            .field("source", &self.inner.shared.source)
            .finish()
    }
}
