//! The circuit breaker: stops calls to a store that failed, and has it probed until it responds. Which errors count as a failure
//! is decided by `error_class.rs`, with the exceptions named there.

use std::{
    num::NonZeroU32,
    process,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use self::confirmation::Confirmation;
use crate::{error::StoreError, observe, random::random_u64, sync::lock};

pub(crate) mod confirmation;

/// The first pause before a probe, at most. Each failed probe doubles it.
const MAX_FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause: a store that is back is used again within a second, plus the duration of a probe.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The circuit breaker of one server.
///
/// Closed, it lets all requests through and counts consecutive failures. Open, it lets none through. After a pause it is
/// half-open: one probe is sent, and its response closes the breaker. Without a response in time the breaker opens for
/// longer, and still closes if the response comes later.
///
/// A call that only is late counts as a failure if the server does not answer a probe either: see [`Confirmation`].
///
/// While it is closed, a request reads one flag, and a successful call one counter.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// Consecutive failures that open it; `None`: it never opens.
    threshold: Option<NonZeroU32>,
    open: AtomicBool,
    /// Consecutive failures.
    failures: AtomicU32,
    state: Mutex<BreakerState>,
}

#[derive(Debug)]
struct BreakerState {
    phase: Phase,
    /// Pauses since a request had a response. The response to a probe closes the breaker, but does not reset the growth of the
    /// pauses: the server may respond to nothing else.
    pauses: u32,
    /// The process of the task that probes, and the task's number; a forked process has no such task.
    prober: Option<(u32, u64)>,
    /// The number of the last one.
    last_prober: u64,
    /// The last one.
    confirmation: Option<Arc<Confirmation>>,
    /// The failure of the last call or probe, while it is not closed.
    cause: Option<Arc<StoreError>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed,
    /// Until the next probe is due.
    Open(Instant),
    /// A probe is in flight.
    HalfOpen,
}

impl Breaker {
    /// A breaker that opens after `threshold` consecutive failures.
    pub(crate) fn new(threshold: Option<NonZeroU32>) -> Self {
        Self {
            threshold,
            open: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            state: Mutex::new(BreakerState {
                phase: Phase::Closed,
                pauses: 0,
                prober: None,
                last_prober: 0,
                confirmation: None,
                cause: None,
            }),
        }
    }

    /// Whether calls are to be rejected now.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// The error of a call that is rejected now.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if !self.is_open() {
            return Ok(());
        }
        let state = self.state();
        Err(StoreError::CircuitOpen {
            retry_after: state.pause(Instant::now()),
            cause: state.cause.clone(),
        })
    }

    /// Records why the last call or probe failed.
    pub(crate) fn note_cause(&self, cause: StoreError) {
        let mut state = self.state();
        if state.phase != Phase::Closed {
            state.cause = Some(Arc::new(cause));
        }
    }

    /// Records a response to a request; returns whether it closed the breaker.
    pub(crate) fn on_success(&self) -> bool {
        if self.failures.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut state = self.state();
        state.pauses = 0;
        let was_open = state.phase != Phase::Closed;
        self.close(&mut state, 0);
        was_open
    }

    /// Its state, for observers.
    pub(crate) fn observed(&self) -> observe::BreakerState {
        if !self.is_open() {
            return observe::BreakerState::Closed;
        }
        match self.state().phase {
            Phase::Closed => observe::BreakerState::Closed,
            Phase::Open(_) => observe::BreakerState::Open,
            Phase::HalfOpen => observe::BreakerState::HalfOpen,
        }
    }

    /// Records a failure; returns whether it opened the breaker.
    pub(crate) fn on_failure(&self, now: Instant, cause: impl FnOnce() -> StoreError) -> bool {
        let Some(threshold) = self.threshold else {
            return false;
        };
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        if failures.saturating_add(1) < threshold.get() {
            return false;
        }
        let mut state = self.state();
        // A response may have reset them meanwhile.
        let counts = self.failures.load(Ordering::Relaxed) >= threshold.get();
        if state.phase != Phase::Closed || !counts {
            return false;
        }
        state.cause = Some(Arc::new(cause()));
        self.open(&mut state, now, random_u64());
        true
    }

    /// Closes it, if it is open, since the same server responded to another breaker's probe. Returns whether it was open.
    pub(crate) fn close_after_probe(&self) -> bool {
        if !self.is_open() {
            return false;
        }
        let mut state = self.state();
        let was_open = state.phase != Phase::Closed;
        if was_open {
            self.close(&mut state, 1);
        }
        was_open
    }

    /// The right to probe, if it is open and no task of this process has it.
    pub(crate) fn begin_probing(self: &Arc<Self>) -> Option<ProbingGuard> {
        let mut state = self.state();
        let process = process::id();
        let has_prober = state.prober.is_some_and(|(of, _)| of == process);
        if state.phase == Phase::Closed || has_prober {
            return None;
        }
        state.last_prober += 1;
        state.prober = Some((process, state.last_prober));
        Some(ProbingGuard {
            breaker: self.clone(),
            number: state.last_prober,
        })
    }

    fn open(&self, state: &mut BreakerState, now: Instant, random: u64) {
        let until = now + pause(state.pauses, random);
        state.pauses = state.pauses.saturating_add(1);
        state.phase = Phase::Open(until);
        self.open.store(true, Ordering::Relaxed);
    }

    fn close(&self, state: &mut BreakerState, failures: u32) {
        state.phase = Phase::Closed;
        state.cause = None;
        self.failures.store(failures, Ordering::Relaxed);
        self.open.store(false, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
        lock(&self.state)
    }
}

