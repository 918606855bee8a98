//! Fair queues: rejected calls wait in order of arrival, and attempt again when they can succeed.
//!
//! - A call that finds no queue under its key attempts at once, concurrently with others. If it is rejected, and may wait, it enters
//!   the queue. While calls wait, each new one enters behind them.
//! - The first call of a queue attempts again before it sleeps, and then when its rejection says that it can succeed, or when units
//!   were [released](WaitQueues::released). The others sleep until they are first.
//! - An admission that leaves room for more calls of its cost invites as many of them to attempt at once, up to the first of another
//!   cost, so that a refill of n units takes two or three round trips. A call that is rejected then keeps its place. An admission that
//!   leaves no room says when the next call can succeed, which so attempts once.
//! - A call that waits when its timeout ends is rejected with the last rejection of its queue, or with that of an attempt of the first
//!   call which is due.
//!
//! A call leaves its queue when its future is dropped. While the first one's future is neither polled nor dropped, the calls behind it
//! attempt only at their deadlines.
//!
//! No rejection is dropped and no task woken while the lock is held, since both may run code of the application.

use std::{
    collections::BTreeMap,
    hash::Hash,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::{Equivalent, HashMap, HashSet, hash_map::Entry};
use smallvec::SmallVec;
use tokio::{sync::Notify, time::Instant};

use crate::{
    key::Key,
    quota::Quota,
    runtime::{Timer, runtime_with_timers},
    sync::lock,
};

#[cfg(test)]
mod tests;

/// First pause before another attempt where nothing says when one can succeed. Each further pause is twice as long.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// Upper bound of these pauses.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// How long after a release a rejection does not say when an attempt can succeed: units are released when their refund is sent, and
/// the store may receive it later.
const REFUND_TIMEOUT: Duration = Duration::from_millis(250);

/// How late the first call may attempt before the others attempt at their deadlines. Its task may be busy.
const MAX_OVERDUE: Duration = Duration::from_secs(1);

/// What units are counted by: a policy's name, and a key.
pub(crate) type Counter = (Arc<str>, Key);

/// The counters whose units a call needs.
pub(crate) type Counters = SmallVec<[Counter; 1]>;

/// What a call costs: each policy by its index, the units, and the quota if it is not the policy's own.
pub(crate) type CallCost = SmallVec<[(u32, u64, Option<Quota>); 1]>;

/// The queues of a limiter. `K` identifies a queue, and `R` is what a rejection reports.
pub(crate) struct WaitQueues<K, R> {
    queues: Mutex<Queues<K, R>>,
    /// The number of queues. It is read without the lock: calls and releases do not lock while no call waits.
    len: AtomicUsize,
}

/// A call that may wait.
pub(crate) struct WaitCall<K> {
    pub(crate) key: K,
    /// Two calls of equal cost succeed at the same time, if their keys are equal.
    pub(crate) cost: CallCost,
    pub(crate) deadline: Option<Instant>,
    /// The call is rejected at once if so many wait under its key. With 0 it does not wait.
    pub(crate) max_waiting: usize,
}

/// The result of an attempt.
pub(crate) enum Attempt<T, R> {
    /// The call is decided.
    Done(T, Next<R>),
    Rejected(Rejection<R>),
}

/// What a call of the same cost would get after one that is decided.
pub(crate) enum Next<R> {
    /// So many would be admitted; 0 if that is unknown.
    Admits(usize),
    Rejects(Rejection<R>),
}

/// The rejection of an attempt.
pub(crate) struct Rejection<R> {
    pub(crate) reason: R,
    /// When an attempt can succeed. `None` if that is unknown: the store failed, or another process holds a permit. The call then
    /// attempts after pauses of 5, 10, .. 250 ms.
    pub(crate) retry_at: Option<Instant>,
    /// The counters that rejected it: the call attempts again at once when units of one are released.
    pub(crate) counters: Counters,
}

/// Why a call stopped waiting, or did not wait.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WaitError<R> {
    pub(crate) kind: WaitErrorKind,
    /// The last rejection of the call, or of another one in its queue, and when it was made.
    pub(crate) reason: R,
    pub(crate) rejected_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitErrorKind {
    /// No attempt until the deadline can succeed.
    Late,
    /// The queue is full.
    Full,
    /// The timers of the runtime are not enabled, or there is no runtime.
    NoTimers,
}

struct Queues<K, R> {
    by_key: HashMap<K, Queue<R>>,
    /// The keys of the queues that wait for units under a counter.
    by_counter: HashMap<Counter, HashSet<K>>,
}

/// The calls that wait under a key: at least one.
struct Queue<R> {
    /// In order of arrival, by consecutive numbers.
    waiters: BTreeMap<u64, Waiter>,
    next_number: u64,
    /// How many waiters are invited.
    invited: usize,
    /// All waiters with lower numbers are invited.
    invited_until: u64,
    /// The waiters whose deadlines have passed: they wait for the result of an attempt of the first call.
    overdue: Vec<u64>,
    /// The counters under which it is in [`Queues::by_counter`].
    counters: Vec<Counter>,
    /// Counts releases and additions to `counters`. The store may have rejected an attempt that began before them too early.
    changes: u64,
    released_at: Option<Instant>,
    /// The next pause of an attempt of which nothing says when it can succeed.
    pause: Duration,
    last: LastRejection<R>,
}

struct Waiter {
    notify: Arc<Notify>,
    cost: CallCost,
    /// Whether it may attempt without being first, because units were left by an admission.
    is_invited: bool,
}

/// The last rejection of a queue's first call.
struct LastRejection<R> {
    reason: R,
    rejected_at: Instant,
    cost: CallCost,
    /// When the first call attempts again.
    retry_at: Instant,
    /// Whether no call of the same cost can succeed before.
    is_certain: bool,
}

impl<K, R> Default for WaitQueues<K, R> {
    fn default() -> Self {
        Self {
            queues: Mutex::new(Queues {
                by_key: HashMap::new(),
                by_counter: HashMap::new(),
            }),
            len: AtomicUsize::new(0),
        }
    }
}

impl<K: Clone + Eq + Hash, R: Clone> WaitQueues<K, R> {
    /// Attempts until an attempt is [`Done`](Attempt::Done), or the call cannot succeed until its deadline. `first` is the attempt of a
    /// call that finds no queue. An attempt that has begun is awaited past the deadline. Dropping the future leaves the queue.
    // Not `AsyncFnMut`, with which this would not be `Send`.
    pub(crate) async fn wait<T, F: Future<Output = Attempt<T, R>>>(
        &self,
        call: WaitCall<K>,
        first: impl Future<Output = Attempt<T, R>>,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, WaitError<R>> {
        let mut queued = match self.enter_if_others_wait(&call)? {
            Some(queued) => queued,
            None => match first.await {
                Attempt::Done(value, _) => return Ok(value),
                Attempt::Rejected(rejection) => self.enter(&call, rejection)?,
            },
        };
        loop {
            let changes = queued.wait_for_turn().await?;
            match attempt().await {
                Attempt::Done(value, next) => {
                    queued.done = Some((next, changes));
                    return Ok(value);
                }
                Attempt::Rejected(rejection) => queued.reject(rejection, changes)?,
            }
        }
    }

    /// Has the first call of each queue that waits for units of a counter attempt again: some were given back.
    pub(crate) fn released(&self, policy: &str, key: &Key) {
        self.wake_first(|queues| {
            let keys = queues.by_counter.get(&CounterRef(policy, key));
            let keys = keys.into_iter().flatten();
            let by_key = &mut queues.by_key;
            keys.filter_map(|key| by_key.get_mut(key)?.wake_first())
                .collect()
        });
    }

    /// Has the first call of each queue attempt again: the policies were replaced. Later rejections name their counters anew.
    pub(crate) fn wake_all(&self) {
        self.wake_first(|queues| {
            queues.by_counter.clear();
            let queues = queues.by_key.values_mut();
            queues
                .filter_map(|queue| {
                    queue.counters.clear();
                    queue.wake_first()
                })
                .collect()
        });
    }

    fn wake_first(&self, wake: impl FnOnce(&mut Queues<K, R>) -> Wakers) {
        if self.len.load(Ordering::SeqCst) > 0 {
            let woken = wake(&mut lock(&self.queues));
            notify_all(woken);
        }
    }

    /// The number of calls that wait, by the policies that reject them.
    pub(crate) fn waiting(&self) -> HashMap<Arc<str>, usize> {
        let mut waiting = HashMap::new();
        for queue in lock(&self.queues).by_key.values() {
            let policies: HashSet<_> = queue.counters.iter().map(|(policy, _)| policy).collect();
            for policy in policies {
                *waiting.entry(policy.clone()).or_default() += queue.waiters.len();
            }
        }
        waiting
    }

    /// Enters the end of a queue; `None` if there is no queue.
    fn enter_if_others_wait<'a>(
        &'a self,
        call: &'a WaitCall<K>,
    ) -> Result<Option<QueuedCall<'a, K, R>>, WaitError<R>> {
        if self.len.load(Ordering::SeqCst) == 0 {
            return Ok(None);
        }
        let can_sleep = runtime_with_timers().is_some();
        let mut queues = lock(&self.queues);
        let Some(queue) = queues.by_key.get_mut(&call.key) else {
            return Ok(None);
        };
        call.check(&queue.last, queue.waiters.len(), can_sleep)?;
        let (number, notify) = queue.push(call.cost.clone());
        drop(queues);
        Ok(Some(QueuedCall::new(self, call, number, notify)))
    }

    /// Enters the end of a queue, or begins one, after a rejection.
    fn enter<'a>(
        &'a self,
        call: &'a WaitCall<K>,
        rejection: Rejection<R>,
    ) -> Result<QueuedCall<'a, K, R>, WaitError<R>> {
        let can_sleep = runtime_with_timers().is_some();
        let now = Instant::now();
        let mut last = LastRejection {
            reason: rejection.reason,
            rejected_at: now,
            cost: call.cost.clone(),
            retry_at: rejection.retry_at.unwrap_or(now),
            is_certain: rejection.retry_at.is_some(),
        };
        if call.is_past_deadline(now) {
            return Err(last.error(WaitErrorKind::Late));
        }
        let mut queues = lock(&self.queues);
        let waiting = queues.by_key.get(&call.key);
        let waiting = waiting.map_or(0, |queue| queue.waiters.len());
        call.check(&last, waiting, can_sleep)?;
        // A release before the queue is in `by_counter` wakes no call.
        last.expire(now);
        let queue = match queues.by_key.entry(call.key.clone()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(none) => none.insert(Queue::new(last)),
        };
        let (number, notify) = queue.push(call.cost.clone());
        queues.add_counters(&call.key, &rejection.counters);
        self.len.store(queues.by_key.len(), Ordering::SeqCst);
        drop(queues);
        Ok(QueuedCall::new(self, call, number, notify))
    }
}

