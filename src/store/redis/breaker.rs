//! The circuit breaker: stops calls to a store that failed, and has it probed until it responds.

use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{error::StoreError, random::random_u64};

/// The first pause before a probe, at most. Each failed probe doubles it.
const MIN_BACKOFF: Duration = Duration::from_millis(50);

/// The longest pause: a store that is back is used again within a second, plus the duration of a probe.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// How long a probe may be overdue before another task takes over, since the probing task's runtime may stand still.
const GRACE: Duration = Duration::from_millis(250);

/// Closed, it lets all requests through and counts consecutive failures. Open, it lets none through. After a pause it is
/// half-open: one probe is sent, and its response closes the breaker. Without a response in time the breaker opens for
/// longer, and still closes if the response comes later.
///
/// While it is closed, a request reads one flag and a successful call another.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// Consecutive failures that open it; `None`: it never opens.
    threshold: Option<NonZeroU32>,
    open: AtomicBool,
    /// Consecutive failures.
    faults: AtomicU32,
    outage: Mutex<BreakerState>,
}

#[derive(Debug)]
struct BreakerState {
    state: State,
    /// Failed probes since a request had a response. The response to a probe ends an outage for requests, but not
    /// the growth of the pauses: a server may answer nothing else.
    pauses: u32,
    /// The number of the lease that probes.
    watch: Option<u64>,
    watches: u64,
    /// The failure of the last call or probe, while it is not closed.
    cause: Option<Arc<StoreError>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// Until the next probe is due.
    Open(Instant),
    /// A probe is in flight, and awaited until then.
    HalfOpen(Instant),
}

/// The task of probing. Its holder sends the probes until the breaker closes; if it is dropped before, or stands still,
/// another task may take over.
#[derive(Debug)]
pub(crate) struct ProbeLease {
    breaker: Arc<Breaker>,
    number: u64,
}

impl Breaker {
    /// A breaker that opens after `threshold` consecutive failures.
    pub(crate) fn new(threshold: Option<NonZeroU32>) -> Self {
        Self {
            threshold,
            open: AtomicBool::new(false),
            faults: AtomicU32::new(0),
            outage: Mutex::new(BreakerState {
                state: State::Closed,
                pauses: 0,
                watch: None,
                watches: 0,
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
        let outage = self.outage();
        Err(StoreError::CircuitOpen {
            retry_after: outage.pause(Instant::now()),
            cause: outage.cause.clone(),
        })
    }

    /// Records why the last call or probe failed.
    pub(crate) fn note_cause(&self, cause: StoreError) {
        let mut outage = self.outage();
        if outage.state != State::Closed {
            outage.cause = Some(Arc::new(cause));
        }
    }

    /// Records a response to a request.
    pub(crate) fn on_success(&self) {
        if self.faults.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut outage = self.outage();
        outage.pauses = 0;
        self.close(&mut outage, 0);
    }

    /// Records a failure; returns whether it opened the breaker.
    pub(crate) fn on_failure(&self, now: Instant, cause: impl FnOnce() -> StoreError) -> bool {
        let Some(threshold) = self.threshold else {
            return false;
        };
        let faults = self.faults.fetch_add(1, Ordering::Relaxed);
        if faults.saturating_add(1) < threshold.get() {
            return false;
        }
        let mut outage = self.outage();
        // A response may have come meanwhile.
        let counts = self.faults.load(Ordering::Relaxed) >= threshold.get();
        if outage.state != State::Closed || !counts {
            return false;
        }
        outage.cause = Some(Arc::new(cause()));
        self.open(&mut outage, now, random_u64());
        true
    }

    /// Closes it, if it is open, as the response to a probe of the same server does. Returns whether it was open.
    pub(crate) fn lift(&self) -> bool {
        if !self.is_open() {
            return false;
        }
        let mut outage = self.outage();
        let was_open = outage.state != State::Closed;
        if was_open {
            self.close(&mut outage, 1);
        }
        was_open
    }

    /// The lease to probe, if it is open and no task has one.
    pub(crate) fn watch(self: &Arc<Self>, now: Instant) -> Option<ProbeLease> {
        let mut outage = self.outage();
        let (State::Open(due) | State::HalfOpen(due)) = outage.state else {
            return None;
        };
        if outage.watch.is_some() && now < due + GRACE {
            return None;
        }
        if let State::HalfOpen(_) = outage.state {
            outage.state = State::Open(now);
        }
        outage.watches += 1;
        outage.watch = Some(outage.watches);
        Some(ProbeLease {
            breaker: self.clone(),
            number: outage.watches,
        })
    }

    fn open(&self, outage: &mut BreakerState, now: Instant, random: u64) {
        let until = now + pause(outage.pauses, random);
        outage.pauses = outage.pauses.saturating_add(1);
        outage.state = State::Open(until);
        self.open.store(true, Ordering::Relaxed);
    }

    fn close(&self, outage: &mut BreakerState, faults: u32) {
        outage.state = State::Closed;
        outage.cause = None;
        self.faults.store(faults, Ordering::Relaxed);
        self.open.store(false, Ordering::Relaxed);
    }

    fn outage(&self) -> MutexGuard<'_, BreakerState> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BreakerState {
    /// How long until it may close: until the next probe.
    fn pause(&self, now: Instant) -> Duration {
        match self.state {
            State::Open(until) => until.saturating_duration_since(now),
            State::Closed | State::HalfOpen(_) => Duration::ZERO,
        }
    }
}

impl ProbeLease {
    /// When the next probe is due; `None` once the breaker is closed, or another task has the lease.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.outage()?.state {
            State::Open(until) => Some(until),
            State::Closed | State::HalfOpen(_) => None,
        }
    }

    /// Whether the breaker is closed, and not only leased to another task.
    pub(crate) fn is_over(&self) -> bool {
        !self.breaker.is_open()
    }

    /// Starts a probe, which the next one awaits until `until` at most. False if it is no longer needed.
    pub(crate) fn begin(&self, until: Instant) -> bool {
        match self.outage() {
            Some(mut outage) if outage.state != State::Closed => {
                outage.state = State::HalfOpen(until);
                true
            }
            _ => false,
        }
    }

    /// Ends a probe, with a response or without. A response may come late, when the breaker is open again.
    pub(crate) fn end(&self, answered: bool, now: Instant) {
        let Some(mut outage) = self.outage() else {
            return;
        };
        match (outage.state, answered) {
            // A request's response came first.
            (State::Closed, _) | (State::Open(_), false) => {}
            // One failure is remembered until a request has had a response.
            (_, true) => self.breaker.close(&mut outage, 1),
            (State::HalfOpen(_), false) => self.breaker.open(&mut outage, now, random_u64()),
        }
    }

    /// The state, if this lease is still the current one.
    fn outage(&self) -> Option<MutexGuard<'_, BreakerState>> {
        let outage = self.breaker.outage();
        (outage.watch == Some(self.number)).then_some(outage)
    }
}

