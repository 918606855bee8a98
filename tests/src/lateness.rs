//! How late the machine is: by so much a request may end after its timeout.

use std::{
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use tokio::time::sleep;

/// How long the measuring task sleeps.
const NAP: Duration = Duration::from_millis(4);

/// What timers are late by on a quiet machine, which is not counted.
const GRANULARITY: Duration = Duration::from_millis(2);

/// What a request may take beyond its timeout and the measured lateness. It is woken a few times, and each time it may wait for up
/// to a nap that is not measured.
const SLACK: Duration = Duration::from_millis(100);

/// The sum of the delays with which the only thread of a runtime woke a task: because the thread was not scheduled, or had other
/// tasks to run.
#[derive(Debug)]
pub struct Lateness {
    start: Instant,
    /// In microseconds.
    total: AtomicU64,
    /// When the nap ends, in microseconds since the start.
    due: AtomicU64,
}

impl Lateness {
    /// Measures on this runtime, which is to have one thread, until the result is dropped.
    pub fn measure() -> Arc<Self> {
        let lateness = Arc::new(Self {
            start: Instant::now(),
            total: AtomicU64::new(0),
            due: AtomicU64::new(0),
        });
        let measured = Arc::downgrade(&lateness);
        tokio::spawn(async move {
            while let Some(lateness) = measured.upgrade() {
                lateness.total.fetch_add(lateness.current(), SeqCst);
                lateness.due.store(lateness.now() + micros(NAP), SeqCst);
                drop(lateness);
                sleep(NAP).await;
            }
        });
        lateness
    }

    /// All delays until now, that of the current nap included.
    pub fn so_far(&self) -> Duration {
        Duration::from_micros(self.total.load(SeqCst) + self.current())
    }

    /// Awaits a request of a store with this timeout; panics if it ends later than the timeout and the machine's delays allow.
    /// Those of the IO thread are not measured, and may be as long as the timeout.
    #[track_caller]
    pub fn within<T>(
        &self,
        timeout: Duration,
        call: impl Future<Output = T>,
    ) -> impl Future<Output = T> {
        let caller = Location::caller();
        async move {
            let (result, took, overdue) = self.timed(timeout, call).await;
            assert!(
                overdue == Duration::ZERO,
                "{took:?}, {overdue:?} more than a timeout of {timeout:?} and the machine allow, at {caller}"
            );
            result
        }
    }

    /// Awaits such a request. Returns also how long it took, and by how much it ended later than the timeout and the
    /// machine's delays allow.
    pub async fn timed<T>(
        &self,
        timeout: Duration,
        call: impl Future<Output = T>,
    ) -> (T, Duration, Duration) {
        let (late, start) = (self.so_far(), Instant::now());
        let result = call.await;
        let (took, late) = (start.elapsed(), self.so_far() - late);
        (
            result,
            took,
            took.saturating_sub(2 * timeout + late + SLACK),
        )
    }

    fn current(&self) -> u64 {
        let late = self.now().saturating_sub(self.due.load(SeqCst));
        if late > micros(GRANULARITY) { late } else { 0 }
    }

    fn now(&self) -> u64 {
        micros(self.start.elapsed())
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}
