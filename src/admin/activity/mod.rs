//! What limiters do in this process: counts, latencies and the keys with the most rejections.

use std::{
    collections::BTreeMap,
    process,
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;

use self::{latency::Latency, top::TopKeys};
use super::{
    api::{
        ActivityReport, BreakerInfo, Latencies, LatencyInfo, LeaseInfo, PolicyActivity,
        ProcessInfo, StoreInfo, TopKeyInfo, TopPolicy, TopReport,
    },
    key_text,
};
use crate::{
    key::Key,
    limiter::Limiter,
    observe::{
        DecisionEvent, Event, LeaseStats, Observer, PolicyResult, StoreCallEvent, UnitsEvent,
        UnitsKind,
        counts::{Counts, PolicyTotals},
    },
    sync::lock,
};

mod latency;
mod top;

/// The keys that are counted for each policy unless set.
const DEFAULT_TOP_KEYS: usize = 100;

/// Counts what limiters do in this process, for the admin API: the requests of each policy, the latency of the store, and the keys
/// with the most rejections.
///
/// It is an [`Observer`] of the limiters whose requests it counts, and is given to [`Admin::activity`](super::Admin::activity):
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{Policy, Quota, RateLimitLayer, admin::{Activity, Admin}};
///
/// # fn f(token: String) -> Result<(), Box<dyn std::error::Error>> {
/// let activity = Arc::new(Activity::new());
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("api", Quota::requests(10).per_minute()))
///     .observe(activity.clone())
///     .build()?;
/// let admin = Admin::new(&layer).token("ops", token).activity(activity).router()?;
/// # Ok(())
/// # }
/// ```
///
/// Requests are counted without a lock or an allocation. A rejection takes a lock of its policy for the time of a look-up in a map.
/// For each policy the 100 keys with the most rejections are counted in at most about 11 kB ([Space-Saving]); each count has the
/// most by which it may be too high, which is at most a hundredth of the policy's rejections. Counts belong to the names of
/// policies and begin when the activity is made.
///
/// [Space-Saving]: https://doi.org/10.1007/978-3-540-30570-5_27
#[derive(Debug)]
pub struct Activity {
    started_at: jiff::Timestamp,
    top_keys: usize,
    counts: Counts,
    store_calls: Latency,
    /// By the policies' names.
    rejected: ArcSwap<Vec<RejectedKeys>>,
    /// Held while a policy is added.
    adding: Mutex<()>,
}

/// The rejected keys of a policy.
#[derive(Clone, Debug)]
struct RejectedKeys {
    policy: Arc<str>,
    keys: Arc<Mutex<TopKeys>>,
}

impl Activity {
    /// Counts the 100 keys with the most rejections of each policy.
    pub fn new() -> Self {
        Self::with_top_keys(DEFAULT_TOP_KEYS)
    }

    /// Counts the `keys` keys with the most rejections of each policy, at least one. Each takes about 100 bytes.
    pub fn with_top_keys(keys: usize) -> Self {
        Self {
            started_at: jiff::Timestamp::now(),
            top_keys: keys,
            counts: Counts::default(),
            store_calls: Latency::new(),
            rejected: ArcSwap::default(),
            adding: Mutex::default(),
        }
    }

    /// What `limiter` and the others that are observed have done, in the process of this name.
    pub(super) fn report(&self, limiter: &Limiter, host: &str) -> ActivityReport {
        let totals = self.counts.totals();
        let policies = totals.policies().iter().map(policy_activity).collect();
        let mut outcomes = BTreeMap::new();
        for (outcome, _, requests) in totals.requests() {
            *outcomes.entry(outcome.as_str().to_owned()).or_default() += requests;
        }
        let stats = limiter.stats();
        ActivityReport {
            process: ProcessInfo {
                pid: process::id(),
                host: host.to_owned(),
                started_at: self.started_at.to_string(),
            },
            at: jiff::Timestamp::now().to_string(),
            generation: stats.generation,
            policies,
            outcomes,
            uncounted: totals.uncounted(),
            latency: Latencies {
                store: LatencyInfo {
                    calls: self.store_calls.calls(),
                    p50_us: self.store_calls.quantile_us(50),
                    p99_us: self.store_calls.quantile_us(99),
                },
            },
            store: StoreInfo {
                breaker: stats
                    .store
                    .nodes
                    .iter()
                    .map(|node| BreakerInfo {
                        node: node.node.to_string(),
                        state: node.breaker.as_str().to_owned(),
                    })
                    .collect(),
                queued_refunds: stats.store.queued_refunds,
                dropped_refunds: stats.store.dropped_refunds,
                rejection_cache_entries: stats.store.rejection_cache_entries,
                memory_keys: stats.store.memory_keys,
                leases: stats.store.leases.iter().map(lease_info).collect(),
            },
        }
    }