impl<K> WaitCall<K> {
    /// Whether the call may wait behind so many others.
    fn check<R: Clone>(
        &self,
        last: &LastRejection<R>,
        waiting: usize,
        can_sleep: bool,
    ) -> Result<(), WaitError<R>> {
        if self.is_late(last, Instant::now()) {
            Err(last.error(WaitErrorKind::Late))
        } else if waiting >= self.max_waiting {
            Err(last.error(WaitErrorKind::Full))
        } else if !can_sleep {
            Err(last.error(WaitErrorKind::NoTimers))
        } else {
            Ok(())
        }
    }

    fn is_past_deadline(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether the call cannot succeed until its deadline, if `last` is the last rejection of its queue. If the first call's attempt is
    /// due, that is not known.
    fn is_late<R>(&self, last: &LastRejection<R>, now: Instant) -> bool {
        let is_certain = last.is_certain && last.cost == self.cost;
        let known_until = if is_certain { last.retry_at } else { now };
        last.retry_at > now
            && self
                .deadline
                .is_some_and(|deadline| deadline <= now || deadline < known_until)
    }
}

impl<R: Clone> LastRejection<R> {
    fn error(&self, kind: WaitErrorKind) -> WaitError<R> {
        WaitError {
            kind,
            reason: self.reason.clone(),
            rejected_at: self.rejected_at,
        }
    }
}

impl<R> LastRejection<R> {
    /// Has the first call attempt now.
    fn expire(&mut self, now: Instant) {
        self.retry_at = now;
        self.is_certain = false;
    }
}

/// A call in a queue. Dropping it leaves the queue.
struct QueuedCall<'a, K: Clone + Eq + Hash, R: Clone> {
    queues: &'a WaitQueues<K, R>,
    call: &'a WaitCall<K>,
    number: u64,
    /// Shared with its [`Waiter`].
    notify: Arc<Notify>,
    /// Set when it is decided: what the next call would get, and the [changes](Queue::changes) before the attempt.
    done: Option<(Next<R>, u64)>,
}

