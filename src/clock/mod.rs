//! Instants and clocks, which limits are counted by.

use std::{
    fmt,
    ops::{Add, Sub},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// An instant on a store's clock, in microseconds since the Unix epoch: the resolution of Redis's `TIME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than every instant.
    pub(crate) const MAX: Self = Self(i64::MAX);

    /// The instant `micros` microseconds after the Unix epoch; negative for earlier ones.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The instant `micros` microseconds later, or earlier if they are negative.
    pub(crate) const fn shifted(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// The instant on the machine's wall clock's scale.
    pub(crate) fn to_system_time(self) -> SystemTime {
        let since = Duration::from_micros(self.0.unsigned_abs());
        let time = match self.0 {
            0.. => UNIX_EPOCH.checked_add(since),
            _ => UNIX_EPOCH.checked_sub(since),
        };
        // Out of the range that the system has.
        time.unwrap_or(UNIX_EPOCH)
    }

    /// The duration from `earlier` to this instant; zero if `earlier` is later.
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
/// The clock may step in either direction, under every strategy: a step forward refills the quota of the skipped time, a step
/// back refills none, and neither rejects a key for much longer than its period (a calendar window: plus the step). Called on
/// request paths, from any thread: it must not block.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current instant. Best is a clock that does not follow steps of the wall clock.
    fn now(&self) -> Timestamp;

    /// Returns the wall clock's instant, which [calendar windows](crate::CalendarWindow) and dates in responses follow.
    /// Default: [`now`](Clock::now).
    fn wall(&self) -> Timestamp {
        self.now()
    }
}

/// How far a clock's wall clock is ahead, in microseconds.
pub(crate) fn wall_offset_us(clock: &dyn Clock) -> i64 {
    let (wall, now) = (clock.wall(), clock.now());
    wall.as_micros().saturating_sub(now.as_micros())
}

/// The machine's clock: the default of a [`MemoryStore`](crate::MemoryStore).
///
/// Its [`now`](Clock::now) begins with the wall clock's time when the process first reads it, and advances by a monotonic
/// clock: a step of the wall clock neither refills nor withholds a quota. On Linux and macOS it stops while the machine is
/// suspended. Its [`wall`](Clock::wall) is the wall clock, or 1970 if that shows an earlier time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// What both clocks showed when they were first read.
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

/// A clock on tokio's time, which tests can pause and advance. Under paused time the sleeps of
/// [`Limiter::wait`](crate::Limiter::wait) and an [`OutgoingLayer`](crate::OutgoingLayer) take no time, and a store on this
/// clock refills by their duration; on any other clock it would not, and requests that would be admitted in time are rejected.
///
/// It begins at 2027-01-15 08:00 UTC unless set.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, MemoryStore, Policy, Quota, clock::TokioClock};
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

    /// A clock that begins at `now`.
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
