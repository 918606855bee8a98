//! Joining a queue, and leaving it.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use super::{
    leader::{Leader, Queues, Wakeup},
    queue::{WaitQueue, Waiter, WaiterLimits},
};
use crate::{
    decision::Decision,
    limiter::core::{LimiterCore, QueueKey},
};

/// The result of joining a queue.
pub(crate) enum JoinOutcome {
    Leader(Leader),
    Queued(QueueTicket),
    Rejected(Decision),
}

/// A waiter's place in a queue. Dropping it leaves the queue.
pub(crate) struct QueueTicket {
    queues: Arc<Queues>,
    queue_key: QueueKey,
    number: u64,
    wakeup: oneshot::Receiver<Wakeup>,
}

/// Joins the end of a queue, or opens one as its leader.
pub(crate) fn join(
    limiter: &Arc<LimiterCore>,
    queues: &Arc<Queues>,
    limits: WaiterLimits,
) -> JoinOutcome {
    let queue_key = limits.request.queue_key();
    let mut locked = queues.lock();
    locked.last_number += 1;
    let number = locked.last_number;
    let Some(queue) = locked.queues.get_mut(&queue_key) else {
        let queue = WaitQueue::default();
        let notify = queue.notify.clone();
        locked.queues.insert(queue_key.clone(), queue);
        drop(locked);
        let leader = Leader::new(limiter.clone(), queues.clone(), queue_key, notify);
        return JoinOutcome::Leader(leader);
    };
    if let Some(rejection) = queue.rejection.as_ref().filter(|_| !queue.check_in_flight) {
        let now = Instant::now();
        if limits.cannot_succeed(queue.waiters.len() + 1, rejection, now) {
            return JoinOutcome::Rejected(rejection.at(now));
        }
    }
    let (sender, wakeup) = oneshot::channel();
    queue.waiters.insert(
        number,
        Waiter {
            limits,
            wakeup: sender,
        },
    );
    drop(locked);
    JoinOutcome::Queued(QueueTicket {
        queues: queues.clone(),
        queue_key,
        number,
        wakeup,
    })
}

impl QueueTicket {
    /// Waits for the message that ends the waiting. The sender is never dropped before it has sent.
    pub(crate) async fn wakeup(&mut self) -> Option<Wakeup> {
        (&mut self.wakeup).await.ok()
    }

    /// Leaves the queue with the leader's last rejection, if there is one.
    pub(crate) fn leave_with_last_rejection(&self) -> Option<Decision> {
        let mut locked = self.queues.lock();
        let queue = locked.queues.get_mut(&self.queue_key)?;
        let rejected = queue.rejection.as_ref()?.at(Instant::now());
        let left = queue.waiters.remove(&self.number)?;
        drop(locked);
        drop(left);
        Some(rejected)
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        let mut locked = self.queues.lock();
        let queue = locked.queues.get_mut(&self.queue_key);
        let left = queue.and_then(|queue| queue.waiters.remove(&self.number));
        drop(locked);
        drop(left);
    }
}
