//! Requests a lease, and refunds what is left of it.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::{Instant, sleep_until};

use super::{
    Leases,
    held_lease::{LeaseRequest, Now, Unspent},
    leased_key::{Granted, LeasedKey},
};
use crate::{
    error::StoreError,
    runtime::runtime_with_io,
    store::{Op, PendingResponse, redis::request::op::CounterOps},
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
        state: State::Requested,
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
            drop(runtime.spawn(refund(leases, unspent)));
        }
        None => leases.totals.lapse(&unspent),
    }
}

/// Refunds units of a lease. It is sent once: after an error they are lost, since a second refund might take others' units.
fn refund(leases: &Arc<Leases>, unspent: Unspent) -> impl Future<Output = ()> + Send + use<> {
    let refunding = Refunding::begin(leases);
    async move {
        let leases = &refunding.0;
        let refunded = match execute(leases, Op::Refund, unspent.counters.clone()) {
            Some(response) => response.await,
            None => Err(StoreError::Timeout),
        };
        leases.totals.refund(&unspent, refunded.ok().as_ref());
    }
}

/// A refund that is counted until it has a response.
struct Refunding(Arc<Leases>);

impl Refunding {
    fn begin(leases: &Arc<Leases>) -> Self {
        leases.refunding.fetch_add(1, Ordering::Relaxed);
        Self(leases.clone())
    }
}

impl Drop for Refunding {
    fn drop(&mut self) {
        self.0.refunding.fetch_sub(1, Ordering::Relaxed);
    }
}

fn execute(leases: &Arc<Leases>, op: Op, counters: CounterOps) -> Option<PendingResponse> {
    let workers = leases.workers.upgrade()?;
    let response = workers.execute(op, counters, workers.deadline(), None);
    Some(response.ok()?.into())
}

/// A lease that was requested. If it is dropped, because its runtime has ended, it is not waited for any more, or what is left of it
/// is lost.
struct RequestedLease {
    leases: Arc<Leases>,
    hash: u64,
    request: LeaseRequest,
    state: State,
}

/// How far a lease is.
enum State {
    Requested,
    /// Its key holds units of it.
    Held,
    /// Its key holds nothing of it, and waits for nothing.
    Answered,
}

impl RequestedLease {
    async fn run(mut self, response: PendingResponse) {
        let Ok(result) = response.await else {
            return;
        };
        let (leases, answered_at) = (self.leases.clone(), Instant::now());
        leases.totals.grant(&self.request, &result);
        self.state = State::Answered;
        let request = &self.request;
        let granted = self.with_key(|key| key.grant(request, &result, Now::read()));
        match granted.unwrap_or(Granted::Ended) {
            Granted::Rejected => {}
            Granted::Ended => leases.totals.lapse_charge(&self.request, &result),
            Granted::Late(unspent) => refund(&leases, unspent).await,
            Granted::Held { refund_after } => {
                self.state = State::Held;
                sleep_until(answered_at + refund_after).await;
                if let Some(unspent) = self.take_back() {
                    refund(&leases, unspent).await;
                }
            }
        }
    }

    fn take_back(&mut self) -> Option<Unspent> {
        self.state = State::Answered;
        let number = self.request.number;
        self.with_key(|key| key.take_back(number)).flatten()
    }

    fn with_key<T>(&self, f: impl FnOnce(&mut LeasedKey) -> T) -> Option<T> {
        let mut shard = self.leases.shard(self.hash);
        let id = self.request.key_id;
        shard.keys.find_mut(self.hash, |key| key.id == id).map(f)
    }
}

impl Drop for RequestedLease {
    fn drop(&mut self) {
        match self.state {
            State::Answered => {}
            State::Requested => {
                let (number, now) = (self.request.number, Now::read().monotonic);
                self.with_key(|key| key.fail(number, now));
            }
            State::Held => {
                if let Some(unspent) = self.take_back() {
                    self.leases.totals.lapse(&unspent);
                }
            }
        }
    }
}
