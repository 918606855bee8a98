//! The worker's loop without its I/O: when it drains the queue, sends a batch, waits and ends.

use std::{collections::VecDeque, mem};

use crate::redis::batch::MAX_BATCH_KEYS;

/// Batches in flight at once on one connection, whose replies come in order. More than one hides the round trip of a distant
/// server.
pub(super) const MAX_IN_FLIGHT_BATCHES: usize = 4;

/// Queued keys that justify a second batch in flight: the fixed cost of a call is small beside so many.
pub(super) const MIN_KEYS_FOR_EXTRA_BATCH: usize = 32;

/// The requests that a worker has drained and not sent yet, and what it does next. The worker does one [`Step`]
/// after another.
#[derive(Debug)]
pub(super) struct Schedule<T> {
    /// The result of the last drain; `None` if the queue has to be drained before anything else.
    drained: Option<DrainOutcome>,
    /// The drained requests. The queue takes over the allocation with the next drain.
    incoming: Vec<T>,
    /// Requests that did not fit into a batch or have to be retried: sent before the incoming ones.
    backlog: VecDeque<T>,
    last: BatchLoad,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Drain the queue, under its lock.
    Drain,
    /// Fill a batch, and send it unless it is empty.
    Flush,
    /// Wait for a reply, a wake-up or the deadline of the first request of the backlog.
    AwaitReply,
    /// Wait for a wake-up: nothing is in flight, and nothing is queued.
    AwaitRequest,
    /// End: the queue is closed, and all that it held is completed.
    End,
}

/// The size of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLoad {
    pub(super) requests: usize,
    pub(super) keys: usize,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            drained: None,
            incoming: Vec::new(),
            backlog: VecDeque::new(),
            last: BatchLoad {
                requests: 1,
                keys: 1,
            },
        }
    }
}

impl<T> Schedule<T> {
    /// The next step, while `in_flight` batches are outstanding.
    pub(super) fn next_step(&mut self, in_flight: usize) -> Step {
        let Some(drained) = self.drained else {
            return Step::Drain;
        };
        let is_worth_a_batch = || self.waiting() >= flush_threshold(in_flight, self.last);
        if self.waiting() > 0
            && (in_flight == 0 || in_flight < MAX_IN_FLIGHT_BATCHES && is_worth_a_batch())
        {
            return Step::Flush;
        }
        self.drained = None;
        match drained {
            _ if in_flight > 0 => Step::AwaitReply,
            // All drained requests were cancelled. Those pushed meanwhile did not wake the worker.
            DrainOutcome::Drained => Step::Drain,
            DrainOutcome::Empty => Step::AwaitRequest,
            DrainOutcome::Closed => Step::End,
        }
    }

    /// [`Step::Drain`]: takes the queued requests, if they can be sent now.
    pub(super) fn drain(&mut self, queue: &mut RequestQueue<T>, in_flight: usize) {
        self.drained = Some(queue.drain(
            &mut self.incoming,
            self.backlog.len(),
            in_flight,
            in_flight < MAX_IN_FLIGHT_BATCHES,
            flush_threshold(in_flight, self.last),
        ));
    }

    /// [`Step::Flush`]: hands the waiting requests to `push`, in order, until it returns one that does not fit. Returns how many
    /// were taken.
    pub(super) fn fill(&mut self, mut push: impl FnMut(T) -> Result<(), Box<T>>) -> usize {
        let waiting = self.waiting();
        let mut incoming = self.incoming.drain(..);
        while let Some(request) = self.backlog.pop_front().or_else(|| incoming.next()) {
            if let Err(request) = push(request) {
                self.backlog.push_front(*request);
                break;
            }
        }
        self.backlog.extend(incoming);
        waiting - self.backlog.len()
    }

    /// Notes the size of the batch that was sent. While that is in flight, every so many queued requests as are returned wake the
    /// worker.
    pub(super) fn sent(&mut self, load: BatchLoad) -> usize {
        self.last = load;
        flush_threshold(1, load)
    }

    /// Puts the requests of a completed batch that have to be retried before all others.
    pub(super) fn retry(&mut self, requests: Vec<T>) {
        let requests = requests.into_iter().rev();
        requests.for_each(|request| self.backlog.push_front(request));
    }

    /// The number of requests that were drained and not sent yet.
    pub(super) fn waiting(&self) -> usize {
        self.backlog.len() + self.incoming.len()
    }

    /// The first request of the backlog.
    pub(super) fn first(&self) -> Option<&T> {
        self.backlog.front()
    }

    /// Removes the first request of the backlog if it matches.
    pub(super) fn take_first_if(&mut self, matches: impl Fn(&T) -> bool) -> Option<T> {
        self.first().filter(|first| matches(first))?;
        self.backlog.pop_front()
    }

    /// Removes all requests that were drained and not sent yet.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = T> {
        self.backlog.drain(..).chain(self.incoming.drain(..))
    }
}

