//! Counts of decisions and units, which many threads write and a reader sums.
//!
//! Each thread adds to one of several shards, each on cache lines of its own, so that threads do not contend for a counter.
//!
//! Counts belong to the names of policies. A policy that is removed keeps them, and goes on with them if it returns. So there are
//! as many as there were names in the configurations of the process.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;

use super::{
    DecisionEvent, DecisionOutcome, DecisionSource, Event, NEAR_PERCENT, PolicyResult, UnitsEvent,
    UnitsKind,
};
use crate::sync::{CachePadded, ShardedArc};

#[cfg(test)]
mod tests;

/// What a limiter did.
#[derive(Debug)]
pub struct Counts {
    near_percent: u8,
    requests: ShardedArc<CachePadded<Requests<Counter>>>,
    /// The policies that are or were in force, in the order in which they were first seen.
    policies: ArcSwap<Vec<Arc<PolicyCounters>>>,
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
            requests: ShardedArc::new(CachePadded::default),
            policies: ArcSwap::default(),
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
        let counters = self.requests.local();
        for (outcome, requests) in outcomes {
            counters.decided[outcome as usize][source as usize].add(requests);
        }
        if uncounted > 0 {
            counters.uncounted.add(uncounted);
        }
        let known = self.policies.load();
        for policy in policies {
            self.count_policy(&known, policy.index, policy.name, |counters| {
                for (result, requests) in policy.results {
                    if requests > 0 {
                        counters.requests[result as usize].add(requests);
                    }
                }
                counters.units[UnitsKind::Charged as usize].add(policy.charged);
            });
        }
    }

    /// Counts units.
    pub(crate) fn on_units(&self, event: &UnitsEvent<'_>) {
        let known = self.policies.load();
        self.count_policy(&known, event.index, event.policy, |counters| {
            counters.units[event.kind as usize].add(event.units);
        });
    }

    /// Counts bans, and adds policies.
    pub(crate) fn on_event(&self, event: &Event<'_>) {
        let known = self.policies.load();
        match event {
            Event::PoliciesInForce { stats, .. } => {
                for (index, policy) in stats.policies.iter().enumerate() {
                    self.count_policy(&known, index, &policy.policy, |_| {});
                }
            }
            Event::BanBegan { policy, .. } => {
                self.count_policy(&known, 0, policy, |counters| counters.bans.add(1));
            }
            _ => {}
        }
    }

    /// Calls `count` with this thread's counters of a policy, which is probably at this index.
    #[inline]
    fn count_policy(
        &self,
        known: &[Arc<PolicyCounters>],
        index: usize,
        name: &str,
        count: impl FnOnce(&PolicyCounts<Counter>),
    ) {
        let at_index = known
            .get(index)
            .filter(|policy| is_same(&policy.name, name));
        let found = at_index.or_else(|| known.iter().find(|policy| *policy.name == *name));
        match found {
            Some(policy) => count(policy.shards.local()),
            None => count(self.add_policy(name).shards.local()),
        }
    }

    /// The counters of a policy, which are added if another thread has not done so.
    #[cold]
    fn add_policy(&self, name: &str) -> Arc<PolicyCounters> {
        let new = Arc::new(PolicyCounters {
            name: name.into(),
            shards: ShardedArc::new(CachePadded::default),
        });
        let find = |known: &[Arc<PolicyCounters>]| {
            let mut policies = known.iter();
            policies.find(|policy| policy.name == new.name).cloned()
        };
        self.policies.rcu(|known| {
            let mut policies = Vec::clone(known);
            if find(&policies).is_none() {
                policies.push(new.clone());
            }
            policies
        });
        find(&self.policies.load()).unwrap_or(new)
    }

    /// The sums of what was counted. They never fall.
    pub(crate) fn totals(&self) -> Totals {
        let mut requests = Requests::default();
        for shard in self.requests.iter() {
            add_all(requests.each_mut(), shard.each());
        }
        let policies = self.policies.load();
        let policies = policies.iter().map(|policy| {
            let mut counts = PolicyCounts::default();
            for shard in policy.shards.iter() {
                add_all(counts.each_mut(), shard.each());
            }
            let name = policy.name.clone();
            PolicyTotals { name, counts }
        });
        Totals {
            requests,
            policies: policies.collect(),
        }
    }
}

