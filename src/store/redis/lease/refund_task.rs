//! The task that refunds the leases of a key when they are due.

use std::time::Duration;

use super::{held_lease::Unspent, leased_key::LeasedKey};
use crate::clock::Timestamp;

/// A task that is later than this does not run: its runtime is not polled.
const STALLED: Duration = Duration::from_secs(1);

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
    fn start(&mut self, next_run_at: Timestamp, now: Timestamp) -> Option<u64> {
        let is_polled = |next_run_at| now.since(next_run_at) < STALLED;
        if self.next_run_at.is_some_and(is_polled) {
            return None;
        }
        self.last += 1;
        self.next_run_at = Some(next_run_at);
        Some(self.last)
    }

    /// Whether the task of this number is the last one, and has not ended.
    fn is_current(&self, number: u64) -> bool {
        self.next_run_at.is_some() && self.last == number
    }

    /// Records when the task runs next. With `None` it ends.
    fn set_next_run(&mut self, next_run_at: Option<Timestamp>) {
        self.next_run_at = next_run_at;
    }
}

impl LeasedKey {
    /// The number of the refund task, if one has to be started: if there is none, or its runtime is not polled.
    pub(super) fn start_refund_task(&mut self, now: Timestamp) -> Option<u64> {
        let next_run_at = self.next_refund().unwrap_or(now);
        self.refund_task.start(next_run_at, now)
    }

    /// Takes the leases that are due, and returns the time until the next one is. If that is `None`, the task ends: there is no
    /// other lease, or another task.
    pub(super) fn reclaim_due(
        &mut self,
        task: u64,
        now: Timestamp,
    ) -> (Vec<Unspent>, Option<Duration>) {
        if !self.refund_task.is_current(task) {
            return (Vec::new(), None);
        }
        let due = self.reclaim_where(|lease| lease.refund_at <= now);
        let next = self.next_refund();
        self.refund_task.set_next_run(next);
        (due, next.map(|next| next.since(now)))
    }

    /// Records that a task has ended before its time, and takes all leases unless there is another task.
    pub(super) fn end_refund_task(&mut self, task: u64) -> Vec<Unspent> {
        if !self.refund_task.is_current(task) {
            return Vec::new();
        }
        self.refund_task.set_next_run(None);
        self.release()
    }
}
