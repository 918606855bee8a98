//! Counts of decisions and units, written by many threads without contention and summed by a reader.
//!
//! Each thread writes counters of its own, so a request costs a few plain stores: no lock, no atomic read-modify-write, and no
//! allocation once the thread has seen a limiter's policies. [`Counts::totals`] sums the counters of all threads, also of those
//! that have ended.
//!
//! Counts belong to the names of policies. A policy that is removed keeps them, and goes on with them if it returns. So there are
//! as many as there were names in the configurations of the process.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    DecisionEvent, DecisionOutcome, DecisionSource, Event, NEAR_PERCENT, PolicyResult, UnitsEvent,
    UnitsKind,
};
use crate::sync::{CachePadded, lock};

#[cfg(test)]
mod tests;

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

    /// Counts bans, and adds policies.
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
            _ => {}
        }
    }

    /// The sums of what was counted. They never fall.
    pub(crate) fn totals(&self) -> Totals {
        self.threads.totals()
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

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

/// The counters of one thread, on cache lines of their own.
#[derive(Debug, Default)]
struct Counters {
    requests: CachePadded<Requests<Counter>>,
    /// By slot of the policy's name.
    policies: Box<[CachePadded<PolicyCounts<Counter>>]>,
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
    fn add(&self, n: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(n);
        self.0.store(sum, Ordering::Relaxed);
    }

    fn add_to(&self, sum: &mut u64) {
        *sum = sum.wrapping_add(self.0.load(Ordering::Relaxed));
    }
}

impl Counters {
    fn new(policies: usize) -> Self {
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
        let counts = self.requests.iter().chain(&self.units);
        counts.chain([&self.bans])
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut N> {
        let counts = self.requests.iter_mut().chain(&mut self.units);
        counts.chain([&mut self.bans])
    }
}

impl Totals {
    /// Adds a policy without counts, in the next slot.
    fn push(&mut self, name: Arc<str>) {
        let counts = PolicyCounts::default();
        self.policies.push(PolicyTotals { name, counts });
    }

    fn add(&mut self, counters: &Counters) {
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
}

/// The counters that this thread writes, and the names of their policies.
#[derive(Debug)]
struct LocalCounters {
    /// Identifies the [`Threads`].
    of: u64,
    counters: Arc<Counters>,
    /// The policies' names, by slot.
    names: Vec<Arc<str>>,
    /// The slots of the policies that were last seen at each index: a guess.
    slots: Vec<usize>,
}

impl LocalCounters {
    fn new(threads: &Threads) -> Self {
        let (counters, names) = threads.new_counters();
        Self {
            of: threads.id,
            counters,
            names,
            slots: Vec::new(),
        }
    }

    #[inline]
    fn requests(&self) -> &Requests<Counter> {
        &self.counters.requests
    }

    /// The counters of a policy, which is at this index of its limiter's policies.
    #[inline]
    fn policy(&mut self, threads: &Threads, index: usize, name: &str) -> &PolicyCounts<Counter> {
        let guess = self.slots.get(index).copied();
        let slot = match guess {
            Some(slot)
                if self
                    .names
                    .get(slot)
                    .is_some_and(|known| is_same(known, name)) =>
            {
                slot
            }
            _ => self.find(threads, index, name),
        };
        &self.counters.policies[slot]
    }

    /// The counters of a policy of this name.
    fn policy_named(&mut self, threads: &Threads, name: &str) -> &PolicyCounts<Counter> {
        let slot = self.slot(threads, name);
        &self.counters.policies[slot]
    }

    #[cold]
    fn find(&mut self, threads: &Threads, index: usize, name: &str) -> usize {
        let slot = self.slot(threads, name);
        if self.slots.len() <= index {
            self.slots.resize(index + 1, 0);
        }
        self.slots[index] = slot;
        slot
    }

    /// The slot of a policy's name, for which there are counters on return.
    fn slot(&mut self, threads: &Threads, name: &str) -> usize {
        let known = self.names.iter().position(|known| **known == *name);
        known.unwrap_or_else(|| {
            let slot = threads.slot(name);
            (self.counters, self.names) = threads.new_counters();
            slot
        })
    }
}

/// Most names are those of the policies in force, at the same address.
#[inline]
fn is_same(known: &str, name: &str) -> bool {
    std::ptr::eq(known, name) || known == name
}

/// Calls `write` with this thread's counters of `threads`, once.
#[inline]
fn with_local(threads: &Threads, mut write: impl FnMut(&mut LocalCounters)) {
    thread_local! {
        /// The counters of this thread, of each [`Threads`] that it has written.
        static LOCAL: RefCell<Vec<LocalCounters>> = const { RefCell::new(Vec::new()) };
    }
    let written = LOCAL.try_with(|all| {
        let Ok(mut all) = all.try_borrow_mut() else {
            return false;
        };
        match all.iter_mut().find(|local| local.of == threads.id) {
            Some(local) => write(local),
            None => write(add_local(threads, &mut all)),
        }
        true
    });
    if written != Ok(true) {
        // The thread is ending, and has dropped its counters. These are summed up once it has left them.
        write(&mut LocalCounters::new(threads));
    }
}

#[cold]
fn add_local<'a>(threads: &Threads, all: &'a mut Vec<LocalCounters>) -> &'a mut LocalCounters {
    // Those that nothing will read any more.
    all.retain(|local| Arc::strong_count(&local.counters) > 1);
    let index = all.len();
    all.push(LocalCounters::new(threads));
    &mut all[index]
}

/// The counters of all threads, and the names of all policies.
#[derive(Debug)]
struct Threads {
    /// Identifies it in the threads' lists.
    id: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Those that are written, and those that a thread has left since the last look at them.
    counters: Vec<Arc<Counters>>,
    /// The sums of those that were left, with the names of all policies.
    left: Totals,
    /// The place of each policy in them, by its name.
    slots: HashMap<Arc<str>, usize>,
}

impl Default for Threads {
    fn default() -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
        }
    }
}

