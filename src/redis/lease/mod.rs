//! Leases: units of hot keys that are charged in the store ahead of need, and spent in process.
//!
//! A lease is an ordinary [`Op::Acquire`](crate::store::Op::Acquire) of several requests, which travels in the same batches as all
//! others; no script knows of leases. `demand` finds hot keys, `table` has them, `leased_key` has the units of one, each lease in a
//! `held_lease`. `size` says when a lease is due and how large it is; `requested` has those without a response, `grant` requests them, hands what is charged to their key, and refunds units. `refund_schedule` has what is left of leases
//! refunded when it is due. `table` counts units for [`StoreStats`](crate::observe::StoreStats).
//!
//! Only a request whose every counter charges under a limit with a lease, or is a ban, is decided by a lease. Everything else is
//! up to the store, as without leases.

use std::sync::{Arc, atomic::Ordering};

pub(super) use self::table::{LeaseDecision, Leases};
use tokio::time::{Instant, timeout_at};

use self::{grant::UnsettledGuard, held_lease::ClockReading, leased_key::LeasedKey};
use crate::store::{CounterOp, Op};

mod demand;
mod grant;
mod held_lease;
mod leased_key;
mod refund_schedule;
mod requested;
#[cfg(test)]
mod simulation;
mod size;
mod table;
#[cfg(test)]
mod tests;

impl Leases {
    /// Ends leases when a key is reset or banned; lifting a ban changes no lease.
    pub(super) fn invalidate_on(self: &Arc<Self>, op: Op, counters: &[CounterOp<'_>]) {
        let is_used = self.is_used.load(Ordering::Relaxed);
        if !is_used {
            return;
        }
        let is_invalidated = |counter: &&CounterOp<'_>| {
            let counts_rejections = counter.limit.info().counts_rejections;
            match op {
                Op::Reset => !counts_rejections,
                Op::Adjust => counts_rejections && counter.receipt.is_none(),
                Op::Acquire(_) | Op::Peek | Op::Renew => false,
            }
        };
        let now = ClockReading::read().monotonic;
        let _unsettled = UnsettledGuard::new(self);
        for counter in counters.iter().filter(is_invalidated) {
            let take = |key: &mut LeasedKey| {
                key.pause(now);
                match op {
                    Op::Reset => key.discard_for_reset(),
                    _ => key.release(),
                }
            };
            for unspent in self.reclaim(|key| key.has_counter(counter), take) {
                // A reset may have been done: a refund could take units that were charged after it.
                let refunded = match op {
                    Op::Reset => {
                        let (reset, others) = unspent.split(counters);
                        self.totals.lapse(&reset);
                        others
                    }
                    _ => unspent,
                };
                self.refund(refunded);
            }
        }
    }

    /// Refunds all units that are held, and those of leases that are requested, within the timeout of a call.
    pub(super) async fn refund_all(self: &Arc<Self>) {
        let Some(io) = self.io.upgrade() else {
            return;
        };
        let (start, deadline) = (ClockReading::read().monotonic, io.deadline());
        let unsettled = UnsettledGuard::new(self);
        // Before the wait, for which the caller may have less time.
        for unspent in self.reclaim(|_| true, LeasedKey::release) {
            self.refund(unspent);
        }
        drop(unsettled);
        // Those that are requested are refunded when they come.
        let is_refunded = || !self.awaits_requested_by(start) && self.unsettled() == 0;
        self.wait_until(deadline, is_refunded).await;
    }

    /// Waits until a condition is true, or the deadline has passed. It is checked when a lease or a refund settles.
    async fn wait_until(&self, deadline: Instant, is_met: impl Fn() -> bool) {
        let met = async {
            loop {
                // Before the condition is read, so that what settles after it wakes this task.
                let settled = self.settled.notified();
                if is_met() {
                    return;
                }
                settled.await;
            }
        };
        // A runtime needs timers only if there is something to wait for.
        if !is_met() {
            let _ = timeout_at(deadline, met).await;
        }
    }
}
