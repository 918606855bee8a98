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

/// What is counted of a decision under one policy.
pub(crate) struct PolicyCount<'a> {
    /// The policy's index among those of its limiter, and its name.
    pub(crate) index: usize,
    pub(crate) name: &'a str,
    /// As [`PolicyEvent::both_results`](super::PolicyEvent::both_results).
    pub(crate) results: [(PolicyResult, u64); 2],
    pub(crate) charged: u64,
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

    /// The share of a limit, in percent, above which a request is near it.
    pub(crate) fn near_percent(&self) -> u8 {
        self.near_percent
    }

    /// Counts a decision.
    #[inline]
    pub(crate) fn on_decision(&self, event: &DecisionEvent<'_>) {
        let uncounted = if event.uncounted { event.admitted } else { 0 };
        let policies = event.policies.into_iter().map(|policy| PolicyCount {
            index: policy.index,
            name: policy.policy,
            results: policy.both_results(self.near_percent),
            charged: policy.charged,
        });
        self.count(event.source, event.outcomes(), uncounted, policies);
    }

    /// Counts the requests of a decision by their outcomes, those that were admitted without being counted by a store, and the
    /// results under each policy.
    #[inline]
    pub(crate) fn count<'a>(
        &self,
        source: DecisionSource,
        outcomes: impl IntoIterator<Item = (DecisionOutcome, u64)>,
        uncounted: u64,
        policies: impl IntoIterator<Item = PolicyCount<'a>>,
    ) {
        let (mut outcomes, mut policies) = (outcomes.into_iter(), policies.into_iter());
        with_local(&self.threads, |local| {
            let counters = local.requests();
            for (outcome, requests) in outcomes.by_ref() {
                counters.decided[outcome as usize][source as usize].add(requests);
            }
            if uncounted > 0 {
                counters.uncounted.add(uncounted);
            }
            for policy in policies.by_ref() {
                let counters = local.policy(&self.threads, policy.index, policy.name);
                for (result, requests) in policy.results {
                    if requests > 0 {
                        counters.requests[result as usize].add(requests);
                    }
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
