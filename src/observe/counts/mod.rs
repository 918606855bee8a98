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
use super::{
    DecisionEvent, DecisionOutcome, DecisionSource, Event, NEAR_PERCENT, PolicyResult, UnitsEvent,
    UnitsKind,
};

mod counters;
mod local;
#[cfg(test)]
mod tests;
mod threads;

/// What a limiter did.
#[derive(Debug)]
pub struct Counts {
    near_percent: u8,
    threads: Threads,
}

/// What is counted of an admitted request under one policy.
pub(crate) struct AdmittedBy<'a> {
    pub(crate) index: usize,
    pub(crate) name: &'a str,
    pub(crate) charged: u64,
    /// As in [`PolicyEvent::is_near`](super::PolicyEvent::is_near).
    pub(crate) is_near: bool,
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
            let source = event.source as usize;
            let rejected = event.rejected_of_admitted();
            requests.decided[event.outcome as usize][source].add(event.requests - rejected);
            if rejected > 0 {
                requests.decided[DecisionOutcome::Rejected as usize][source].add(rejected);
            }
            if event.uncounted {
                requests.uncounted.add(event.admitted);
            }
            for policy in event.policies {
                let counters = local.policy(&self.threads, policy.index, policy.policy);
                let within = policy.within();
                if within > 0 {
                    let result = policy.result_within(self.near_percent);
                    counters.requests[result as usize].add(within);
                }
                if policy.over > 0 {
                    counters.requests[policy.result_over() as usize].add(policy.over);
                }
                counters.units[UnitsKind::Charged as usize].add(policy.charged);
            }
        });
    }

    /// Counts units.
    pub(crate) fn near_percent(&self) -> u8 {
        self.near_percent
    }

    /// Counts an admitted request like its event. None of the policies is a shadow.
    #[inline]
    pub(crate) fn count_admission<'a>(
        &self,
        source: DecisionSource,
        policies: impl Iterator<Item = AdmittedBy<'a>> + Clone,
    ) {
        with_local(&self.threads, |local| {
            let requests = local.requests();
            requests.decided[DecisionOutcome::Admitted as usize][source as usize].add(1);
            for policy in policies.clone() {
                let result = if policy.is_near {
                    PolicyResult::Near
                } else {
                    PolicyResult::Within
                };
                let counters = local.policy(&self.threads, policy.index, policy.name);
                counters.requests[result as usize].add(1);
                counters.units[UnitsKind::Charged as usize].add(policy.charged);
            }
        });
    }

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
                    self.threads.slot(policy.policy.clone());
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
