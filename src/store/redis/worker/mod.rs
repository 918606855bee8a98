//! A lane: one connection that carries, on each trip, what arrived while the last one was under way.

use std::{
    collections::VecDeque,
    future::{Future, pending, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use tokio::time::Instant;

use self::{
    queue::{DrainOutcome, PushOutcome, RequestQueue},
    shared_task::SharedTask,
};
use super::{
    batch::{Batch, MAX_BATCH_KEYS, deadline_timer::DeadlineTimer},
    breaker::Breaker,
    request::PendingRequest,
    state::StoreState,
    topology::Route,
};
use crate::{error::StoreError, sync::CachePadded};

pub(crate) mod dispatch;
pub(crate) mod pool;
mod probe;
pub(crate) mod queue;
pub(crate) mod shared_task;
pub(crate) mod steal;

/// Trips that may be under way at once, so that a server that is far away isn't waited for, and one that is near doesn't
/// wait for those it has answered. They keep their order: the connection is one.
const MAX_IN_FLIGHT_BATCHES: usize = 4;

/// Where no more went last time, whoever comes first sends his trip off himself. Else it's left to the lane: until it's the
/// lane's turn, others will have come.
const MAX_INLINE_SEND: usize = 4;

/// As many keys that wait are worth a second trip: what a call costs by itself is little beside so many.
const MIN_KEYS_FOR_EXTRA_BATCH: usize = 32;

/// As many questions are worth one beside so many, if they are like those that went last: a full batch at most, so that none
/// is smaller than it has to be.
fn flush_threshold(in_flight: usize, last: BatchLoad) -> usize {
    let keys = if in_flight < 2 {
        MIN_KEYS_FOR_EXTRA_BATCH
    } else {
        MAX_BATCH_KEYS
    };
    let alike = keys * last.requests / last.keys.max(1);
    // Equal questions are one key: each costs more by a trip of few than by waiting for as many as went last. Where few ask
    // of a server that is far away, no more than those go at once.
    let beside = in_flight.clamp(1, 2);
    let most = (last.requests * beside).clamp(keys, MAX_BATCH_KEYS * beside);
    alike.clamp(1, most)
}

/// What a trip carries.
#[derive(Clone, Copy, Debug)]
struct BatchLoad {
    requests: usize,
    keys: usize,
}

#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<StoreState>,
    /// The hash tag of its keys: zero, but on a cluster.
    tag: usize,
    breaker: Arc<Breaker>,
    /// Padded: all callers write to it, and read its neighbours.
    queue: CachePadded<Mutex<RequestQueue<PendingRequest>>>,
    task: SharedTask,
    /// How many went last time.
    last_batch_len: AtomicUsize,
    /// As many that wait are worth a second trip.
    flush_threshold: AtomicUsize,
}

/// A trip that is under way. Back, it brings its batch, to be used again, and questions that are to be asked again.
type InFlightBatch = Pin<Box<dyn Future<Output = (Batch, Vec<PendingRequest>)> + Send>>;

impl Worker {
    /// A lane for keys of a hash tag. It asks nothing while their breaker is open.
    pub(crate) fn new(shared: Arc<StoreState>, tag: usize) -> Self {
        Self {
            breaker: shared.breaker(tag).clone(),
            shared,
            tag,
            queue: CachePadded::default(),
            task: SharedTask::default(),
            last_batch_len: AtomicUsize::new(0),
            flush_threshold: AtomicUsize::new(MIN_KEYS_FOR_EXTRA_BATCH),
        }
    }

    /// Puts a question in the queue, unless nothing is to be asked now, and sends it off if no trip is under way. Only to be
    /// used within the lane's runtime.
    pub(crate) fn push(&self, request: PendingRequest) -> Result<(), StoreError> {
        if self.enqueue(request)? {
            match self.last_batch_len.load(Ordering::Relaxed) {
                0..=MAX_INLINE_SEND => self.task.poll_inline(),
                _ => self.task.wake(),
            }
        }
        Ok(())
    }

    /// Puts a question in the queue, unless nothing is to be asked now. Returns whether the lane has to be called.
    fn enqueue(&self, request: PendingRequest) -> Result<bool, StoreError> {
        if let Err(open) = self.breaker.check() {
            // Whoever saw to the probes may have ended with its runtime.
            probe::start(&self.shared, &self.breaker, self.tag);
            let kept = &self.shared.pending_refunds;
            kept.fail(self.tag, request, open.clone(), false);
            return Err(open);
        }
        // Not under the lock: whoever is told may ask again.
        let enqueue = self
            .queue()
            .push(request, self.flush_threshold.load(Ordering::Relaxed));
        if let PushOutcome::Closed(request) = enqueue {
            self.shared
                .pending_refunds
                .keep_for_next_runtime(self.tag, request);
            return Ok(false);
        }
        Ok(matches!(enqueue, PushOutcome::Wake))
    }

    /// Has something done that nobody waits for, from anywhere.
    pub(crate) fn push_detached(&self, request: PendingRequest) {
        if let Ok(true) = self.enqueue(request) {
            self.task.wake();
        }
    }

    /// Takes what nothing waits for out of the queue, as far as its deadline is before `told_before`.
    pub(crate) fn stalled(&self, queued_before: Instant) -> Vec<PendingRequest> {
        let stalls =
            |request: &PendingRequest| request.is_detached() && request.deadline < queued_before;
        self.queue().extract(stalls)
    }

    /// Ends the lane once its queue is empty.
    pub(crate) fn close(&self) {
        self.queue().close();
        self.task.wake();
    }

    /// Carries questions until it is closed.
    pub(crate) async fn run(self: Arc<Self>, route: Route) {
        let work = self.clone().serve(route);
        self.task.run(work).await;
    }

    async fn serve(self: Arc<Self>, route: Route) {
        let (mut incoming, mut backlog) = (Vec::new(), VecDeque::new());
        let mut last = BatchLoad {
            requests: 1,
            keys: 1,
        };
        let (mut in_flight, mut batch_pool) =
            (Vec::with_capacity(MAX_IN_FLIGHT_BATCHES), Vec::new());
        let mut timer = DeadlineTimer::default();
        let route = Arc::new(route);
        loop {
            let (in_flight_now, may) = (in_flight.len(), in_flight.len() < MAX_IN_FLIGHT_BATCHES);
            let left = backlog.len();
            let drained = self.queue().drain(
                &mut incoming,
                left,
                in_flight_now,
                may,
                flush_threshold(in_flight_now, last),
            );
            if let Err(open) = self.breaker.check() {
                let waiting = backlog.drain(..).chain(incoming.drain(..));
                let kept = &self.shared.pending_refunds;
                waiting.for_each(|request| kept.fail(self.tag, request, open.clone(), false));
            }
            while in_flight.is_empty()
                || in_flight.len() < MAX_IN_FLIGHT_BATCHES
                    && incoming.len() + backlog.len() >= flush_threshold(in_flight.len(), last)
            {
                let waiting = incoming.len() + backlog.len();
                self.last_batch_len.store(waiting, Ordering::Relaxed);
                let mut batch = batch_pool.pop().unwrap_or_default();
                fill_batch(&mut batch, &mut backlog, &mut incoming, |late| {
                    let kept = &self.shared.pending_refunds;
                    kept.fail(self.tag, late, StoreError::Timeout, false);
                });
                if batch.is_empty() {
                    batch_pool.push(batch);
                    break;
                }
                last = BatchLoad {
                    requests: waiting - backlog.len(),
                    keys: batch.keys(),
                };
                self.flush_threshold
                    .store(flush_threshold(1, last), Ordering::Relaxed);
                let (shared, breaker) = (self.shared.clone(), self.breaker.clone());
                let trip = dispatch::send_batch(shared, route.clone(), breaker, batch);
                in_flight.push(Box::pin(trip) as InFlightBatch);
            }
            if in_flight.is_empty() {
                match drained {
                    // All of them had gone. Others may have come meanwhile, and were told that a trip is under way.
                    DrainOutcome::Drained => {}
                    DrainOutcome::Empty => self.task.notified().await,
                    DrainOutcome::Closed => return,
                }
                continue;
            }
            tokio::select! {
                biased;
                (batch, again) = next_completed(&mut in_flight) => {
                    batch_pool.push(batch);
                    again.into_iter().rev().for_each(|request| backlog.push_front(request));
                }
                () = self.task.notified() => {}
                () = wait_deadline(&mut timer, backlog.front()) => self.expire_overdue(&mut backlog),
            }
        }
    }

    /// Tells those whose time is up.
    fn expire_overdue(&self, backlog: &mut VecDeque<PendingRequest>) {
        let now = Instant::now();
        let is_late = |first: &PendingRequest| first.deadline <= now;
        while backlog.front().is_some_and(is_late)
            && let Some(late) = backlog.pop_front()
        {
            let kept = &self.shared.pending_refunds;
            kept.fail(self.tag, late, StoreError::Timeout, false);
        }
    }

    fn queue(&self) -> MutexGuard<'_, RequestQueue<PendingRequest>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever is left in a lane whose runtime has ended is answered, not left hanging, and refunds are kept for another.
impl Drop for Worker {
    fn drop(&mut self) {
        let requests = self.queue().take_remaining();
        for request in requests {
            self.shared
                .pending_refunds
                .keep_for_next_runtime(self.tag, request);
        }
    }
}

/// Fills a batch from the backlog, and then from those who have come since, who are its end if they don't fit: first come,
/// first served. Those whose time is up, and those who have gone, stay behind.
fn fill_batch(
    batch: &mut Batch,
    backlog: &mut VecDeque<PendingRequest>,
    incoming: &mut Vec<PendingRequest>,
    fail: impl Fn(PendingRequest),
) {
    let now = Instant::now();
    let mut fill_batch = |request: PendingRequest| {
        if request.deadline <= now {
            fail(request);
        } else if !request.is_cancelled() {
            return batch.push(request);
        }
        Ok(())
    };
    let mut incoming = incoming.drain(..);
    while let Some(request) = backlog.pop_front().or_else(|| incoming.next()) {
        if let Err(request) = fill_batch(request) {
            backlog.push_front(*request);
            break;
        }
    }
    backlog.extend(incoming);
}

/// Waits until a question's time is up, if there is one. The first that waits may be one that is asked again: whose trip is
/// under way now came after it, and has more time.
async fn wait_deadline(timer: &mut DeadlineTimer, first: Option<&PendingRequest>) {
    match first.map(|request| request.deadline) {
        Some(deadline) => poll_fn(|cx| timer.poll(deadline, cx)).await,
        None => pending().await,
    }
}

/// Waits for one of the trips to be back. They are polled in order, since it's the first poll that sends.
async fn next_completed(in_flight: &mut Vec<InFlightBatch>) -> (Batch, Vec<PendingRequest>) {
    poll_fn(|cx| {
        for place in 0..in_flight.len() {
            if let Poll::Ready(back) = in_flight[place].as_mut().poll(cx) {
                drop(in_flight.remove(place));
                return Poll::Ready(back);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::redis::request::{RequestState, op::OwnedCounterOp};
    use crate::{
        key::Key,
        quota::Quota,
        store::{CounterOp, LimitHandle, Op},
        strategy::{Gcra, Strategy},
    };

    fn request(limit: &LimitHandle, key: &str) -> PendingRequest {
        let line = CounterOp::plain(limit, Key::new(key));
        let counters = [OwnedCounterOp::of(&line)].into();
        let deadline = Instant::now() + Duration::from_secs(60);
        let hash = key
            .bytes()
            .fold(0, |hash, byte| 31 * hash + u64::from(byte));
        PendingRequest::detached(RequestState::new(Op::Acquire(1), counters, deadline, hash))
    }

    /// Boards so often until all have left; returns how many different keys each batch held, and how many questions.
    fn in_flight(incoming: Vec<PendingRequest>) -> Vec<(usize, usize)> {
        let (mut batch, mut backlog, mut incoming) = (Batch::default(), VecDeque::new(), incoming);
        let mut in_flight = Vec::new();
        loop {
            fill_batch(&mut batch, &mut backlog, &mut incoming, |_| {});
            if batch.is_empty() {
                return in_flight;
            }
            let keys = batch.entries().count();
            in_flight.push((keys, batch.drain().count()));
            batch.clear();
        }
    }

    #[test]
    fn a_further_trip_goes_for_as_many_keys_as_it_is_worth() {
        let load = |requests, keys| BatchLoad { requests, keys };
        for (in_flight, last, worth) in [
            (1, load(1, 1), 32),
            (1, load(128, 128), 32),
            (1, load(20, 60), 10),
            (1, load(1, 128), 1),
            (2, load(128, 128), 128),
            (3, load(40, 120), 42),
            // Of equal ones as many as went last, within bounds.
            (1, load(10, 1), 32),
            (1, load(64, 1), 64),
            (1, load(64, 32), 64),
            (1, load(5_000, 1), 128),
            (2, load(64, 1), 128),
            (2, load(100, 1), 200),
            (3, load(5_000, 1), 256),
        ] {
            assert_eq!(
                flush_threshold(in_flight, last),
                worth,
                "{in_flight} {last:?}"
            );
        }
    }

    #[test]
    fn one_hot_key_takes_the_room_of_one() {
        let rule = Gcra.bind(&Quota::requests(9).per_minute()).expect("a rule");
        let limit = LimitHandle::new("p", rule, ());
        let hot = (0..10_000).map(|_| request(&limit, "hot"));
        let cold = (0..127).map(|key| request(&limit, &format!("cold {key}")));
        assert_eq!(in_flight(hot.chain(cold).collect()), [(128, 10_127)]);
    }

    #[test]
    fn who_came_first_goes_first_and_no_trip_holds_too_much() {
        let rule = Gcra.bind(&Quota::requests(9).per_minute()).expect("a rule");
        let limit = LimitHandle::new("p", rule, ());
        let all = (0..300).map(|key| request(&limit, &format!("{}", key % 150)));
        assert_eq!(in_flight(all.collect()), [(128, 128), (128, 128), (44, 44)]);
    }
}
