//! An observer that keeps what it is called with, and a limiter that is watched by all that can watch one.

use std::sync::{MutexGuard, PoisonError};

use tollgate::{
    admin::{Activity, Admin},
    observe::{
        DecisionEvent, Event, NEAR_PERCENT, PolicyResult, StoreCallEvent, StoreCallResult,
        UnitsEvent, UnitsKind,
    },
};
use tollgate_tests::{
    exposition::{Exposition, Observed},
    prelude::*,
};

use crate::{
    admin::support::{Api, TOKEN, under},
    metrics::support::value,
};

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
}

/// A round trip of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreCall {
    pub(crate) node: String,
    pub(crate) requests: usize,
    pub(crate) result: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Record>);

/// A policy that counts all clients together.
pub(crate) fn limit(name: &str, quota: &str) -> Policy {
    Policy::new(name, stores::quota(quota)).key(extract::global())
}

/// A limiter that is watched, and all that watch it.
pub(crate) struct Watched {
    pub(crate) limiter: Limiter,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) metrics: Observed,
    pub(crate) api: Api,
}

pub(crate) fn watched(
    builder: LimiterBuilder,
    policies: impl IntoIterator<Item = Policy>,
) -> Watched {
    let recorder = Recorder::new();
    let watched = counted(builder.observe(recorder.clone()), policies);
    Watched {
        recorder,
        ..watched
    }
}

/// A limiter that only metrics and the activity observe, which then count without events.
pub(crate) fn counted(
    builder: LimiterBuilder,
    policies: impl IntoIterator<Item = Policy>,
) -> Watched {
    let (metrics, activity) = (Observed::default(), Arc::new(Activity::new()));
    let builder = builder.observe(metrics.metrics.clone());
    let limiter = stores::limiter(builder.observe(activity.clone()), policies);
    let admin = Admin::new(&limiter).token("ops", TOKEN).activity(activity);
    Watched {
        api: Api::with(admin),
        limiter,
        recorder: Recorder::new(),
        metrics,
    }
}

impl Watched {
    /// What the observer was called with, which metrics and the admin API tell too.
    pub(crate) async fn figures(&self) -> (Record, Exposition) {
        let (record, exposition) = (self.recorder.record(), self.metrics.exposition());
        let activity = self.api.get("/activity").await.json;
        let exposed = |series: String| value(&exposition, &series) as u64;
        for outcome in DecisionOutcome::ALL {
            let (requests, name) = (record.outcome(outcome), outcome.as_str());
            let series = format!("requests_total outcome={name}");
            assert_eq!(exposed(series), requests, "{name}");
            let told = activity["outcomes"][name].as_u64();
            assert_eq!(told.unwrap_or(0), requests, "{name}");
        }
        for source in DecisionSource::ALL {
            let requests = record.sources.get(&source).copied().unwrap_or(0);
            let series = format!("requests_total source={}", source.as_str());
            assert_eq!(exposed(series), requests, "{source:?}");
        }
        let uncounted = activity["uncounted"].as_u64().expect("a number");
        let exposed_uncounted = exposed("admitted_uncounted_total".to_owned());
        assert_eq!([uncounted, exposed_uncounted], [record.uncounted; 2]);
        for name in record.charged.keys() {
            let told = under(&activity["policies"], name);
            for result in PolicyResult::ALL {
                let (requests, by) = (record.result(name, result), result.as_str());
                let series = format!("policy_requests_total policy={name} result={by}");
                assert_eq!(exposed(series), requests, "{name}, {by}");
                assert_eq!(told[by], requests, "{name}, {by}");
            }
            for kind in UnitsKind::ALL {
                let mut units = record.units(name, kind);
                if kind == UnitsKind::Charged {
                    units += record.charged(name);
                    assert_eq!(told["units"], units, "{name}");
                }
                let series = format!("policy_units_total policy={name} kind={}", kind.as_str());
                assert_eq!(exposed(series), units, "{name}, {kind:?}");
            }
        }
        (record, exposition)
    }
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
        self.lock().events.push(format!("{event:?}"));
    }
}
