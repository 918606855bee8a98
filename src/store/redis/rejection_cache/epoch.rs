//! The store's epoch, as far as this process knows it.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::clock::Timestamp;

/// What names the present state of the store's counts, but for what admitted requests charge: it changes with each refund,
/// reset and charge past the quota, and when the server may have lost counts.
///
/// Its values are numbered as they are read. A value that comes back is a new one: something else was there meanwhile.
pub(crate) struct Epoch {
    /// Zero: none was read yet.
    number: AtomicU64,
    /// When it was read, in microseconds on the cache's clock: not later than it was true.
    read: AtomicI64,
    /// When it was last asked for, whatever came of it.
    asked: AtomicI64,
    is_being_read: AtomicBool,
    last: Mutex<Last>,
}

/// What was read last.
#[derive(Default)]
struct Last {
    value: String,
    /// How far the server's clock was ahead of the cache's, in microseconds.
    lead: i64,
}

impl Default for Epoch {
    fn default() -> Self {
        Self {
            number: AtomicU64::new(0),
            read: AtomicI64::new(i64::MIN),
            asked: AtomicI64::new(i64::MIN),
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

    /// Whether it is the one of that number, and was less than `bound` ago.
    pub(crate) fn holds(&self, number: u64, now: Timestamp, bound: Duration) -> bool {
        // In this order: it has the number that was written before this time was.
        let read = Timestamp::from_micros(self.read.load(Ordering::Acquire));
        number > 0 && self.number() == number && read <= now && now.since(read) < bound
    }

    /// Begins to read it, unless it is being read, or was asked for less than `pause` ago.
    pub(crate) fn start_read(&self, now: Timestamp, pause: Duration) -> bool {
        let last = Timestamp::from_micros(self.asked.load(Ordering::Acquire));
        let is_due = now < last || now.since(last) >= pause;
        if !is_due || self.is_being_read.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.asked.store(now.as_micros(), Ordering::Release);
        true
    }

    /// Ends the reading that was begun, with or without a value.
    pub(crate) fn finish_read(&self) {
        self.is_being_read.store(false, Ordering::Release);
    }

    /// Notes the value that was asked for at `read`, when the server's clock showed `time`. Where the two clocks have moved
    /// apart by more than `bound` since the last reading, waits by the one are no waits by the other: the server's was set, or this machine was
    /// suspended. Then it is a new value.
    pub(crate) fn note(&self, value: &str, time: Timestamp, read: Timestamp, bound: Duration) {
        let lead = time.as_micros().saturating_sub(read.as_micros());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = Duration::from_micros(lead.abs_diff(last.lead));
        last.lead = lead;
        if self.number() == 0 || last.value != value || moved > bound {
            value.clone_into(&mut last.value);
            self.number.fetch_add(1, Ordering::AcqRel);
        }
        self.read.store(read.as_micros(), Ordering::Release);
    }
}
