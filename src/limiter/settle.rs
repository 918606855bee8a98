//! Charges and refunds after a request was admitted.

use std::panic::{self, AssertUnwindSafe};

use smallvec::SmallVec;

use super::{Desk, Inner, Role};
use crate::{
    charge::When,
    clock::Timestamp,
    decision::{Adjust, Adjusted, Adjusting, AllAdjusted, Books, Counted, Said},
    outcome::Outcome,
    quota::Quota,
    store::{CounterOp, Op, Store, StoreResponse, TOO_FEW_RESULTS, Units},
    strategy::{ChargeReceipt, QuotaStatus, Snapshot},
};

impl Books for Desk {
    fn name(&self, policy: u32) -> &str {
        self.bound(policy).policy.name()
    }

    fn live_name(&self, policy: u32) -> Option<&str> {
        match self.bound(policy).role {
            Role::Shadow { of: Some(live), .. } => Some(self.name(live)),
            _ => None,
        }
    }

    fn names(&self) -> Vec<&str> {
        let policies = self.policies.iter();
        policies.map(|bound| bound.policy.name()).collect()
    }

    fn counted_at(&self, policy: u32) -> Option<(u64, &str, &'static str)> {
        let bound = self.bound(policy);
        let format = bound.limit.rule().state_format();
        Some((self.store.id()?, bound.policy.name(), format))
    }

    #[cold]
    fn log_counted_twice(&self, policy: &str) {
        self.twice.then(|suppressed| {
            tracing::warn!(
                policy,
                suppressed,
                "two layers around a request have a policy of this name over one store: the same key is charged twice"
            );
        });
    }

    fn said(&self) -> &Said {
        self.said()
    }

    fn quota(&self, counted: &Counted) -> (Quota, u64) {
        let own = self.bound(counted.policy).policy.quota();
        let quota = counted.tier.as_ref().map_or(own, |tier| tier.quota);
        (quota, self.limit(counted).rule().capacity())
    }

    fn refills_gradually(&self, counted: &Counted) -> bool {
        self.limit(counted).rule().refills_gradually()
    }

    fn status(&self, counted: &Counted, snapshot: &Snapshot) -> QuotaStatus {
        let limit = self.limit(counted);
        limit.status(
            snapshot,
            counted.receipts.first().charged_at,
            counted.units(),
        )
    }

    fn judged_at(&self, counted: &Counted) -> Timestamp {
        let at = counted.receipts.first().charged_at;
        if self.limit(counted).follows_wall_clock() {
            return at;
        }
        self.store_of(counted).wall(at)
    }

    fn shard(&self, counted: &Counted) -> (bool, usize) {
        let store = self.store_of(counted);
        (self.is_share(counted), store.shard(&counted.key))
    }

    fn adjust(&self, ask: Op, lines: &[Adjust<'_>]) -> Adjusting {
        self.adjust_by(lines, |store, ops| store.execute(ask, ops))
    }

    fn adjust_detached(&self, ask: Op, lines: &[Adjust<'_>]) -> Adjusting {
        self.adjust_by(lines, |store, ops| store.execute_observed(ask, ops))
    }

    fn give_back(&self, counted: &mut [Counted]) {
        for counted in counted {
            let units = self.take_back_one(counted);
            counted.given_back(self, units);
        }
    }

    fn settles(&self, counted: &Counted) -> bool {
        self.charge_of(counted).when != When::Arrival
    }

    fn is_permit(&self, counted: &Counted) -> bool {
        self.bound(counted.policy).is_permit()
    }

    fn charges(&self, policy: u32, outcome: &Outcome<'_>) -> bool {
        let charge = self.bound(policy).policy.charges();
        // It may be called while a panic unwinds, where another one would abort the process.
        let charges = AssertUnwindSafe(|| charge.charges(outcome));
        // The panic hook has reported it.
        panic::catch_unwind(charges).unwrap_or(true)
    }

    fn settle(&self, counted: &mut Counted, charges: bool, watches: bool) -> Option<Adjusting> {
        if counted.is_shadow_refusal() {
            return None;
        }
        match self.charge_of(counted).when {
            When::Reserve if !charges => {
                self.give_back(std::slice::from_mut(counted));
            }
            // What the handler has charged by itself is not charged again.
            When::Response if charges && !counted.receipts.is_settled() => {
                counted.receipts.add_unanswered(counted.units());
                if watches {
                    let line = Adjust {
                        counted,
                        receipt: ChargeReceipt::NONE,
                        units: counted.cost,
                    };
                    return Some(self.adjust_detached(Op::ForceAcquire, &[line]));
                }
                let line = CounterOp {
                    units: counted.units(),
                    ..self.line(counted)
                };
                self.store_of(counted)
                    .execute_detached(Op::ForceAcquire, &[line]);
            }
            _ => {}
        }
        None
    }
}

impl Inner {
    /// Makes one call of the store that counts the lines.
    fn adjust_by(
        &self,
        lines: &[Adjust<'_>],
        call: impl FnOnce(&dyn Store, &[CounterOp<'_>]) -> StoreResponse,
    ) -> Adjusting {
        let counted = lines.iter().map(|line| line.counted);
        let counted = counted.map(|counted| (self.limit(counted).clone(), counted.units()));
        let counted: SmallVec<[_; 1]> = counted.collect();
        let reply = self.with_ops(lines, call);
        Box::pin(async move {
            let answer = match reply {
                None => return Ok(AllAdjusted::new()),
                Some(StoreResponse::Ready(answer)) => answer?,
                Some(StoreResponse::Pending(answer)) => answer.await?,
            };
            if answer.counters.len() < counted.len() {
                return Err(TOO_FEW_RESULTS);
            }
            let lines = answer.counters.iter().zip(counted);
            let adjusted = lines.map(|(line, (limit, cost))| {
                let at = answer.at_line(line);
                Adjusted {
                    units: line.units,
                    receipt: ChargeReceipt {
                        charged_at: at,
                        remaining: line.units,
                        window_id: limit.rule().window_id(&line.snapshot, at),
                    },
                    status: limit.status(&line.snapshot, at, cost),
                }
            });
            Ok(adjusted.collect())
        })
    }

    /// Makes one call of the store that counts the lines.
    fn with_ops<T>(
        &self,
        lines: &[Adjust<'_>],
        call: impl FnOnce(&dyn Store, &[CounterOp<'_>]) -> T,
    ) -> Option<T> {
        let store = self.store_of(lines.first()?.counted);
        let ops = lines.iter().map(|line| CounterOp {
            units: Units::new(line.units),
            receipt: line.receipt,
            ..self.line(line.counted)
        });
        let ops: SmallVec<[_; 2]> = ops.collect();
        Some(call(store, &ops))
    }

    /// Refunds what was charged, without waiting for it.
    pub(super) fn take_back(&self, counted: &mut [Counted]) {
        for counted in counted {
            self.take_back_one(counted);
        }
    }

    /// The same under one policy; returns how many units that may be.
    fn take_back_one(&self, counted: &mut Counted) -> u64 {
        let receipts = counted.receipts.take();
        for receipt in &receipts {
            let mut line = self.line(counted);
            line.receipt = *receipt;
            line.units = Units::new(receipt.remaining);
            self.store_of(counted).execute_detached(Op::Refund, &[line]);
        }
        let left = receipts.iter().map(|receipt| receipt.remaining);
        left.fold(0, u64::saturating_add)
    }

    fn charge_of(&self, counted: &Counted) -> &crate::charge::Charge {
        self.bound(counted.policy).policy.charges()
    }
}