/// The right to probe while a breaker is open: one task sends the probes until it finds it closed, and has lost the right then, since the
/// breaker may open again before the task has ended.
#[derive(Debug)]
pub(crate) struct ProbingGuard {
    breaker: Arc<Breaker>,
    number: u64,
}

impl ProbingGuard {
    /// When the next probe is due, unless the breaker is closed or a probe is in flight.
    pub(crate) fn due(&self) -> Option<Instant> {
        let mut state = self.breaker.state();
        match state.phase {
            Phase::Open(until) => Some(until),
            Phase::Closed => {
                state.end_probing(self.number);
                None
            }
            Phase::HalfOpen => None,
        }
    }

    /// Starts a probe. False if it is no longer needed.
    pub(crate) fn begin_probe(&self) -> bool {
        let mut state = self.breaker.state();
        let is_open = state.phase != Phase::Closed;
        if is_open {
            state.phase = Phase::HalfOpen;
        } else {
            state.end_probing(self.number);
        }
        is_open
    }

    /// Ends a probe, with a response or without. A response may come late, when the breaker is open again. Returns whether it
    /// changed the breaker's state.
    pub(crate) fn end_probe(&self, answered: bool, now: Instant) -> bool {
        let mut state = self.breaker.state();
        match (state.phase, answered) {
            // The response to a request closed it first.
            (Phase::Closed, _) | (Phase::Open(_), false) => return false,
            // One failure is remembered until a request has had a response.
            (_, true) => self.breaker.close(&mut state, 1),
            (Phase::HalfOpen, false) => self.breaker.open(&mut state, now, random_u64()),
        }
        true
    }
}

impl Drop for ProbingGuard {
    fn drop(&mut self) {
        let mut state = self.breaker.state();
        if state.end_probing(self.number) && state.phase == Phase::HalfOpen {
            // The next task probes at once.
            state.phase = Phase::Open(Instant::now());
        }
    }
}

impl BreakerState {
    /// Takes the right to probe from a task, if it has it.
    fn end_probing(&mut self, number: u64) -> bool {
        self.prober
            .take_if(|(_, prober)| *prober == number)
            .is_some()
    }

    /// How long until it may close: until the next probe.
    fn pause(&self, now: Instant) -> Duration {
        match self.phase {
            Phase::Open(until) => until.saturating_duration_since(now),
            Phase::Closed | Phase::HalfOpen => Duration::ZERO,
        }
    }
}

/// The next pause: doubled each time, less a random part of up to half, so that processes do not probe in step.
fn pause(before: u32, random: u64) -> Duration {
    let factor = 2_u32.saturating_pow(before);
    let longest = MAX_FIRST_PAUSE.saturating_mul(factor).min(MAX_PAUSE);
    let half = longest / 2;
    let micros = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
    half + Duration::from_micros(random % micros.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_threshold_it_never_opens() {
        let (breaker, now) = (Breaker::new(None), Instant::now());
        assert!((0..1_000).all(|_| !breaker.on_failure(now, StoreError::timeout)));
        assert!(!breaker.is_open());
    }

    #[test]
    fn backoffs_grow_to_a_second_and_differ() {
        for random in [0, 12_345, u64::MAX] {
            let pauses: Vec<_> = (0..70).map(|before| pause(before, random)).collect();
            assert!(pauses.is_sorted() && pauses[0] >= MAX_FIRST_PAUSE / 2);
            assert!(pauses[0] <= MAX_FIRST_PAUSE);
            // A store that is back is used again within two seconds.
            let longest = Duration::from_secs(1);
            assert!((longest / 2..=longest).contains(&pauses[69]));
        }
        assert_ne!(pause(9, 1), pause(9, 2));
    }
}
