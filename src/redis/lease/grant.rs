//! Requests a lease, and refunds what is left of it. No task waits for the responses: they are recorded where they are decoded.

use std::sync::{Arc, atomic::Ordering};

use super::{
    held_lease::{ClockReading, LeaseRequest, Unspent},
    leased_key::Granted,
    table::Leases,
};
use crate::{
    error::StoreError,
    redis::request::OnResponse,
    store::{Op, OpResult},
};

/// A lease to request, which is sent after the request for which it was due.
#[derive(Debug)]
pub(in crate::redis) struct DueLease {
    pub(super) leases: Arc<Leases>,
    pub(super) hash: u64,
    pub(super) request: LeaseRequest,
}

impl OnResponse for DueLease {
    fn on_response(self: Box<Self>, response: Result<OpResult, StoreError>) {
        match response {
            Ok(result) => self.record(&result),
            Err(error) => {
                if error.may_have_run() {
                    self.leases.totals.lose(&self.request);
                }
                self.fail();
            }
        }
    }
}

impl DueLease {
    /// Requests the lease in the next batch. No lease is requested without a task that refunds what is left of it.
    pub(in crate::redis) fn send(self) {
        match self.leases.io.upgrade() {
            Some(io) if self.leases.start_refunds(&io) => {
                let counters = self.request.counters.clone();
                io.execute_with_callback(Op::Acquire(1), counters, Box::new(self));
            }
            _ => self.fail(),
        }
    }

    /// Hands the units to the key.
    fn record(&self, result: &OpResult) {
        let (leases, request) = (&self.leases, &self.request);
        leases.totals.grant(request, result);
        // A lease that is late counts as unsettled until its refund does.
        let _unsettled = UnsettledGuard::new(leases);
        let granted = leases.with_key(self.hash, request.key_id, |key| {
            // Under the lock, so that no thread holds it up after this.
            let now = ClockReading::read();
            let granted = key.grant(request, result, now);
            let refund_at = match granted {
                Granted::Held { refund_after } => key.schedule_refund(now.monotonic + refund_after),
                _ => None,
            };
            (granted, refund_at)
        });
        let (granted, refund_at) = granted.unwrap_or((Granted::Discarded, None));
        match granted {
            Granted::Held { .. } => {}
            Granted::Late(unspent) => leases.refund(unspent),
            Granted::Discarded => leases.totals.lapse_charge(request, result),
        }
        if let Some(refund_at) = refund_at {
            leases.schedule_refund(refund_at, request.key_id, self.hash);
        }
    }

    /// Records that there is no lease.
    fn fail(&self) {
        let _unsettled = UnsettledGuard::new(&self.leases);
        let (key_id, number) = (self.request.key_id, self.request.number);
        let now = ClockReading::read().monotonic;
        self.leases
            .with_key(self.hash, key_id, |key| key.fail(number, now));
    }
}

/// The refund of unspent units.
#[derive(Debug)]
struct Refund {
    unspent: Unspent,
    unsettled: UnsettledGuard,
}

impl OnResponse for Refund {
    fn on_response(self: Box<Self>, response: Result<OpResult, StoreError>) {
        let UnsettledGuard(leases) = &self.unsettled;
        leases.totals.refund(&self.unspent, response.ok().as_ref());
    }
}

impl Leases {
    /// Refunds units. The refund is sent
    /// once, since another one might take others' units: what is not refunded lapses.
    pub(super) fn refund(self: &Arc<Self>, unspent: Unspent) {
        if unspent.counters.is_empty() {
            return;
        }
        let Some(io) = self.io.upgrade() else {
            return self.totals.lapse(&unspent);
        };
        self.totals.begin_refund(&unspent);
        let counters = unspent.counters.clone();
        let unsettled = UnsettledGuard::new(self);
        let refund = Box::new(Refund { unspent, unsettled });
        io.execute_with_callback(Op::Adjust, counters, refund);
    }
}

/// Counts as unsettled, until it is dropped.
#[derive(Debug)]
pub(super) struct UnsettledGuard(Arc<Leases>);

impl UnsettledGuard {
    pub(super) fn new(leases: &Arc<Leases>) -> Self {
        leases.unsettled.fetch_add(1, Ordering::Relaxed);
        Self(leases.clone())
    }
}

impl Drop for UnsettledGuard {
    fn drop(&mut self) {
        self.0.unsettled.fetch_sub(1, Ordering::Relaxed);
        self.0.settled.notify_waiters();
    }
}
