//! What most limiters are: one policy that is enforced, and charges each request that it lets in as it arrives. A request to
//! such a one is a key and a number, and a store that is near answers it at a glance.

use std::sync::Arc;

use http::request::Parts;

use super::{Bound, Desk, Judgement, Pending, Role, evaluate::draft::Draft};
use crate::{
    access::Lists,
    charge::When,
    decision::{Brief, Counted, Decision, DecisionKind, DecisionPermit, Part, Standing},
    key::Key,
    policy::Tiers,
    store::{CounterMode, DecisionSource, Glance, Op, Units},
    strategy::ChargeReceipt,
};

/// Whether nothing but the key and the cost of a request has to be known.
pub(super) fn is_plain(policies: &[Bound], lists: &Lists) -> bool {
    let [only] = policies else {
        return false;
    };
    let policy = &only.policy;
    let arrival = policy.charges().when == When::Arrival;
    let charges =
        matches!(only.role, Role::Live) && arrival && policy.mode() == CounterMode::Charge;
    let alike = matches!(policy.tiers(), Tiers::None) && lists.is_empty();
    charges && alike && !only.limit.records_caller() && only.limit.permit_ttl().is_none()
}

impl Desk {
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
    pub(super) fn only(&self) -> Option<&Bound> {
        self.policies.first().filter(|_| self.is_plain)
    }

    /// Judges a plain request.
    #[inline(always)]
    pub(super) fn judge_plain(self: Arc<Self>, key: Key, cost: u64) -> Judgement {
        let bound = self.bound(0);
        let Some(glance) = self.store.glance(&bound.limit, &key, Units::new(cost)) else {
            return self.judge_far(key, cost);
        };
        self.write_back();
        let Glance { fits, at, snapshot } = glance;
        if !fits {
            return Judgement::Made(self.refused(key, cost, &glance));
        }
        let window_id = bound.limit.rule().window_id(&snapshot, at);
        Judgement::Brief(Brief {
            books: self,
            key,
            cost,
            at,
            snapshot,
            window_id,
        })
    }

    /// What [`decide`](Desk::decide) makes of a refusal.
    fn refused(self: Arc<Self>, key: Key, cost: u64, glance: &Glance) -> Decision {
        let Glance { at, snapshot, .. } = *glance;
        let limit = &self.bound(0).limit;
        let counted = Counted {
            // It will be read more than once.
            standing: Standing::Told(limit.status(&snapshot, at, Units::new(cost))),
            receipts: ChargeReceipt {
                charged_at: at,
                remaining: 0,
                window_id: limit.rule().window_id(&snapshot, at),
            }
            .into(),
            ..Counted::unasked((0, Part::Live), key, cost, None, None)
        };
        Decision {
            books: self,
            kind: DecisionKind::Rejected,
            source: DecisionSource::Store,
            admitted: 0,
            counted: [counted].into(),
            permit: DecisionPermit::default(),
        }
    }

    /// Asks the store as for any other request.
    fn judge_far(self: Arc<Self>, key: Key, cost: u64) -> Judgement {
        let mut draft = Draft::new(Op::Acquire(1), false);
        let item = Counted::unasked((0, Part::Live), key, cost, None, None);
        draft.items.push(item);
        match self.judge(&mut draft) {
            None => Judgement::Made(draft.finish(self)),
            Some(waits) => Judgement::Pending(Pending::new(self, draft, waits)),
        }
    }
}
