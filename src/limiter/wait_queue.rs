//! A queue of [`Limiter::wait`](crate::Limiter::wait): requests that wait for the same keys, in order of arrival.
//!
//! The first request calls the store, for itself and the requests behind it that can be merged with its own. What a request was
//! charged that leaves without having seen its decision is refunded.

use std::{
    collections::HashSet,
    future::{Future, poll_fn},
    mem,
    ops::ControlFlow,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use hashbrown::{HashMap, hash_map::EntryRef};
use smallvec::{SmallVec, smallvec};
use tokio::{runtime::Handle, time::Instant};

use super::{
    decide::MaybePending,
    decision::{Decision, DecisionKind},
    wait::WaitRequest,
    wait_list::{Call, Step, WaitList},
};
use crate::{
    key::Key,
    store::{DecisionSource, overrides::PolicyKey},
    strategy::RetryAfter,
    sync::{ReplaceableValue, lock},
};

/// Upper bound of the requests in one call of the store.
const MAX_BATCH: usize = 1_024;

/// It is open for as long as it is used.
pub(crate) struct WaitQueue {
    queues: Arc<WaitQueues>,
    key: QueueKey,
    state: Mutex<QueueState>,
}

#[derive(Default)]
pub(crate) struct QueueState {
    list: WaitList<Waiter, Box<MergedCheck>, Decision>,
    /// The last rejection: out of date while a call of the store is in flight.
    rejection: Option<Arc<LastRejection>>,
    /// Whether units or permits were refunded since the first request has looked.
    is_notified: bool,
    finisher: Option<FinisherRef>,
}

/// The number and the waker of a [`Finisher`].
type FinisherRef = (u64, Waker);

struct Waiter {
    limits: WaiterLimits,
    /// Woken when it may have something to do.
    waker: Option<Waker>,
}

/// A request, and the limits of its waiting: at most `max_ahead` requests ahead of it, until `deadline`.
#[derive(Clone)]
pub(crate) struct WaiterLimits {
    pub(crate) request: Arc<WaitRequest>,
    pub(crate) max_ahead: usize,
    pub(crate) deadline: Option<Instant>,
}

/// A call of the store for `n` requests.
struct MergedCheck {
    request: Arc<WaitRequest>,
    n: u32,
    decision: MaybePending,
}

impl WaiterLimits {
    /// Whether waiting behind `ahead` requests cannot succeed, by the queue's last rejection.
    fn cannot_succeed(&self, ahead: usize, rejection: &LastRejection, now: Instant) -> bool {
        let same = self.request.is_mergeable_with(&rejection.request);
        let late = self.deadline.is_some_and(|deadline| {
            // A request with a smaller cost may be admitted earlier, if those ahead leave.
            deadline <= now || same && deadline < rejection.retry_at
        });
        ahead >= self.max_ahead || late
    }
}

impl Waiter {
    fn is_mergeable_with(&self, request: &WaitRequest) -> bool {
        self.limits.request.is_mergeable_with(request)
    }

    fn wake(self) {
        self.waker.into_iter().for_each(Waker::wake);
    }
}

impl QueueState {
    pub(crate) fn is_unused(&self) -> bool {
        self.list.is_empty()
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.list.waiters.len()
    }

    /// The last rejection, unless a call of the store is in flight.
    fn current_rejection(&self) -> Option<&Arc<LastRejection>> {
        self.rejection.as_ref().filter(|_| !self.list.has_call())
    }

    fn first_waker(&self) -> Option<Waker> {
        self.list.first()?.1.waker.clone()
    }

    /// Registers another finisher. Returns its number, and the one that ends when it is woken.
    fn replace_finisher(&mut self) -> (u64, Option<FinisherRef>) {
        let number = self.list.next_number();
        (
            number,
            self.finisher.replace((number, Waker::noop().clone())),
        )
    }
}

impl WaitQueue {
    pub(super) fn new(queues: Arc<WaitQueues>, key: QueueKey) -> Arc<Self> {
        Arc::new(Self {
            queues,
            key,
            state: Mutex::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    /// Has the first request try again.
    pub(super) fn notify(&self) {
        let mut state = self.lock();
        state.is_notified = true;
        let first = state.first_waker();
        drop(state);
        first.into_iter().for_each(Waker::wake);
    }

    pub(super) fn take_rejection(&self) -> Option<Arc<LastRejection>> {
        self.lock().rejection.take()
    }

    /// Calls the store for a request, and those next to it that can be merged.
    fn begin_call(&self, request: &Arc<WaitRequest>) -> MergedCheck {
        let n = if request.can_batch() {
            let state = self.lock();
            let all = state.list.waiters.values().take(MAX_BATCH);
            let same = all.take_while(|waiter| waiter.is_mergeable_with(request));
            same.count() as u32
        } else {
            1
        };
        MergedCheck {
            request: request.clone(),
            n,
            decision: request.check(n),
        }
    }

    /// Applies the decision on `n` requests: decides those that are admitted, and publishes the rejection of the rest. Returns the
    /// decision of the request `by`, if it is one of them, or the rejection of all.
    fn complete(
        &self,
        decision: Decision,
        (request, n): (&Arc<WaitRequest>, u32),
        by: Option<u64>,
    ) -> Result<Option<Decision>, Arc<LastRejection>> {
        let exhausted = matches!(decision.kind, DecisionKind::Rejected);
        let failed = match &decision.kind {
            DecisionKind::StoreFailed(error) => request.retries_after(error),
            _ => false,
        };
        if failed || exhausted && decision.retry_after() != RetryAfter::Never {
            let rejection = LastRejection::new(decision, request.clone());
            self.publish(rejection.clone());
            return Err(rejection);
        }
        // Where the store was not called, or failed, all requests get the same decision.
        let n = u64::from(n);
        let k = match decision.admitted {
            0 => n,
            admitted => admitted,
        };
        if k < n {
            self.publish(LastRejection::after(&decision, request.clone()));
        }
        let shares: SmallVec<[Decision; 1]> = match n {
            1 => smallvec![decision],
            _ => {
                let shares = (0..k).map(|i| request.share_of(&decision, i, k)).collect();
                // They have its permits.
                drop(decision);
                shares
            }
        };
        for share in &shares {
            share.permit.wake_on_release(&self.key);
        }
        let mut shares = shares.into_iter();
        let (mut own, mut decided) = (None, Vec::new());
        let mut state = self.lock();
        while let Some((number, first)) = state.list.first()
            && first.is_mergeable_with(request)
            && let Some(share) = shares.next()
        {
            decided.extend(state.list.waiters.remove(&number));
            if by == Some(number) {
                own = Some(share);
            } else {
                state.list.decided.insert(number, share);
            }
        }
        drop(state);
        decided.into_iter().for_each(Waiter::wake);
        // Those of requests that have left.
        shares.for_each(|share| self.refund(share));
        Ok(own)
    }

    /// Publishes a rejection to requests that join, and to the next first one. It says nothing once the policies were replaced.
    fn publish(&self, rejection: Arc<LastRejection>) {
        if !rejection.request.limiter.replaced_flag().is_set() {
            let before = self.lock().rejection.replace(rejection);
            drop(before);
        }
    }

    /// Refunds what a request was charged that has left.
    fn refund(&self, mut decision: Decision) {
        if !decision.is_admitted() {
            return;
        }
        // Not dropped by the application: nothing to log.
        let _permit = decision.permit.take();
        decision.limiter.refund_unreported(&mut decision.entries);
        self.queues.notify(&self.key);
    }
}

/// A request's place in a queue. Dropping it leaves the queue.
pub(crate) struct Place {
    queue: Arc<WaitQueue>,
    number: u64,
    request: Arc<WaitRequest>,
}

impl Place {
    /// Joins the end of a queue. Returns whether others are ahead as well; the rejection of a request that can't succeed there.
    pub(crate) fn join(limits: WaiterLimits) -> ControlFlow<Decision, (Self, bool)> {
        let request = limits.request.clone();
        let queues = request.limiter.wait_queues.clone();
        queues.join(request.queue_key(), |queue, state| {
            let ahead = state.waiting();
            let current = state.current_rejection().filter(|_| ahead > 0);
            let now = Instant::now();
            if let Some(rejection) =
                current.filter(|rejection| limits.cannot_succeed(ahead, rejection, now))
            {
                return ControlFlow::Break(rejection.at(now));
            }
            let waiter = Waiter {
                limits,
                waker: None,
            };
            let place = Self {
                queue: queue.clone(),
                number: state.list.push(waiter),
                request,
            };
            ControlFlow::Continue((place, ahead > 0))
        })
    }

    /// Whether a call of the store is in flight.
    pub(crate) fn has_call(&self) -> bool {
        self.queue.lock().list.has_call()
    }

    /// Waits until no request is ahead of it, or until it is decided.
    pub(crate) async fn until_first(&self) -> ControlFlow<Decision> {
        let find = |state: &mut QueueState| match state.list.decided.remove(&self.number) {
            Some(decision) => Some(ControlFlow::Break(decision)),
            None => {
                let is_first = state.list.is_first(self.number);
                is_first.then_some(ControlFlow::Continue(()))
            }
        };
        poll_fn(|cx| self.poll_queue(cx, find)).await
    }

    /// Waits until units or permits were refunded, or the policies replaced.
    pub(crate) async fn notified(&self) {
        let find = |state: &mut QueueState| mem::take(&mut state.is_notified).then_some(());
        poll_fn(|cx| self.poll_queue(cx, find)).await;
    }

    /// The last rejection, if it says how long this request has to wait, too.
    pub(crate) fn applicable_rejection(&self) -> Option<Arc<LastRejection>> {
        let rejection = self.queue.lock().current_rejection()?.clone();
        let is_pending = !rejection.needs_polling && rejection.retry_at > Instant::now();
        let applies = is_pending && rejection.request.is_mergeable_with(&self.request);
        applies.then_some(rejection)
    }

    /// The last rejection, for a request that others are ahead of at its deadline; `None` if the store has not rejected any, or this
    /// request is decided.
    pub(crate) fn last_rejection(&self) -> Option<Decision> {
        let state = self.queue.lock();
        let is_decided = state.list.decided.contains_key(&self.number);
        let last = state.rejection.clone().filter(|_| !is_decided);
        drop(state);
        Some(last?.at(Instant::now()))
    }

    /// Calls the store for the first request and those next to it that can be merged, or polls the call that is in flight. Returns the
    /// decision that ends this request's waiting, or a rejection to wait for; `Ok(None)` if it was the call of a request that has
    /// left, and does not decide this one. If this future is dropped meanwhile, the call stays in the queue.
    pub(crate) async fn call_store(&self) -> Result<Option<Decision>, Arc<LastRejection>> {
        let decided = poll_fn(|cx| {
            let step = self.poll_queue(cx, |state| state.list.step(self.number));
            let call = match ready!(step) {
                Step::Return(decision) => return Poll::Ready(Ok(Some(decision))),
                Step::Poll(call) => Some(*call),
                Step::Begin => None,
            };
            let taken = TakenCall::new(&self.queue, Some(self));
            let call = call.unwrap_or_else(|| self.queue.begin_call(&self.request));
            taken.poll(call, cx)
        });
        match decided.await {
            Err(rejection) if !rejection.request.is_mergeable_with(&self.request) => Ok(None),
            decided => decided,
        }
    }

    /// Rejects the requests behind this one that can't succeed.
    pub(crate) fn reject_hopeless(&self, rejection: &LastRejection) {
        let now = Instant::now();
        let mut state = self.queue.lock();
        let mut ahead = 1;
        let behind = state.list.waiters.iter().skip(1);
        let hopeless = behind.filter(|(_, waiter)| {
            let hopeless = waiter.limits.cannot_succeed(ahead, rejection, now);
            ahead += usize::from(!hopeless);
            hopeless
        });
        let hopeless: Vec<u64> = hopeless.map(|(number, _)| *number).collect();
        let mut rejected = Vec::with_capacity(hopeless.len());
        for number in hopeless {
            rejected.extend(state.list.waiters.remove(&number));
            state.list.decided.insert(number, rejection.at(now));
        }
        drop(state);
        rejected.into_iter().for_each(Waiter::wake);
    }

    /// What `find` finds in the queue. If it is nothing, the task is woken when that may have changed.
    fn poll_queue<T>(
        &self,
        cx: &Context<'_>,
        find: impl FnOnce(&mut QueueState) -> Option<T>,
    ) -> Poll<T> {
        let mut state = self.queue.lock();
        let found = find(&mut state);
        let waiter = state.list.waiters.get_mut(&self.number);
        let waker = found.is_none().then(|| cx.waker().clone());
        let before = waiter.map(|waiter| mem::replace(&mut waiter.waker, waker));
        drop(state);
        drop(before);
        found.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        let was_first = state.list.is_first(self.number);
        let left = state.list.waiters.remove(&self.number);
        let unread = state.list.decided.remove(&self.number);
        let next = state.first_waker().filter(|_| was_first);
        // One that is taken is being polled by the finisher that there is, or has ended.
        let is_left = matches!(state.list.call, Call::InFlight(_));
        let is_abandoned = was_first && state.waiting() == 0 && is_left;
        let finisher = is_abandoned.then(|| state.replace_finisher());
        let is_unused = state.is_unused();
        drop(state);
        drop(left);
        next.into_iter().for_each(Waker::wake);
        if is_unused {
            self.queue.queues.close_unused(&self.queue.key);
        }
        if let Some((number, before)) = finisher {
            before.into_iter().for_each(|(_, waker)| waker.wake());
            Finisher::start(self.queue.clone(), number);
        }
        if let Some(decision) = unread {
            self.queue.refund(decision);
        }
    }
}

/// A call that a task has taken to poll it. When this is dropped, a call that is pending is put back, and any other has ended.
struct TakenCall<'a> {
    queue: &'a WaitQueue,
    /// The request whose task it is.
    by: Option<&'a Place>,
    pending: Option<Box<MergedCheck>>,
}

impl<'a> TakenCall<'a> {
    fn new(queue: &'a WaitQueue, by: Option<&'a Place>) -> Self {
        Self {
            queue,
            by,
            pending: None,
        }
    }

    fn poll(
        mut self,
        mut call: MergedCheck,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Decision>, Arc<LastRejection>>> {
        match Pin::new(&mut call.decision).poll(cx) {
            Poll::Ready(decision) => {
                let is_own = |place: &Place| Arc::ptr_eq(&place.request, &call.request);
                // The runtime of a request that has left may have ended, or stand still, which fails no other request.
                if decision.source == DecisionSource::Fallback && !self.by.is_some_and(is_own) {
                    self.queue.refund(decision);
                    return Poll::Ready(Ok(None));
                }
                let merged = (&call.request, call.n);
                let by = self.by.map(|place| place.number);
                Poll::Ready(self.queue.complete(decision, merged, by))
            }
            Poll::Pending => {
                self.pending = Some(Box::new(call));
                Poll::Pending
            }
        }
    }
}

impl Drop for TakenCall<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.list.call = self.pending.take().map_or(Call::None, Call::InFlight);
        // The first request may have found that the call was taken. The finisher ends with the call.
        let first = state.first_waker();
        let has_ended = !state.list.has_call();
        let finisher = state.finisher.clone().filter(|_| has_ended);
        let finisher = finisher.map(|(_, waker)| waker);
        drop(state);
        first.into_iter().chain(finisher).for_each(Waker::wake);
    }
}

/// A task that polls a call for which no request waits any more. What it charges is granted to requests that join meanwhile, or else
/// refunded: cancelling it would leave the units charged for a moment, and the next request would be rejected for them. A
/// request that joins polls the call itself, since this task's runtime may stand still.
struct Finisher {
    queue: Arc<WaitQueue>,
    /// Another one has another number: the runtime of the one before may stand still.
    number: u64,
}

impl Finisher {
    fn start(queue: Arc<WaitQueue>, number: u64) {
        let finisher = Self { queue, number };
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(finisher));
        }
    }

    fn is_own(&self, finisher: &FinisherRef) -> bool {
        finisher.0 == self.number
    }
}

