//! Shadow policies, which are evaluated and not enforced: their settings, the mode by which the store evaluates them
//! (`CounterMode::Shadow`), and the comparison of its result with the decision. Stores evaluate them in `store/fit.rs`, and on
//! Redis in `script/operations.lua`.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    bound_policy::{BoundPolicy, Enforcement},
    core::LimiterRef,
    decide::DecisionBuilder,
    decision::Decision,
    entry::{PolicyEntry, PolicyRole},
};
use crate::{
    key::Key,
    log::LogThrottle,
    observe::{ShadowStats, UnitsKind},
    policy::Policy,
    store::{CounterMode, Op},
};

/// Completes each shadow of a live policy with the live policy's settings where it has none.
pub(crate) fn with_settings_of_live(policies: Vec<Policy>) -> Vec<Policy> {
    let live = policies.iter().filter(|own| !own.is_shadow());
    let live: HashMap<_, _> = live.map(|own| (own.shared_name(), own.clone())).collect();
    let complete = |mut policy: Policy| {
        if let Some(live) = policy.live_policy().and_then(|name| live.get(name)) {
            policy.inherit(live);
        }
        policy
    };
    policies.into_iter().map(complete).collect()
}

/// Sets the live policy that each shadow would replace.
pub(crate) fn resolve_shadowed(policies: &mut [BoundPolicy]) {
    let live = policies
        .iter()
        .zip(0..)
        .filter(|(bound, _)| matches!(bound.enforcement, Enforcement::Live));
    let live: HashMap<_, u32> = live
        .map(|(bound, index)| (bound.policy.shared_name(), index))
        .collect();
    for index in 0..policies.len() {
        let bound = &mut policies[index];
        let shadowed = bound.policy.live_policy();
        let found = shadowed.and_then(|name| live.get(name).copied());
        let Enforcement::Shadow { of, .. } = &mut bound.enforcement else {
            continue;
        };
        *of = found;
        if let Some(live) = found {
            policies[live as usize].shadows.push(index as u32);
        }
    }
}

impl BoundPolicy {
    /// Whether a shadow charges when the request arrives, not when it is responded to.
    fn charges_on_arrival(&self) -> bool {
        !self.policy.charges_after()
    }

    /// The counter mode of a shadow, which is evaluated as if it replaced the live policy `replaces`. A request that retries
    /// after a rejection has none: a shadow then charges it when it is admitted, not at each attempt that the shadow would have
    /// admitted.
    pub(crate) fn shadow_mode(
        &self,
        replaces: Option<u32>,
        key: &Key,
        entries: &[PolicyEntry],
    ) -> CounterMode {
        // A call by entries may have several keys of the live policy.
        let index = |live| {
            let of_live = |entry: &PolicyEntry| entry.policy == live;
            let of_key = |entry: &PolicyEntry| of_live(entry) && entry.key == *key;
            let same_key = entries.iter().position(of_key);
            same_key.or_else(|| entries.iter().position(of_live))
        };
        CounterMode::Shadow {
            replaces: replaces.and_then(index),
            charges: self.charges_on_arrival(),
        }
    }

    /// Records that of `evaluated` requests `admitted` were admitted, and that this shadow would have admitted `would_admit`.
    fn record_shadow(
        &self,
        counters: &ShadowCounters,
        evaluated: u64,
        admitted: u64,
        would_admit: u64,
    ) {
        counters.record(evaluated, admitted, would_admit);
        if would_admit != admitted {
            let policy = self.policy.name();
            static DIFFERS: LogThrottle = LogThrottle::new();
            DIFFERS.log_with(|suppressed| {
                tracing::debug!(
                    policy,
                    admitted,
                    would_admit,
                    suppressed,
                    "a shadow policy would decide differently"
                );
            });
        }
    }
}

impl LimiterRef {
    /// The name of the live policy that a shadow would replace.
    #[inline]
    pub(super) fn shadowed_policy(&self, bound: &BoundPolicy) -> Option<&str> {
        match bound.enforcement {
            Enforcement::Shadow { of: Some(live), .. } => Some(self.bound(live).policy.name()),
            _ => None,
        }
    }

