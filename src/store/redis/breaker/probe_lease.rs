//! The lease of the one task that probes while a circuit breaker is open.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::{Breaker, BreakerState, Phase};
use crate::random::random_u64;

/// How long a probe may be overdue before another task takes over, since the probing task's runtime may make no progress.
const GRACE: Duration = Duration::from_millis(250);

/// The right to probe while a breaker is open. Its holder sends the probes until the breaker closes; if it is dropped before, or
/// its probe is overdue, another task may take over.
#[derive(Debug)]
pub(crate) struct ProbeLease {
    breaker: Arc<Breaker>,
    number: u64,
}

impl Breaker {
    /// The lease to probe, if it is open and no task has one.
    pub(crate) fn lease(self: &Arc<Self>, now: Instant) -> Option<ProbeLease> {
        let mut state = self.state();
        let (Phase::Open(due) | Phase::HalfOpen(due)) = state.phase else {
            return None;
        };
        if state.lease.is_some() && now < due + GRACE {
            return None;
        }
        if let Phase::HalfOpen(_) = state.phase {
            state.phase = Phase::Open(now);
        }
        state.leases += 1;
        state.lease = Some(state.leases);
        Some(ProbeLease {
            breaker: self.clone(),
            number: state.leases,
        })
    }
}

impl ProbeLease {
    /// When the next probe is due; `None` once the breaker is closed, or another task has the lease.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.state()?.phase {
            Phase::Open(until) => Some(until),
            Phase::Closed | Phase::HalfOpen(_) => None,
        }
    }

    /// Whether the breaker is closed, and not only leased to another task.
    pub(crate) fn is_over(&self) -> bool {
        !self.breaker.is_open()
    }

    /// Starts a probe, which the next one awaits until `until` at most. False if it is no longer needed.
    pub(crate) fn begin(&self, until: Instant) -> bool {
        match self.state() {
            Some(mut state) if state.phase != Phase::Closed => {
                state.phase = Phase::HalfOpen(until);
                true
            }
            _ => false,
        }
    }

    /// Ends a probe, with a response or without. A response may come late, when the breaker is open again. Returns whether it
    /// changed the breaker's state.
    pub(crate) fn end(&self, answered: bool, now: Instant) -> bool {
        let Some(mut state) = self.state() else {
            return false;
        };
        match (state.phase, answered) {
            // The response to a request closed it first.
            (Phase::Closed, _) | (Phase::Open(_), false) => return false,
            // One failure is remembered until a request has had a response.
            (_, true) => self.breaker.close(&mut state, 1),
            (Phase::HalfOpen(_), false) => self.breaker.open(&mut state, now, random_u64()),
        }
        true
    }

    /// The state, if this lease is still the current one.
    fn state(&self) -> Option<MutexGuard<'_, BreakerState>> {
        let state = self.breaker.state();
        (state.lease == Some(self.number)).then_some(state)
    }
}

impl Drop for ProbeLease {
    fn drop(&mut self) {
        if let Some(mut state) = self.state() {
            state.lease = None;
            if let Phase::HalfOpen(_) = state.phase {
                // Its runtime ended with a probe in flight: the next holder probes at once.
                state.phase = Phase::Open(Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::{super::MIN_BACKOFF, *};
    use crate::error::StoreError;

    fn breaker(threshold: u32) -> (Arc<Breaker>, Instant) {
        (
            Arc::new(Breaker::new(NonZeroU32::new(threshold))),
            Instant::now(),
        )
    }

    #[test]
    fn one_probe_at_a_time_is_sent_after_the_backoff_and_its_reply_closes_it() {
        let (breaker, now) = breaker(1);
        assert!(breaker.lease(now).is_none(), "closed, it needs none");
        breaker.on_failure(now, || StoreError::Timeout);
        let lease = breaker.lease(now).expect("a lease");
        assert!(breaker.lease(now).is_none(), "there is one already");
        let due = lease.due().expect("a probe is due");
        assert_eq!(breaker.state().pause(now), due - now);
        assert!(
            lease.begin(now) && breaker.is_open(),
            "half open is not closed"
        );
        lease.end(false, due);
        let next = lease.due().expect("another one");
        assert!(next > due && breaker.is_open());
        assert!(lease.begin(now));
        lease.end(true, next);
        assert!(lease.due().is_none() && !breaker.is_open());
        assert!(!lease.begin(now), "nothing is left to probe");
    }

    #[test]
    fn a_late_reply_closes_it_and_so_does_one_to_a_shared_probe() {
        let (breaker, now) = breaker(2);
        for by_another in [false, true] {
            while !breaker.on_failure(now, || StoreError::Timeout) {}
            let lease = breaker.lease(now).expect("a lease");
            lease.begin(now);
            lease.end(false, now);
            lease.end(false, now);
            assert!(breaker.is_open());
            assert_eq!(by_another, by_another && breaker.close_after_probe());
            lease.end(!by_another, now);
            assert!(!breaker.is_open() && !breaker.close_after_probe());
        }
        assert!(
            breaker.on_failure(now, || StoreError::Timeout),
            "one failure is remembered"
        );
    }

    #[test]
    fn backoffs_grow_until_a_call_succeeds() {
        let (breaker, now) = breaker(1);
        let opened = |times: u32| {
            breaker.on_failure(now, || StoreError::Timeout);
            let lease = breaker.lease(now).expect("a lease");
            let pause = lease.due().expect("a probe") - now;
            let most = MIN_BACKOFF * 2_u32.pow(times);
            assert!((most / 2..=most).contains(&pause), "{times}: {pause:?}");
            lease.begin(now);
            lease.end(true, now);
        };
        // Probes have responses, and requests do not.
        (0..4).for_each(opened);
        breaker.on_success();
        opened(0);
        breaker.on_failure(now, || StoreError::Timeout);
        breaker.on_success();
        assert!(
            !breaker.is_open(),
            "a request's response counts more than a probe's"
        );
        opened(0);
    }

    #[test]
    fn a_prober_that_stalls_is_replaced() {
        let (breaker, now) = breaker(1);
        breaker.on_failure(now, || StoreError::Timeout);
        let still = breaker.lease(now).expect("a lease");
        let due = still.due().expect("a probe");
        assert!(breaker.lease(due).is_none(), "it is not late yet");
        let next = breaker.lease(due + GRACE).expect("another lease");
        assert!(still.due().is_none() && !still.begin(due));
        // Its probe has no response either.
        let until = due + 2 * GRACE;
        assert!(next.begin(until) && breaker.lease(until).is_none());
        let last = breaker.lease(until + GRACE).expect("another lease");
        next.end(true, until);
        drop((still, next));
        assert!(breaker.is_open() && breaker.lease(until).is_none());
        assert!(last.due().is_some_and(|due| due == until + GRACE));
        assert!(last.begin(until + GRACE));
        last.end(true, until + GRACE);
        assert!(!breaker.is_open());
    }

    #[test]
    fn a_prober_that_is_dropped_during_a_probe_is_replaced_at_once() {
        let (breaker, now) = breaker(1);
        breaker.on_failure(now, || StoreError::Timeout);
        let lease = breaker.lease(now).expect("a lease");
        lease.begin(now);
        drop(lease);
        let lease = breaker.lease(now).expect("another");
        assert!(lease.due().expect("a probe") <= Instant::now());
        assert!(lease.begin(now) && breaker.is_open());
        breaker.on_success();
        lease.end(false, now);
        assert!(!breaker.is_open(), "a response closed it before");
    }
}
