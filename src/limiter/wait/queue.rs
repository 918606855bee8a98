//! Those who wait for the same keys, in the order in which they came.
//!
//! A queue lives for as long as it has a head, and that is handed from one to the next. The head alone asks the store,
//! for all behind it that ask the same. Whatever is handed over does right by itself if nobody takes it: a head passes
//! on, and a charge is given back.

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
    grant::Grant,
    leader::{Asked, Head, Refusal},
    request::Question,
};
use crate::{decision::Decision, key::Key, limiter::Inner};

/// What a queue waits for: a key, or none, for each policy.
pub(crate) type Id = Box<[Option<Key>]>;

/// The queues of a limiter. Under the lock nothing is sent, and nothing dropped that might come back for it.
#[derive(Default)]
pub(crate) struct Queues(Mutex<Waiters>);

#[derive(Default)]
pub(crate) struct Waiters {
    pub(crate) queues: HashMap<Id, Queue>,
    /// No two have the same number, not even in queues that come after each other.
    next: u64,
}

#[derive(Default)]
pub(crate) struct Queue {
    /// Those behind the head.
    pub(crate) behind: BTreeMap<u64, Waiter>,
    /// What the head was told last.
    pub(crate) refusal: Option<Arc<Refusal>>,
    /// Whether the head is asking, so that nobody knows yet.
    pub(crate) asking: bool,
    /// Rung when something was given back.
    freed: Arc<Notify>,
}

/// Somebody who waits behind others.
pub(crate) struct Waiter {
    pub(crate) wish: Wish,
    pub(crate) turn: oneshot::Sender<Turn>,
}

/// What somebody waits for, behind how many, and for how long.
pub(crate) struct Wish {
    pub(crate) question: Arc<Question>,
    pub(crate) queue: usize,
    pub(crate) deadline: Option<Instant>,
}

/// How waiting behind others ends.
pub(crate) enum Turn {
    Head(Head),
    Granted(Grant),
    Refused(Decision),
}

/// What becomes of somebody who comes.
pub(crate) enum Joined {
    Head(Head),
    Behind(Place),
    Refused(Decision),
}

/// A place behind the head.
pub(crate) struct Place {
    limiter: Arc<Inner>,
    id: Id,
    number: u64,
    turn: oneshot::Receiver<Turn>,
}

impl Queues {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was given back: the head had better look.
    pub(crate) fn ring(&self, id: &Id) {
        let freed = self.lock().queues.get(id).map(|queue| queue.freed.clone());
        if let Some(freed) = freed {
            freed.notify_one();
        }
    }

    /// Keys were reset, each under a policy: what those who wait for them were told is over, and the heads had better look.
    pub(crate) fn lift(&self, keys: &[(u32, Key)]) {
        let mut waiters = self.lock();
        let mut lifted = Vec::new();
        for (id, queue) in &mut waiters.queues {
            let is_of = |(policy, key): &(u32, Key)| id.get(*policy as usize) == Some(&Some(*key));
            if keys.iter().any(is_of) {
                lifted.push((queue.refusal.take(), queue.freed.clone()));
            }
        }
        drop(waiters);
        for (_, freed) in lifted {
            freed.notify_one();
        }
    }
}

impl Inner {
    /// Goes to the end of a queue, or opens one.
    pub(crate) fn join(self: &Arc<Self>, id: Id, wish: Wish) -> Joined {
        let mut waiters = self.queues.lock();
        waiters.next += 1;
        let number = waiters.next;
        let Some(queue) = waiters.queues.get_mut(&id) else {
            let queue = Queue::default();
            let freed = queue.freed.clone();
            waiters.queues.insert(id.clone(), queue);
            drop(waiters);
            return Joined::Head(Head::new(self.clone(), id, freed, None));
        };
        if let Some(refusal) = queue.refusal.as_ref().filter(|_| !queue.asking) {
            let now = Instant::now();
            if wish.is_vain(queue.behind.len() + 1, refusal, now) {
                return Joined::Refused(refusal.at(now));
            }
        }
        let (sender, turn) = oneshot::channel();
        queue.behind.insert(number, Waiter { wish, turn: sender });
        drop(waiters);
        Joined::Behind(Place {
            limiter: self.clone(),
            id,
            number,
            turn,
        })
    }

    /// Makes the next one the head, and leaves the question to it if it asks the same. The last one closes the queue, once it
    /// has been answered.
    pub(crate) fn pass_on(self: &Arc<Self>, id: &Id, mut asked: Option<Asked>) {
        loop {
            let mut waiters = self.queues.lock();
            let Some(queue) = waiters.queues.get_mut(id) else {
                return;
            };
            let freed = queue.freed.clone();
            let Some((_, next)) = queue.behind.pop_first() else {
                if asked.is_some()
                    && let Ok(runtime) = Handle::try_current()
                {
                    drop(waiters);
                    let head = Head::new(self.clone(), id.clone(), freed, asked);
                    drop(runtime.spawn(head.wind_up()));
                    return;
                }
                let closed = waiters.queues.remove(id);
                drop(waiters);
                drop(closed);
                return;
            };
            let question = &next.wish.question;
            let same = |asked: &Asked| asked.question.is_same(question);
            queue.asking = asked.as_ref().is_some_and(same);
            let keeps = queue.asking;
            drop(waiters);
            if !keeps {
                asked = None;
            }
            let head = Head::new(self.clone(), id.clone(), freed, asked.take());
            let Err(Turn::Head(head)) = next.turn.send(Turn::Head(head)) else {
                return;
            };
            // That one is leaving just now.
            asked = head.retire();
        }
    }
}

impl Wish {
    /// Whether it is refused because of what the head was told, behind so many.
    pub(crate) fn is_vain(&self, ahead: usize, refusal: &Refusal, now: Instant) -> bool {
        let same = self.question.is_same(&refusal.question);
        let late = self.deadline.is_some_and(|deadline| {
            // Who asks for less may pass earlier, if those in front give up.
            deadline <= now || same && deadline < refusal.until
        });
        ahead >= self.queue || late
    }
}

impl Place {
    /// How the waiting ends; `None` never happens.
    pub(crate) async fn turn(&mut self) -> Option<Turn> {
        (&mut self.turn).await.ok()
    }

    /// Leaves, if the head was ever told something; returns that.
    pub(crate) fn give_up(&self) -> Option<Decision> {
        let mut waiters = self.limiter.queues.lock();
        let queue = waiters.queues.get_mut(&self.id)?;
        let refused = queue.refusal.as_ref()?.at(Instant::now());
        let left = queue.behind.remove(&self.number)?;
        drop(waiters);
        drop(left);
        Some(refused)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiters = self.limiter.queues.lock();
        let queue = waiters.queues.get_mut(&self.id);
        let left = queue.and_then(|queue| queue.behind.remove(&self.number));
        drop(waiters);
        drop(left);
    }
}