impl<'a, K: Clone + Eq + Hash, R: Clone> QueuedCall<'a, K, R> {
    fn new(
        queues: &'a WaitQueues<K, R>,
        call: &'a WaitCall<K>,
        number: u64,
        notify: Arc<Notify>,
    ) -> Self {
        Self {
            queues,
            call,
            number,
            notify,
            done: None,
        }
    }

    /// Waits until the call may attempt. Returns the [changes](Queue::changes) before that.
    async fn wait_for_turn(&self) -> Result<u64, WaitError<R>> {
        loop {
            let wake_at = match self.next_step() {
                Step::Attempt { changes } => return Ok(changes),
                Step::Leave(error) => return Err(error),
                Step::Sleep(wake_at) => wake_at,
            };
            tokio::select! {
                biased;
                () = self.notify.notified() => {}
                () = Timer::at(wake_at) => {}
            }
        }
    }

    fn next_step(&self) -> Step<R> {
        let now = Instant::now();
        let mut queues = lock(&self.queues.queues);
        let Some(queue) = queues.by_key.get_mut(&self.call.key) else {
            return Step::Attempt { changes: 0 };
        };
        let (last, deadline) = (&queue.last, self.call.deadline);
        let waiter = queue.waiters.get(&self.number);
        let is_invited = waiter.is_some_and(|waiter| waiter.is_invited);
        let is_past_deadline = self.call.is_past_deadline(now);
        let may_attempt = if queue.is_first(self.number) {
            last.retry_at <= now || last.cost != self.call.cost
        } else {
            // The first call should have attempted long ago.
            is_past_deadline && last.retry_at + MAX_OVERDUE <= now
        };
        if is_invited || may_attempt {
            Step::Attempt {
                changes: queue.changes,
            }
        } else if self.call.is_late(last, now) {
            Step::Leave(last.error(WaitErrorKind::Late))
        } else if queue.is_first(self.number) {
            Step::Sleep(deadline.into_iter().chain([last.retry_at]).min())
        } else if is_past_deadline {
            let overdue_at = last.retry_at + MAX_OVERDUE;
            queue.overdue.push(self.number);
            Step::Sleep(Some(overdue_at))
        } else {
            Step::Sleep(deadline)
        }
    }

