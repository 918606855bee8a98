//! Overrides on Redis. The table of this process is brought up to date by polling the version of the data: by a task of the
//! background thread, which begins with the store's first request, and ends with the store.
//!
//! A change is one script. Each process that finds another version reads what was changed since, or everything, if the data is
//! another one: then what the store has no more was lost, and this process keeps it until it is restored or removed.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection, cmd};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{sleep, timeout},
};
use tracing::instrument::WithSubscriber;

use self::stored::{OVERRIDES_TAG, OverrideKeys, Version};
use super::{error_class, state::StoreState, topology::Topology};
use crate::{
    clock::Timestamp,
    error::{StoreError, overrides::OverrideError},
    key::Key,
    log::LogThrottle,
    runtime::{background_or_current, runtime_with_io},
    store::{
        OverrideTable,
        health::{HealthReport, HealthWarning},
        overrides::Override,
        redis::{cluster::hash_tags::HashTags, state::ServerClock},
    },
};

mod stored;

/// How often the version is polled.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is polled if the user may not read it.
const DENIED_INTERVAL: Duration = Duration::from_secs(30);

/// How long one reply is waited for, unless the store's timeout is longer.
const MIN_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// How many changes, or fields, are read at a time.
const PAGE: usize = 500;

/// How many fields are read in all, whatever a foreign hash has.
const MAX_READ: usize = 1_000_000;

/// How many that have ended are removed by one reading.
const MAX_ENDED: usize = 1_000;

/// For how long the change of a removed override can be read.
const REMOVED_KEPT: Duration = Duration::from_secs(3_600);

/// How often a command is sent again whose error proves that nothing ran.
const MAX_ATTEMPTS: usize = 5;

/// The overrides of a store.
#[derive(Debug)]
pub(crate) struct RedisOverrides {
    pub(super) table: OverrideTable,
    clock: Arc<ServerClock>,
    keys: OverrideKeys,
    max: usize,
    reply_timeout: Duration,
    /// Whether a task polls.
    is_polled: AtomicBool,
    /// Whether the store was read.
    is_read: AtomicBool,
    /// Whether the user may not read it.
    is_denied: AtomicBool,
    /// Held for each reading and change, so that none is overtaken by another.
    reader: Mutex<Reader>,
    lost_log: LogThrottle,
    failed_log: LogThrottle,
    unreadable_log: LogThrottle,
}

/// What is known of the data, and the connection by which it is read.
#[derive(Debug, Default)]
struct Reader {
    connection: Option<MultiplexedConnection>,
    version: Option<Version>,
}

