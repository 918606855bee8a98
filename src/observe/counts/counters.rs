//! The counters that one thread writes, and the sums of several threads' counters.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    observe::{DecisionOutcome, DecisionSource, PolicyResult, UnitsKind},
    sync::CachePadded,
};

const OUTCOMES: usize = DecisionOutcome::ALL.len();
const SOURCES: usize = DecisionSource::ALL.len();
const RESULTS: usize = PolicyResult::ALL.len();
const KINDS: usize = UnitsKind::ALL.len();

/// Counts of requests, in numbers of type `N`.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests<N> {
    /// By outcome and source.
    pub(super) decided: [[N; SOURCES]; OUTCOMES],
    /// Admitted without being counted by a store.
    pub(super) uncounted: N,
}

/// Counts of one policy, in numbers of type `N`.
#[derive(Clone, Debug, Default)]
pub(super) struct PolicyCounts<N> {
    pub(super) requests: [N; RESULTS],
    pub(super) units: [N; KINDS],
    pub(super) bans: N,
    pub(super) dropped_write_backs: N,
}

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

/// The counters of one thread, on cache lines of their own.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) requests: CachePadded<Requests<Counter>>,
    /// By slot of the policy's name.
    pub(super) policies: Box<[CachePadded<PolicyCounts<Counter>>]>,
}

/// Sums of counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    requests: Requests<u64>,
    /// By slot of the policy's name.
    policies: Vec<PolicyTotals>,
}

/// What was counted of a policy.
#[derive(Clone, Debug)]
pub(crate) struct PolicyTotals {
    name: Arc<str>,
    counts: PolicyCounts<u64>,
}

impl Counter {
    /// Adds `n`. This is no atomic addition, which would cost several times as much: only one thread calls it.
    #[inline]
    pub(super) fn add(&self, n: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(n);
        self.0.store(sum, Ordering::Relaxed);
    }

    fn add_to(&self, sum: &mut u64) {
        *sum = sum.wrapping_add(self.0.load(Ordering::Relaxed));
    }
}

impl Counters {
    pub(super) fn new(policies: usize) -> Self {
        Self {
            requests: CachePadded::default(),
            policies: (0..policies).map(|_| CachePadded::default()).collect(),
        }
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
        let rest = [&self.bans, &self.dropped_write_backs];
        self.requests.iter().chain(&self.units).chain(rest)
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut N> {
        let rest = [&mut self.bans, &mut self.dropped_write_backs];
        let units = self.units.iter_mut();
        self.requests.iter_mut().chain(units).chain(rest)
    }
}

impl Totals {
    /// Adds a policy without counts, in the next slot.
    pub(super) fn push(&mut self, name: Arc<str>) {
        let counts = PolicyCounts::default();
        self.policies.push(PolicyTotals { name, counts });
    }

    pub(super) fn add(&mut self, counters: &Counters) {
        let sums = self.requests.each_mut();
        for (sum, counter) in sums.zip(counters.requests.each()) {
            counter.add_to(sum);
        }
        for (totals, counters) in self.policies.iter_mut().zip(&counters.policies) {
            for (sum, counter) in totals.counts.each_mut().zip(counters.each()) {
                counter.add_to(sum);
            }
        }
    }

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

    /// The charges that were dropped from the write-back.
    pub(crate) fn dropped_write_backs(&self) -> u64 {
        self.counts.dropped_write_backs
    }
}