    /// Keeps waiting after an attempt that began after so many `changes`.
    fn reject(&self, rejection: Rejection<R>, changes: u64) -> Result<(), WaitError<R>> {
        let now = Instant::now();
        let late = self.call.is_past_deadline(now).then(|| WaitError {
            kind: WaitErrorKind::Late,
            reason: rejection.reason.clone(),
            rejected_at: now,
        });
        let mut queues = lock(&self.queues.queues);
        queues.add_counters(&self.call.key, &rejection.counters);
        let queue = queues.by_key.get_mut(&self.call.key);
        let (mut woken, mut replaced) = (Wakers::new(), None);
        if let Some(queue) = queue {
            queue.end_invitation(self.number);
            if queue.is_first(self.number) {
                let cost = self.call.cost.clone();
                replaced = Some(queue.reject_first(rejection, cost, changes, &mut woken));
            }
        }
        drop(queues);
        drop(replaced);
        notify_all(woken);
        late.map_or(Ok(()), Err)
    }
}

impl<K: Clone + Eq + Hash, R: Clone> Drop for QueuedCall<'_, K, R> {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues.queues);
        let done = self.done.take();
        if let Some((Next::Rejects(rejection), _)) = &done {
            queues.add_counters(&self.call.key, &rejection.counters);
        }
        let Some(queue) = queues.by_key.get_mut(&self.call.key) else {
            return;
        };
        let (woken, replaced) = queue.remove(self.number, done, &self.call.cost);
        let is_empty = queue.waiters.is_empty();
        let removed = is_empty.then(|| queues.remove(&self.call.key));
        self.queues.len.store(queues.by_key.len(), Ordering::SeqCst);
        drop(queues);
        drop((removed, replaced));
        notify_all(woken);
    }
}

