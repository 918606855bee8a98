//! Records which task refunds the leases of a key when they are due, and when it runs next.

use std::time::Duration;

use crate::clock::Timestamp;

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