impl Future for Finisher {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.queue.lock();
        let has_call = state.list.has_call();
        match &mut state.finisher {
            Some(own) if has_call && self.is_own(own) => own.1.clone_from(cx.waker()),
            _ => return Poll::Ready(()),
        }
        let call = match state.waiting() {
            0 => state.list.take_call(),
            _ => None,
        };
        drop(state);
        let Some(call) = call else {
            return Poll::Pending;
        };
        let taken = TakenCall::new(&self.queue, None);
        taken.poll(*call, cx).map(drop)
    }
}

/// Without a runtime, or when it ends, the call is cancelled, unless a request has joined.
impl Drop for Finisher {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if state.finisher.take_if(|own| self.is_own(own)).is_none() {
            return;
        }
        let mut cancelled = None;
        if state.waiting() == 0 {
            cancelled = state.list.take_call();
        }
        if cancelled.is_some() {
            state.list.call = Call::None;
        }
        drop(state);
        drop(cancelled);
        self.queue.queues.close_unused(&self.queue.key);
    }
}

/// Lower bound of the wait that an aged rejection reports.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);

/// The last rejection of a queue, from which the waits of its requests are known.
pub(crate) struct LastRejection {
    decision: Decision,
    pub(crate) request: Arc<WaitRequest>,
    decided_at: Instant,
    /// When a retry can succeed.
    pub(crate) retry_at: Instant,
    /// Whether the time of a retry is unknown, since it waits for a permit or for a store that failed.
    pub(crate) needs_polling: bool,
    /// Whether the store failed.
    pub(crate) failed: bool,
}

