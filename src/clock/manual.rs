//! A clock that tests set.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use super::{Clock, TEST_TIME, Timestamp, micros};

/// A clock that stands still until it is set or advanced, for tests and simulations. Clones share the time.
///
/// The default is 2027-01-15 08:00 UTC.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{ManualClock, MemoryStore, clock::{Clock, Timestamp}};
///
/// let clock = ManualClock::default();
/// let store = MemoryStore::builder().clock(clock.clone()).build();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now().since(before), Duration::from_secs(1));
/// clock.set(Timestamp::from(std::time::SystemTime::now()));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(now.0)))
    }

    /// Sets the clock to `now`, which may be earlier than before.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }

    /// Advances the clock by `by`.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::at(TEST_TIME)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}
