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

    /// Removes all items, when the worker has ended.
    pub(crate) fn take_remaining(&mut self) -> Vec<T> {
        mem::take(&mut self.waiting)
    }
}
