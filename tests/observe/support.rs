//! An observer that keeps what it is called with.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tollgate::{
    DecisionSource, Key,
    observe::{
        DecisionEvent, DecisionOutcome, Event, NEAR_PERCENT, Observer, PolicyResult,
        StoreCallEvent, UnitsEvent, UnitsKind,
    },
};

pub(crate) use crate::world::{KEY, World};

/// What happened so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// Requests by outcome.
    pub(crate) outcomes: BTreeMap<DecisionOutcome, u64>,
    /// Requests by source.
    pub(crate) sources: BTreeMap<DecisionSource, u64>,
    pub(crate) uncounted: u64,
    /// Requests that were allowed to wait.
    pub(crate) waits: u64,
    /// Requests by policy and result.
    pub(crate) results: BTreeMap<(String, PolicyResult), u64>,
    /// Units that were charged on arrival, by policy.
    pub(crate) charged: BTreeMap<String, u64>,
    /// Units by policy and kind.
    pub(crate) units: BTreeMap<(String, UnitsKind), u64>,
    /// The generation, index and name of each policy that was reported.
    pub(crate) policies: Vec<(u64, usize, String)>,
    pub(crate) keys: Vec<Key>,
    /// The requests and the result of each call of the store.
    pub(crate) calls: Vec<(String, usize, usize, &'static str)>,
    /// The changes of state, as text.
    pub(crate) events: Vec<String>,
    /// Decisions whose time is known.
    pub(crate) timed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Record>);

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record(&self) -> Record {
        self.lock().clone()
    }
}

impl Record {
    pub(crate) fn outcome(&self, outcome: DecisionOutcome) -> u64 {
        self.outcomes.get(&outcome).copied().unwrap_or(0)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.outcomes.values().sum()
    }

    pub(crate) fn result(&self, policy: &str, result: PolicyResult) -> u64 {
        let found = self.results.get(&(policy.to_owned(), result));
        found.copied().unwrap_or(0)
    }

    pub(crate) fn charged(&self, policy: &str) -> u64 {
        self.charged.get(policy).copied().unwrap_or(0)
    }
}

impl Observer for Recorder {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let mut record = self.lock();
        for (outcome, requests) in event.outcomes() {
            *record.outcomes.entry(outcome).or_default() += requests;
        }
        *record.sources.entry(event.source).or_default() += event.requests;
        record.uncounted += if event.uncounted { event.requests } else { 0 };
        record.waits += if event.waits { event.requests } else { 0 };
        record.timed += u64::from(event.elapsed.is_some());
        for policy in event.policies {
            let name = || policy.policy.to_owned();
            for (result, requests) in policy.results(NEAR_PERCENT) {
                *record.results.entry((name(), result)).or_default() += requests;
            }
            *record.charged.entry(name()).or_default() += policy.charged;
            let known = (event.generation, policy.index, name());
            if !record.policies.contains(&known) {
                record.policies.push(known);
            }
            record.keys.push(*policy.key);
        }
    }

    fn on_units(&self, event: &UnitsEvent<'_>) {
        let units = (event.policy.to_owned(), event.kind);
        *self.lock().units.entry(units).or_default() += event.units;
    }

    fn on_store_call(&self, event: &StoreCallEvent<'_>) {
        let call = (event.node.to_owned(), event.requests, event.counter_ops);
        let (node, requests, ops) = call;
        self.lock()
            .calls
            .push((node, requests, ops, event.result()));
    }

    fn on_event(&self, event: &Event<'_>) {
        self.lock().events.push(format!("{event:?}"));
    }
}
