//! The queues of [`Limiter::wait`](crate::Limiter::wait): requests that wait for the same keys, in order of arrival.
//!
//! A queue exists for as long as it has a leader, and leadership passes from one waiter to the next. Only the leader calls the
//! store, for itself and the waiters whose requests can be merged with its own. A message to a waiter that leaves cleans up when it is
//! dropped: a [`Leader`] promotes the next waiter, an [`UnclaimedGrant`] refunds its charge.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    grant::UnclaimedGrant,
    leader::{InFlightCheck, LastRejection, Leader},
    request::WaitRequest,
};
use crate::{decision::Decision, key::Key, limiter::Inner};

/// Identifies a queue: the request's key, or none, for each policy.
pub(crate) type QueueKey = Box<[Option<Key>]>;

/// The queues of a limiter. While the mutex is held, no message is sent and nothing is dropped whose destructor locks it.
#[derive(Default)]
pub(crate) struct WaitQueues(Mutex<QueueMap>);

#[derive(Default)]
pub(crate) struct QueueMap {
    pub(crate) queues: HashMap<QueueKey, WaitQueue>,
    /// The last ticket number, unique among all queues.
    next: u64,
}

#[derive(Default)]
pub(crate) struct WaitQueue {
    /// The requests behind the leader, by ticket number.
    pub(crate) waiters: BTreeMap<u64, Waiter>,
    /// The leader's last rejection.
    pub(crate) rejection: Option<Arc<LastRejection>>,
    /// Whether the leader's call of the store is in flight, so that the last rejection is out of date.
    pub(crate) check_in_flight: bool,
    /// Notified when units or permits were refunded.
    notify: Arc<Notify>,
}

/// A request behind the leader.
pub(crate) struct Waiter {
    pub(crate) limits: WaiterLimits,
    pub(crate) wakeup: oneshot::Sender<Wakeup>,
}

/// A request, and the limits of its waiting: at most `queue` requests ahead of it, until `deadline`.
pub(crate) struct WaiterLimits {
    pub(crate) request: Arc<WaitRequest>,
    pub(crate) queue: usize,
    pub(crate) deadline: Option<Instant>,
}

/// The message that ends a waiter's time in the queue.
pub(crate) enum Wakeup {
    BecomeLeader(Leader),
    Granted(UnclaimedGrant),
    Rejected(Decision),
}

/// The result of joining a queue.
pub(crate) enum JoinOutcome {
    Leader(Leader),
    Queued(QueueTicket),
    Rejected(Decision),
}

/// A waiter's place in a queue, given up when dropped.
pub(crate) struct QueueTicket {
    limiter: Arc<Inner>,
    queue_key: QueueKey,
    number: u64,
    wakeup: oneshot::Receiver<Wakeup>,
}

impl WaitQueues {
    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the leader, since units or permits were refunded.
    pub(crate) fn notify_leader(&self, queue_key: &QueueKey) {
        let notify = self
            .lock()
            .queues
            .get(queue_key)
            .map(|queue| queue.notify.clone());
        if let Some(notify) = notify {
            notify.notify_one();
        }
    }

    /// Clears the last rejections of queues for these keys, each under a policy, and wakes their leaders: the keys were reset.
    pub(crate) fn clear_rejections(&self, keys: &[(u32, Key)]) {
        let mut waiters = self.lock();
        let mut lifted = Vec::new();
        for (queue_key, queue) in &mut waiters.queues {
            let is_of =
                |(policy, key): &(u32, Key)| queue_key.get(*policy as usize) == Some(&Some(*key));
            if keys.iter().any(is_of) {
                lifted.push((queue.rejection.take(), queue.notify.clone()));
            }
        }
        drop(waiters);
        for (_, notify) in lifted {
            notify.notify_one();
        }
    }
}

impl Inner {
    /// Joins the end of a queue, or opens one as its leader.
    pub(crate) fn join(self: &Arc<Self>, queue_key: QueueKey, limits: WaiterLimits) -> JoinOutcome {
        let mut waiters = self.queues.lock();
        waiters.next += 1;
        let number = waiters.next;
        let Some(queue) = waiters.queues.get_mut(&queue_key) else {
            let queue = WaitQueue::default();
            let notify = queue.notify.clone();
            waiters.queues.insert(queue_key.clone(), queue);
            drop(waiters);
            return JoinOutcome::Leader(Leader::new(self.clone(), queue_key, notify, None));
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
        drop(waiters);
        JoinOutcome::Queued(QueueTicket {
            limiter: self.clone(),
            queue_key,
            number,
            wakeup,
        })
    }

    /// Promotes the next waiter to leader, and hands it the call in flight if their requests can be merged. Without a waiter the
    /// queue is closed, once that call has completed.
    pub(crate) fn promote_next(
        self: &Arc<Self>,
        queue_key: &QueueKey,
        mut asked: Option<InFlightCheck>,
    ) {
        loop {
            let mut waiters = self.queues.lock();
            let Some(queue) = waiters.queues.get_mut(queue_key) else {
                return;
            };
            let notify = queue.notify.clone();
            let Some((_, next)) = queue.waiters.pop_first() else {
                if asked.is_some()
                    && let Ok(runtime) = Handle::try_current()
                {
                    drop(waiters);
                    let leader = Leader::new(self.clone(), queue_key.clone(), notify, asked);
                    drop(runtime.spawn(leader.finish_without_waiters()));
                    return;
                }
                let closed = waiters.queues.remove(queue_key);
                drop(waiters);
                drop(closed);
                return;
            };
            let request = &next.limits.request;
            let same = |asked: &InFlightCheck| asked.request.is_mergeable_with(request);
            queue.check_in_flight = asked.as_ref().is_some_and(same);
            let keeps = queue.check_in_flight;
            drop(waiters);
            if !keeps {
                asked = None;
            }
            let leader = Leader::new(self.clone(), queue_key.clone(), notify, asked.take());
            let Err(Wakeup::BecomeLeader(leader)) = next.wakeup.send(Wakeup::BecomeLeader(leader))
            else {
                return;
            };
            // The waiter is leaving at this moment.
            asked = leader.retire();
        }
    }
}

impl WaiterLimits {
    /// Whether waiting behind `ahead` requests cannot succeed, by the leader's last rejection.
    pub(crate) fn cannot_succeed(
        &self,
        ahead: usize,
        rejection: &LastRejection,
        now: Instant,
    ) -> bool {
        let same = self.request.is_mergeable_with(&rejection.request);
        let late = self.deadline.is_some_and(|deadline| {
            // A request with a smaller cost may be admitted earlier, if those ahead leave.
            deadline <= now || same && deadline < rejection.retry_at
        });
        ahead >= self.queue || late
    }
}

impl QueueTicket {
    /// Waits for the message that ends the waiting. The sender is never dropped before it has sent.
    pub(crate) async fn wakeup(&mut self) -> Option<Wakeup> {
        (&mut self.wakeup).await.ok()
    }

    /// Leaves the queue with the leader's last rejection, if there is one.
    pub(crate) fn leave_with_last_rejection(&self) -> Option<Decision> {
        let mut waiters = self.limiter.queues.lock();
        let queue = waiters.queues.get_mut(&self.queue_key)?;
        let rejected = queue.rejection.as_ref()?.at(Instant::now());
        let left = queue.waiters.remove(&self.number)?;
        drop(waiters);
        drop(left);
        Some(rejected)
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        let mut waiters = self.limiter.queues.lock();
        let queue = waiters.queues.get_mut(&self.queue_key);
        let left = queue.and_then(|queue| queue.waiters.remove(&self.number));
        drop(waiters);
        drop(left);
    }
}
