//! Overrides on Redis: a hash, and a version that each change replaces. A task of the IO thread, which begins with the
//! store's first request and ends with the store, reads the version each second, and all overrides if it differs.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, FromRedisValue, cmd};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{sleep, timeout},
};

use self::stored::{OVERRIDES_TAG, OverrideKeys};
use super::{
    hash_tags::HashTags,
    io::{Io, ServerClock},
};
use crate::{
    clock::Timestamp,
    error::{StoreError, overrides::OverrideError},
    key::Key,
    log::LogThrottle,
    store::{
        OverrideTable,
        overrides::{MAX_OVERRIDES, Override},
    },
};

mod stored;

/// How often the version is read.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long one reply is waited for, unless the store's timeout is longer.
const MIN_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// The overrides of a store.
#[derive(Debug)]
pub(crate) struct RedisOverrides {
    pub(super) table: OverrideTable,
    clock: Arc<ServerClock>,
    keys: OverrideKeys,
    reply_timeout: Duration,
    /// Whether a task polls.
    is_polled: AtomicBool,
    /// What [`read`](Self::read) has read last. Held for each reading and change, so that none is overtaken by another.
    known: Mutex<KnownVersion>,
    failed_log: LogThrottle,
    unreadable_log: LogThrottle,
}

/// Which overrides the table has.
#[derive(Debug, Default, PartialEq)]
enum KnownVersion {
    /// None yet, or others may have changed since they were read.
    #[default]
    Unread,
    /// Those of this version; without one, the server has none.
    Read(Option<Vec<u8>>),
}

impl RedisOverrides {
    pub(super) fn new(
        prefix: &str,
        tags: Option<&HashTags>,
        clock: Arc<ServerClock>,
        store_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            table: OverrideTable::by(clock.clone()),
            clock,
            keys: OverrideKeys::new(prefix, tags),
            reply_timeout: store_timeout.max(MIN_REPLY_TIMEOUT),
            is_polled: AtomicBool::new(false),
            known: Mutex::default(),
            failed_log: LogThrottle::default(),
            unreadable_log: LogThrottle::default(),
        })
    }

    /// Whether a task polls, or is about to.
    #[inline]
    pub(super) fn is_polled(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed)
    }

    /// Sets (`Some`) or removes (`None`) an override in the store, then in this process. The next reading reads all overrides, since
    /// others may have changed before.
    pub(super) async fn change(
        &self,
        io: &Arc<Io>,
        policy: &str,
        key: &Key,
        setting: Option<Override>,
    ) -> Result<Option<Override>, OverrideError> {
        let mut known = self.lock_known().await?;
        let value = setting.as_ref().map(stored::value).unwrap_or_default();
        // As other processes will read it.
        let read_back = stored::parse_value(value.as_bytes());
        if setting.is_some() && read_back.is_none() {
            return Err(StoreError::Unsupported("a quota without an exact text").into());
        }
        let mut eval = cmd("EVAL");
        eval.arg(include_str!("change.lua")).arg(2);
        eval.arg(&self.keys.overrides).arg(&self.keys.version);
        eval.arg(stored::field(policy, key)).arg(&value);
        eval.arg(MAX_OVERRIDES).arg(Key::unique().as_str());
        let (outcome, before, now): (String, Option<Vec<u8>>, i64) = self.query(io, eval).await?;
        self.clock.set(Timestamp::from_micros(now));
        match &*outcome {
            "ended" => return Err(OverrideError::Ended),
            "full" => return Err(OverrideError::TooMany { max: MAX_OVERRIDES }),
            _ => self.table.apply([(policy.into(), *key, read_back)]),
        }
        *known = KnownVersion::Unread;
        let before = before.and_then(|before| stored::parse_value(&before));
        Ok(before.filter(|before| !before.has_ended(self.table.now())))
    }

    /// Reads all overrides into the table, if their version is not the one that was read last.
    pub(super) async fn read(&self, io: &Arc<Io>) -> Result<(), StoreError> {
        let mut known = self.lock_known().await?;
        let mut get = cmd("GET");
        get.arg(&self.keys.version);
        // Before the overrides, so that a change in between is read the next time.
        let version: Option<Vec<u8>> = self.query(io, get).await?;
        let version = KnownVersion::Read(version);
        if version == *known {
            return Ok(());
        }
        let mut all = cmd("HGETALL");
        all.arg(&self.keys.overrides);
        let all: HashMap<Vec<u8>, Vec<u8>> = self.query(io, all).await?;
        let read = all.iter().filter_map(|(field, value)| {
            let read = stored::parse_field(field).zip(stored::parse_value(value));
            if read.is_none() {
                self.log_unreadable(io, field);
            }
            read
        });
        self.table.replace(read.collect());
        *known = version;
        Ok(())
    }

    /// Waits for other readings and changes, no longer than for a reply.
    async fn lock_known(&self) -> Result<MutexGuard<'_, KnownVersion>, StoreError> {
        let locked = timeout(self.reply_timeout, self.known.lock()).await;
        locked.map_err(|_| StoreError::timeout())
    }

    /// Runs a command.
    async fn query<T: FromRedisValue>(&self, io: &Arc<Io>, cmd: Cmd) -> Result<T, StoreError> {
        io.run(OVERRIDES_TAG, cmd, self.reply_timeout).await
    }

    fn log_unreadable(&self, io: &Io, field: &[u8]) {
        self.unreadable_log.log_with(|suppressed| {
            let field = String::from_utf8_lossy(field).into_owned();
            io.defer(move || {
                tracing::error!(
                    ?field,
                    suppressed,
                    "an override has no effect: another program or version has written it"
                );
            });
        });
    }

    /// Starts the task that polls for a store, unless there is one.
    #[cold]
    pub(super) fn poll(self: &Arc<Self>, io: &Arc<Io>) {
        if self.is_polled.swap(true, Ordering::Relaxed) {
            return;
        }
        let polling = PollGuard(self.clone());
        let Some(runtime) = io.runtime() else {
            return;
        };
        let store = Arc::downgrade(io);
        let polls = async move {
            let overrides = &polling.0;
            loop {
                let Some(io) = store.upgrade().filter(|io| !io.is_closed()) else {
                    return;
                };
                let is_open = io.check_breaker(OVERRIDES_TAG).is_err();
                if !is_open && let Err(error) = overrides.read(&io).await {
                    overrides.failed_log.log_with(|suppressed| {
                        io.defer(move || {
                            tracing::warn!(
                                %error,
                                suppressed,
                                "overrides could not be read; those that were read last stay in force"
                            );
                        });
                    });
                }
                drop(io);
                sleep(POLL_INTERVAL).await;
            }
        };
        drop(runtime.spawn(polls));
    }
}

/// Runs `work` on the IO thread, from now on.
pub(super) fn spawn<T: Send + 'static>(
    io: &Io,
    work: impl Future<Output = Result<T, OverrideError>> + Send + 'static,
) -> impl Future<Output = Result<T, OverrideError>> + Send + 'static {
    const NO_RUNTIME: StoreError = StoreError::NoRuntime("overrides are read from the server");
    let task = io.runtime().map(|runtime| runtime.spawn(work));
    async move {
        match task {
            // It ends early only with its runtime.
            Some(task) => task.await.unwrap_or(Err(NO_RUNTIME.into())),
            None => Err(NO_RUNTIME.into()),
        }
    }
}

/// Lets another task poll when this one ends, with its runtime.
struct PollGuard(Arc<RedisOverrides>);

impl Drop for PollGuard {
    fn drop(&mut self) {
        self.0.is_polled.store(false, Ordering::Relaxed);
    }
}