/// Queue length at which another batch is sent while `in_flight` batches are outstanding, estimated from the requests per key
/// of the last batch.
fn flush_threshold(in_flight: usize, last: BatchLoad) -> usize {
    let keys = if in_flight < 2 {
        MIN_KEYS_FOR_EXTRA_BATCH
    } else {
        MAX_BATCH_KEYS
    };
    let worth_a_batch = keys * last.requests / last.keys.max(1);
    // Equal requests share a key and are merged: a small extra batch costs more than waiting for as many as the last one had.
    // With few callers and a distant server, no more than that arrive at once.
    let factor = in_flight.clamp(1, 2);
    let max = (last.requests * factor).clamp(keys, MAX_BATCH_KEYS * factor);
    worth_a_batch.clamp(1, max)
}

/// Requests that wait to be sent. Used under a mutex that is held for a few instructions.
#[derive(Debug)]
pub(crate) struct RequestQueue<T> {
    waiting: Vec<T>,
    /// Whether a batch is in flight: its reply makes the worker drain the queue, so that only many pushes wake it before.
    in_flight: bool,
    /// Whether the worker has ended, or will once the queue is empty.
    closed: bool,
}

/// What the caller of [`RequestQueue::push`] has to do.
#[derive(Debug)]
pub(crate) enum PushOutcome<T> {
    /// Wake the worker.
    Wake,
    /// Nothing: the worker drains the queue by itself.
    Wait,
    /// The worker has ended; the item is returned.
    Closed(T),
}

/// What waits to be sent after a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainOutcome {
    /// Some requests, drained or not.
    Drained,
    Empty,
    /// Nothing, and the queue is closed.
    Closed,
}

impl<T> Default for RequestQueue<T> {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            in_flight: false,
            closed: false,
        }
    }
}

impl<T> RequestQueue<T> {
    /// Appends an item. While a batch is in flight, every `wake_every`-th item wakes the worker.
    pub(crate) fn push(&mut self, item: T, wake_every: usize) -> PushOutcome<T> {
        if self.closed {
            return PushOutcome::Closed(item);
        }
        self.waiting.push(item);
        let wakes = if self.in_flight {
            self.waiting.len().is_multiple_of(wake_every)
        } else {
            self.waiting.len() == 1
        };
        if wakes {
            PushOutcome::Wake
        } else {
            PushOutcome::Wait
        }
    }

    /// Moves all items into `drained`, whose allocation the queue takes over, if they can be sent now: no batch is in flight, or
    /// `allow_more` and at least `threshold` items wait. `backlog` counts items that were drained before and not sent yet.
    pub(crate) fn drain(
        &mut self,
        drained: &mut Vec<T>,
        backlog: usize,
        batches: usize,
        allow_more: bool,
        threshold: usize,
    ) -> DrainOutcome {
        let waiting = self.waiting.len() + backlog;
        if batches == 0 || allow_more && waiting >= threshold {
            mem::swap(&mut self.waiting, drained);
        }
        // If nothing waits, the next push has to wake the worker.
        self.in_flight = batches > 0 || waiting > 0;
        match waiting {
            0 if self.closed => DrainOutcome::Closed,
            0 => DrainOutcome::Empty,
            _ => DrainOutcome::Drained,
        }
    }

