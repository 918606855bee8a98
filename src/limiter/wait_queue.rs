//! The queues of [`Limiter::wait`](crate::Limiter::wait): requests that wait for the same keys, in order of arrival.
//!
//! A queue exists for as long as it has a leader, and leadership passes from one waiter to the next. Only the leader calls the
//! store, for itself and the waiters whose requests can be merged with its own. A waiter may leave while a message is sent to it:
//! the message is then dropped, which refunds what it grants, or promotes the next waiter.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    core::LimiterCore,
    decision::Decision,
    wait_leader::{LastRejection, Leader, Wakeup},
    wait_request::WaitRequest,
};
use crate::{key::Key, sync::lock};

/// The queues of a limiter, also of policies that were replaced. While the mutex is held, no message is sent and nothing is dropped
/// whose destructor locks it.
#[derive(Default)]
pub(crate) struct WaitQueues(Mutex<QueueMap>);

#[derive(Default)]
pub(crate) struct QueueMap {
    pub(crate) queues: HashMap<QueueKey, WaitQueue>,
    /// The last ticket number, unique among all queues.
    pub(crate) last_number: u64,
    /// The generation of the limiter's policies in force.
    newest_generation: u64,
}

#[derive(Default)]
pub(crate) struct WaitQueue {
    /// The requests behind the leader, by ticket number.
    pub(crate) waiters: BTreeMap<u64, Waiter>,
    /// The leader's last rejection.
    pub(crate) rejection: Option<Arc<LastRejection>>,
    /// Whether the leader's call of the store is in flight, so that the last rejection is out of date.
    pub(crate) check_in_flight: bool,
    /// Whether the leader's request was dropped, and only its call of the store is still awaited.
    pub(crate) is_abandoned: bool,
    /// Notified when units or permits were refunded.
    pub(crate) notify: Arc<Notify>,
}

/// Identifies a queue: the limiter's policies, and the request's key, or none, for each of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    /// Of the [`LimiterCore`].
    pub(crate) generation: u64,
    pub(crate) keys: Box<[Option<Key>]>,
}

/// A request behind the leader, and the sender of the message that ends its time in the queue.
pub(crate) struct Waiter {
    pub(crate) limits: WaiterLimits,
    pub(crate) wakeup: oneshot::Sender<Wakeup>,
}

/// A request, and the limits of its waiting: at most `max_ahead` requests ahead of it, until `deadline`.
pub(crate) struct WaiterLimits {
    pub(crate) request: Arc<WaitRequest>,
    pub(crate) max_ahead: usize,
    pub(crate) deadline: Option<Instant>,
}

impl WaitQueues {
    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueMap> {
        lock(&self.0)
    }

    /// Wakes the leader of a queue: units or permits were refunded. If the policies were replaced meanwhile, it wakes those of
    /// all later queues for one of the keys.
    pub(super) fn notify_leader(&self, queue: &QueueKey) {
        let locked = self.lock();
        let same = locked.queues.get(queue);
        let mut notified: Vec<_> = same.map(|queue| queue.notify.clone()).into_iter().collect();
        if queue.generation < locked.newest_generation {
            let later = locked.queues.iter().filter(|(other, _)| {
                other.generation > queue.generation && has_key_of(other, queue)
            });
            notified.extend(later.map(|(_, queue)| queue.notify.clone()));
        }
        drop(locked);
        for notify in notified {
            notify.notify_one();
        }
    }

    /// Forgets the last rejection of each queue of these policies and keys, and wakes its leader: the keys were reset.
    pub(super) fn clear_rejections(&self, generation: u64, keys: &[(u32, Key)]) {
        let mut locked = self.lock();
        let mut affected = Vec::new();
        for (queue_key, queue) in &mut locked.queues {
            let is_of = |(policy, key): &(u32, Key)| {
                queue_key.keys.get(*policy as usize) == Some(&Some(*key))
            };
            if queue_key.generation == generation && keys.iter().any(is_of) {
                affected.push((queue.rejection.take(), queue.notify.clone()));
            }
        }
        drop(locked);
        for (_, notify) in affected {
            notify.notify_one();
        }
    }

    /// Adds the number of requests that wait for each policy of this generation to `counts`.
    pub(super) fn count_waiters(&self, generation: u64, counts: &mut [u64]) {
        let waiters = self.lock();
        for (queue_key, queue) in &waiters.queues {
            if queue_key.generation != generation {
                continue;
            }
            let leader = usize::from(!queue.is_abandoned);
            let waiting = (queue.waiters.len() + leader) as u64;
            let policies = queue_key.keys.iter().zip(counts.iter_mut());
            for (_, count) in policies.filter(|(key, _)| key.is_some()) {
                *count += waiting;
            }
        }
    }

    /// Wakes all leaders: the policies were replaced by those of this generation.
    pub(super) fn replaced_by(&self, generation: u64) {
        let mut locked = self.lock();
        locked.newest_generation = generation;
        let notified: Vec<_> = locked
            .queues
            .values()
            .map(|queue| queue.notify.clone())
            .collect();
        drop(locked);
        for notify in notified {
            notify.notify_one();
        }
    }
}

/// Whether two queues are for requests with a key in common.
fn has_key_of(queue: &QueueKey, other: &QueueKey) -> bool {
    let mut keys = queue.keys.iter().flatten();
    keys.any(|key| other.keys.iter().flatten().any(|own| own == key))
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
        ahead >= self.max_ahead || late
    }
}

/// The result of joining a queue.
pub(crate) enum JoinOutcome {
    Leader(Leader),
    Queued(QueueTicket),
    Rejected(Decision),
}

/// A waiter's place in a queue. Dropping it leaves the queue.
pub(crate) struct QueueTicket {
    limiter: Arc<LimiterCore>,
    queue_key: QueueKey,
    number: u64,
    wakeup: oneshot::Receiver<Wakeup>,
}

/// Joins the end of a queue, or opens one as its leader.
pub(crate) fn join(limiter: &Arc<LimiterCore>, limits: WaiterLimits) -> JoinOutcome {
    let queue_key = limits.request.queue_key();
    let mut locked = limiter.wait_queues.lock();
    locked.last_number += 1;
    let number = locked.last_number;
    let Some(queue) = locked.queues.get_mut(&queue_key) else {
        let queue = WaitQueue::default();
        let notify = queue.notify.clone();
        locked.queues.insert(queue_key.clone(), queue);
        drop(locked);
        let leader = Leader::new(limiter.clone(), queue_key, notify);
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
        limiter: limiter.clone(),
        queue_key,
        number,
        wakeup,
    })
}

impl QueueTicket {
    /// Waits for the message that ends the waiting; `None` if the queue was dropped without sending one.
    pub(crate) async fn wakeup(&mut self) -> Option<Wakeup> {
        (&mut self.wakeup).await.ok()
    }

    /// Leaves the queue with the leader's last rejection, if there is one.
    pub(crate) fn leave_with_last_rejection(&self) -> Option<Decision> {
        let mut locked = self.limiter.wait_queues.lock();
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
        let mut locked = self.limiter.wait_queues.lock();
        let queue = locked.queues.get_mut(&self.queue_key);
        let left = queue.and_then(|queue| queue.waiters.remove(&self.number));
        drop(locked);
        drop(left);
    }
}