/// What a change does.
#[derive(Clone, Copy)]
enum Change<'a> {
    Set(&'a str),
    Remove,
    /// The same for what the store may have lost: so that other processes remove it, too.
    RemoveLost,
    /// Sets what the store has lost, unless it was set or removed meanwhile.
    Restore(&'a str),
    /// To what has this value.
    End(&'a str),
}

/// The reply of `change.lua`.
type Changed = (i64, Option<Vec<u8>>, Option<String>, Option<String>, String);

/// The reply of `read.lua`.
type Page = (
    String,
    Option<String>,
    Vec<Vec<u8>>,
    Vec<String>,
    Vec<Option<Vec<u8>>>,
);

impl RedisOverrides {
    pub(super) fn new(
        prefix: &str,
        tags: Option<&HashTags>,
        clock: Arc<ServerClock>,
        max: usize,
        store_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            table: OverrideTable::by(clock.clone()),
            clock,
            keys: OverrideKeys::new(prefix, tags),
            max,
            reply_timeout: store_timeout.max(MIN_REPLY_TIMEOUT),
            is_polled: AtomicBool::new(false),
            is_read: AtomicBool::new(false),
            is_denied: AtomicBool::new(false),
            reader: Mutex::default(),
            lost_log: LogThrottle::default(),
            failed_log: LogThrottle::default(),
            unreadable_log: LogThrottle::default(),
        })
    }

    /// Whether a task polls, or is about to.
    #[inline]
    pub(super) fn is_polled(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed)
    }

    /// Sets (`Some`) or removes (`None`) an override in the store, then in this process.
    pub(super) async fn change(
        &self,
        topology: &Topology,
        policy: &str,
        key: &Key,
        setting: Option<Override>,
    ) -> Result<Option<Override>, OverrideError> {
        let mut reader = self.lock_reader().await?;
        // A connection that is broken is found before anything is changed.
        self.read_changes(&mut reader, topology).await?;
        let value = setting.as_ref().map(stored::value);
        // As other processes will read it.
        let setting = value
            .as_ref()
            .and_then(|value| stored::parse_value(value.as_bytes()));
        let known = self.table.get(policy, key);
        let change = match &value {
            Some(_) if setting.is_none() => {
                return Err(StoreError::Unsupported("a quota without an exact text").into());
            }
            Some(value) => Change::Set(value),
            None if known.is_some() => Change::RemoveLost,
            None => Change::Remove,
        };
        let field = stored::field(policy, key);
        let reply = self.send_change(&mut reader, topology, change, &field);
        let (done, before, last, now, _) = reply.await?;
        if done < 0 {
            return Err(OverrideError::TooMany { max: self.max });
        }
        if last.is_none() && reader.version.is_some() {
            // The data was lost, and begins anew with this change.
            self.note_all_lost();
        }
        self.table.apply([(policy.into(), *key, setting)]);
        let last = last.and_then(Version::parse);
        if last == reader.version {
            reader.version = now.and_then(Version::parse);
        }
        let before = before.and_then(|before| stored::parse_value(&before));
        let in_force = before.filter(|before| !before.has_ended(self.table.now()));
        Ok(in_force.or(known))
    }

    /// Reads what was changed since the last reading, and ends what has ended.
    pub(super) async fn sync(&self, topology: &Topology) -> Result<(), StoreError> {
        let mut reader = self.lock_reader().await?;
        let synced = self.read_changes(&mut reader, topology).await;
        let denied = matches!(&synced, Err(StoreError::Server { code, .. }) if &**code == "NOPERM");
        self.is_denied.store(denied, Ordering::Relaxed);
        synced?;
        self.is_read.store(true, Ordering::Relaxed);
        let mut ended = self.table.take_ended(MAX_ENDED).into_iter();
        while let Some((policy, key, setting)) = ended.next() {
            let (value, field) = (stored::value(&setting), stored::field(&policy, &key));
            let reply = self.send_change(&mut reader, topology, Change::End(&value), &field);
            let reply = reply.await;
            let is_kept = match &reply {
                // This process was ahead of the server's clock.
                Ok((0, Some(before), ..)) => before == value.as_bytes(),
                Ok(_) => false,
                Err(_) => true,
            };
            if is_kept {
                self.table.apply([(policy, key, Some(setting))]);
            }
            if reply.is_err() {
                // They are ended another time.
                let rest = ended
                    .by_ref()
                    .map(|(policy, key, setting)| (policy, key, Some(setting)));
                self.table.apply(rest);
            }
            reply?;
        }
        Ok(())
    }

    /// Writes back what the store has lost, some at a time. Returns what was written.
    pub(super) async fn restore(
        &self,
        topology: &Topology,
    ) -> Result<Vec<(Arc<str>, Key, Override)>, OverrideError> {
        let mut restored = Vec::new();
        for _ in 0..self.max.div_ceil(PAGE) {
            let mut reader = self.lock_reader().await?;
            self.read_changes(&mut reader, topology).await?;
            let lost = self.table.all().into_iter().filter(|(_, _, known)| {
                !known.is_stored() && !known.setting.has_ended(self.table.now())
            });
            let lost: Vec<_> = lost.take(PAGE).collect();
            if lost.is_empty() {
                break;
            }
            for (policy, key, known) in lost {
                let value = stored::value(&known.setting);
                let (change, field) = (Change::Restore(&value), stored::field(&policy, &key));
                let (done, ..) = self
                    .send_change(&mut reader, topology, change, &field)
                    .await?;
                if done < 0 {
                    return Err(OverrideError::TooMany { max: self.max });
                }
                let setting = known.setting.clone();
                if done > 0 {
                    restored.push((policy.clone(), key, setting.clone()));
                    self.table.apply([(policy, key, Some(setting))]);
                }
            }
            // What was changed meanwhile is read before the next ones are looked for.
        }
        Ok(restored)
    }

    /// Waits for other readings and changes, no longer than for a reply.
    async fn lock_reader(&self) -> Result<MutexGuard<'_, Reader>, StoreError> {
        let locked = timeout(self.reply_timeout, self.reader.lock()).await;
        locked.map_err(|_| StoreError::Timeout)
    }

    async fn read_changes(
        &self,
        reader: &mut Reader,
        topology: &Topology,
    ) -> Result<(), StoreError> {
        let found = self.read_version(reader, topology).await?;
        if !self.is_read.load(Ordering::Relaxed) {
            // Ends are judged by the server's time, also before there is an override.
            let (seconds, micros): (i64, i64) = self.query(reader, topology, &cmd("TIME")).await?;
            let time = seconds.saturating_mul(1_000_000).saturating_add(micros);
            self.clock.set(Timestamp::from_micros(time));
        }
        if found == reader.version && (found.is_some() || self.table.is_empty()) {
            return Ok(());
        }
        let Some(found) = found else {
            reader.version = None;
            self.note_all_lost();
            return Ok(());
        };
        let is_same = |known: &Version| known.has_id_of(&found) && known.number < found.number;
        match reader.version.clone() {
            Some(known) if is_same(&known) && known.number >= found.floor => {
                self.read_pages(reader, topology, known.number, &found)
                    .await
            }
            // It is too far behind to read what was removed.
            Some(known) if is_same(&known) => {
                let Some(stored) = self.read_all(reader, topology, &found).await? else {
                    return Ok(());
                };
                // What was lost before stays in force.
                let known = self.table.all().into_iter();
                let known = known.filter(|(_, _, known)| known.is_stored());
                let removed = known.map(|(policy, key, _)| (policy, key));
                let removed = removed.filter(|known| !stored.contains(known));
                self.table
                    .apply(removed.map(|(policy, key)| (policy, key, None)));
                self.read_pages(reader, topology, found.number, &found)
                    .await
            }
            // Another data set, or one that a failover has set back. What was removed from it is read, and the rest was lost.
            _ => {
                // There is no version until all has been read. If that fails, it is done again the next time.
                reader.version = None;
                self.read_pages(reader, topology, 0, &found).await?;
                let Some(read) = reader.version.take() else {
                    return Ok(());
                };
                let Some(stored) = self.read_all(reader, topology, &found).await? else {
                    return Ok(());
                };
                let is_stored = |policy: &str, key: &Key| stored.contains(&(policy.into(), *key));
                self.table.mark_lost_except(is_stored);
                // What was set or removed since then is not lost.
                self.read_pages(reader, topology, read.number, &found)
                    .await?;
                if reader.version.is_some() {
                    self.log_lost(self.table.lost());
                }
                Ok(())
            }
        }
    }

    /// Reads the changes after a certain one. If the data are replaced meanwhile, or changes dropped that were not read, all is read the
    /// next time.
    async fn read_pages(
        &self,
        reader: &mut Reader,
        topology: &Topology,
        mut since: u64,
        found: &Version,
    ) -> Result<(), StoreError> {
        let is_from_start = since == 0;
        loop {
            let (now, version, fields, numbers, values): Page = self
                .query(reader, topology, &self.read_command(since))
                .await?;
            self.set_clock(&now);
            let version = version.and_then(Version::parse);
            let is_readable = |version: &Version| {
                version.has_id_of(found) && (is_from_start || version.floor <= since)
            };
            let Some(version) = version.filter(is_readable) else {
                return Ok(());
            };
            let is_last = fields.len() < PAGE;
            let changes = fields.iter().zip(values).filter_map(|(field, value)| {
                let (policy, key) = stored::parse_field(field)?;
                // What replaces an override is not it, also if it can't be read.
                Some((policy, key, value.and_then(|value| self.parse(&value))))
            });
            self.table.apply(changes);
            if is_last {
                reader.version = Some(version);
                return Ok(());
            }
            let last = numbers.last().and_then(|last| last.parse().ok());
            let garbled = || StoreError::server("GARBLED", "a change without a number");
            since = last.filter(|last| *last > since).ok_or_else(garbled)?;
        }
    }

    /// Reads all overrides, and returns their policies and keys; `None` if the data were replaced meanwhile. What is changed meanwhile is
    /// to be read afterwards.
    async fn read_all(
        &self,
        reader: &mut Reader,
        topology: &Topology,
        version: &Version,
    ) -> Result<Option<HashSet<(Arc<str>, Key)>>, StoreError> {
        let (mut cursor, mut found, mut entries_read) = (0, Vec::new(), 0);
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(&self.keys.overrides)
                .arg(cursor)
                .arg("COUNT")
                .arg(PAGE);
            let (next, entries): (u64, Vec<Vec<u8>>) = self.query(reader, topology, &scan).await?;
            let (entries, _) = entries.as_chunks::<2>();
            entries_read += entries.len();
            found.extend(entries.iter().filter_map(|[field, value]| {
                let (policy, key) = stored::parse_field(field)?;
                Some((policy, key, Some(self.parse(value)?)))
            }));
            if next == 0 || entries_read > MAX_READ {
                break;
            }
            cursor = next;
        }
        let now = self.read_version(reader, topology).await?;
        if !now.is_some_and(|now| now.has_id_of(version)) {
            return Ok(None);
        }
        let stored = found
            .iter()
            .map(|(policy, key, _)| (policy.clone(), *key))
            .collect();
        self.table.apply(found);
        Ok(Some(stored))
    }

    /// Notes the server's time.
    fn set_clock(&self, now: &str) {
        if let Ok(now) = now.parse() {
            self.clock.set(Timestamp::from_micros(now));
        }
    }

    /// The override of a value, unless it is foreign.
    fn parse(&self, value: &[u8]) -> Option<Override> {
        let parsed = stored::parse_value(value);
        if parsed.is_none() {
            self.unreadable_log.log_with(|suppressed| {
                tracing::error!(
                    suppressed,
                    "an override has no effect: a later version or another program has written it"
                );
            });
        }
        parsed
    }

    /// Notes that the store has lost all overrides.
    fn note_all_lost(&self) {
        self.log_lost(self.table.mark_lost_except(|_, _| false));
    }

    /// Logs how many overrides the store has lost, if it has lost any.
    fn log_lost(&self, overrides: usize) {
        if overrides > 0 {
            self.lost_log.log_with(|suppressed| {
                tracing::error!(
                    overrides,
                    suppressed,
                    "the store has lost overrides, which stay in force in this process; write them back by `tollgate override restore`"
                );
            });
        }
    }

    async fn read_version(
        &self,
        reader: &mut Reader,
        topology: &Topology,
    ) -> Result<Option<Version>, StoreError> {
        let mut get = cmd("GET");
        get.arg(&self.keys.version);
        let mut version: Result<Option<String>, _> = self.query(reader, topology, &get).await;
        if reader.connection.is_none() {
            // It was closed since its last use.
            version = self.query(reader, topology, &get).await;
        }
        Ok(version?.and_then(Version::parse))
    }

    fn read_command(&self, since: u64) -> Cmd {
        let mut eval = cmd("EVAL");
        eval.arg(include_str!("read.lua")).arg(3);
        eval.arg(&self.keys.overrides).arg(&self.keys.changes);
        eval.arg(&self.keys.version).arg(since).arg(PAGE);
        eval
    }

    async fn send_change(
        &self,
        reader: &mut Reader,
        topology: &Topology,
        change: Change<'_>,
        field: &str,
    ) -> Result<Changed, StoreError> {
        let (operation, value) = match change {
            Change::Set(value) => ("set", value),
            Change::Remove => ("remove", ""),
            Change::RemoveLost => ("remove_lost", ""),
            Change::Restore(value) => ("restore", value),
            Change::End(value) => ("end", value),
        };
        let mut eval = cmd("EVAL");
        eval.arg(include_str!("change.lua")).arg(4);
        eval.arg(&self.keys.overrides).arg(&self.keys.changes);
        eval.arg(&self.keys.removed).arg(&self.keys.version);
        eval.arg(operation).arg(field).arg(value).arg(self.max);
        eval.arg(Key::unique().as_str());
        eval.arg(REMOVED_KEPT.as_micros() as u64);
        let changed: Changed = self.query(reader, topology, &eval).await?;
        self.set_clock(&changed.4);
        Ok(changed)
    }

    /// Runs a command. It is sent again only if its error proves that nothing ran.
    async fn query<T: FromRedisValue>(
        &self,
        reader: &mut Reader,
        topology: &Topology,
        cmd: &Cmd,
    ) -> Result<T, StoreError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let replied = timeout(self.reply_timeout, query_once(reader, topology, cmd)).await;
            let error = match replied.unwrap_or(Err(StoreError::Timeout)) {
                Ok(reply) => {
                    return T::from_redis_value(reply).map_err(|error| {
                        // It may be the reply to another command.
                        reader.connection = None;
                        StoreError::server("GARBLED", error.to_string())
                    });
                }
                Err(error) => error,
            };
            let code = match &error {
                StoreError::Server { code, .. } => &**code,
                _ => "",
            };
            let is_moved = matches!(code, "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN");
            if is_moved || code.is_empty() || error_class::classify_code(code).reconnect {
                reader.connection = None;
            }
            if attempt == MAX_ATTEMPTS || !(is_moved || code == "READONLY") {
                return Err(error);
            }
            if let Topology::Cluster(cluster) = topology {
                let _ = timeout(self.reply_timeout, cluster.refresh()).await;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Adds what operators have to know of the overrides.
    async fn check_health(&self, topology: &Topology, health: HealthReport) -> HealthReport {
        let synced = self.sync(topology).await;
        let tried = match synced {
            Ok(()) => self.try_reading(topology).await,
            failed => failed,
        };
        let health = match &tried {
            Err(StoreError::Server { code, .. }) if &**code == "NOPERM" => {
                health.with_unchecked("overrides")
            }
            Err(_) if !self.is_read.load(Ordering::Relaxed) => {
                health.with_warning(HealthWarning::OverridesUnread)
            }
            _ => health,
        };
        match self.table.lost() {
            0 => health,
            overrides => health.with_warning(HealthWarning::OverridesLost { overrides }),
        }
    }

    /// Runs every command of a reading.
    async fn try_reading(&self, topology: &Topology) -> Result<(), StoreError> {
        let mut reader = self.lock_reader().await?;
        let reader = &mut *reader;
        let since = reader.version.as_ref().map_or(0, |version| version.number);
        let _: redis::Value = self
            .query(reader, topology, &self.read_command(since))
            .await?;
        let mut scan = cmd("HSCAN");
        scan.arg(&self.keys.overrides).arg(0).arg("COUNT").arg(1);
        let _: redis::Value = self.query(reader, topology, &scan).await?;
        Ok(())
    }
}

