//! An observer that keeps what it is called with.

use std::sync::{MutexGuard, OnceLock, PoisonError};

use tollgate::observe::{
    DecisionEvent, Event, NEAR_PERCENT, PolicyResult, StatsHandle, StoreCallEvent, StoreCallResult,
    UnitsEvent, UnitsKind,
};
use tollgate_tests::prelude::*;

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
    /// The units of these that were not confirmed.
    pub(crate) unconfirmed_units: u64,
    pub(crate) calls: Vec<StoreCall>,
    /// The changes of state, as text.
    pub(crate) events: Vec<String>,
    /// Decisions whose time is known.
    pub(crate) timed: u64,
}

/// A round trip of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreCall {
    pub(crate) node: String,
    pub(crate) requests: usize,
    pub(crate) result: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Record>, OnceLock<StatsHandle>);

/// A policy that counts all clients together.
pub(crate) fn limit(name: &str, quota: &str) -> Policy {
    Policy::new(name, stores::quota(quota)).key(extract::global())
}

/// A limiter in this world, and a record of its events.
pub(crate) fn recorded(
    world: &World,
    policies: impl IntoIterator<Item = Policy>,
) -> (Limiter, Arc<Recorder>) {
    recorded_by(world.builder(), policies)
}

pub(crate) fn recorded_by(
    builder: LimiterBuilder,
    policies: impl IntoIterator<Item = Policy>,
) -> (Limiter, Arc<Recorder>) {
    let recorder = Recorder::new();
    let builder = builder.observe(recorder.clone());
    (stores::limiter(builder, policies), recorder)
}

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

    pub(crate) fn clear(&self) {
        *self.lock() = Record::default();
    }

    /// The events of this kind, as text.
    pub(crate) fn events(&self, kind: &str) -> Vec<String> {
        let record = self.lock();
        let events = record.events.iter().filter(|event| event.starts_with(kind));
        events.cloned().collect()
    }

    /// The handle that the limiter passed first.
    pub(crate) fn handle(&self) -> Option<StatsHandle> {
        self.1.get().cloned()
    }
}

impl Record {
    pub(crate) fn outcome(&self, outcome: DecisionOutcome) -> u64 {
        self.outcomes.get(&outcome).copied().unwrap_or(0)
    }

    /// Under how many policies requests were decided, one after the other.
    pub(crate) fn generations(&self) -> u64 {
        let last = self.policies.iter().map(|(generation, ..)| generation + 1);
        last.max().unwrap_or(0)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.outcomes.values().sum()
    }

    pub(crate) fn result(&self, policy: &str, result: PolicyResult) -> u64 {
        let found = self.results.get(&(policy.to_owned(), result));
        found.copied().unwrap_or(0)
    }

    pub(crate) fn units(&self, policy: &str, kind: UnitsKind) -> u64 {
        let found = self.units.get(&(policy.to_owned(), kind));
        found.copied().unwrap_or(0)
    }

    pub(crate) fn charged(&self, policy: &str) -> u64 {
        self.charged.get(policy).copied().unwrap_or(0)
    }
}

impl Observer for Recorder {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let mut record = self.lock();
        for (outcome, requests) in event.outcomes().filter(|(_, requests)| *requests > 0) {
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
        let mut record = self.lock();
        let units = (event.policy.to_owned(), event.kind);
        *record.units.entry(units).or_default() += event.units;
        record.unconfirmed_units += if event.confirmed { 0 } else { event.units };
        record.keys.push(*event.key);
    }

    fn on_store_call(&self, event: &StoreCallEvent<'_>) {
        self.lock().calls.push(StoreCall {
            node: event.node.to_owned(),
            requests: event.requests,
            result: match event.result {
                StoreCallResult::Failed(error) => error.code(),
                result => result.as_str(),
            },
        });
    }

    fn on_event(&self, event: &Event<'_>) {
        if let Event::PoliciesInForce { handle, .. } = event {
            let _ = self.1.set(StatsHandle::clone(handle));
        }
        self.lock().events.push(format!("{event:?}"));
    }
}