    /// The `n` keys with the most rejections under each policy, or under the one of that name.
    pub(super) fn top(&self, limiter: &Limiter, only: Option<&str>, n: usize) -> TopReport {
        let rejected = self.rejected.load();
        let policies = rejected.iter();
        let policies = policies.filter(|one| only.is_none_or(|name| *one.policy == *name));
        let policies = policies.map(|one| {
            let (rejected, top) = {
                let keys = lock(&one.keys);
                (keys.total(), keys.top(n))
            };
            TopPolicy {
                policy: one.policy.to_string(),
                rejected,
                keys: top
                    .iter()
                    .map(|top| TopKeyInfo {
                        key: key_text::shown(limiter, &one.policy, &top.key),
                        rejected: top.tally.rejected,
                        at_most_over: top.tally.at_most_over,
                    })
                    .collect(),
            }
        });
        TopReport {
            since: self.started_at.to_string(),
            policies: policies.collect(),
        }
    }

    fn add_rejections(&self, policy: &str, key: Key, rejections: u64) {
        let add = |all: &[RejectedKeys]| {
            let known = all.iter().find(|one| *one.policy == *policy);
            known.is_some_and(|one| {
                lock(&one.keys).add(key, rejections);
                true
            })
        };
        if !add(&self.rejected.load()) {
            self.add_policy(policy);
            add(&self.rejected.load());
        }
    }

    fn add_policy(&self, policy: &str) {
        let _adding = lock(&self.adding);
        let all = self.rejected.load();
        if all.iter().any(|one| *one.policy == *policy) {
            return;
        }
        let added = RejectedKeys {
            policy: policy.into(),
            keys: Arc::new(Mutex::new(TopKeys::new(self.top_keys))),
        };
        let all = all.iter().cloned().chain([added]);
        self.rejected.store(Arc::new(all.collect()));
    }
}

fn policy_activity(policy: &PolicyTotals) -> PolicyActivity {
    let requests = |wanted| {
        let results = policy.requests();
        let of_result = results.filter(|(result, _)| *result == wanted);
        of_result.map(|(_, requests)| requests).sum()
    };
    let charged = policy.units();
    let charged = charged.filter(|(kind, _)| *kind == UnitsKind::Charged);
    PolicyActivity {
        policy: policy.name().to_string(),
        within: requests(PolicyResult::Within),
        near: requests(PolicyResult::Near),
        over: requests(PolicyResult::Over),
        shadow_over: requests(PolicyResult::ShadowOver),
        units: charged.map(|(_, units)| units).sum(),
        bans: policy.bans(),
    }
}

fn lease_info(stats: &LeaseStats) -> LeaseInfo {
    LeaseInfo {
        policy: stats.policy.to_string(),
        granted: stats.granted,
        spent: stats.spent,
        refunded: stats.refunded,
        lapsed: stats.lapsed,
        held: stats.held,
    }
}

impl Default for Activity {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Activity {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        self.counts.on_decision(event);
        for policy in event.policies.into_iter().filter(|policy| policy.over > 0) {
            self.add_rejections(policy.policy, *policy.key, policy.over);
        }
    }

    fn on_units(&self, event: &UnitsEvent<'_>) {
        self.counts.on_units(event);
    }

    fn on_store_call(&self, event: &StoreCallEvent<'_>) {
        self.store_calls.record(event.elapsed);
    }

    fn counts(&self) -> Option<&Counts> {
        Some(&self.counts)
    }

    fn on_event(&self, event: &Event<'_>) {
        self.counts.on_event(event);
        if let Event::PoliciesInForce { stats, .. } = event {
            for policy in &stats.policies {
                self.add_policy(&policy.policy);
            }
        }
    }
}