impl LastRejection {
    pub(crate) fn new(decision: Decision, request: Arc<WaitRequest>) -> Arc<Self> {
        let decided_at = Instant::now();
        let wait = request.retry_delay(&decision);
        let failed = matches!(decision.kind, DecisionKind::StoreFailed(_));
        let retry_at = decided_at.checked_add(wait).unwrap_or(decided_at);
        // Where an override ends before, the request is decided anew.
        let override_end = request
            .override_end()
            .map(|end| end.max(decided_at + MIN_RETRY_DELAY));
        Arc::new(Self {
            decided_at,
            retry_at: override_end.map_or(retry_at, |end| end.min(retry_at)),
            needs_polling: failed || request.waits_for_permit(&decision),
            failed,
            decision,
            request,
        })
    }

    /// The rejection of the requests that were left over when a call admitted only some.
    pub(crate) fn after(admitted: &Decision, request: Arc<WaitRequest>) -> Arc<Self> {
        let entry = admitted.entries.iter();
        let entry = entry.map(|entry| entry.with_receipts(entry.receipts.split(0)));
        let mut decision = admitted.with_entries(entry);
        decision.kind = DecisionKind::Rejected;
        decision.admitted = 0;
        drop(decision.permit.take());
        for entry in &mut decision.entries {
            entry.refresh_shadow(&decision.limiter);
        }
        Self::new(decision, request)
    }

    /// Whether no retry before the deadline can succeed.
    pub(crate) fn is_past_deadline(&self, deadline: Option<Instant>, now: Instant) -> bool {
        deadline.is_some_and(|deadline| deadline <= now || deadline < self.retry_at)
    }

    /// The rejection as of `now`.
    pub(crate) fn at(&self, now: Instant) -> Decision {
        let mut decision = self.decision.clone();
        let since = now.saturating_duration_since(self.decided_at);
        if since > Duration::ZERO && !self.failed {
            decision.source = DecisionSource::RejectionCache;
            for entry in &mut decision.entries {
                entry.update_status(&decision.limiter, |status| {
                    if let RetryAfter::In(wait) = status.retry_after {
                        status.retry_after =
                            RetryAfter::In(wait.saturating_sub(since).max(MIN_RETRY_DELAY));
                    }
                    status.reset_after = status.reset_after.saturating_sub(since);
                });
                entry.receipts.age_by(since);
            }
        }
        decision
    }
}

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
        let closed = match locked.queues.entry_ref(key) {
            EntryRef::Occupied(queue) if queue.get().lock().is_unused() => Some(queue.remove()),
            _ => None,
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