/// Sends a command over the reader's connection, which is opened if there is none.
async fn query_once(
    reader: &mut Reader,
    topology: &Topology,
    cmd: &Cmd,
) -> Result<redis::Value, StoreError> {
    let connection = match &mut reader.connection {
        Some(connection) => connection,
        none => none.insert(topology.connect(OVERRIDES_TAG).await?),
    };
    let reply = cmd.query_async(connection).await;
    reply.map_err(|error| error_class::to_store_error(&error))
}

/// Runs `work` on the background thread, from now on.
pub(super) fn spawn<T: Send + 'static>(
    work: impl Future<Output = Result<T, OverrideError>> + Send + 'static,
) -> impl Future<Output = Result<T, OverrideError>> + Send + 'static {
    const NO_RUNTIME: StoreError = StoreError::NoRuntime("overrides are read from the server");
    let task = background_or_current().map(|runtime| runtime.spawn(work.with_current_subscriber()));
    async move {
        match task {
            // It ends early only with its runtime.
            Some(task) => task.await.unwrap_or(Err(NO_RUNTIME.into())),
            None => Err(NO_RUNTIME.into()),
        }
    }
}

impl RedisOverrides {
    /// Starts the task that polls for a store, unless there is one.
    #[cold]
    pub(super) fn poll(self: &Arc<Self>, store: &Arc<StoreState>) {
        if self.is_polled.swap(true, Ordering::Relaxed) {
            return;
        }
        let polling = PollGuard(self.clone());
        let Some(runtime) = background_or_current() else {
            return;
        };
        let store = Arc::downgrade(store);
        let polls = async move {
            let overrides = &polling.0;
            loop {
                let Some(shared) = store.upgrade() else {
                    return;
                };
                let is_open = shared.breaker(OVERRIDES_TAG).is_open();
                let topology = shared.topology.clone();
                drop(shared);
                if !is_open && let Err(error) = overrides.sync(&topology).await {
                    overrides.log_failure(&error);
                }
                drop(topology);
                let denied = overrides.is_denied.load(Ordering::Relaxed);
                sleep(if denied {
                    DENIED_INTERVAL
                } else {
                    POLL_INTERVAL
                })
                .await;
            }
        };
        drop(runtime.spawn(polls.with_current_subscriber()));
    }

    /// Adds to a health report what operators have to know of the overrides.
    pub(super) async fn add_to_health(
        self: Arc<Self>,
        topology: Topology,
        health: HealthReport,
    ) -> HealthReport {
        if runtime_with_io().is_none() {
            return health;
        }
        let before = health.clone();
        let checked = spawn(async move { Ok(self.check_health(&topology, health).await) });
        checked.await.unwrap_or(before)
    }

    #[cold]
    fn log_failure(&self, error: &StoreError) {
        let what = match self.is_denied.load(Ordering::Relaxed) {
            true => "off: the user lacks a permission",
            false => "as they were read last",
        };
        self.failed_log.log_with(|suppressed| {
            tracing::warn!(%error, overrides = what, suppressed, "overrides could not be read");
        });
    }
}

/// Lets another task poll when this one ends, with its runtime.
struct PollGuard(Arc<RedisOverrides>);

impl Drop for PollGuard {
    fn drop(&mut self) {
        self.0.is_polled.store(false, Ordering::Relaxed);
    }
}
