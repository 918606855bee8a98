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

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self(0) + since,
            Err(before) => Self(0) - before.duration(),
        }
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

/// The clock of a store.
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

/// How far a clock's wall clock is ahead, in microseconds.
pub(crate) fn wall_offset_us(clock: &dyn Clock) -> i64 {
    let (wall, now) = (clock.wall(), clock.now());
    wall.as_micros().saturating_sub(now.as_micros())
}

/// The machine's clock.
///
/// Its [`now`](Clock::now) begins with what the wall clock shows when the process first reads it, and counts on by a monotonic
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
        Timestamp::from(SystemTime::now()).max(Timestamp(0))
    }
}

/// When the clocks of tests begin: 2027-01-15 08:00 UTC, a Friday. Every strategy counts there, and for decades before and
/// after.
const TEST_TIME: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// A clock that stands still until it is set: for tests and simulations. Clones share the time.
///
/// By default it shows 2027-01-15 08:00 UTC.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, ManualClock, MemoryStore, Timestamp};
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

/// A clock on tokio's time, which tests can pause and advance: under paused time [`Limiter::wait`](crate::Limiter::wait) and
/// an [`OutgoingLayer`](crate::OutgoingLayer) sleep in no time, and a store on this clock refills meanwhile. On any other
/// clock it doesn't, and what would be admitted in time is rejected.
///
/// It begins at 2027-01-15 08:00 UTC.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, MemoryStore, Policy, Quota, TokioClock};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?.block_on(async {
/// // In a test: #[tokio::test(start_paused = true)]
/// let limiter = Limiter::builder()
///     .store(MemoryStore::builder().clock(TokioClock::new()).build())
///     .policy(Policy::new("upstream", Quota::requests(1).per_minute()))
///     .build()?;
/// assert!(limiter.wait("us", Duration::from_secs(1)).await.is_ok());
/// tokio::time::advance(Duration::from_secs(60)).await;
/// assert!(limiter.check("us").await.is_admitted());
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: tokio::time::Instant,
    at: Timestamp,
}

impl TokioClock {
    /// A clock that begins at 2027-01-15 08:00 UTC.
    pub fn new() -> Self {
        Self::at(TEST_TIME)
    }

    /// A clock that shows `now`, and counts on from there.
    pub fn at(now: Timestamp) -> Self {
        Self {
            start: tokio::time::Instant::now(),
            at: now,
        }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.at + self.start.elapsed()
    }
}
