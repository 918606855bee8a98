//! Requests a lease, and refunds what is left of it.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::sleep;

use super::{
    held_lease::{ClockReading, LeaseRequest, Unspent},
    leased_key::{Granted, LeasedKey},
    stripes::KeyLocation,
    table::Leases,
};
use crate::{
    clock::Timestamp,
    runtime::runtime_with_io,
    store::{
        Op, PendingResponse,
        redis::request::{RefundRetry, op::CounterOps},
    },
};

/// Sends the request of a lease from the current runtime, in the next batch. A task waits for the response.
pub(super) fn send(leases: &Arc<Leases>, location: KeyLocation, request: LeaseRequest) {
    let response = match runtime_with_io() {
        Some(runtime) => {
            let response = execute(leases, Op::Acquire(1), request.counters.clone());
            response.map(|response| (runtime, response))
        }
        None => None,
    };
    let task = LeaseTask {
        leases: leases.clone(),
        location,
        key_id: request.key_id,
        state: match response {
            Some(_) => State::Waiting(request),
            None => State::Unsent(request.number),
        },
    };
    // Without a runtime the task is dropped, and so the lease is not waited for.
    if let Some((runtime, response)) = response {
        drop(runtime.spawn(task.run(response)));
    }
}

/// Refunds units without waiting for it.
pub(super) fn refund_detached(leases: &Arc<Leases>, unspent: Unspent) {
    if unspent.counters.is_empty() {
        return;
    }
    // Without a runtime the refund is dropped, and the units lapse.
    let refund = Refund::send(leases, unspent);
    if let Some(runtime) = runtime_with_io() {
        drop(runtime.spawn(refund.finish()));
    }
}

/// The refund of unspent units. It is sent once, since another one might take others' units: what it does not refund lapses, also
/// if it is dropped.
pub(super) struct Refund {
    leases: Arc<Leases>,
    unspent: Option<Unspent>,
    response: Option<PendingResponse>,
    _unsettled: UnsettledGuard,
}

impl Refund {
    pub(super) fn send(leases: &Arc<Leases>, unspent: Unspent) -> Self {
        leases.totals.begin_refund(&unspent);
        Self {
            _unsettled: UnsettledGuard::new(leases),
            leases: leases.clone(),
            response: execute(leases, Op::Refund, unspent.counters.clone()),
            unspent: Some(unspent),
        }
    }

    pub(super) async fn finish(mut self) {
        let result = match self.response.take() {
            Some(response) => response.await.ok(),
            None => None,
        };
        if let Some(unspent) = self.unspent.take() {
            self.leases.totals.refund(&unspent, result.as_ref());
        }
    }
}

impl Drop for Refund {
    fn drop(&mut self) {
        if let Some(unspent) = self.unspent.take() {
            self.leases.totals.refund(&unspent, None);
        }
    }
}

/// Counts as unsettled, until it is dropped.
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

fn execute(leases: &Arc<Leases>, op: Op, counters: CounterOps) -> Option<PendingResponse> {
    let workers = leases.workers.upgrade()?;
    let retry = RefundRetry::Never;
    let response = workers.execute_with_refund_retry(op, counters, workers.deadline(), retry);
    Some(response.ok()?.into())
}

/// A task that waits for a lease, or refunds the leases of a key when they are due. If it is dropped, because its runtime has
/// ended, the lease is not waited for any more, or what the key holds is refunded on another runtime.
struct LeaseTask {
    leases: Arc<Leases>,
    location: KeyLocation,
    key_id: u64,
    state: State,
}

enum State {
    /// The lease of this number was not sent.
    Unsent(u64),
    /// It waits for this lease.
    Waiting(LeaseRequest),
    /// It refunds leases, as the refund task of this number.
    Refunding(u64),
    Done,
}

impl LeaseTask {
    async fn run(mut self, response: PendingResponse) {
        let response = response.await;
        let State::Waiting(request) = mem::replace(&mut self.state, State::Done) else {
            return;
        };
        let result = match response {
            Ok(result) => result,
            Err(error) => {
                self.state = if error.had_no_effect() {
                    State::Unsent(request.number)
                } else {
                    State::Waiting(request)
                };
                return;
            }
        };
        self.leases.totals.grant(&request, &result);
        // A lease that is late counts as unsettled until its refund does.
        let unsettled = UnsettledGuard::new(&self.leases);
        let granted = self.with_key(|key| {
            let granted = key.grant(&request, &result, ClockReading::read());
            let task = match granted {
                Granted::Held { .. } => key.start_refund_task(ClockReading::read().monotonic),
                _ => None,
            };
            (granted, task)
        });
        match granted.unwrap_or((Granted::Discarded, None)) {
            (Granted::Rejected, _) => {}
            (Granted::Discarded, _) => self.leases.totals.lapse_charge(&request, &result),
            (Granted::Late(unspent), _) => {
                let refund = Refund::send(&self.leases, unspent);
                drop(unsettled);
                refund.finish().await;
            }
            (Granted::Held { refund_after }, Some(task)) => {
                drop((request, result, unsettled));
                self.state = State::Refunding(task);
                sleep(refund_after).await;
                self.refund_due_leases(task).await;
            }
            (Granted::Held { .. }, None) => {}
        }
    }

