//! Requests a lease, and refunds what is left of it. No task waits for the responses: they are recorded where they are decoded.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinHandle, time::sleep};

use super::{
    held_lease::{ClockReading, LeaseRequest, Unspent},
    leased_key::Granted,
    stripes::KeyLocation,
    table::Leases,
};
use crate::{
    background::background_runtime,
    clock::Timestamp,
    error::StoreError,
    store::{Op, OpResult, redis::request::OnResponse},
    sync::lock,
};

/// Sends the request of a lease in the next batch of the current runtime, or from the background thread where there is none. No lease is
/// requested without a housekeeper that refunds what is left of it.
pub(super) fn send(leases: &Arc<Leases>, location: KeyLocation, request: LeaseRequest) {
    let counters = request.counters.clone();
    let grant = Box::new(Grant {
        leases: leases.clone(),
        location,
        request,
    });
    match leases.workers.upgrade() {
        Some(workers) if leases.start_housekeeper() => {
            workers.execute_with_callback(Op::Acquire(1), counters, grant, false);
        }
        _ => grant.fail(),
    }
}

/// A lease that is requested.
#[derive(Debug)]
struct Grant {
    leases: Arc<Leases>,
    location: KeyLocation,
    request: LeaseRequest,
}

impl OnResponse for Grant {
    fn on_response(self: Box<Self>, response: Result<OpResult, StoreError>) {
        match response {
            Ok(result) => self.record(&result),
            Err(error) => {
                if !error.had_no_effect() {
                    self.leases.totals.lose(&self.request);
                }
                self.fail();
            }
        }
    }
}

impl Grant {
    /// Hands the units to the key.
    fn record(&self, result: &OpResult) {
        let (leases, request) = (&self.leases, &self.request);
        leases.totals.grant(request, result);
        // A lease that is late counts as unsettled until its refund does.
        let _unsettled = UnsettledGuard::new(leases);
        let granted = leases.with_key(self.location, request.key_id, |key| {
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
            Granted::Held { .. } | Granted::Rejected => {}
            Granted::Late(unspent) => leases.refund(unspent),
            Granted::Discarded => leases.totals.lapse_charge(request, result),
        }
        if let Some(refund_at) = refund_at {
            leases.schedule_refund(refund_at, request.key_id, self.location);
        }
    }

    /// Records that there is no lease.
    fn fail(&self) {
        let _unsettled = UnsettledGuard::new(&self.leases);
        let (key_id, number) = (self.request.key_id, self.request.number);
        let now = ClockReading::read().monotonic;
        self.leases
            .with_key(self.location, key_id, |key| key.fail(number, now));
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
    /// Refunds units by the workers of the background thread, since a runtime of the application may stand still. The refund is sent
    /// once, since another one might take others' units: what is not refunded lapses.
    pub(super) fn refund(self: &Arc<Self>, unspent: Unspent) {
        if unspent.counters.is_empty() {
            return;
        }
        let Some(workers) = self.workers.upgrade() else {
            return self.totals.lapse(&unspent);
        };
        self.totals.begin_refund(&unspent);
        let counters = unspent.counters.clone();
        let unsettled = UnsettledGuard::new(self);
        let refund = Box::new(Refund { unspent, unsettled });
        workers.execute_with_callback(Op::Refund, counters, refund, true);
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

/// The keys with leases that are due to be refunded, and the task that waits for them.
#[derive(Debug, Default)]
pub(super) struct Housekeeper {
    /// By the instant and the ID of the key.
    due: Mutex<BTreeMap<(Timestamp, u64), KeyLocation>>,
    /// Notified when a key is due before all others, and when the store is dropped.
    changed: Arc<Notify>,
    /// Started with the first lease that is requested.
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Leases {
    /// Starts the housekeeper unless it runs. Returns whether it does.
    pub(super) fn start_housekeeper(self: &Arc<Self>) -> bool {
        // Not under the lock: it may log.
        let Some(background) = background_runtime() else {
            return false;
        };
        let mut task = lock(&self.housekeeper.task);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let changed = self.housekeeper.changed.clone();
            *task = Some(background.spawn(refund_when_due(Arc::downgrade(self), changed)));
        }
        true
    }

    /// Has the housekeeper look at a key at an instant.
    pub(super) fn schedule_refund(&self, at: Timestamp, key_id: u64, location: KeyLocation) {
        let mut due = lock(&self.housekeeper.due);
        let first = due.first_key_value();
        let is_first = first.is_none_or(|((first, _), _)| at < *first);
        due.insert((at, key_id), location);
        drop(due);
        if is_first {
            self.housekeeper.changed.notify_one();
        }
    }

    /// Refunds what is left of the leases that are due. Returns the time until the next one is.
    fn refund_due(self: &Arc<Self>) -> Option<Duration> {
        loop {
            let mut due = lock(&self.housekeeper.due);
            let (first, now) = (due.first_entry()?, ClockReading::read().monotonic);
            let (at, key_id) = *first.key();
            if at > now {
                return Some(at.since(now));
            }
            // A flush meanwhile waits for these, too.
            let _unsettled = UnsettledGuard::new(self);
            let location = first.remove();
            drop(due);
            let reclaimed = self.with_key(location, key_id, |key| key.reclaim_due(now));
            let (unspent, next) = reclaimed.unwrap_or_default();
            if let Some(next) = next {
                self.schedule_refund(next, key_id, location);
            }
            unspent.into_iter().for_each(|unspent| self.refund(unspent));
        }
    }
}

/// Ends with the store.
async fn refund_when_due(leases: Weak<Leases>, changed: Arc<Notify>) {
    while let Some(next) = leases.upgrade().map(|leases| leases.refund_due()) {
        let until_due = async {
            match next {
                Some(next) => sleep(next).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = changed.notified() => {}
            () = until_due => {}
        }
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}
