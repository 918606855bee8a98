//! Charging and giving back once a request was let in.

use tokio::task::coop::consume_budget;

use super::{Desk, Inner, Limiter};
use crate::{
    charge::When,
    decision::{Adjusted, Adjusting, Books, Counted, Decision, Said},
    error::StoreError,
    outcome::Outcome,
    quota::Quota,
    store::{Ask, Line, Reply, Units},
    strategy::{Outlook, Receipt, Seen},
};

impl Limiter {
    /// Gives back up to `units` of what `decision` charged under each policy: only what time has not already given
    /// back, never into a later window, and no unit twice. Returns how many that were, by policy in the order of the
    /// decision's verdicts; the part of a unit that time has left under [`Gcra`](crate::Gcra) or
    /// [`TokenBucket`](crate::TokenBucket) is given back too, and counts as one.
    ///
    /// # Errors
    ///
    /// If the store can't answer.
    pub async fn refund(
        &self,
        decision: &mut Decision,
        units: u64,
    ) -> Result<Vec<u64>, StoreError> {
        let books = decision.books.clone();
        let mut given = Vec::with_capacity(decision.counted.len());
        // A store that is near answers at once: others have their turns, too.
        consume_budget().await;
        for counted in &mut decision.counted {
            let (mut back, mut left, mut before) = (0, units, usize::MAX);
            while let Some(part) = counted.plan_refund(before, left) {
                (left, before) = (left - part.units, part.place);
                let adjusting = books.adjust(Ask::Refund, counted, part.receipt, part.units);
                let adjusted = adjusting.await?;
                counted.refunded(&part, &adjusted);
                back += adjusted.units;
            }
            if !counted.is_shadow() {
                given.push(back);
            }
        }
        Ok(given)
    }
}

impl Books for Desk {
    fn name(&self, policy: u32) -> &str {
        self.bound(policy).policy.name()
    }

    fn said(&self) -> &Said {
        self.said()
    }

    fn quota(&self, counted: &Counted) -> (Quota, u64) {
        let own = self.bound(counted.policy).policy.quota();
        let quota = counted.tier.as_ref().map_or(own, |tier| tier.quota);
        (quota, self.account(counted).rule().capacity())
    }

    fn outlook(&self, counted: &Counted, seen: &Seen) -> Outlook {
        let account = self.account(counted);
        account.outlook(seen, counted.receipt.at, counted.units())
    }

    fn adjust(&self, ask: Ask, counted: &Counted, receipt: Receipt, units: u64) -> Adjusting {
        let account = self.account(counted).clone();
        let line = Line {
            units: Units::new(units),
            receipt,
            ..self.line(counted)
        };
        let reply = self.store_of(counted).ask(ask, &[line]);
        let cost = counted.units();
        Box::pin(async move {
            let answer = match reply {
                Reply::Now(answer) => answer?,
                Reply::Later(answer) => answer.await?,
            };
            let line = answer.lines.first();
            let line = line.ok_or(StoreError::Unsupported("an answer without lines"))?;
            Ok(Adjusted {
                units: line.units,
                receipt: Receipt {
                    at: answer.at,
                    left: line.units,
                    mark: account.rule().mark(&line.seen, answer.at),
                },
                outlook: account.outlook(&line.seen, answer.at, cost),
            })
        })
    }

    fn give_back(&self, counted: &[Counted]) {
        self.take_back(counted);
    }

    fn settles(&self, counted: &Counted) -> bool {
        self.charge_of(counted).when != When::Arrival
    }

    fn settle(
        &self,
        counted: &mut Counted,
        outcome: &Outcome<'_>,
        watches: bool,
    ) -> Option<Adjusting> {
        if counted.is_shadow_refusal() {
            return None;
        }
        let charge = self.charge_of(counted);
        let charges = charge.charges(outcome);
        match charge.when {
            When::Reserve if !charges => {
                self.give_back(std::slice::from_ref(counted));
                counted.given_back(self);
            }
            // What the handler has charged by itself is not charged again.
            When::Response if charges && !counted.is_settled() => {
                counted.told(counted.units());
                if watches {
                    return Some(self.adjust(Ask::Force, counted, Receipt::NONE, counted.cost));
                }
                let line = Line {
                    units: counted.units(),
                    ..self.line(counted)
                };
                self.store_of(counted).tell(Ask::Force, &[line]);
            }
            _ => {}
        }
        None
    }
}

impl Inner {
    /// Takes back what was charged, without waiting for it.
    pub(super) fn take_back(&self, counted: &[Counted]) {
        for counted in counted {
            for receipt in counted.receipts().filter(|receipt| receipt.left > 0) {
                let mut line = self.line(counted);
                line.receipt = *receipt;
                line.units = Units::new(receipt.left);
                self.store_of(counted).tell(Ask::Refund, &[line]);
            }
        }
    }

    fn charge_of(&self, counted: &Counted) -> &crate::charge::Charge {
        self.bound(counted.policy).policy.charges()
    }
}
