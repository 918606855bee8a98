//! All queues of [`Limiter::wait`](crate::Limiter::wait), by their keys.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

use smallvec::SmallVec;

use super::wait_queue::{QueueState, WaitQueue};
use crate::{key::Key, store::overrides::PolicyKey, sync::lock};

/// The queues of a limiter, also of policies that were replaced. The mutex is locked before that of a queue. While either is held,
/// nothing is woken or dropped whose code may lock one.
#[derive(Default)]
pub(crate) struct WaitQueues(Mutex<QueueMap>);

#[derive(Default)]
struct QueueMap {
    queues: HashMap<QueueKey, Arc<WaitQueue>>,
    /// The generation of the limiter's policies in force.
    newest_generation: u64,
}

/// Identifies a queue: the limiter's policies, and the keys of the request, each with the index of its policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    /// Of the [`LimiterCore`](super::core::LimiterCore).
    pub(crate) generation: u64,
    pub(crate) keys: Box<[(u32, Key)]>,
    /// The overrides in force for these keys: the index of the policy, and the override's id.
    pub(crate) overrides: SmallVec<[(u32, u64); 1]>,
}

impl WaitQueues {
    /// Calls `f` with the queue of a key, which is opened if there is none, and is not closed meanwhile.
    pub(super) fn join<T>(
        self: &Arc<Self>,
        key: QueueKey,
        f: impl FnOnce(&Arc<WaitQueue>, &mut QueueState) -> T,
    ) -> T {
        let mut locked = lock(&self.0);
        let queue = locked.queues.entry(key);
        let queue = queue.or_insert_with_key(|key| WaitQueue::new(self.clone(), key.clone()));
        f(queue, &mut queue.lock())
    }

    /// Closes the queue of a key if it is not used.
    pub(super) fn close_unused(&self, key: &QueueKey) {
        let mut locked = lock(&self.0);
        let is_unused = |queue: &Arc<WaitQueue>| queue.lock().is_unused();
        let closed = match locked.queues.get(key).is_some_and(is_unused) {
            true => locked.queues.remove(key),
            false => None,
        };
        drop(locked);
        drop(closed);
    }

    /// Has the first request of a queue try again: units or permits were refunded. If the policies were replaced meanwhile, also those
    /// of all later queues for one of the keys.
    pub(super) fn notify(&self, key: &QueueKey) {
        let locked = lock(&self.0);
        let mut notified: Vec<_> = locked.queues.get(key).cloned().into_iter().collect();
        if key.generation < locked.newest_generation {
            let later = locked
                .queues
                .iter()
                .filter(|(other, _)| other.generation > key.generation && has_key_of(other, key));
            notified.extend(later.map(|(_, queue)| queue.clone()));
        }
        drop(locked);
        notified.iter().for_each(|queue| queue.notify());
    }

    /// Forgets the last rejection of each queue of these policies and keys, and has its first request try again: the keys were reset.
    pub(super) fn clear_rejections(&self, generation: u64, keys: &[(u32, Key)]) {
        let is_reset = |(queue, _): &(&QueueKey, &Arc<WaitQueue>)| {
            queue.generation == generation && keys.iter().any(|key| queue.keys.contains(key))
        };
        let locked = lock(&self.0);
        let reset = locked.queues.iter().filter(is_reset);
        let reset: Vec<_> = reset.map(|(_, queue)| queue.clone()).collect();
        drop(locked);
        for queue in reset {
            drop(queue.take_rejection());
            queue.notify();
        }
    }

    /// Has all first requests look again: the policies were replaced by those of this generation.
    pub(super) fn replaced_by(&self, generation: u64) {
        let mut locked = lock(&self.0);
        locked.newest_generation = generation;
        let all: Vec<_> = locked.queues.values().cloned().collect();
        drop(locked);
        all.iter().for_each(|queue| queue.notify());
    }

    /// Has the first requests look again that these overrides concern.
    pub(super) fn overrides_changed(&self, changed: &[PolicyKey]) {
        let changed: HashSet<&Key> = changed.iter().map(|(_, key)| key).collect();
        let locked = lock(&self.0);
        let concerned = locked.queues.iter().filter(|(queue, _)| {
            let mut keys = queue.keys.iter();
            // A queue has no key under a policy from which its requests are exempt.
            !queue.overrides.is_empty() || keys.any(|(_, key)| changed.contains(key))
        });
        let concerned: Vec<_> = concerned.map(|(_, queue)| queue.clone()).collect();
        drop(locked);
        concerned.iter().for_each(|queue| queue.notify());
    }

    /// Adds the number of requests that wait for each policy of this generation to `counts`.
    pub(super) fn count_waiters(&self, generation: u64, counts: &mut [u64]) {
        for (key, queue) in &lock(&self.0).queues {
            if key.generation == generation {
                let waiting = queue.lock().waiting() as u64;
                // In the order of the policies, of which one may have several keys.
                for of_policy in key.keys.chunk_by(|(own, _), (next, _)| own == next) {
                    let policy = of_policy.first().map(|(policy, _)| *policy as usize);
                    if let Some(count) = policy.and_then(|policy| counts.get_mut(policy)) {
                        *count += waiting;
                    }
                }
            }
        }
    }
}

/// Whether two queues are for requests with a key in common.
fn has_key_of(queue: &QueueKey, other: &QueueKey) -> bool {
    let mut keys = queue.keys.iter();
    keys.any(|(_, key)| other.keys.iter().any(|(_, own)| own == key))
}