impl Drop for ProbeLease {
    fn drop(&mut self) {
        if let Some(mut outage) = self.outage() {
            outage.watch = None;
            if let State::HalfOpen(_) = outage.state {
                // Its runtime ended with a probe in flight: the next holder probes at once.
                outage.state = State::Open(Instant::now());
            }
        }
    }
}

/// The next pause: doubled each time, less a random part of up to half, so that processes do not probe in step.
fn pause(before: u32, random: u64) -> Duration {
    let factor = 2_u32.saturating_pow(before);
    let whole = MIN_BACKOFF.saturating_mul(factor).min(MAX_BACKOFF);
    let half = whole / 2;
    let micros = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
    half + Duration::from_micros(random % micros.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(threshold: u32) -> (Arc<Breaker>, Instant) {
        (
            Arc::new(Breaker::new(NonZeroU32::new(threshold))),
            Instant::now(),
        )
    }

    #[test]
    fn as_many_failures_in_a_row_as_configured_open_it() {
        let (breaker, now) = breaker(3);
        for _ in 0..5 {
            assert!(
                !breaker.on_failure(now, || StoreError::Timeout)
                    && !breaker.on_failure(now, || StoreError::Timeout)
            );
            breaker.on_success();
        }
        assert!(
            !breaker.on_failure(now, || StoreError::Timeout)
                && !breaker.on_failure(now, || StoreError::Timeout)
                && !breaker.is_open()
        );
        assert!(breaker.on_failure(now, || StoreError::Timeout) && breaker.is_open());
        assert!(
            !breaker.on_failure(now, || StoreError::Timeout),
            "it opens once"
        );
    }

    #[test]
    fn without_a_threshold_it_never_opens() {
        let (breaker, now) = breaker(0);
        assert!((0..1_000).all(|_| !breaker.on_failure(now, || StoreError::Timeout)));
        assert!(!breaker.is_open() && breaker.watch(now).is_none());
    }

    #[test]
    fn one_probe_at_a_time_is_sent_after_the_backoff_and_its_reply_closes_it() {
        let (breaker, now) = breaker(1);
        assert!(breaker.watch(now).is_none(), "closed, it needs none");
        breaker.on_failure(now, || StoreError::Timeout);
        let watch = breaker.watch(now).expect("a watch");
        assert!(breaker.watch(now).is_none(), "there is one already");
        let due = watch.due().expect("a probe is due");
        assert_eq!(breaker.outage().pause(now), due - now);
        assert!(
            watch.begin(now) && breaker.is_open(),
            "half open is not closed"
        );
        watch.end(false, due);
        let next = watch.due().expect("another one");
        assert!(next > due && breaker.is_open());
        assert!(watch.begin(now));
        watch.end(true, next);
        assert!(watch.due().is_none() && !breaker.is_open());
        assert!(!watch.begin(now), "nothing is left to probe");
    }

    #[test]
    fn a_late_reply_closes_it_and_so_does_one_to_a_shared_probe() {
        let (breaker, now) = breaker(2);
        for lifted in [false, true] {
            while !breaker.on_failure(now, || StoreError::Timeout) {}
            let watch = breaker.watch(now).expect("a watch");
            watch.begin(now);
            watch.end(false, now);
            watch.end(false, now);
            assert!(breaker.is_open());
            assert_eq!(lifted, lifted && breaker.lift());
            watch.end(!lifted, now);
            assert!(!breaker.is_open() && !breaker.lift());
        }
        assert!(
            breaker.on_failure(now, || StoreError::Timeout),
            "one fault is remembered"
        );
    }

    #[test]
    fn backoffs_grow_to_a_second_and_differ() {
        for random in [0, 12_345, u64::MAX] {
            let pauses: Vec<_> = (0..70).map(|before| pause(before, random)).collect();
            assert!(pauses.is_sorted() && pauses[0] >= MIN_BACKOFF / 2);
            assert!(pauses[0] <= MIN_BACKOFF);
            // A store that is back is used again within two seconds.
            let longest = Duration::from_secs(1);
            assert!((longest / 2..=longest).contains(&pauses[69]));
        }
        assert_ne!(pause(9, 1), pause(9, 2));
    }

    #[test]
    fn backoffs_grow_until_a_call_succeeds() {
        let (breaker, now) = breaker(1);
        let opened = |times: u32| {
            breaker.on_failure(now, || StoreError::Timeout);
            let watch = breaker.watch(now).expect("a watch");
            let pause = watch.due().expect("a probe") - now;
            let most = MIN_BACKOFF * 2_u32.pow(times);
            assert!((most / 2..=most).contains(&pause), "{times}: {pause:?}");
            watch.begin(now);
            watch.end(true, now);
        };
        // Probes have responses, and requests do not.
        (0..4).for_each(opened);
        breaker.on_success();
        opened(0);
        breaker.on_failure(now, || StoreError::Timeout);
        breaker.on_success();
        assert!(!breaker.is_open(), "an answer is better than a probe's");
        opened(0);
    }

    #[test]
    fn a_prober_that_stalls_is_replaced() {
        let (breaker, now) = breaker(1);
        breaker.on_failure(now, || StoreError::Timeout);
        let still = breaker.watch(now).expect("a watch");
        let due = still.due().expect("a probe");
        assert!(breaker.watch(due).is_none(), "it is not late yet");
        let next = breaker.watch(due + GRACE).expect("another watch");
        assert!(still.due().is_none() && !still.begin(due));
        // Its probe has no response either.
        let until = due + 2 * GRACE;
        assert!(next.begin(until) && breaker.watch(until).is_none());
        let last = breaker.watch(until + GRACE).expect("another watch");
        next.end(true, until);
        drop((still, next));
        assert!(breaker.is_open() && breaker.watch(until).is_none());
        assert!(last.due().is_some_and(|due| due == until + GRACE));
        assert!(last.begin(until + GRACE));
        last.end(true, until + GRACE);
        assert!(!breaker.is_open());
    }

    #[test]
    fn a_prober_that_is_dropped_during_a_probe_is_replaced_at_once() {
        let (breaker, now) = breaker(1);
        breaker.on_failure(now, || StoreError::Timeout);
        let watch = breaker.watch(now).expect("a watch");
        watch.begin(now);
        drop(watch);
        let watch = breaker.watch(now).expect("another");
        assert!(watch.due().expect("a probe") <= Instant::now());
        assert!(watch.begin(now) && breaker.is_open());
        breaker.on_success();
        watch.end(false, now);
        assert!(!breaker.is_open(), "an answer came before");
    }
}
