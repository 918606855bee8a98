//! The instants a limit is counted by.

use std::{
    fmt,
    ops::{Add, Sub},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// An instant on the store's clock: microseconds since the Unix epoch, the resolution of Redis' `TIME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The instant `micros` microseconds later, or earlier if they are negative.
    pub(crate) const fn shifted(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// How long it is from `earlier` to this instant; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        let micros = self.0.saturating_sub(earlier.0);
        Duration::from_micros(if micros > 0 { micros as u64 } else { 0 })
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(micros(rhs)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(micros(rhs)))
    }
}

fn micros(duration: Duration) -> i64 {
    let secs = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    secs.saturating_mul(1_000_000)
        .saturating_add(i64::from(duration.subsec_micros()))
}

/// Tells the time to a store or a guard.
///
/// Every strategy takes a clock that steps, in either direction: a step forward gives the quota of that time, a step back
/// none, and neither rejects a key for much longer than its period; a calendar window rejects for the step more.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present instant. A clock that no step of the wall clock moves is best.
    fn now(&self) -> Timestamp;

    /// What the wall clock shows. [Calendar windows](crate::CalendarWindow) follow it. The same as [`now`](Clock::now), for
    /// a clock that has no other.
    fn wall(&self) -> Timestamp {
        self.now()
    }
}

/// The machine's clock.
///
/// Its [`now`](Clock::now) begins with what the wall clock shows when the process first asks, and counts on by a monotonic
/// clock: wherever the wall clock steps, no quota is refilled or withheld. On Linux and macOS it stands still while the
/// machine is suspended. Its [`wall`](Clock::wall) is the wall clock, or 1970 if that shows an earlier time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// What both clocks showed when the process first asked.
static START: LazyLock<(Instant, Timestamp)> =
    LazyLock::new(|| (Instant::now(), SystemClock.wall()));

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let (instant, wall) = &*START;
        *wall + instant.elapsed()
    }

    fn wall(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Timestamp(0) + since.unwrap_or_default()
    }
}

/// A clock that stands still until it is set: for tests and simulations. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::at(Timestamp::from_micros(0));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now().as_micros(), 1_000_000);
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(now.0)))
    }

    /// Shows `now` from here on, which may be earlier than before.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }

    /// Moves on by `by`.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros(by), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}