    /// Removes the items that match.
    pub(crate) fn extract(&mut self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        self.waiting.extract_if(.., |item| matches(item)).collect()
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

/// The loop and its callers in every interleaving, explored by loom.
#[cfg(test)]
mod tests {
    use loom::{
        sync::{Arc, Mutex, Notify},
        thread,
    };

    use super::{PushOutcome, *};

    /// Keys of each request: so many that two requests justify another batch.
    const KEYS: usize = 16;
    const THRESHOLD: usize = 2;
    const MAX_BATCH: usize = 2;

    /// Stands for a request: the waiter to notify, or none if it was cancelled.
    type Request = Option<Arc<Notify>>;

    /// When the server replies to the oldest batch.
    #[derive(Clone, Copy)]
    enum Reply {
        AtOnce,
        /// After the loop was woken once for another reason.
        Later,
        /// Once the first batch was sent again.
        AfterRetry,
        /// Once as many of all these requests are sent that the others do not justify a batch.
        AfterNextBatch(usize),
    }

    struct Worker {
        queue: Mutex<RequestQueue<Request>>,
        wake: Notify,
    }

    impl Worker {
        /// Does the steps of the schedule, as the worker's task does.
        fn run(&self, reply: Reply) {
            let (mut schedule, mut in_flight) = (Schedule::default(), Vec::new());
            let (mut sent, mut was_woken, mut was_retried) = (0, false, false);
            loop {
                match schedule.next_step(in_flight.len()) {
                    Step::Drain => schedule.drain(&mut self.queue(), in_flight.len()),
                    Step::Flush => {
                        let mut batch = Vec::new();
                        let requests = schedule.fill(|request| match batch.len() {
                            MAX_BATCH => Err(Box::new(request)),
                            _ => {
                                batch.extend(request);
                                Ok(())
                            }
                        });
                        if !batch.is_empty() {
                            let keys = KEYS * requests;
                            let wake_every = schedule.sent(BatchLoad { requests, keys });
                            assert_eq!(wake_every, THRESHOLD);
                            sent += requests;
                            in_flight.push(batch);
                        }
                    }
                    Step::AwaitReply => {
                        was_woken = !was_woken;
                        match reply {
                            Reply::Later if was_woken => {}
                            Reply::AfterRetry if !was_retried => {
                                was_retried = true;
                                let requests = in_flight.remove(0).into_iter().map(Some);
                                schedule.retry(requests.collect());
                            }
                            Reply::AfterNextBatch(all) if all - sent >= THRESHOLD => {
                                self.wake.wait();
                            }
                            _ => in_flight
                                .remove(0)
                                .iter()
                                .for_each(|waiter| waiter.notify()),
                        }
                    }
                    Step::AwaitRequest => self.wake.wait(),
                    Step::End => return,
                }
            }
        }

        /// Pushes a request. Returns whether the queue was open.
        fn push(&self, request: Request) -> bool {
            let pushed = self.queue().push(request, THRESHOLD);
            if let PushOutcome::Wake = pushed {
                self.wake.notify();
            }
            !matches!(pushed, PushOutcome::Closed(_))
        }

        /// Pushes a request and waits for the reply, unless the queue is closed.
        fn call(&self) -> bool {
            let reply = Arc::new(Notify::new());
            let sent = self.push(Some(reply.clone()));
            if sent {
                reply.wait();
            }
            sent
        }

        fn close(&self) {
            self.queue().close();
            self.wake.notify();
        }

        fn queue(&self) -> loom::sync::MutexGuard<'_, RequestQueue<Request>> {
            self.queue.lock().expect("a lock")
        }
    }

    /// Runs a worker beside two threads of callers. If one of the three waited for ever, loom would report a deadlock.
    fn explore(reply: Reply, first: fn(&Worker), second: fn(&Worker)) {
        let mut builder = loom::model::Builder::new();
        // Every order with at most two switches in mid-step: with more it takes minutes.
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let worker = Arc::new(Worker {
                queue: Mutex::default(),
                wake: Notify::new(),
            });
            let theirs = worker.clone();
            let first = thread::spawn(move || first(&theirs));
            let theirs = worker.clone();
            let second = thread::spawn(move || {
                second(&theirs);
                first.join().expect("it ends");
                theirs.close();
            });
            worker.run(reply);
            second.join().expect("it ends");
            assert!(worker.queue().waiting.is_empty());
        });
    }

    fn call(worker: &Worker) {
        assert!(worker.call());
    }

    fn cancel_one_and_call(worker: &Worker) {
        assert!(worker.push(None));
        call(worker);
    }

    #[test]
    fn no_request_is_stranded_when_batches_complete_at_once() {
        explore(Reply::AtOnce, cancel_one_and_call, call);
    }

    #[test]
    fn no_request_is_stranded_while_a_batch_is_in_flight() {
        explore(Reply::Later, cancel_one_and_call, call);
    }

    #[test]
    fn no_request_is_stranded_that_has_to_be_retried() {
        explore(Reply::AfterRetry, cancel_one_and_call, call);
    }

    #[test]
    fn another_batch_is_sent_while_the_first_has_no_reply() {
        let call_twice = |worker: &Worker| {
            let replies = [(); 2].map(|()| Arc::new(Notify::new()));
            for reply in &replies {
                assert!(worker.push(Some(reply.clone())));
            }
            replies.iter().for_each(|reply| reply.wait());
        };
        explore(Reply::AfterNextBatch(3), call_twice, call);
    }

    #[test]
    fn a_request_that_meets_the_close_is_answered_or_returned() {
        for reply in [Reply::AtOnce, Reply::Later] {
            explore(
                reply,
                |worker| {
                    worker.call();
                },
                Worker::close,
            );
        }
    }

    #[test]
    fn another_batch_is_sent_for_as_many_keys_as_justify_it() {
        let load = |requests, keys| BatchLoad { requests, keys };
        for (in_flight, last, worth) in [
            (1, load(1, 1), 32),
            (1, load(128, 128), 32),
            (1, load(20, 60), 10),
            (1, load(1, 128), 1),
            (2, load(128, 128), 128),
            (3, load(40, 120), 42),
            // Equal requests: as many as the last batch had, within bounds.
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
    fn what_does_not_fit_goes_first_and_four_batches_are_in_flight_at_most() {
        let (mut schedule, mut queue) = (Schedule::default(), RequestQueue::default());
        for request in 0..2 * MAX_BATCH_KEYS {
            queue.push(request, 1);
        }
        schedule.drain(&mut queue, 0);
        let mut taken = Vec::new();
        for last in [1, 4, 6] {
            schedule.fill(|request| {
                if request > last {
                    Err(Box::new(request))
                } else {
                    taken.push(request);
                    Ok(())
                }
            });
        }
        assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(schedule.next_step(3), Step::Flush);
        assert_eq!(schedule.next_step(4), Step::AwaitReply);
    }
}
