//! The worker: a task that owns one connection to Redis and sends batches of requests on it.
//!
//! While a batch is in flight, further requests gather in the queue; when its reply arrives, or when enough of them wait, they
//! are sent as the next batch. So the batch size follows the load, without a timer:
//!
//! 1. `WorkerPool` ([`pool`]) finds the worker of the request's keys and pushes the [`PendingRequest`] into its
//!    [`RequestQueue`].
//! 2. [`Worker::run`] does the steps of its [`Schedule`] ([`schedule`]): it drains the queue, fills a [`Batch`] and hands it to
//!    [`dispatch::send_batch`].
//! 3. `send_batch` encodes one EVALSHA, follows redirects, decodes the reply and completes each request.
//! 4. Requests to be retried (their slot is migrating, or the clocks differ) go to the front of the backlog.
//!
//! [`shared_task`] lets a request's own task send a small batch. [`pool`] has the workers of each runtime, and takes requests
//! from runtimes that make no progress.

use std::{
    future::{Future, pending, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::time::Instant;

use self::{
    schedule::{
        BatchLoad, MAX_IN_FLIGHT_BATCHES, MIN_KEYS_FOR_EXTRA_BATCH, PushOutcome, RequestQueue,
        Schedule, Step,
    },
    shared_task::SharedTask,
};
use super::{
    batch::{Batch, deadline_timer::DeadlineTimer},
    breaker::{
        Breaker,
        confirmation::{MAX_STOPS_IN_ROW, is_moved, was_held_up},
    },
    request::{PendingRequest, Sent},
    state::StoreState,
    topology::Route,
};
use crate::{
    error::StoreError,
    sync::{CachePadded, lock},
};

pub(crate) mod dispatch;
pub(crate) mod pool;
mod probe;
mod schedule;
pub(crate) mod shared_task;

/// If at most so many requests waited for the last batch, the task that pushes a request polls the worker inline, which sends it.
/// Above, it wakes the worker's task: by the time that runs, further requests have arrived.
const MAX_INLINE_SEND: usize = 4;

#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<StoreState>,
    /// The hash tag of its keys: zero, except on a cluster.
    tag: usize,
    breaker: Arc<Breaker>,
    /// Padded, since all callers write to it and read the fields beside it.
    queue: CachePadded<Mutex<RequestQueue<PendingRequest>>>,
    task: SharedTask,
    /// Requests that waited when the last batch was filled; zero while the worker is idle.
    last_waiting: AtomicUsize,
    /// While a batch is in flight, every so many queued requests wake the worker.
    wake_every: AtomicUsize,
    /// Whether the batch that was polled last leaves the worker.
    is_leaving: AtomicBool,
    last_stop: Mutex<Option<Stop>>,
}

/// The last time that this process was held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stop {
    noticed_at: Instant,
    /// How many have followed each other within two timeouts.
    in_row: u32,
    /// When the last one that counts was noticed.
    resumed_at: Instant,
}

/// A batch in flight. Resolves to the emptied batch, for reuse, and the requests to retry.
type InFlightBatch = Pin<Box<dyn Future<Output = (Batch, Vec<PendingRequest>)> + Send>>;

impl Worker {
    /// A worker for the keys of one hash tag. It sends nothing while the circuit breaker of its node is open.
    pub(crate) fn new(shared: Arc<StoreState>, tag: usize) -> Self {
        Self {
            breaker: shared.breaker(tag).clone(),
            shared,
            tag,
            queue: CachePadded::default(),
            task: SharedTask::default(),
            last_waiting: AtomicUsize::new(0),
            wake_every: AtomicUsize::new(MIN_KEYS_FOR_EXTRA_BATCH),
            is_leaving: AtomicBool::new(false),
            last_stop: Mutex::default(),
        }
    }

    /// Queues a request, and sends it if no batch is in flight. To be called within the worker's runtime only.
    ///
    /// # Errors
    ///
    /// [`StoreError::CircuitOpen`] while the circuit breaker is open.
    pub(crate) fn push(&self, request: PendingRequest) -> Result<(), StoreError> {
        if self.enqueue(request)? {
            match self.last_waiting.load(Ordering::Relaxed) {
                0..=MAX_INLINE_SEND => self.task.poll_inline(),
                _ => self.task.wake(),
            }
        }
        Ok(())
    }

    /// Queues a request. Returns whether the worker has to be woken.
    fn enqueue(&self, request: PendingRequest) -> Result<bool, StoreError> {
        if let Err(open) = self.breaker.check() {
            // There is no prober if it could not be started, or in a forked process.
            probe::start(&self.shared, self.tag);
            return Err(self.fail(request, open));
        }
        let wake_every = self.wake_every.load(Ordering::Relaxed);
        let enqueue = self.queue().push(request, wake_every);
        // The lock is released here. A request that a closed queue returns is dropped, and its waiter may push again at once.
        Ok(matches!(enqueue, PushOutcome::Wake))
    }

