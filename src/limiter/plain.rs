//! What most limiters are: one policy that is enforced, and charges each request that it lets in as it arrives. A request to
//! such a one is a key and a number, and a store that is near answers it at a glance.

use std::sync::Arc;

use http::request::Parts;

use super::{
    core::BoundPolicy, core::Enforcement, core::LimiterRef,
    evaluate::decision_builder::DecisionBuilder, evaluate::pending::PendingDecision,
    evaluate::request::Evaluation,
};
use crate::{
    access::Lists,
    charge::ChargeTime,
    decision::{
        CompactDecision, Decision, DecisionKind, DecisionPermit, LazyStatus, PolicyEntry,
        PolicyRole,
    },
    key::Key,
    policy::QuotaSource,
    store::{CounterMode, DecisionSource, Glance, Op, Units},
    strategy::ChargeReceipt,
};

/// Whether nothing but the key and the cost of a request has to be known.
pub(super) fn is_plain(policies: &[BoundPolicy], lists: &Lists) -> bool {
    let [only] = policies else {
        return false;
    };
    let policy = &only.policy;
    let arrival = policy.charge_mode().when == ChargeTime::Arrival;
    let charges = matches!(only.enforcement, Enforcement::Live)
        && arrival
        && policy.counter_mode() == CounterMode::Charge;
    let alike = matches!(policy.quota_source(), QuotaSource::Policy) && lists.is_empty();
    charges && alike && !only.limit.records_caller() && only.limit.permit_ttl().is_none()
}

impl LimiterRef {
    /// What a request is counted by, if it is a plain one.
    #[inline]
    pub(super) fn plain_request(&self, parts: &Parts) -> Option<(Key, u64)> {
        let bound = self.only()?;
        let policy = &bound.policy;
        if self.skips_request(parts) || policy.skips(parts) {
            return None;
        }
        Some((bound.find_key(parts)?, policy.cost_of(parts)))
    }

    /// The only policy, if all requests are plain ones.
    #[inline]
    pub(super) fn only(&self) -> Option<&BoundPolicy> {
        self.policies.first().filter(|_| self.is_plain)
    }

    /// Judges a plain request.
    #[inline(always)]
    pub(super) fn evaluate_plain(self: Arc<Self>, key: Key, cost: u64) -> Evaluation {
        let bound = self.bound(0);
        let Some(glance) = self.store.glance(&bound.limit, &key, Units::new(cost)) else {
            return self.evaluate_far(key, cost);
        };
        self.write_back();
        let Glance { fits, at, snapshot } = glance;
        if !fits {
            return Evaluation::Made(self.refused(key, cost, &glance));
        }
        let window_id = bound.limit.rule().window_id(&snapshot, at);
        Evaluation::Compact(CompactDecision {
            backend: self,
            key,
            cost,
            at,
            snapshot,
            window_id,
        })
    }

    /// What [`decide`](LimiterRef::decide) makes of a refusal.
    fn refused(self: Arc<Self>, key: Key, cost: u64, glance: &Glance) -> Decision {
        let Glance { at, snapshot, .. } = *glance;
        let limit = &self.bound(0).limit;
        let entry = PolicyEntry {
            // It will be read more than once.
            lazy_status: LazyStatus::Resolved(limit.status(&snapshot, at, Units::new(cost))),
            receipts: ChargeReceipt {
                charged_at: at,
                remaining: 0,
                window_id: limit.rule().window_id(&snapshot, at),
            }
            .into(),
            ..PolicyEntry::new((0, PolicyRole::Live), key, cost, None, None)
        };
        Decision {
            backend: self,
            kind: DecisionKind::Rejected,
            source: DecisionSource::Store,
            admitted: 0,
            entries: [entry].into(),
            permit: DecisionPermit::default(),
        }
    }

    /// Asks the store as for any other request.
    fn evaluate_far(self: Arc<Self>, key: Key, cost: u64) -> Evaluation {
        let mut builder = DecisionBuilder::new(Op::Acquire(1), false);
        let entry = PolicyEntry::new((0, PolicyRole::Live), key, cost, None, None);
        builder.entries.push(entry);
        match self.call_store(&mut builder) {
            None => Evaluation::Made(builder.finish(self)),
            Some(waits) => Evaluation::Pending(PendingDecision::new(self, builder, waits)),
        }
    }
}
