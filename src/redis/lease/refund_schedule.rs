//! A task on the IO thread, which refunds what is left of leases when they are due.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinHandle, time::sleep};

use super::{grant::UnsettledGuard, held_lease::ClockReading, table::Leases};
use crate::{clock::Timestamp, redis::io::Io, sync::lock};

/// The keys with leases that are due to be refunded, and the task that waits for them.
#[derive(Debug, Default)]
pub(super) struct RefundSchedule {
    /// The hash of each key, by the instant and its ID.
    due: Mutex<BTreeMap<(Timestamp, u64), u64>>,
    /// Notified when a key is due before all others, and when the store is dropped.
    changed: Arc<Notify>,
    /// Started with the first lease that is requested.
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Leases {
    /// Starts the task unless it runs. Returns whether it does.
    pub(super) fn start_refunds(self: &Arc<Self>, io: &Io) -> bool {
        // Not under the lock: it may log.
        let Some(runtime) = io.runtime() else {
            return false;
        };
        let mut task = lock(&self.refund_schedule.task);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(runtime.spawn(self.refund_when_due()));
        }
        true
    }

    /// What the task does. It ends with the store.
    pub(super) fn refund_when_due(self: &Arc<Self>) -> impl Future<Output = ()> + use<> {
        let (leases, changed) = (Arc::downgrade(self), self.refund_schedule.changed.clone());
        async move {
            while let Some(next) = leases.upgrade().map(|leases| leases.refund_due()) {
                let until_due = async {
                    match next {
                        Some(next) => sleep(next).await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    () = changed.notified() => {}
                    () = until_due => {}
                }
            }
        }
    }

    /// Has the task look at a key at an instant.
    pub(super) fn schedule_refund(&self, at: Timestamp, key_id: u64, hash: u64) {
        let mut due = lock(&self.refund_schedule.due);
        let first = due.first_key_value();
        let is_first = first.is_none_or(|((first, _), _)| at < *first);
        due.insert((at, key_id), hash);
        drop(due);
        if is_first {
            self.refund_schedule.changed.notify_one();
        }
    }

    /// Refunds what is left of the leases that are due. Returns the time until the next one is.
    fn refund_due(self: &Arc<Self>) -> Option<Duration> {
        loop {
            let mut due = lock(&self.refund_schedule.due);
            let (first, now) = (due.first_entry()?, ClockReading::read().monotonic);
            let (at, key_id) = *first.key();
            if at > now {
                return Some(at.since(now));
            }
            // A flush meanwhile waits for these, too.
            let _unsettled = UnsettledGuard::new(self);
            let hash = first.remove();
            drop(due);
            let reclaimed = self.with_key(hash, key_id, |key| key.reclaim_due(now));
            let (unspent, next) = reclaimed.unwrap_or_default();
            if let Some(next) = next {
                self.schedule_refund(next, key_id, hash);
            }
            unspent.into_iter().for_each(|unspent| self.refund(unspent));
        }
    }
}

impl Drop for RefundSchedule {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}
