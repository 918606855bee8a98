//! Whether a late reply is the server's fault.
//!
//! The threads of a process may be held up: a batch is then without a reply at its deadline, because it was not written or its
//! reply was not read. So a batch that has no reply after half of its time has the server probed by another thread. If the probe
//! is answered, the requests are awaited for one more timeout, and nothing counts for the circuit breaker. If it is not, they
//! fail at their deadline, and it counts: once, however many batches are late.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Waker},
    time::{Duration, Instant},
};

use tokio::time;

use super::Breaker;
use crate::sync::lock;

/// How often a probe is repeated whose own thread was held up meanwhile.
pub(crate) const MAX_REPEATS: u32 = 3;

/// By so much timers are late on a machine that is not busy.
pub(crate) const TIMER_GRANULARITY: Duration = Duration::from_millis(2);

/// So many stops of the process that follow each other count, and more only if they outlast a deadline by a timeout: a process that
/// is always late would await requests without end.
pub(crate) const MAX_STOPS_IN_ROW: u32 = 4;

/// Whether a test has moved tokio's clock ahead: what is late by it was not held up.
pub(crate) fn is_moved(now: time::Instant) -> bool {
    now.into_std() > Instant::now()
}

/// Whether an instant that a task waits for is noticed so late, in a store with this timeout, that the process was held up meanwhile.
pub(crate) fn was_held_up(timeout: Duration, due: time::Instant, now: time::Instant) -> bool {
    now.saturating_duration_since(due) > timeout / 8 + TIMER_GRANULARITY
}

/// A probe that is sent because batches are late, and its result.
#[derive(Debug)]
pub(crate) struct Confirmation {
    begun: Instant,
    /// When it has a verdict at the latest, unless the probing thread is held up, too.
    deadline: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    verdict: Verdict,
    /// The tasks that wait for the verdict.
    wakers: Vec<Waker>,
    /// Whether a batch has failed before the verdict.
    has_failed: bool,
    /// Whether it was counted as a failure of the circuit breaker.
    is_counted: bool,
}

/// The result of a confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pending,
    /// The server answers: this process, the connection or one call is slow.
    Answered,
    /// The server does not answer in time, or cannot count.
    Unanswered,
}

impl Confirmation {
    fn new(verdict: Verdict, begun: Instant, probe_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            begun,
            deadline: begun + probe_timeout,
            state: Mutex::new(State {
                verdict,
                wakers: Vec::new(),
                has_failed: false,
                is_counted: false,
            }),
        })
    }

    /// A confirmation without a probe, whose verdict is that the server did not answer.
    pub(crate) fn unanswered() -> Arc<Self> {
        Self::new(Verdict::Unanswered, Instant::now(), Duration::ZERO)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.state().verdict
    }

    /// The verdict. While it is pending, the task is registered to be woken by [`decide`](Self::decide).
    pub(crate) fn poll_verdict(&self, cx: &Context<'_>) -> Verdict {
        let mut state = self.state();
        let mut wakers = state.wakers.iter();
        let is_known = wakers.any(|known| known.will_wake(cx.waker()));
        if state.verdict == Verdict::Pending && !is_known {
            state.wakers.push(cx.waker().clone());
        }
        state.verdict
    }

    /// Whether it should have a verdict by now: the probing thread is held up.
    pub(crate) fn is_overdue(&self) -> bool {
        self.verdict() == Verdict::Pending && Instant::now() >= self.deadline
    }

    /// Sets the verdict, and wakes the tasks that wait for it. Returns whether it counts as a failure of the circuit breaker at
    /// once, since a batch has failed meanwhile.
    pub(crate) fn decide(&self, answered: bool) -> bool {
        let mut state = self.state();
        state.verdict = if answered {
            Verdict::Answered
        } else {
            Verdict::Unanswered
        };
        let (wakers, has_failed) = (mem::take(&mut state.wakers), state.has_failed);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        has_failed && self.count_if_unanswered()
    }

    /// Counts a batch without a reply as a failure of the circuit breaker, if the server did not answer. Returns whether it
    /// counts: only the first batch of a confirmation does. One that fails before the verdict counts [with it](Self::decide).
    pub(crate) fn count_if_unanswered(&self) -> bool {
        let mut state = self.state();
        match state.verdict {
            Verdict::Pending => {
                state.has_failed = true;
                false
            }
            Verdict::Answered => false,
            Verdict::Unanswered => !mem::replace(&mut state.is_counted, true),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Breaker {
    /// The confirmation in flight, or a new one, which the caller has to decide within `probe_timeout`. Returns whether it is new. One
    /// that is overdue by [`MAX_REPEATS`] timeouts is given up.
    pub(crate) fn join_confirmation(
        &self,
        now: Instant,
        probe_timeout: Duration,
    ) -> (Arc<Confirmation>, bool) {
        let mut state = self.state();
        let in_flight = state.confirmation.as_ref().filter(|last| {
            last.verdict() == Verdict::Pending && now < last.deadline + MAX_REPEATS * probe_timeout
        });
        if let Some(in_flight) = in_flight {
            return (in_flight.clone(), false);
        }
        let new = Confirmation::new(Verdict::Pending, now, probe_timeout);
        state.confirmation = Some(new.clone());
        (new, true)
    }

    /// Counts a failure by the last confirmation, and returns whether it counts: if the server did not answer it, it began no
    /// longer than `age` ago, and none was counted by it before.
    pub(crate) fn count_last_if_unanswered(&self, now: Instant, age: Duration) -> bool {
        let last = self.state().confirmation.clone();
        last.is_some_and(|last| last.begun + age >= now && last.count_if_unanswered())
    }

    /// Whether the server has answered a confirmation that began at this instant or later.
    pub(crate) fn is_confirmed_since(&self, since: Instant) -> bool {
        let state = self.state();
        let last = state.confirmation.as_ref();
        last.is_some_and(|last| last.begun >= since && last.verdict() == Verdict::Answered)
    }
}
