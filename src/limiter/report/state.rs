//! The state of a limiter, and the changes of it that are reported.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    decision::{PolicyEntry, PolicyRole},
    key::Key,
    limiter::{
        Limiter,
        core::{BoundPolicy, Enforcement, LimiterCore, LimiterRef},
        evaluate::decision_builder::DecisionBuilder,
    },
    observe::{Event, LimiterStats, PolicyKind, PolicyStats, StatsHandle},
    store::{DecisionSource, Op, OpResult},
};

impl Limiter {
    /// The state of the limiter and its store in this process: permits, waiters, write-backs, and what the
    /// [store](crate::observe::StoreStats) keeps, among it the units of [leases](crate::observe::LeaseStats). For gauges: cheap,
    /// without a call of the store.
    pub fn stats(&self) -> LimiterStats {
        self.local_ref().stats()
    }

    /// Reports a change of state.
    #[cfg(feature = "config")]
    pub(crate) fn report_event(&self, event: &Event<'_>) {
        if let Some(observers) = &self.local_ref().observers {
            observers.on_event(event);
        }
    }

    /// Reports the policies that are in force from now on.
    pub(crate) fn report_policies(&self, core: &LimiterCore) {
        let Some(observers) = &core.observers else {
            return;
        };
        for observer in observers.iter() {
            core.store.observe(observer);
            if let Some(shares) = &core.local_shares {
                shares.observe(observer);
            }
        }
        let shared = Arc::downgrade(&self.shared);
        let handle = StatsHandle::new(move || Some(shared.upgrade()?.refs.local().stats()));
        let stats = core.stats();
        let event = Event::PoliciesInForce {
            stats: &stats,
            handle: &handle,
        };
        observers.on_event(&event);
    }
}

impl LimiterCore {
    fn stats(&self) -> LimiterStats {
        let mut waiters = vec![0; self.policies.len()];
        self.wait_queues
            .count_waiters(self.generation, &mut waiters);
        let policies = self.policies.iter().zip(waiters);
        let shares = self.local_shares.as_deref();
        LimiterStats {
            generation: self.generation,
            policies: policies
                .map(|(bound, waiters)| bound.stats(waiters))
                .collect(),
            queued_write_backs: shares.map_or(0, |shares| shares.unwritten_keys() as u64),
            dropped_write_backs: shares.map_or(0, |shares| shares.dropped()),
            store: self.store.stats(),
        }
    }
}

impl BoundPolicy {
    fn stats(&self, waiters: u64) -> PolicyStats {
        let has_quota = !self.policy.is_block_list();
        PolicyStats {
            policy: self.policy.shared_name(),
            kind: match self.enforcement {
                Enforcement::Live => PolicyKind::Live,
                Enforcement::Ban => PolicyKind::Ban,
                Enforcement::Shadow { .. } => PolicyKind::Shadow,
            },
            quota: has_quota.then(|| self.policy.quota()),
            limit: match has_quota {
                true => self.limit.capacity(),
                false => 0,
            },
            permits: self.permits_held.load(Ordering::Relaxed),
            waiters,
            shadow: match &self.enforcement {
                Enforcement::Shadow { counters, .. } => Some(counters.stats()),
                Enforcement::Live | Enforcement::Ban => None,
            },
        }
    }
}

impl LimiterCore {
    /// Reports that permits are held or released.
    pub(crate) fn report_permits(
        &self,
        entries: &[PolicyEntry],
        event: impl for<'a> Fn(&'a str, &'a Key, u64) -> Event<'a>,
    ) {
        let Some(observers) = &self.observers else {
            return;
        };
        for entry in entries {
            let policy = self.bound(entry.policy).policy.name();
            observers.on_event(&event(policy, &entry.key, entry.receipts.first().remaining));
        }
    }
}

impl LimiterRef {
    /// Reports the bans that began with a request, or with a charge of rejections.
    pub(crate) fn report_bans_begun(&self, builder: &DecisionBuilder, result: &OpResult) {
        let Some(observers) = &self.observers else {
            return;
        };
        if !matches!(builder.op, Op::Acquire(_) | Op::ForceAcquire)
            || result.source != DecisionSource::Store
        {
            return;
        }
        let counted = builder.entries.iter().zip(&result.counters);
        for (entry, counter) in counted.filter(|(entry, _)| entry.role == PolicyRole::Ban) {
            let (bound, at) = (self.bound(entry.policy), result.time_of(counter));
            let begun = self.limit(entry).rule().ban_begun(&counter.snapshot, at);
            if let Some(lasts) = begun.filter(|_| bound.bans_begun.add(entry.key, at)) {
                observers.on_event(&Event::BanBegan {
                    policy: bound.policy.name(),
                    key: &entry.key,
                    lasts,
                    by_hand: false,
                });
            }
        }
    }

    /// Reports bans that were begun by hand.
    pub(crate) fn report_manual_bans(&self, bans: &[(u32, Key)], lasts: Duration) {
        let Some(observers) = &self.observers else {
            return;
        };
        for (policy, key) in bans {
            observers.on_event(&Event::BanBegan {
                policy: self.bound(*policy).policy.name(),
                key,
                lasts,
                by_hand: true,
            });
        }
    }
}
