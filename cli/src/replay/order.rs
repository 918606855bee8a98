//! The order of requests by the time of their arrival.

use std::collections::BTreeMap;

use super::request::Entry;

/// Sorts requests within a window of time.
#[derive(Debug)]
pub(super) struct Order {
    window_us: i64,
    /// By arrival and, at one instant, by line.
    held: BTreeMap<(i64, u64), Entry>,
    /// The latest arrival so far.
    newest_us: i64,
    count: u64,
}

impl Order {
    pub(super) fn new(window_us: i64) -> Self {
        Self {
            window_us,
            held: BTreeMap::new(),
            newest_us: 0,
            count: 0,
        }
    }

    /// Adds a request.
    pub(super) fn push(&mut self, entry: Entry) {
        self.newest_us = self.newest_us.max(entry.arrived_us);
        self.count += 1;
        self.held.insert((entry.arrived_us, self.count), entry);
    }

    /// Removes the requests of the earliest instant, if the window is over in which later lines may precede them.
    pub(super) fn pop_due(&mut self) -> Option<Vec<Entry>> {
        let (first_us, _) = *self.held.first_key_value()?.0;
        let is_due = self.newest_us - first_us >= self.window_us;
        is_due.then(|| self.pop())?
    }

    /// Removes the requests of the earliest instant.
    pub(super) fn pop(&mut self) -> Option<Vec<Entry>> {
        let (first_us, _) = *self.held.first_key_value()?.0;
        let mut entries = Vec::new();
        while let Some(first) = self.held.first_entry()
            && first.key().0 == first_us
        {
            entries.push(first.remove());
        }
        Some(entries)
    }
}