    /// Queues a request that no task waits for. Can be called from any thread.
    pub(crate) fn push_detached(&self, request: PendingRequest) {
        if let Ok(true) = self.enqueue(request) {
            self.task.wake();
        }
    }

    /// Removes the detached requests whose deadline is before `deadline_before` from the queue.
    pub(crate) fn take_stalled(&self, deadline_before: Instant) -> Vec<PendingRequest> {
        let stalls =
            |request: &PendingRequest| !request.has_waiter() && request.deadline < deadline_before;
        self.queue().extract(stalls)
    }

    /// Ends the worker once its queue is empty.
    pub(crate) fn close(&self) {
        self.queue().close();
        self.task.wake();
    }

    /// Serves the queue until the worker is closed.
    pub(crate) async fn run(self: Arc<Self>, route: Route) {
        let work = self.clone().serve(route);
        self.task.run(work).await;
    }

    /// Does the steps of the [`Schedule`].
    async fn serve(self: Arc<Self>, route: Route) {
        let mut schedule = Schedule::default();
        let mut in_flight = Vec::with_capacity(MAX_IN_FLIGHT_BATCHES);
        let mut batch_pool = Vec::new();
        let mut timer = DeadlineTimer::default();
        // When this task had last waited for a reply.
        let mut waited_until = None;
        let route = Arc::new(route);
        loop {
            match schedule.next_step(in_flight.len()) {
                Step::Drain => self.drain(&mut schedule, in_flight.len()),
                Step::Flush => {
                    let mut batch = batch_pool.pop().unwrap_or_default();
                    self.fill(&mut schedule, &mut batch, waited_until);
                    if batch.is_empty() {
                        batch_pool.push(batch);
                        continue;
                    }
                    // Tasks that it drops refund what they were charged, which a connection that is gone would lose. They are kept.
                    if batch.must_not_be_lost() && is_shutting_down() {
                        return;
                    }
                    let sent = dispatch::send_batch(self.clone(), route.clone(), batch);
                    in_flight.push(Box::pin(sent) as InFlightBatch);
                }
                Step::AwaitReply => tokio::select! {
                    biased;
                    completed = self.next_completed(&mut in_flight) => {
                        waited_until = Some(Instant::now());
                        if let Some((batch, again)) = completed {
                            waited_until = batch.ended_at.or(waited_until);
                            batch_pool.push(batch);
                            schedule.retry(again);
                        }
                    }
                    () = self.task.notified() => waited_until = Some(Instant::now()),
                    () = self.wait_deadline(&mut timer, schedule.first()) => {
                        waited_until = Some(Instant::now());
                        self.fail_overdue(&mut schedule);
                    }
                },
                Step::AwaitRequest => {
                    self.last_waiting.store(0, Ordering::Relaxed);
                    self.task.notified().await;
                }
                Step::End => return,
            }
        }
    }

    /// Drains the queue. While the circuit breaker is open, the drained requests fail.
    fn drain(&self, schedule: &mut Schedule<PendingRequest>, in_flight: usize) {
        schedule.drain(&mut self.queue(), in_flight);
        if let Err(open) = self.breaker.check() {
            for request in schedule.take_waiting() {
                self.fail(request, open.clone());
            }
        }
    }

    /// Fills a batch. Requests past their deadline fail, cancelled ones are dropped. A deadline that has passed since this task had last
    /// waited for a reply shows that the process was held up; one that passed before may be late for the reply.
    fn fill(
        &self,
        schedule: &mut Schedule<PendingRequest>,
        batch: &mut Batch,
        waited_until: Option<Instant>,
    ) {
        self.last_waiting
            .store(schedule.waiting(), Ordering::Relaxed);
        let now = Instant::now();
        let requests = schedule.fill(|request| {
            let until = self.awaited_until(request.deadline, now);
            let is_late = || {
                waited_until.is_none_or(|waited| waited <= until)
                    && self.note_if_held_up(until, now)
            };
            if until <= now && !is_late() {
                self.fail(request, StoreError::timeout());
            } else if !request.is_cancelled() {
                return batch.push(request);
            }
            Ok(())
        });
        if !batch.is_empty() {
            let keys = batch.keys();
            let wake_every = schedule.sent(BatchLoad { requests, keys });
            self.wake_every.store(wake_every, Ordering::Relaxed);
        }
    }

    /// Removes the requests at the front of the backlog whose deadline has passed, and fails them.
    fn fail_overdue(&self, schedule: &mut Schedule<PendingRequest>) {
        let now = Instant::now();
        let is_overdue = |first: &PendingRequest| self.awaited_until(first.deadline, now) <= now;
        while let Some(late) = schedule.take_first_if(is_overdue) {
            self.fail(late, StoreError::timeout());
        }
    }

