//! Counts of decisions and units, written by many threads without contention and summed by a reader.
//!
//! Each thread writes counters of its own, so a request costs a few plain stores: no lock, no atomic read-modify-write, and no
//! allocation once the thread has seen a limiter's policies. [`Counts::totals`] sums the counters of all threads, also of those
//! that have ended.
//!
//! Counts belong to the names of policies. A policy that is removed keeps them, and goes on with them if it returns. So there are
//! as many as there were names in the configurations of the process.

pub(crate) use self::counters::{PolicyTotals, Totals};
use self::{local::with_local, threads::Threads};
use crate::observe::{DecisionEvent, Event, NEAR_PERCENT, UnitsEvent, UnitsKind};

mod counters;
mod local;
#[cfg(test)]
mod tests;
mod threads;

/// What a limiter did.
#[derive(Debug)]
pub(crate) struct Counts {
    near_percent: u8,
    threads: Threads,
}

impl Default for Counts {
    fn default() -> Self {
        Self::new(NEAR_PERCENT)
    }
}

impl Counts {
    /// Requests are near a limit of which more than `near_percent` are used.
    pub(crate) fn new(near_percent: u8) -> Self {
        Self {
            near_percent,
            threads: Threads::default(),
        }
    }

    /// Counts a decision.
    #[inline]
    pub(crate) fn on_decision(&self, event: &DecisionEvent<'_>) {
        with_local(&self.threads, |local| {
            let requests = local.requests();
            for (outcome, number) in event.outcomes() {
                requests.decided[outcome as usize][event.source as usize].add(number);
            }
            if event.uncounted {
                requests.uncounted.add(event.admitted);
            }
            for policy in event.policies {
                let counters = local.policy(&self.threads, policy.index, policy.policy);
                for (result, number) in policy.results(self.near_percent) {
                    counters.requests[result as usize].add(number);
                }
                counters.units[UnitsKind::Charged as usize].add(policy.charged);
            }
        });
    }

    /// Counts units.
    pub(crate) fn on_units(&self, event: &UnitsEvent<'_>) {
        with_local(&self.threads, |local| {
            let counters = local.policy(&self.threads, event.index, event.policy);
            counters.units[event.kind as usize].add(event.units);
        });
    }

    /// Counts bans and charges that were not written back, and adds policies.
    pub(crate) fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::PoliciesInForce { stats, .. } => {
                for policy in &stats.policies {
                    self.threads.slot(&policy.policy);
                }
            }
            Event::BanBegan { policy, .. } => with_local(&self.threads, |local| {
                let counters = local.policy_named(&self.threads, policy);
                counters.bans.add(1);
            }),
            Event::WriteBackDropped { policy, .. } => with_local(&self.threads, |local| {
                let counters = local.policy_named(&self.threads, policy);
                counters.dropped_write_backs.add(1);
            }),
            _ => {}
        }
    }

    /// The sums of what was counted. They never fall.
    pub(crate) fn totals(&self) -> Totals {
        self.threads.totals()
    }
}
