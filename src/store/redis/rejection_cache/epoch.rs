//! The store's epoch: the key on Redis that holds it, and what this process read of it last. It changes when a cached rejection
//! may no longer be what the store would decide.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::cmd;

use crate::{
    clock::Timestamp,
    error::StoreError,
    key::Key,
    store::redis::{cluster::hash_tags::HashTags, topology::Topology},
    sync::lock,
};

/// The TTL of the key. When it expires, the epoch is another one.
const EPOCH_TTL_MS: u64 = 86_400_000;

/// Reads the epoch.
const SCRIPT: &str = include_str!("epoch.lua");

/// Identifies the state of the store's counts, apart from what admitted requests charge: it changes with each refund,
/// reset and charge past the quota, and when the server may have lost counts.
///
/// Values are numbered as they are read. A value that returns gets a new number, since another one was there meanwhile.
pub(crate) struct Epoch {
    /// Zero if none was read yet.
    number: AtomicU64,
    /// When it was read, in microseconds on the cache's clock: no later than it was current.
    read_at: AtomicI64,
    /// When it was last requested, whatever the result.
    requested_at: AtomicI64,
    is_being_read: AtomicBool,
    last: Mutex<Last>,
}

/// The last reading.
#[derive(Default)]
struct Last {
    value: String,
    /// Offset of the server's clock from the cache's, in microseconds.
    clock_offset: i64,
}

impl Default for Epoch {
    fn default() -> Self {
        Self {
            number: AtomicU64::new(0),
            read_at: AtomicI64::new(i64::MIN),
            requested_at: AtomicI64::new(i64::MIN),
            is_being_read: AtomicBool::new(false),
            last: Mutex::default(),
        }
    }
}

impl Epoch {
    /// The number of the last value that was read.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Whether the epoch is still that number, by a reading less than `max_staleness` ago.
    pub(crate) fn holds(&self, number: u64, now: Timestamp, max_staleness: Duration) -> bool {
        // In this order: the number was written before this time was.
        let read_at = Timestamp::from_micros(self.read_at.load(Ordering::Acquire));
        let is_fresh = read_at <= now && now.since(read_at) < max_staleness;
        number > 0 && self.number() == number && is_fresh
    }

    /// Starts a reading, unless one is in progress or was requested less than `pause` ago.
    pub(crate) fn start_read(&self, now: Timestamp, pause: Duration) -> bool {
        let last = Timestamp::from_micros(self.requested_at.load(Ordering::Acquire));
        let is_due = now < last || now.since(last) >= pause;
        if !is_due || self.is_being_read.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.requested_at.store(now.as_micros(), Ordering::Release);
        true
    }

    /// Ends a reading, with a value or without one.
    pub(crate) fn finish_read(&self) {
        self.is_being_read.store(false, Ordering::Release);
    }

    /// Stores the value that was requested at `read_at`, when the server's clock showed `time`. If the two clocks have
    /// drifted apart by more than `max_staleness` since the last reading (the server's was set, or this machine was
    /// suspended), waits of one are not waits of the other: then it counts as a new value.
    pub(crate) fn note(
        &self,
        value: &str,
        time: Timestamp,
        read_at: Timestamp,
        max_staleness: Duration,
    ) {
        let clock_offset = time.as_micros().saturating_sub(read_at.as_micros());
        let mut last = lock(&self.last);
        let moved = Duration::from_micros(clock_offset.abs_diff(last.clock_offset));
        last.clock_offset = clock_offset;
        if self.number() == 0 || last.value != value || moved > max_staleness {
            value.clone_into(&mut last.value);
            self.number.fetch_add(1, Ordering::AcqRel);
        }
        self.read_at.store(read_at.as_micros(), Ordering::Release);
    }
}

/// The key whose value is one half of the epoch. The other half is the server's replication id, which changes with a
/// restart or a failover, since those may bring older counts back.
///
/// A call that refunds, resets or charges past the quota deletes the key, and the next process that reads the epoch sets
/// a value that no key ever had. So a server that was flushed, or came back empty, has another epoch, too. Its name
/// is the store's prefix and `gen`: a stored name, which stays.
///
/// A cluster has none: a call deletes keys of one slot only, and while a slot migrates it cannot touch both the key that
/// it counts by and one that may not exist. There a rejection is cached for `max_staleness` at most.
#[derive(Clone, Debug)]
pub(crate) struct EpochKey(String);

impl EpochKey {
    pub(crate) fn new(prefix: &str, tags: Option<&HashTags>) -> Option<Self> {
        tags.is_none().then(|| Self(format!("{prefix}gen")))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The epoch, and the server's time. `None` from a server that does not report it.
    pub(crate) async fn read(
        &self,
        topology: &Topology,
    ) -> Result<Option<(String, Timestamp)>, StoreError> {
        let mut eval = cmd("EVAL");
        eval.arg(SCRIPT).arg(1).arg(&self.0);
        eval.arg(Key::unique().as_str()).arg(EPOCH_TTL_MS);
        let reply: Option<String> = topology.run(0, &eval).await?;
        Ok(reply.and_then(|reply| {
            let (time, epoch) = reply.split_once(' ')?;
            Some((epoch.to_owned(), Timestamp::from_micros(time.parse().ok()?)))
        }))
    }
}