    /// Fails a request that was not sent. Returns its error.
    fn fail(&self, request: PendingRequest, error: StoreError) -> StoreError {
        let refunds = &self.shared.pending_refunds;
        refunds.fail_and_keep(self.tag, request, error, Sent::No)
    }

    /// Until when a request with this deadline is awaited: once that has passed, for one more timeout if the server has answered a
    /// probe since the request arrived, and for a timeout from the instant on at which this process was found to have been held up.
    #[inline]
    fn awaited_until(&self, deadline: Instant, now: Instant) -> Instant {
        if now < deadline {
            return deadline;
        }
        self.extended(deadline)
    }

    #[cold]
    fn extended(&self, deadline: Instant) -> Instant {
        let timeout = self.shared.timeout;
        let arrival = deadline.into_std().checked_sub(timeout);
        let is_confirmed = arrival.is_some_and(|at| self.breaker.is_confirmed_since(at));
        let confirmed = deadline
            + if is_confirmed {
                timeout
            } else {
                Duration::ZERO
            };
        let last_stop = *lock(&self.last_stop);
        last_stop.map_or(confirmed, |stop| confirmed.max(stop.resumed_at + timeout))
    }

    /// Whether an instant that this task waits for is noticed so late that this process was held up, which is noted.
    #[cold]
    fn note_if_held_up(&self, due: Instant, now: Instant) -> bool {
        was_held_up(self.shared.timeout, due, now) && !is_moved(now) && self.note_stop(due, now)
    }

    /// Notes a stop of this process, and returns whether it counts.
    fn note_stop(&self, due: Instant, now: Instant) -> bool {
        let timeout = self.shared.timeout;
        let mut last_stop = lock(&self.last_stop);
        let in_row = match *last_stop {
            // The same one.
            Some(last) if due <= last.noticed_at => return last.resumed_at == last.noticed_at,
            Some(last) if due < last.noticed_at + 2 * timeout => last.in_row.saturating_add(1),
            _ => 1,
        };
        let counts = in_row <= MAX_STOPS_IN_ROW || now - due > timeout;
        let before = last_stop.map_or(now, |last| last.resumed_at);
        *last_stop = Some(Stop {
            noticed_at: now,
            in_row,
            resumed_at: if counts { now } else { before },
        });
        counts
    }

    /// Has a batch whose requests have timed out leave the worker, if some of them must not be lost and can't be sent again.
    fn begin_late(&self, batch: &mut Batch) -> bool {
        let refunds = &self.shared.pending_refunds;
        if !batch.requests().any(PendingRequest::is_lost_if_sent) {
            return false;
        }
        for request in batch.requests() {
            refunds.keep_idempotent(self.tag, request);
        }
        batch.is_late = true;
        self.is_leaving.store(true, Ordering::Relaxed);
        true
    }

    /// Waits for the deadline of the first request of the backlog, which may be a retry: its deadline is then earlier than those
    /// of the batches in flight.
    async fn wait_deadline(&self, timer: &mut DeadlineTimer, first: Option<&PendingRequest>) {
        let Some(first) = first else {
            return pending().await;
        };
        let now = Instant::now();
        let deadline = self.awaited_until(first.deadline, now).max(now);
        poll_fn(|cx| timer.poll(deadline, cx)).await;
        self.note_if_held_up(deadline, Instant::now());
    }

    fn is_closed(&self) -> bool {
        self.queue().is_closed()
    }

    /// Waits until a batch completes, or has left; it is then `None`. They are polled in order, since a batch is sent at its first
    /// poll.
    async fn next_completed(
        &self,
        in_flight: &mut Vec<InFlightBatch>,
    ) -> Option<(Batch, Vec<PendingRequest>)> {
        poll_fn(|cx| {
            for place in 0..in_flight.len() {
                let result = in_flight[place].as_mut().poll(cx);
                let is_leaving = self.is_leaving.load(Ordering::Relaxed);
                if is_leaving {
                    self.is_leaving.store(false, Ordering::Relaxed);
                }
                if let Poll::Ready(back) = result {
                    drop(in_flight.remove(place));
                    return Poll::Ready(Some(back));
                }
                if is_leaving {
                    // Its reply is awaited beside the worker's other batches.
                    drop(tokio::spawn(in_flight.remove(place)));
                    return Poll::Ready(None);
                }
            }
            Poll::Pending
        })
        .await
    }

    fn queue(&self) -> MutexGuard<'_, RequestQueue<PendingRequest>> {
        lock(&self.queue)
    }
}

/// Whether the current runtime is shutting down, and so drops the tasks that are spawned.
fn is_shutting_down() -> bool {
    let task = tokio::spawn(pending::<()>());
    let is_dropped = task.is_finished();
    task.abort();
    is_dropped
}