impl Threads {
    /// The sums of all counters.
    fn totals(&self) -> Totals {
        let mut state = lock(&self.state);
        state.collect_left();
        let mut totals = state.left.clone();
        for counters in &state.counters {
            totals.add(counters);
        }
        totals
    }

    /// The slot of a policy's name, which is added if it is new.
    fn slot(&self, name: impl Into<Arc<str>> + AsRef<str>) -> usize {
        let state = &mut *lock(&self.state);
        if let Some(slot) = state.slots.get(name.as_ref()) {
            return *slot;
        }
        let (name, slot) = (name.into(), state.left.policies().len());
        state.slots.insert(name.clone(), slot);
        state.left.push(name);
        slot
    }

    /// Counters for one thread, with a slot for each policy, and the policies' names.
    fn new_counters(&self) -> (Arc<Counters>, Vec<Arc<str>>) {
        let mut state = lock(&self.state);
        state.collect_left();
        let policies = state.left.policies().iter();
        let names: Vec<_> = policies.map(|policy| policy.name().clone()).collect();
        let counters = Arc::new(Counters::new(names.len()));
        state.counters.push(counters.clone());
        (counters, names)
    }

    /// The counters that are not summed up for good.
    #[cfg(test)]
    fn counters(&self) -> Vec<std::sync::Weak<Counters>> {
        lock(&self.state)
            .counters
            .iter()
            .map(Arc::downgrade)
            .collect()
    }
}

impl State {
    /// Sums up the counters that no thread writes any more.
    fn collect_left(&mut self) {
        let left = &mut self.left;
        self.counters
            .retain_mut(|counters| match Arc::get_mut(counters) {
                // Having the only reference, this thread sees all that was written.
                Some(counters) => {
                    left.add(counters);
                    false
                }
                None => true,
            });
    }
}
