//! Requests a lease, and refunds what is left of it. No task waits for the responses: they are recorded where they are decoded.

use std::sync::{Arc, Weak, atomic::Ordering};

use tokio::time::sleep;

use super::{
    held_lease::{ClockReading, LeaseRequest, Unspent},
    leased_key::{Granted, LeasedKey},
    table::{Leases, units_of},
};
use crate::{
    clock::Timestamp,
    error::StoreError,
    store::{Op, OpResult},
};

/// A lease to request, which is sent after the request for which it was due. It counts as unsettled until it is dropped.
#[derive(Debug)]
pub(in crate::redis) struct DueLease {
    leases: Arc<Leases>,
    pub(super) request: LeaseRequest,
}

impl Drop for DueLease {
    fn drop(&mut self) {
        self.leases.unsettled.fetch_sub(1, Ordering::AcqRel);
    }
}

impl DueLease {
    pub(super) fn new(leases: &Arc<Leases>, request: LeaseRequest) -> Self {
        leases.unsettled.fetch_add(1, Ordering::AcqRel);
        let leases = leases.clone();
        Self { leases, request }
    }

    /// Requests the lease in the next batch.
    pub(in crate::redis) fn send(self) {
        let (io, counters) = (self.leases.io.clone(), self.request.counters.clone());
        io.execute_once(Op::Acquire(1), counters, move |response| match response {
            Ok(result) => self.grant(&result),
            Err(error) => self.fail(&error),
        });
    }

    /// Hands the units to the key.
    fn grant(&self, result: &OpResult) {
        let (leases, request) = (&self.leases, &self.request);
        let charged = result.counters.iter().map(|counter| counter.units);
        let charged = request.counters.iter().zip(charged);
        let mut shard = leases.shard(request.hash);
        shard
            .totals
            .add(charged.clone(), |stats| &mut stats.granted);
        // The clock is read under the lock, so that no thread holds it up after this.
        let grant = |key: &mut LeasedKey| key.grant(request, result, ClockReading::read());
        match shard.key(request.hash).map_or(Granted::Discarded, grant) {
            Granted::Held { refund_at } => {
                drop(shard);
                if let (Some(at), Some(runtime)) = (refund_at, leases.io.runtime()) {
                    let leases = Arc::downgrade(leases);
                    runtime.spawn(refund_when_due(leases, request.hash, at));
                }
            }
            Granted::Late(unspent) => {
                drop(shard);
                leases.refund(unspent);
            }
            Granted::Discarded => shard.totals.add(charged, |stats| &mut stats.lapsed),
        }
    }

    /// Records that there is no lease.
    fn fail(&self, error: &StoreError) {
        let request = &self.request;
        let mut shard = self.leases.shard(request.hash);
        if error.may_have_run() {
            let units = units_of(&request.counters);
            shard.totals.add(units.clone(), |stats| &mut stats.granted);
            shard.totals.add(units, |stats| &mut stats.lapsed);
        }
        if let Some(key) = shard.key(request.hash) {
            key.fail(request.number, ClockReading::read().monotonic);
        }
    }
}

/// Refunds what is left of a key's leases when it is due, from an instant on, as long as leases are held.
async fn refund_when_due(leases: Weak<Leases>, hash: u64, mut refund_at: Timestamp) {
    loop {
        let now = ClockReading::read().monotonic;
        if now < refund_at {
            sleep(refund_at.since(now)).await;
            continue;
        }
        let Some(leases) = leases.upgrade() else {
            return;
        };
        // A shutdown meanwhile waits for these refunds, too.
        leases.unsettled.fetch_add(1, Ordering::AcqRel);
        let (unspent, next) = match leases.shard(hash).key(hash) {
            Some(key) => (key.reclaim_due(refund_at, now), key.schedule_refund()),
            None => Default::default(),
        };
        unspent
            .into_iter()
            .for_each(|unspent| leases.refund(unspent));
        leases.unsettled.fetch_sub(1, Ordering::AcqRel);
        let Some(next) = next else {
            return;
        };
        refund_at = next;
    }
}

impl Leases {
    /// Refunds units. The refund is sent once, since another one might take others' units: what is not refunded lapses.
    pub(super) fn refund(self: &Arc<Self>, unspent: Unspent) {
        if unspent.counters.is_empty() {
            return;
        }
        let counters = unspent.counters.clone();
        let leases = self.clone();
        self.io.execute_once(Op::Adjust, counters, move |response| {
            leases.record_refund(&unspent, response.as_ref().ok());
        });
    }

    /// Counts as lapsed what is not refunded.
    fn record_refund(&self, unspent: &Unspent, result: Option<&OpResult>) {
        let mut results = result.iter().flat_map(|result| &result.counters);
        let totals = &mut self.shard(unspent.hash).totals;
        for counter in &unspent.counters {
            let units = counter.units.get();
            let refunded = results.next().map_or(0, |result| result.units.min(units));
            totals.add([(counter, refunded)], |stats| &mut stats.refunded);
            totals.add([(counter, units - refunded)], |stats| &mut stats.lapsed);
        }
    }
}