/// Most names are those of the policies in force, at the same address.
#[inline]
fn is_same(known: &str, name: &str) -> bool {
    std::ptr::eq(known, name) || known == name
}

fn add_all<'a>(
    sums: impl Iterator<Item = &'a mut u64>,
    counters: impl Iterator<Item = &'a Counter>,
) {
    for (sum, counter) in sums.zip(counters) {
        *sum = sum.wrapping_add(counter.0.load(Ordering::Relaxed));
    }
}

const OUTCOMES: usize = DecisionOutcome::ALL.len();
const SOURCES: usize = DecisionSource::ALL.len();
const RESULTS: usize = PolicyResult::ALL.len();
const KINDS: usize = UnitsKind::ALL.len();

/// Counts of requests, in numbers of type `N`.
#[derive(Clone, Debug, Default)]
struct Requests<N> {
    /// By outcome and source.
    decided: [[N; SOURCES]; OUTCOMES],
    /// Admitted without being counted by a store.
    uncounted: N,
}

/// Counts of one policy, in numbers of type `N`.
#[derive(Clone, Debug, Default)]
struct PolicyCounts<N> {
    requests: [N; RESULTS],
    units: [N; KINDS],
    bans: N,
}

#[derive(Debug, Default)]
struct Counter(AtomicU64);

/// The counters of a policy's name.
#[derive(Debug)]
struct PolicyCounters {
    name: Arc<str>,
    shards: ShardedArc<CachePadded<PolicyCounts<Counter>>>,
}

/// Sums of counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    requests: Requests<u64>,
    policies: Vec<PolicyTotals>,
}

/// What was counted of a policy.
#[derive(Clone, Debug)]
pub(crate) struct PolicyTotals {
    name: Arc<str>,
    counts: PolicyCounts<u64>,
}

impl Counter {
    #[inline]
    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}

impl<N> Requests<N> {
    fn each(&self) -> impl Iterator<Item = &N> {
        self.decided.as_flattened().iter().chain([&self.uncounted])
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut N> {
        let decided = self.decided.as_flattened_mut().iter_mut();
        decided.chain([&mut self.uncounted])
    }
}

impl<N> PolicyCounts<N> {
    fn each(&self) -> impl Iterator<Item = &N> {
        let counts = self.requests.iter().chain(&self.units);
        counts.chain([&self.bans])
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut N> {
        let counts = self.requests.iter_mut().chain(&mut self.units);
        counts.chain([&mut self.bans])
    }
}

impl Totals {
    /// The requests of each outcome and source, with those that there were none of.
    pub(crate) fn requests(
        &self,
    ) -> impl Iterator<Item = (DecisionOutcome, DecisionSource, u64)> + '_ {
        let outcomes = DecisionOutcome::ALL.into_iter().zip(&self.requests.decided);
        outcomes.flat_map(|(outcome, by_source)| {
            let sources = DecisionSource::ALL.into_iter().zip(by_source);
            sources.map(move |(source, requests)| (outcome, source, *requests))
        })
    }

    /// The requests that were admitted without being counted by a store.
    pub(crate) fn uncounted(&self) -> u64 {
        self.requests.uncounted
    }

    /// The policies that are or were in force, in the order in which they were first seen.
    pub(crate) fn policies(&self) -> &[PolicyTotals] {
        &self.policies
    }
}

impl PolicyTotals {
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The requests with each result.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (PolicyResult, u64)> + '_ {
        PolicyResult::ALL.into_iter().zip(self.counts.requests)
    }

    /// The units of each kind.
    pub(crate) fn units(&self) -> impl Iterator<Item = (UnitsKind, u64)> + '_ {
        UnitsKind::ALL.into_iter().zip(self.counts.units)
    }

    /// The bans that began.
    pub(crate) fn bans(&self) -> u64 {
        self.counts.bans
    }
}