    /// Sets whether each shadow would have rejected, and records whether that differs from the decision. Requests that retry
    /// after a rejection are recorded when they are admitted.
    pub(crate) fn record_shadows(&self, builder: &mut DecisionBuilder) {
        for index in 0..builder.entries.len() {
            let entry = &builder.entries[index];
            let bound = self.bound(entry.policy);
            let Enforcement::Shadow { of, counters } = &bound.enforcement else {
                continue;
            };
            let charges = entry.cost > 0 && bound.charges_on_arrival();
            let charged = if charges {
                entry.receipts.first().remaining / entry.cost
            } else {
                0
            };
            let rejects = charged == 0 && entry.rejects(self);
            if let Op::Acquire(times) = builder.op {
                let admitted = builder.admitted;
                let times = if builder.mode.will_retry {
                    admitted
                } else {
                    times.into()
                };
                let others = admitted == 0 && self.others_reject(&builder.entries, *of);
                let would_admit = match (charges, rejects || others) {
                    (true, _) => charged,
                    (false, true) => 0,
                    (false, false) => admitted.max(1),
                };
                let would_admit = would_admit.min(times);
                bound.record_shadow(counters, times, admitted, would_admit);
                // The request does not run, so it holds no permit.
                if admitted == 0 && charged > 0 && bound.is_permit() {
                    self.refund_unreported(&mut builder.entries[index..=index]);
                }
            }
            builder.entries[index].role = PolicyRole::Shadow { rejects };
        }
    }

    /// Records whether each shadow differs from the final rejection of a waiting request: it is evaluated now, and charges the
    /// request if it would admit it.
    pub(crate) async fn record_shadows_after_wait(&self, rejected: &mut Decision) {
        for index in 0..rejected.entries.len() {
            let entry = &rejected.entries[index];
            let bound = self.bound(entry.policy);
            let Enforcement::Shadow { of, counters } = &bound.enforcement else {
                continue;
            };
            let others = rejected.admitted == 0 && self.others_reject(&rejected.entries, *of);
            let would_admit = !others && self.shadow_would_admit(bound, entry).await;
            bound.record_shadow(counters, 1, 0, u64::from(would_admit));
            if would_admit {
                rejected.entries[index].role = PolicyRole::Shadow { rejects: false };
            }
        }
    }

    async fn shadow_would_admit(&self, bound: &BoundPolicy, entry: &PolicyEntry) -> bool {
        let mut counter_op = self.counter_op(entry);
        counter_op.units = entry.units();
        // The request does not run, so it holds no permit.
        if !bound.charges_on_arrival() || bound.is_permit() {
            counter_op.mode = CounterMode::Check;
        }
        let response = self.store.execute(Op::Acquire(1), &[counter_op]);
        let Ok(result) = response.result().await else {
            return false;
        };
        if let Some(counter) = result.counters.first() {
            self.report_units(entry, UnitsKind::Charged, counter.units, true);
        }
        result.admitted > 0
    }

    /// Whether a rejected request would have been rejected too without the live policy that a shadow would replace.
    fn others_reject(&self, entries: &[PolicyEntry], of: Option<u32>) -> bool {
        let enforced = entries.iter().filter(|entry| !entry.is_shadow());
        let mut others = enforced.filter(|entry| of != Some(entry.policy));
        of.is_none() || others.any(|entry| entry.rejects(self))
    }
}

/// Counts how a [shadow policy](crate::Policy::shadow)'s decisions differ from those that were made.
#[derive(Debug, Default)]
pub(crate) struct ShadowCounters {
    evaluated: AtomicU64,
    stricter: AtomicU64,
    looser: AtomicU64,
}

impl ShadowCounters {
    /// Records that of `evaluated` requests `admitted` were admitted, and that the shadow would have admitted `would_admit`.
    pub(crate) fn record(&self, evaluated: u64, admitted: u64, would_admit: u64) {
        self.evaluated.fetch_add(evaluated, Ordering::Relaxed);
        self.stricter
            .fetch_add(admitted.saturating_sub(would_admit), Ordering::Relaxed);
        self.looser
            .fetch_add(would_admit.saturating_sub(admitted), Ordering::Relaxed);
    }

    /// The counts.
    pub(crate) fn stats(&self) -> ShadowStats {
        ShadowStats {
            evaluated: self.evaluated.load(Ordering::Relaxed),
            stricter: self.stricter.load(Ordering::Relaxed),
            looser: self.looser.load(Ordering::Relaxed),
        }
    }
}
