//! The queue between callers and a worker, and its rule of when a push wakes the worker.

use std::mem;

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

/// Whether the queue held anything.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DrainOutcome {
    Drained,
    Empty,
    /// Nothing, and it is closed.
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
        let wakes = match self.in_flight {
            true => self.waiting.len().is_multiple_of(wake_every),
            false => self.waiting.len() == 1,
        };
        if wakes {
            PushOutcome::Wake
        } else {
            PushOutcome::Wait
        }
    }

    /// Moves all items into `drained`, whose allocation the queue takes over, if they can be sent now: no batch is in flight, or
    /// `allow_more` and at least `threshold` items wait. `left` counts items that were drained before and not sent yet.
    pub(crate) fn drain(
        &mut self,
        drained: &mut Vec<T>,
        left: usize,
        batches: usize,
        allow_more: bool,
        threshold: usize,
    ) -> DrainOutcome {
        let waiting = self.waiting.len() + left;
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

    /// Removes all items, when the worker has ended.
    pub(crate) fn take_remaining(&mut self) -> Vec<T> {
        mem::take(&mut self.waiting)
    }
}

/// Every interleaving of a worker and two callers, explored by loom.
#[cfg(test)]
mod tests {
    use super::*;
    use loom::{
        sync::{Arc, Mutex, Notify},
        thread,
    };

    const FULL: usize = 2;

    /// Stands for a request: the waiter to notify, or none if it was cancelled.
    type PendingRequest = Option<Arc<Notify>>;

    /// The loop of [`Worker::run`](crate::store::redis::worker::Worker::run). Batches complete at once or, if `far`, one
    /// iteration later.
    fn worker(queue: &Mutex<RequestQueue<PendingRequest>>, wake: &Notify, far: bool) {
        let (mut drained, mut left, mut under_way) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let batches = usize::from(!under_way.is_empty());
            let called = {
                let mut queue = queue.lock().expect("a lock");
                queue.drain(&mut drained, left.len(), batches, false, FULL)
            };
            left.append(&mut drained);
            if batches > 0 {
                under_way
                    .drain(..)
                    .for_each(|waiter: Arc<Notify>| waiter.notify());
                continue;
            }
            // Cancelled requests are dropped.
            under_way.extend(left.drain(..).flatten());
            if !under_way.is_empty() {
                if !far {
                    under_way.drain(..).for_each(|waiter| waiter.notify());
                }
                continue;
            }
            match called {
                DrainOutcome::Drained => {}
                DrainOutcome::Empty => wake.wait(),
                DrainOutcome::Closed => return,
            }
        }
    }

    fn no_request_is_stranded(far: bool) {
        let mut builder = loom::model::Builder::new();
        // Every order with at most two switches in mid-step: with more it takes minutes.
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let queue = Arc::new(Mutex::new(RequestQueue::default()));
            let wake = Arc::new(Notify::new());
            let put = |request| {
                let (queue, wake) = (queue.clone(), wake.clone());
                move || {
                    let put = queue.lock().expect("a lock").push(request, FULL);
                    if matches!(put, PushOutcome::Wake) {
                        wake.notify();
                    }
                }
            };
            let ask = || {
                let answer = Arc::new(Notify::new());
                let put = put(Some(answer.clone()));
                move || {
                    put();
                    answer.wait();
                }
            };
            let (gone, first, second) = (put(None), ask(), ask());
            let first = thread::spawn(move || {
                gone();
                first();
            });
            let close = {
                let (queue, wake) = (queue.clone(), wake.clone());
                move || {
                    queue.lock().expect("a lock").close();
                    wake.notify();
                }
            };
            let second = thread::spawn(move || {
                second();
                first.join().expect("it ends");
                close();
            });
            // If a caller waited for ever, so would this, which loom reports as a deadlock.
            worker(&queue, &wake, far);
            second.join().expect("it ends");
        });
    }

    #[test]
    fn no_request_is_stranded_when_batches_complete_at_once() {
        no_request_is_stranded(false);
    }

    #[test]
    fn no_request_is_stranded_while_a_batch_is_in_flight() {
        no_request_is_stranded(true);
    }
}
