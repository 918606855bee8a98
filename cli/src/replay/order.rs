//! The order of requests by the time of their arrival.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::request::{Entry, Place};

/// The most requests that are held until earlier ones can no longer follow.
const MAX_HELD: usize = 100_000;

/// Sorts requests within a window of time, or all of them.
#[derive(Debug)]
pub(super) struct Order {
    /// `None`: all requests are held until the end.
    window_us: Option<i64>,
    held: BinaryHeap<Reverse<Held>>,
    /// The latest arrival so far.
    newest: i64,
    /// The arrival of the last request that was released.
    released: i64,
    count: u64,
    late: Late,
}

/// Requests that came too late to be sorted: each is replayed at the instant of the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Late {
    pub(super) requests: u64,
    /// The line of the first.
    pub(super) first: Option<Place>,
}

/// A request, ordered by its arrival and, at one instant, by its line.
#[derive(Debug)]
struct Held {
    order: (i64, u64),
    // Boxed: the heap moves what it holds.
    entry: Box<Entry>,
}

impl Order {
    pub(super) fn new(window_us: Option<i64>) -> Self {
        Self {
            window_us,
            held: BinaryHeap::new(),
            newest: i64::MIN,
            released: i64::MIN,
            count: 0,
            late: Late::default(),
        }
    }

    /// The requests that came too late to be sorted.
    pub(super) fn late(&self) -> Late {
        self.late
    }

    /// Adds a request.
    pub(super) fn push(&mut self, entry: Entry) {
        self.newest = self.newest.max(entry.at);
        let order = (entry.at, self.count);
        self.count += 1;
        let entry = Box::new(entry);
        self.held.push(Reverse(Held { order, entry }));
    }

    /// The next request, if no earlier one is expected.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let (window, Reverse(first)) = (self.window_us?, self.held.peek()?);
        let is_due = self.newest.saturating_sub(first.entry.at) >= window;
        (is_due || self.held.len() > MAX_HELD).then(|| self.release())?
    }

    /// The next request, after all were added.
    pub(super) fn release(&mut self) -> Option<Entry> {
        let Reverse(Held { mut entry, .. }) = self.held.pop()?;
        if entry.at < self.released {
            entry.at = self.released;
            self.late.requests += 1;
            self.late.first.get_or_insert(entry.place);
        }
        self.released = entry.at;
        Some(*entry)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

/// Spreads the requests of lines with the same whole second evenly over that second.
#[derive(Debug, Default)]
pub(super) struct Spread {
    /// The requests of the last second so far.
    second: Vec<Entry>,
}

impl Spread {
    /// Adds a request, and returns those of the second before, if it is over.
    pub(super) fn push(&mut self, entry: Entry) -> Vec<Entry> {
        let is_same = |last: &Entry| last.logged == entry.logged;
        let continues = entry.logged.is_whole_second
            && self.second.len() < MAX_HELD
            && self.second.last().is_none_or(is_same);
        let done = match continues {
            true => Vec::new(),
            false => self.finish(),
        };
        self.second.push(entry);
        done
    }

    /// The requests of the last second.
    pub(super) fn finish(&mut self) -> Vec<Entry> {
        let mut second = std::mem::take(&mut self.second);
        let count = second.len() as i64;
        for (index, entry) in second.iter_mut().enumerate() {
            if entry.logged.is_whole_second {
                entry.at += index as i64 * 1_000_000 / count;
            }
        }
        second
    }
}
