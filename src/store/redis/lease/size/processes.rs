//! Estimates how many processes lease a key.

use crate::{
    clock::Timestamp,
    store::{LimitHandle, Units},
    strategy::Snapshot,
};

/// The most processes that are assumed.
const MAX_PROCESSES: f64 = 64.0;

/// The processes that are assumed before the first estimate.
const INITIAL_PROCESSES: f64 = 4.0;

/// An estimate of the processes that charge a key, by the units that are charged altogether while this one charges some.
#[derive(Clone, Debug)]
pub(in crate::store::redis::lease) struct Processes {
    estimate: f64,
    /// The units that this process was charged since the response to the last lease.
    own: u64,
    /// The state by the response to the last lease.
    last: Option<CounterState>,
}

/// The state of a counter by one response of the store.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::redis::lease) struct CounterState {
    pub(in crate::store::redis::lease) at: Timestamp,
    pub(in crate::store::redis::lease) snapshot: Snapshot,
}

impl Default for Processes {
    fn default() -> Self {
        Self {
            estimate: INITIAL_PROCESSES,
            own: 0,
            last: None,
        }
    }
}

impl Processes {
    /// The estimate alone, for a stripe.
    pub(in crate::store::redis::lease) fn of_stripe(&self) -> Self {
        Self {
            estimate: self.estimate,
            ..Self::default()
        }
    }

    /// Records units that this process was charged.
    pub(in crate::store::redis::lease) fn record_own(&mut self, units: u64) {
        self.own = self.own.saturating_add(units);
    }

    /// Records the state after a lease.
    pub(in crate::store::redis::lease) fn record_state(
        &mut self,
        limit: &LimitHandle,
        state: CounterState,
    ) {
        // Another worker has received a later response before.
        if self.last.is_some_and(|last| state.at < last.at) {
            return;
        }
        let own = std::mem::take(&mut self.own);
        let all = self.last.replace(state);
        let all = all.and_then(|last| charged_between(limit, last, state));
        let Some(all) = all.filter(|_| own > 0) else {
            return;
        };
        let processes = (all / own as f64).clamp(1.0, MAX_PROCESSES);
        self.estimate = (3.0 * self.estimate + processes) / 4.0;
    }

    pub(in crate::store::redis::lease) fn estimate(&self) -> f64 {
        self.estimate
    }
}

/// The units that were charged between two states; `None` if a window has ended between them.
fn charged_between(limit: &LimitHandle, before: CounterState, after: CounterState) -> Option<f64> {
    let rule = limit.rule();
    let window = |state: CounterState| rule.window_id(&state.snapshot, state.at);
    if window(before) != window(after) {
        return None;
    }
    let status = |state: CounterState| limit.status(&state.snapshot, state.at, Units::ONE);
    let (first, last) = (status(before), status(after));
    let used = |remaining: u64| limit.info().capacity.saturating_sub(remaining) as f64;
    let mut refilled = 0.0;
    if limit.info().refills_gradually && used(last.remaining) > 0.0 {
        let per_unit = last.reset_after.as_secs_f64() / used(last.remaining);
        let elapsed = after.at.since(before.at).as_secs_f64();
        // No more can have refilled than was used.
        refilled = (elapsed / per_unit).min(used(first.remaining));
    }
    Some(first.remaining as f64 - last.remaining as f64 + refilled)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        key::Key,
        quota::Quota,
        store::{CounterOp, Op, Store, StoreResponse},
        strategy::{FixedWindow, Gcra, Lease, Strategy, Terms},
        {ManualClock, MemoryStore},
    };

    /// The estimate of one of some processes that each charge ten units every millisecond.
    fn estimate(strategy: &dyn Strategy, processes: u32) -> f64 {
        let clock = ManualClock::default();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let quota = Quota::requests(100_000).per_second();
        let rule = strategy.bind(&quota, &Terms::default().with_lease(Lease::max_units(64)));
        let limit = store.register("p", rule.expect("a rule")).expect("a limit");
        let charge = || {
            let op = CounterOp::new(&limit, Key::global());
            match store.execute(Op::Acquire(10), &[op]) {
                StoreResponse::Ready(Ok(result)) => CounterState {
                    at: result.at,
                    snapshot: result.counters[0].snapshot,
                },
                other => panic!("{other:?}"),
            }
        };
        let mut estimated = Processes::default();
        for _ in 0..50 {
            clock.advance(Duration::from_millis(1));
            for _ in 1..processes {
                charge();
            }
            estimated.record_own(10);
            estimated.record_state(&limit, charge());
        }
        estimated.estimate()
    }

    #[test]
    fn processes_are_seen_by_what_they_charge() {
        for strategy in [&Gcra as &dyn Strategy, &FixedWindow] {
            for processes in [1, 2, 8, 64] {
                let estimate = estimate(strategy, processes);
                let ratio = estimate / f64::from(processes);
                assert!(
                    (0.8..1.25).contains(&ratio),
                    "{strategy:?} {processes}: {estimate}"
                );
            }
        }
    }
}
