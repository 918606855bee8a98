//! A clock in process that counts its readings.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tollgate::{
    ManualClock,
    clock::{Clock, Timestamp},
};

/// A clock that only moves when it is set, and counts how often it is read: a store reads it once for each call, and
/// nothing else shows that it was called.
#[derive(Clone, Debug)]
pub struct CountingClock {
    pub time: ManualClock,
    reads: Arc<AtomicU64>,
}

impl CountingClock {
    /// A clock at so many microseconds since 1970.
    pub fn at(micros: u64) -> Self {
        Self {
            time: ManualClock::at(Timestamp::from_micros(micros as i64)),
            reads: Arc::default(),
        }
    }

    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }
}

impl Clock for CountingClock {
    fn now(&self) -> Timestamp {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.time.now()
    }
}
