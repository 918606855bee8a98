//! The task that takes the leases of a key back when they are due.

use std::time::Duration;

use crate::clock::Timestamp;

/// How late a task acts if its runtime is not polled, at least.
const STALLED: Duration = Duration::from_secs(1);

/// The task of a key, if there is one.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// The number of the last task.
    last: u64,
    /// When it acts next, unless it has ended or its runtime is not polled.
    acts_at: Option<Timestamp>,
}

impl Keeper {
    /// The number of a new task, which is to act then; `None` if there is one whose runtime is polled.
    pub(super) fn start(&mut self, acts_at: Timestamp, now: Timestamp) -> Option<u64> {
        let is_kept = |acts_at| now.since(acts_at) < STALLED;
        if self.acts_at.is_some_and(is_kept) {
            return None;
        }
        self.last += 1;
        self.acts_at = Some(acts_at);
        Some(self.last)
    }

    /// Whether it is the task of this number, and has not ended.
    pub(super) fn is(&self, number: u64) -> bool {
        self.acts_at.is_some() && self.last == number
    }

    /// Notes when it acts next. It ends if that is never.
    pub(super) fn acts_at(&mut self, next: Option<Timestamp>) {
        self.acts_at = next;
    }
}
