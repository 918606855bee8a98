//! A clock that only moves when it is set.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use tollgate::clock::{Clock, Timestamp};

/// A monotonic clock and a wall clock, set by hand. It counts how often it is read: a store reads it once for each call, and nothing else
/// shows that it was called.
#[derive(Clone, Debug, Default)]
pub struct TwoClocks {
    now: Arc<AtomicI64>,
    wall: Arc<AtomicI64>,
    reads: Arc<AtomicU64>,
}

impl TwoClocks {
    /// A clock of which both hands show `micros` since 1970.
    pub fn at(micros: i64) -> Self {
        let hands = Self::default();
        hands.pass(micros);
        hands
    }

    /// Time passes; back if `micros` is negative.
    pub fn pass(&self, micros: i64) {
        self.now.fetch_add(micros, Ordering::SeqCst);
        self.step(micros);
    }

    /// The wall clock steps, back if `micros` is negative.
    pub fn step(&self, micros: i64) {
        self.wall.fetch_add(micros, Ordering::SeqCst);
    }

    /// What the monotonic clock shows.
    pub fn micros(&self) -> i64 {
        self.now.load(Ordering::SeqCst)
    }

    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }
}

impl Clock for TwoClocks {
    fn now(&self) -> Timestamp {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Timestamp::from_micros(self.micros())
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.wall.load(Ordering::SeqCst))
    }
}
