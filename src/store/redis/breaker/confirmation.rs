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

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, num::NonZeroU32, task::Poll};

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(50);

    fn breaker() -> Breaker {
        Breaker::new(NonZeroU32::new(3))
    }

    #[test]
    fn batches_share_the_probe_in_flight_and_it_counts_once() {
        let (breaker, now) = (breaker(), Instant::now());
        let (first, is_new) = breaker.join_confirmation(now, TIMEOUT);
        let (second, is_second_new) = breaker.join_confirmation(now + TIMEOUT / 2, TIMEOUT);
        assert!(is_new && !is_second_new && Arc::ptr_eq(&first, &second));
        assert!(!first.decide(false), "no batch has failed");
        assert!(first.count_if_unanswered() && !second.count_if_unanswered());
        assert!(!breaker.is_confirmed_since(now));
        let (next, is_new) = breaker.join_confirmation(now + TIMEOUT, TIMEOUT);
        assert!(is_new);
        next.decide(true);
        assert!(!next.count_if_unanswered() && breaker.is_confirmed_since(now + TIMEOUT));
        assert!(
            !breaker.is_confirmed_since(now + 2 * TIMEOUT),
            "it is older"
        );
    }

    #[test]
    fn a_batch_without_a_probe_counts_by_the_last_one_once_and_not_by_an_old_one() {
        let (breaker, now) = (breaker(), Instant::now());
        assert!(
            !breaker.count_last_if_unanswered(now, TIMEOUT),
            "there is none"
        );
        for (is_answered, later, counts) in [
            (false, TIMEOUT, true),
            (false, 2 * TIMEOUT, false),
            (true, TIMEOUT, false),
        ] {
            let (last, _) = breaker.join_confirmation(now, TIMEOUT);
            last.decide(is_answered);
            assert_eq!(
                breaker.count_last_if_unanswered(now + later, TIMEOUT),
                counts
            );
            assert!(!counts || !breaker.count_last_if_unanswered(now + later, TIMEOUT));
        }
    }

    #[test]
    fn a_probe_that_never_ends_is_given_up() {
        let (breaker, now) = (breaker(), Instant::now());
        let (lost, _) = breaker.join_confirmation(now, TIMEOUT);
        let (_, is_new) = breaker.join_confirmation(now + TIMEOUT * (1 + MAX_REPEATS), TIMEOUT);
        assert!(is_new && !lost.count_if_unanswered());
    }

    #[test]
    fn a_batch_that_fails_before_the_verdict_counts_with_it_once() {
        let (breaker, now) = (breaker(), Instant::now());
        for is_answered in [false, true] {
            let (confirmation, _) = breaker.join_confirmation(now, TIMEOUT);
            assert!(!confirmation.count_if_unanswered(), "it may be answered");
            assert!(
                !breaker.count_last_if_unanswered(now, TIMEOUT),
                "it may be answered"
            );
            assert_eq!(confirmation.decide(is_answered), !is_answered);
            assert!(!confirmation.count_if_unanswered(), "it has counted");
        }
    }

    #[tokio::test]
    async fn a_verdict_wakes_those_that_wait_for_it() {
        let (confirmation, _) = breaker().join_confirmation(Instant::now(), TIMEOUT);
        let theirs = confirmation.clone();
        let waiting = tokio::spawn(poll_fn(move |cx| match theirs.poll_verdict(cx) {
            Verdict::Pending => Poll::Pending,
            verdict => Poll::Ready(verdict),
        }));
        tokio::task::yield_now().await;
        confirmation.decide(true);
        assert_eq!(waiting.await.expect("no panic"), Verdict::Answered);
    }
}