/// What a waiting call does next.
enum Step<R> {
    Attempt {
        changes: u64,
    },
    Leave(WaitError<R>),
    /// Until it is notified, or until this instant.
    Sleep(Option<Instant>),
}

impl<K: Clone + Eq + Hash, R> Queues<K, R> {
    /// Has releases under these counters wake a queue.
    fn add_counters(&mut self, key: &K, counters: &[Counter]) {
        let Some(queue) = self.by_key.get_mut(key) else {
            return;
        };
        for counter in counters {
            let keys = self.by_counter.entry(counter.clone()).or_default();
            if !keys.contains(key) {
                keys.insert(key.clone());
                queue.counters.push(counter.clone());
                queue.changes += 1;
            }
        }
    }

    fn remove(&mut self, key: &K) -> Option<Queue<R>> {
        let queue = self.by_key.remove(key)?;
        for counter in &queue.counters {
            if let Some(keys) = self.by_counter.get_mut(counter) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_counter.remove(counter);
                }
            }
        }
        Some(queue)
    }
}

impl<R> Queue<R> {
    fn new(last: LastRejection<R>) -> Self {
        Self {
            waiters: BTreeMap::new(),
            next_number: 0,
            invited: 0,
            invited_until: 0,
            overdue: Vec::new(),
            counters: Vec::new(),
            changes: 0,
            released_at: None,
            pause: MIN_PAUSE,
            last,
        }
    }

    fn push(&mut self, cost: CallCost) -> (u64, Arc<Notify>) {
        let (number, notify) = (self.next_number, Arc::new(Notify::new()));
        let waiter = Waiter {
            notify: notify.clone(),
            cost,
            is_invited: false,
        };
        self.waiters.insert(number, waiter);
        self.next_number += 1;
        (number, notify)
    }

    fn first(&self) -> Option<(u64, &Waiter)> {
        let (number, waiter) = self.waiters.first_key_value()?;
        Some((*number, waiter))
    }

    fn is_first(&self, number: u64) -> bool {
        self.first().is_some_and(|(first, _)| first == number)
    }

    /// Has the first call attempt at once, since it may succeed. Returns what is to be notified.
    fn wake_first(&mut self) -> Option<Arc<Notify>> {
        let now = Instant::now();
        self.changes += 1;
        self.released_at = Some(now);
        self.pause = MIN_PAUSE;
        self.last.expire(now);
        self.first().map(|(_, waiter)| waiter.notify.clone())
    }