    /// Refunds the key's leases when they are due, until it holds none.
    async fn refund_due_leases(mut self, task: u64) {
        loop {
            let now = ClockReading::read().monotonic;
            let unsettled = UnsettledGuard::new(&self.leases);
            let (due, next) = self
                .with_key(|key| key.reclaim_due(task, now))
                .unwrap_or_default();
            for unspent in due {
                // Not waited for here, since the next leases may be due meanwhile.
                refund_detached(&self.leases, unspent);
            }
            drop(unsettled);
            if next.is_none() {
                self.state = State::Done;
            }
            match next {
                Some(next) => sleep(next).await,
                None => return,
            }
        }
    }

    fn with_key<T>(&self, f: impl FnOnce(&mut LeasedKey) -> T) -> Option<T> {
        let mut shard = self.leases.shard(self.location.shard);
        let mut keys = shard.keys.iter_hash_mut(self.location.hash);
        keys.find(|key| key.id == self.key_id).map(f)
    }
}

impl Drop for LeaseTask {
    fn drop(&mut self) {
        let _unsettled = UnsettledGuard::new(&self.leases);
        let fail = |number| {
            let now = ClockReading::read().monotonic;
            self.with_key(|key| key.fail(number, now));
        };
        match &self.state {
            State::Done => {}
            State::Unsent(number) => fail(*number),
            State::Waiting(request) => {
                self.leases.totals.lose(request);
                fail(request.number);
            }
            State::Refunding(task) => {
                let task = *task;
                let held = self.with_key(|key| key.end_refund_task(task));
                let held = held.unwrap_or_default();
                let workers = self.leases.workers.upgrade();
                for unspent in held {
                    self.leases.totals.lapse(&unspent);
                    // On another runtime, if there is one. The result is not known here.
                    if let Some(workers) = &workers {
                        workers.execute_detached(Op::Refund, unspent.counters);
                    }
                }
            }
        }
    }
}

impl LeasedKey {
    /// The number of the refund task, if one has to be started: if there is none, or its runtime is not polled.
    pub(super) fn start_refund_task(&mut self, now: Timestamp) -> Option<u64> {
        let next_run_at = self.next_refund().unwrap_or(now);
        self.refund_task.start(next_run_at, now)
    }

    /// Takes the leases that are due, and returns the time until the next one is. If that is `None`, the task ends: there is no
    /// other lease, or another task.
    pub(super) fn reclaim_due(
        &mut self,
        task: u64,
        now: Timestamp,
    ) -> (Vec<Unspent>, Option<Duration>) {
        if !self.refund_task.is_current(task) {
            return (Vec::new(), None);
        }
        let due = self.reclaim_where(|lease| lease.refund_at <= now);
        let next = self.next_refund();
        self.refund_task.set_next_run(next);
        (due, next.map(|next| next.since(now)))
    }

    /// Records that a task has ended before its time, and takes all leases unless there is another task.
    pub(super) fn end_refund_task(&mut self, task: u64) -> Vec<Unspent> {
        if !self.refund_task.is_current(task) {
            return Vec::new();
        }
        self.refund_task.set_next_run(None);
        self.release()
    }
}

/// A task that is later than this does not run: its runtime is not polled.
const MAX_TASK_DELAY: Duration = Duration::from_secs(1);

/// The refund task of a key, if there is one.
#[derive(Debug, Default)]
pub(super) struct RefundTask {
    /// The number of the last task.
    last: u64,
    /// When it runs next; `None` if it has ended.
    next_run_at: Option<Timestamp>,
}

impl RefundTask {
    /// The number of a new task, which runs first at `next_run_at`; `None` if there is one whose runtime is polled.
    pub(super) fn start(&mut self, next_run_at: Timestamp, now: Timestamp) -> Option<u64> {
        let is_polled = |next_run_at| now.since(next_run_at) < MAX_TASK_DELAY;
        if self.next_run_at.is_some_and(is_polled) {
            return None;
        }
        self.last += 1;
        self.next_run_at = Some(next_run_at);
        Some(self.last)
    }

    /// Whether the task of this number is the last one, and has not ended.
    pub(super) fn is_current(&self, number: u64) -> bool {
        self.next_run_at.is_some() && self.last == number
    }

    /// Records when the task runs next. With `None` it ends.
    pub(super) fn set_next_run(&mut self, next_run_at: Option<Timestamp>) {
        self.next_run_at = next_run_at;
    }
}
