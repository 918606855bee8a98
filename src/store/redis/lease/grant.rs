//! Requests a lease, and refunds what is left of it.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::{
    Leases,
    held_lease::{LeaseRequest, Now, Unspent},
    leased_key::{Granted, LeasedKey},
};
use crate::{
    error::StoreError,
    runtime::runtime_with_io,
    store::{Op, OpResult, PendingResponse, redis::request::op::CounterOps},
};

/// Sends the request of a lease from the current runtime, in the next batch. A task waits for the response.
pub(super) fn send(leases: &Arc<Leases>, hash: u64, request: LeaseRequest) {
    let response = match runtime_with_io() {
        Some(runtime) => {
            let op = Op::Acquire(request.requests);
            execute(leases, op, request.counters.clone()).map(|response| (runtime, response))
        }
        None => None,
    };
    let lease = RequestedLease {
        leases: leases.clone(),
        hash,
        request,
        is_answered: false,
    };
    // Without a task the lease is dropped, and so is no longer waited for.
    if let Some((runtime, response)) = response {
        drop(runtime.spawn(lease.run(response)));
    }
}

/// Refunds units without waiting for it.
pub(super) fn refund_detached(leases: &Arc<Leases>, unspent: Unspent) {
    match runtime_with_io() {
        Some(runtime) => {
            let leases = leases.clone();
            drop(runtime.spawn(async move { refund(&leases, unspent).await }));
        }
        None => leases.totals.lapse(&unspent),
    }
}

/// Refunds units of a lease. It is sent once: after an error they are lost, since a second refund might take others' units.
pub(super) async fn refund(leases: &Arc<Leases>, unspent: Unspent) {
    let refunded = match execute(leases, Op::Refund, unspent.counters.clone()) {
        Some(response) => response.await,
        None => Err(StoreError::Timeout),
    };
    leases.totals.refund(&unspent, refunded.ok().as_ref());
}

fn execute(leases: &Arc<Leases>, op: Op, counters: CounterOps) -> Option<PendingResponse> {
    let workers = leases.workers.upgrade()?;
    let response = workers.execute(op, counters, workers.deadline(), None);
    Some(response.ok()?.into())
}

/// A lease that was requested. Dropped before it is answered, it is not waited for any more.
struct RequestedLease {
    leases: Arc<Leases>,
    hash: u64,
    request: LeaseRequest,
    is_answered: bool,
}

impl RequestedLease {
    async fn run(mut self, response: PendingResponse) {
        let Ok(result) = response.await else {
            return;
        };
        let answered_at = Instant::now();
        let granted = self.grant(&result);
        let leases = self.leases.clone();
        let refund_after = match granted {
            Granted::Rejected => return,
            Granted::Held { refund_after } => refund_after,
            Granted::Late(unspent) => {
                leases.totals.grant(&self.request, &result);
                return refund(&leases, unspent).await;
            }
            Granted::Ended => return leases.totals.lapse_charge(&self.request, &result),
        };
        leases.totals.grant(&self.request, &result);
        sleep_until(answered_at + refund_after).await;
        let number = self.request.number;
        let unspent = self.with_key(|key| key.take_back(number)).flatten();
        if let Some(unspent) = unspent {
            refund(&leases, unspent).await;
        }
    }

    fn grant(&mut self, result: &OpResult) -> Granted {
        self.is_answered = true;
        let request = &self.request;
        let granted = self.with_key(|key| key.grant(request, result, Now::read()));
        granted.unwrap_or(Granted::Ended)
    }

    fn with_key<T>(&self, f: impl FnOnce(&mut LeasedKey) -> T) -> Option<T> {
        let mut shard = self.leases.shard(self.hash);
        let id = self.request.key_id;
        shard.keys.find_mut(self.hash, |key| key.id == id).map(f)
    }
}

impl Drop for RequestedLease {
    fn drop(&mut self) {
        if !self.is_answered {
            let (number, now) = (self.request.number, Now::read().monotonic);
            self.with_key(|key| key.fail(number, now));
        }
    }
}