    /// Removes a call. Returns those that are to be notified, and the rejection that is replaced.
    fn remove(
        &mut self,
        number: u64,
        done: Option<(Next<R>, u64)>,
        cost: &CallCost,
    ) -> (Wakers, Option<LastRejection<R>>) {
        let was_first = self.is_first(number);
        self.end_invitation(number);
        self.waiters.remove(&number);
        let (mut woken, mut replaced) = (Wakers::new(), None);
        if was_first {
            woken.extend(self.first().map(|(_, waiter)| waiter.notify.clone()));
            if done.is_some() {
                self.pause = MIN_PAUSE;
                self.last.expire(Instant::now());
            }
        }
        match done {
            Some((Next::Admits(more), _)) => self.invite(more, cost, &mut woken),
            Some((Next::Rejects(rejection), changes)) if was_first => {
                let last = self.reject_first(rejection, cost.clone(), changes, &mut woken);
                replaced = Some(last);
            }
            Some((Next::Rejects(_), _)) | None => {}
        }
        (woken, replaced)
    }

    /// Has the first `more` calls attempt, less those that do already. One of another cost may need more than is left, and is not
    /// overtaken.
    fn invite(&mut self, more: usize, cost: &CallCost, woken: &mut Wakers) {
        let waiters = self.waiters.range_mut(self.invited_until..);
        let equal = waiters.take_while(|(_, waiter)| waiter.cost == *cost);
        let uninvited = equal.filter(|(_, waiter)| !waiter.is_invited);
        for (number, waiter) in uninvited.take(more.saturating_sub(self.invited)) {
            waiter.is_invited = true;
            self.invited += 1;
            self.invited_until = number + 1;
            woken.push(waiter.notify.clone());
        }
    }

    fn end_invitation(&mut self, number: u64) {
        let waiter = self.waiters.get_mut(&number);
        if waiter.is_some_and(|waiter| mem::take(&mut waiter.is_invited)) {
            self.invited -= 1;
            self.invited_until = self.invited_until.min(number);
        }
    }

    /// Keeps the rejection of an attempt of the first call, or of a call like it, and determines when the first attempts again. Returns
    /// the rejection before.
    fn reject_first(
        &mut self,
        rejection: Rejection<R>,
        cost: CallCost,
        changes: u64,
        woken: &mut Wakers,
    ) -> LastRejection<R> {
        let now = Instant::now();
        let is_settled = self
            .released_at
            .is_none_or(|released_at| now.duration_since(released_at) >= REFUND_TIMEOUT);
        let retry_at = rejection.retry_at.filter(|retry_at| *retry_at > now);
        let (retry_at, is_certain) = match retry_at {
            _ if changes != self.changes => (now, false),
            Some(retry_at) if is_settled => (retry_at, true),
            _ => {
                let pause_ends_at = now + self.pause;
                self.pause = (self.pause * 2).min(MAX_PAUSE);
                let next = retry_at.map_or(pause_ends_at, |retry_at| retry_at.min(pause_ends_at));
                (next, false)
            }
        };
        let last = LastRejection {
            reason: rejection.reason,
            rejected_at: now,
            cost,
            retry_at,
            is_certain,
        };
        if retry_at > now {
            let overdue = mem::take(&mut self.overdue).into_iter();
            let overdue = overdue.filter_map(|number| self.waiters.get(&number));
            woken.extend(overdue.map(|waiter| waiter.notify.clone()));
        }
        mem::replace(&mut self.last, last)
    }
}

/// The calls that are notified when the lock is released.
type Wakers = SmallVec<[Arc<Notify>; 2]>;

fn notify_all(woken: Wakers) {
    woken.iter().for_each(|notify| notify.notify_one());
}

/// A borrowed [`Counter`].
#[derive(Hash)]
struct CounterRef<'a>(&'a str, &'a Key);

impl Equivalent<Counter> for CounterRef<'_> {
    fn equivalent(&self, (policy, key): &Counter) -> bool {
        *self.0 == **policy && self.1 == key
    }
}
