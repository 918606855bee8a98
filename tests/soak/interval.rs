//! A stretch of time with a key of its own, and what became of the requests for it.

use std::sync::{PoisonError, atomic::Ordering::Relaxed};

use crate::PROCESSES;
use tollgate_tests::prelude::*;

/// What one process's requests became.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Decisions of the store, and its rejections that were cached.
    pub(crate) by_store: AtomicU64,
    /// Decisions of the local fallback.
    pub(crate) in_process: AtomicU64,
    /// Requests for the epoch's key,
    pub(crate) shared: AtomicU64,
    /// those of them that were admitted by the store,
    pub(crate) shared_by_store: AtomicU64,
    /// or by the local fallback,
    pub(crate) shared_in_process: AtomicU64,
    /// and those whose call of the store failed.
    pub(crate) shared_faults: AtomicU64,
    pub(crate) admitted: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Interval {
    pub(crate) key: Key,
    start: Instant,
    pub(crate) counts: [Counts; PROCESSES],
    /// The slowest decision, in microseconds.
    slowest: AtomicU64,
    /// By how much a decision was later at worst than its timeout and the machine's delays allow, in microseconds.
    overdue: AtomicU64,
    /// When the last request began whose call of the store failed, in microseconds since the start.
    last_fault: AtomicU64,
}

impl Interval {
    pub(crate) fn new(number: u64) -> Self {
        Self {
            key: Key::new(format!("epoch-{number}")),
            start: Instant::now(),
            counts: Default::default(),
            slowest: AtomicU64::new(0),
            overdue: AtomicU64::new(0),
            last_fault: AtomicU64::new(0),
        }
    }

    pub(crate) fn note_time(&self, took: Duration, overdue: Duration) {
        self.slowest.fetch_max(micros(took), Relaxed);
        self.overdue.fetch_max(micros(overdue), Relaxed);
    }

    pub(crate) fn note(&self, process: usize, shared: bool, sent: Instant, decision: &Decision) {
        let counts = &self.counts[process];
        let admitted = u64::from(decision.is_admitted());
        counts.admitted.fetch_add(admitted, Relaxed);
        let is_fault = decision.source() == DecisionSource::Fallback;
        let (all, ours) = match is_fault {
            true => (&counts.in_process, &counts.shared_in_process),
            false => (&counts.by_store, &counts.shared_by_store),
        };
        all.fetch_add(1, Relaxed);
        if shared {
            counts.shared.fetch_add(1, Relaxed);
            ours.fetch_add(admitted, Relaxed);
            counts.shared_faults.fetch_add(is_fault.into(), Relaxed);
        }
        if is_fault {
            let since = micros(sent.saturating_duration_since(self.start));
            self.last_fault.fetch_max(since.max(1), Relaxed);
        }
    }

    pub(crate) fn overdue(&self) -> Duration {
        Duration::from_micros(self.overdue.load(Relaxed))
    }

    pub(crate) fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest.load(Relaxed))
    }

    /// When the last request began whose call of the store failed.
    pub(crate) fn last_fault(&self) -> Option<Instant> {
        let since = self.last_fault.load(Relaxed);
        (since > 0).then(|| self.start + Duration::from_micros(since))
    }

    /// The sum of something over all processes.
    pub(crate) fn sum(&self, what: impl Fn(&Counts) -> &AtomicU64) -> u64 {
        let each = self.counts.iter();
        each.map(|counts| what(counts).load(Relaxed)).sum()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The current interval.
#[derive(Clone, Debug)]
pub(crate) struct Now(Arc<Mutex<Arc<Interval>>>);

impl Now {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Arc::new(Interval::new(0)))))
    }

    pub(crate) fn get(&self) -> Arc<Interval> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Begins another one, and returns the previous one once all of its requests have their decisions.
    pub(crate) async fn next_interval(&self, number: u64) -> Arc<Interval> {
        let next = Arc::new(Interval::new(number));
        let over = std::mem::replace(
            &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner),
            next,
        );
        while Arc::strong_count(&over) > 1 {
            tokio::time::sleep(ms(1)).await;
        }
        over
    }
}
