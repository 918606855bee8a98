//! The circuit breaker of one server: stops calls to a server that failed, and has it probed until it counts again.
//!
//! Failures are a connection that can't be opened or that breaks with calls in flight, each timeout without any reply, and the error replies
//! that `error_class` lists. A deadline that passes while other replies come is none.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{error::StoreError, observe::BreakerState, random::random_u64};

/// The first pause before a probe, at most. Each probe doubles it.
const MAX_FIRST_PAUSE: Duration = Duration::from_millis(25);

/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Most probes in flight, each of which ends after some seconds. So many begin within two seconds: with fewer, while all of them hang,
/// none finds that the server is back.
const MAX_PROBES: usize = 6;

/// The state of the breaker. Closed, it counts failures in a row. Open, no call is sent but probes, of which one that is answered
/// closes it.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// The failures in a row that open it; `None`: it never opens.
    threshold: Option<NonZeroU32>,
    failures: u32,
    /// Probes since a request had a reply in time. The reply to a probe does not reset the growth of the pauses: the server may reply
    /// to nothing else.
    probes: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    next_probe: Instant,
    in_flight: usize,
    /// The last failure, of a call or a probe.
    cause: Option<Arc<StoreError>>,
}

impl Breaker {
    pub(crate) fn new(threshold: Option<NonZeroU32>) -> Self {
        Self {
            threshold,
            failures: 0,
            probes: 0,
            open: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The time of the next probe and the last failure, while it is open.
    pub(super) fn next_probe(&self) -> Option<(Instant, Option<Arc<StoreError>>)> {
        let open = self.open.as_ref()?;
        Some((open.next_probe, open.cause.clone()))
    }

    /// Its state, for observers.
    pub(super) fn observed(&self) -> BreakerState {
        match &self.open {
            None => BreakerState::Closed,
            Some(open) if open.in_flight == 0 => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Counts a failure; returns whether it opened the breaker.
    pub(super) fn on_failure(&mut self, now: Instant, cause: &StoreError) -> bool {
        self.failures = self.failures.saturating_add(1);
        let is_reached = self
            .threshold
            .is_some_and(|threshold| self.failures >= threshold.get());
        if let Some(open) = &mut self.open {
            open.cause = Some(Arc::new(cause.clone()));
            return false;
        }
        if is_reached {
            self.open = Some(Open {
                next_probe: now + pause(self.probes, random_u64()),
                in_flight: 0,
                cause: Some(Arc::new(cause.clone())),
            });
        }
        is_reached
    }

    /// Notes a reply in time; returns whether it closed the breaker.
    pub(super) fn on_success(&mut self) -> bool {
        self.failures = 0;
        self.probes = 0;
        self.open.take().is_some()
    }

    pub(super) fn is_probe_due(&self, now: Instant) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.next_probe <= now)
    }

    /// Begins a probe that is due. Returns whether it is to be sent: not if too many are in flight.
    pub(super) fn begin_probe(&mut self, now: Instant) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        self.probes = self.probes.saturating_add(1);
        open.next_probe = now + pause(self.probes, random_u64());
        let is_sent = open.in_flight < MAX_PROBES;
        open.in_flight += usize::from(is_sent);
        is_sent
    }

    /// Notes that the probes in flight are lost.
    pub(super) fn forget_probes(&mut self) {
        if let Some(open) = &mut self.open {
            open.in_flight = 0;
        }
    }

    /// Ends a probe; returns whether it closed the breaker. One failure stays counted until a request has a reply: the server may reply to
    /// probes alone.
    pub(super) fn end_probe(&mut self, result: Result<(), StoreError>) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        open.in_flight = open.in_flight.saturating_sub(1);
        match result {
            Ok(()) => {
                self.failures = 1;
                self.open = None;
                true
            }
            Err(cause) => {
                open.cause = Some(Arc::new(cause));
                false
            }
        }
    }
}

/// The pause after so many probes: doubled each time, less a random part of up to half, so that processes do not probe in step.
fn pause(probes: u32, random: u64) -> Duration {
    let factor = 2_u32.saturating_pow(probes);
    let longest = MAX_FIRST_PAUSE.saturating_mul(factor).min(MAX_PAUSE);
    let half = longest / 2;
    let micros = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
    half + Duration::from_micros(random % micros.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_differ() {
        assert_eq!(pause(0, 0), MAX_FIRST_PAUSE / 2);
        assert!(pause(0, u64::MAX) <= MAX_FIRST_PAUSE);
        for probes in [6, 60, u32::MAX] {
            assert_eq!(pause(probes, 0), MAX_PAUSE / 2);
            assert!(pause(probes, 123_456) > MAX_PAUSE / 2);
            assert!(pause(probes, u64::MAX) <= MAX_PAUSE);
        }
    }
}
