//! A clock with two hands.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use tollgate::clock::{Clock, Timestamp};

/// A monotonic clock and a wall clock, set by hand.
#[derive(Clone, Debug, Default)]
pub struct TwoClocks {
    now: Arc<AtomicI64>,
    wall: Arc<AtomicI64>,
}

impl TwoClocks {
    /// A clock of which both hands show `micros` since 1970.
    pub fn at(micros: i64) -> Self {
        let hands = Self::default();
        hands.now.store(micros, Ordering::SeqCst);
        hands.wall.store(micros, Ordering::SeqCst);
        hands
    }

    /// Time passes.
    pub fn pass(&self, micros: i64) {
        self.now.fetch_add(micros, Ordering::SeqCst);
        self.step(micros);
    }

    /// The wall clock steps, back if `micros` is negative.
    pub fn step(&self, micros: i64) {
        self.wall.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for TwoClocks {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.wall.load(Ordering::SeqCst))
    }
}
