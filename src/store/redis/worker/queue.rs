//! What a lane and those who ask hand over to each other: who has to be woken, and when.

use std::mem;

/// Where questions wait for their trip. It stands under a lock, held for a few moves at a time.
#[derive(Debug)]
pub(crate) struct RequestQueue<T> {
    waiting: Vec<T>,
    /// A trip is under way: those who come are taken along when it's back, unless they are many.
    in_flight: bool,
    /// Nobody will carry what is put in here any more.
    closed: bool,
}

/// What becomes of what is put in.
#[derive(Debug)]
pub(crate) enum PushOutcome<T> {
    /// The lane has to be woken for it.
    Wake,
    /// The lane will look by itself.
    Wait,
    /// The lane has ended; here it is again.
    Closed(T),
}

/// Whether there was anything for a lane to carry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DrainOutcome {
    Drained,
    Empty,
    /// And there won't be.
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
    /// Puts something in. While a trip is under way, the lane looks each time that so many more wait.
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

    /// Takes everything, in exchange for the memory of what was taken before, if it can go now: no trip is under way, or
    /// one more `may` be and there is `enough` for it. `left` is what was taken before and could not go.
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
        // If there is nothing, the next one who comes has to wake.
        self.in_flight = batches > 0 || waiting > 0;
        match waiting {
            0 if self.closed => DrainOutcome::Closed,
            0 => DrainOutcome::Empty,
            _ => DrainOutcome::Drained,
        }
    }

    /// Takes some of what waits, whatever is under way.
    pub(crate) fn extract(&mut self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        self.waiting.extract_if(.., |item| matches(item)).collect()
    }

    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Takes what nobody will carry any more.
    pub(crate) fn take_remaining(&mut self) -> Vec<T> {
        mem::take(&mut self.waiting)
    }
}

/// Every order in which a lane and two who ask can meet, tried by loom.
#[cfg(test)]
mod tests {
    use super::*;
    use loom::{
        sync::{Arc, Mutex, Notify},
        thread,
    };

    const FULL: usize = 2;

    /// What stands for a question: whoever asked waits for its answer, or has gone.
    type PendingRequest = Option<Arc<Notify>>;

    /// A lane as [`Worker::run`](crate::store::redis::worker::Worker::run) is one, whose trips are over at once or, if `far`, only when
    /// it has looked once more.
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
            // Those who have gone are left behind.
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

    fn nobody_is_left_waiting(far: bool) {
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
            // Were somebody left waiting, so would this be, which loom reports.
            worker(&queue, &wake, far);
            second.join().expect("it ends");
        });
    }

    #[test]
    fn nobody_is_left_waiting_by_a_lane_that_is_back_at_once() {
        nobody_is_left_waiting(false);
    }

    #[test]
    fn nobody_is_left_waiting_by_a_lane_that_is_under_way() {
        nobody_is_left_waiting(true);
    }
}
