//! A batch: the requests of one script call.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hashbrown::HashTable;
use smallvec::SmallVec;
use tokio::time::Instant;

use self::deadline_timer::DeadlineTimer;
use super::{
    breaker::confirmation::Confirmation,
    rejection_cache::CacheKey,
    request::{
        PendingRequest, Sent,
        limit::RedisLimit,
        op::{CounterTerms, OwnedCounterOp},
    },
};
use crate::store::{LimitHandle, Op};

pub(crate) mod deadline_timer;
pub(crate) mod wire;

/// Most keys in one call: 512 blocked a server for 1.8 ms.
pub(super) const MAX_BATCH_KEYS: usize = 128;

/// The largest number of requests sent for one entry: Lua's integers are exact up to twice as many.
const MAX_COUNT: u64 = 1 << 52;

/// The requests of one call, grouped by operation, policies and cost: refunds first, then the others in the order of their first
/// requests. Equal requests of a group are merged.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    groups: Vec<OpGroup>,
    /// Groups of earlier batches, whose memory is reused.
    spare: Vec<OpGroup>,
    keys: usize,
    /// The number of the call that was encoded last, with which its reply begins.
    call_number: u32,
    /// Whether it holds a request that needs a call of its own.
    exclusive: bool,
    /// A lower bound of the waiters' deadlines: [`push`](Self::push) includes the requests without a waiter,
    /// [`fail_overdue`](Self::fail_overdue) leaves them out. `None` if no waiter is left.
    earliest_deadline: Option<Instant>,
    /// Fires at `earliest_deadline`.
    pub(super) timer: DeadlineTimer,
    /// Whether a request that is past its deadline may still be in it.
    has_expired: bool,
    /// When to have the server probed, if there is no reply by then; `None` once that was done.
    pub(super) confirm_at: Option<Instant>,
    pub(super) confirmation: Option<Arc<Confirmation>>,
    /// Whether the thread that waits for the reply was held up.
    pub(super) is_held_up: bool,
    /// The store's timeout.
    timeout: Duration,
    /// If its requests are awaited for one more timeout: until when that with the earliest deadline is, at least.
    pub(super) awaited_until: Option<Instant>,
    /// The instant that the timer was set for, while that is waited for.
    due: Option<Instant>,
    /// When it had its reply, or was given up.
    pub(super) ended_at: Option<Instant>,
    /// Whether a call of it was handed to a connection.
    pub(super) is_sent: bool,
    /// Whether all of its requests have timed out, and it only waits for the reply.
    pub(super) is_late: bool,
}

/// Requests for one operation, under the same policies at the same cost: a segment of the script's arguments.
#[derive(Debug)]
struct OpGroup {
    op: Op,
    limits: SmallVec<[LimitHandle; 2]>,
    terms: SmallVec<[CounterTerms; 2]>,
    entries: Vec<MergedRequests>,
    /// The entries, by the hash of their keys.
    index: HashTable<u32>,
}

/// Equal requests, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct MergedRequests {
    pub(super) requests: SmallVec<[PendingRequest; 1]>,
    hash: u64,
}

impl Batch {
    /// Adds a request, or returns it if the batch is full. An acquire or peek equal to one in the batch is always added, since it
    /// adds no key.
    pub(super) fn push(&mut self, request: PendingRequest) -> Result<(), Box<PendingRequest>> {
        let fits = self.keys == 0
            || self.keys + request.counters.len() <= MAX_BATCH_KEYS
                && !self.exclusive
                && !request.send_alone;
        let groups = &mut self.groups;
        let group = groups.iter_mut().position(|group| group.accepts(&request));
        let hash = request.hash;
        if request.op.needs_reader()
            && let Some(group) = group
            && let Some(entry) = groups[group].find_equal(hash, &request)
        {
            let earliest_deadline = self.earliest_deadline.unwrap_or(request.deadline);
            self.earliest_deadline = Some(earliest_deadline.min(request.deadline));
            entry.requests.push(request);
            return Ok(());
        }
        if !fits {
            return Err(Box::new(request));
        }
        self.keys += request.counters.len();
        self.exclusive = request.send_alone;
        let group = group.unwrap_or_else(|| {
            let mut group = self.spare.pop().unwrap_or_default();
            group.begin(&request);
            // Refunds first: a request that follows a refund of its key may be in a group that is there already.
            let is_refund = |group: &OpGroup| {
                group.op == Op::Adjust && group.terms.iter().all(|terms| terms.refunds)
            };
            let position = if is_refund(&group) {
                groups.iter().take_while(|group| is_refund(group)).count()
            } else {
                groups.len()
            };
            groups.insert(position, group);
            position
        });
        let earliest_deadline = self.earliest_deadline.unwrap_or(request.deadline);
        self.earliest_deadline = Some(earliest_deadline.min(request.deadline));
        groups[group].add(hash, request);
        Ok(())
    }

    /// The number of keys.
    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    /// The number of requests' checks.
    pub(super) fn checks(&self) -> usize {
        let checks = self.requests();
        checks
            .filter(|request| matches!(request.op, Op::Acquire(_)))
            .count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Removes its requests, and keeps the memory for the next ones.
    pub(super) fn clear(&mut self) {
        for mut group in self.groups.drain(..) {
            group.entries.clear();
            self.spare.push(group);
        }
        self.keys = 0;
        self.exclusive = false;
        self.earliest_deadline = None;
        self.has_expired = false;
        self.confirmation = None;
        self.is_held_up = false;
        self.awaited_until = None;
        self.due = None;
        self.is_sent = false;
        self.is_late = false;
    }

    /// Prepares it to be sent, in a store with this timeout. After half of that a missing reply is evidence. Requests that waited
    /// in the queue past their deadline are awaited for as long as `awaited_until` says.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        timeout: Duration,
        awaited_until: impl Fn(Instant) -> Instant,
    ) {
        self.timeout = timeout;
        self.confirm_at = Some(now + timeout / 2);
        let late = self.earliest_deadline.filter(|earliest| *earliest <= now);
        self.awaited_until = late.map(awaited_until);
    }

    /// Until when a request with this deadline is awaited.
    #[inline]
    fn until(&self, deadline: Instant) -> Instant {
        until(deadline, self.awaited_until, self.timeout)
    }

    /// Ready once an instant has passed.
    pub(super) fn poll_timer(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        self.due = Some(at);
        ready!(self.timer.poll(at, cx));
        self.due = None;
        Poll::Ready(())
    }

    /// The instant that its timer was last set for, unless the timer has fired.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// When to call [`fail_overdue`](Self::fail_overdue) next: when the request with the earliest deadline is not awaited any more.
    /// If no waiter is left, the last such instant, if that is still to come.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self.earliest_deadline {
            Some(deadline) => Some(self.until(deadline)),
            None => self.last_deadline(),
        }
    }

    /// The last deadline, if that is still to come.
    #[cold]
    pub(super) fn last_deadline(&self) -> Option<Instant> {
        let last = self.requests().map(|request| request.deadline).max()?;
        Some(self.until(last)).filter(|last| *last > Instant::now())
    }

    /// Fails the requests past their deadline. They stay in the batch, since they may have been sent.
    pub(super) fn fail_overdue(&mut self, now: Instant) {
        self.has_expired = true;
        let (awaited_until, timeout) = (self.awaited_until, self.timeout);
        let is_sent = self.is_sent;
        for entry in self.entries() {
            for request in &mut entry.requests {
                let until = until(request.deadline, awaited_until, timeout);
                if until <= now {
                    request.expire(is_sent);
                }
            }
        }
        let waiting = self.requests().filter(|q| q.has_waiter());
        let earliest_deadline = waiting.map(|request| request.deadline).min();
        self.earliest_deadline = earliest_deadline;
    }

    /// Removes the requests whose waiter has timed out, before the batch is sent.
    pub(super) fn remove_overdue(&mut self) {
        if !mem::take(&mut self.has_expired) {
            return;
        }
        for group in &mut self.groups {
            let keys = group.limits.len();
            group.entries.retain_mut(|entry| {
                entry.requests.retain(|request| !request.is_withdrawn);
                let is_kept = !entry.requests.is_empty();
                self.keys -= if is_kept { 0 } else { keys };
                is_kept
            });
        }
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &PendingRequest> {
        let entries = self.groups.iter().flat_map(|group| &group.entries);
        entries.flat_map(|entry| &entry.requests)
    }

    /// The entries, in the order of the reply.
    pub(super) fn entries(&mut self) -> impl Iterator<Item = &mut MergedRequests> {
        self.groups.iter_mut().flat_map(|group| &mut group.entries)
    }

    /// Whether it has operations that are done whether or not a task waits for them.
    pub(super) fn must_not_be_lost(&self) -> bool {
        self.groups.iter().any(|group| !group.op.needs_reader())
    }

    /// The counters whose cached rejections it may invalidate.
    pub(super) fn invalidated(&self) -> impl Iterator<Item = CacheKey<'_>> {
        let invalidating = self.groups.iter().filter(|group| group.invalidates());
        let entries = invalidating.flat_map(|group| &group.entries);
        entries.flat_map(|entry| entry.counters().iter().map(OwnedCounterOp::cache_key))
    }

    /// Removes all requests.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PendingRequest> {
        self.entries().flat_map(|entry| entry.requests.drain(..))
    }
}

/// A batch is lost with its runtime.
impl Drop for Batch {
    fn drop(&mut self) {
        if self.is_sent {
            let requests = self.entries().flat_map(|entry| &mut entry.requests);
            requests.for_each(|request| request.sent = Sent::Maybe);
        }
    }
}

impl Default for OpGroup {
    fn default() -> Self {
        Self {
            op: Op::Peek,
            limits: SmallVec::new(),
            terms: SmallVec::new(),
            entries: Vec::with_capacity(MAX_BATCH_KEYS),
            index: HashTable::with_capacity(MAX_BATCH_KEYS),
        }
    }
}

impl OpGroup {
    /// Resets it for requests such as this.
    fn begin(&mut self, request: &PendingRequest) {
        let counters = request.counters.iter();
        self.op = request.op;
        self.limits.clear();
        self.terms.clear();
        self.index.clear();
        self.limits
            .extend(counters.clone().map(|counter| counter.limit.clone()));
        self.terms.extend(counters.map(OwnedCounterOp::terms));
    }

    /// The entry of requests equal to this.
    fn find_equal(&mut self, hash: u64, request: &PendingRequest) -> Option<&mut MergedRequests> {
        let entries = &mut self.entries;
        let equal = |position: &u32| {
            let entry = &entries[*position as usize];
            let mut counters = entry.counters().iter().zip(&request.counters);
            entry.hash == hash && counters.all(|(counter, other)| counter.key == other.key)
        };
        let position = *self.index.find(hash, equal)?;
        entries.get_mut(position as usize)
    }

    fn add(&mut self, hash: u64, request: PendingRequest) {
        let entries = &self.entries;
        let rehash = |position: &u32| entries[*position as usize].hash;
        self.index.insert_unique(hash, entries.len() as u32, rehash);
        self.entries.push(MergedRequests {
            requests: SmallVec::from_buf([request]),
            hash,
        });
    }

    fn accepts(&self, request: &PendingRequest) -> bool {
        // `times` may differ.
        let is_same = match (self.op, request.op) {
            (Op::Acquire(_), Op::Acquire(_)) => true,
            (op, other) => op == other,
        };
        is_same
            && self.limits.len() == request.counters.len()
            && request
                .counters
                .iter()
                .zip(self.limits.iter().zip(&self.terms))
                .all(|(counter, (limit, terms))| {
                    counter.limit.id() == limit.id() && counter.terms() == *terms
                })
    }
}

impl OpGroup {
    /// Whether it may invalidate a cached rejection. Those of in-flight limits are not cached.
    fn invalidates(&self) -> bool {
        let is_cached = |limit: &LimitHandle| limit.info().permit_ttl.is_none();
        self.op.may_admit_sooner() && self.limits.iter().any(is_cached)
    }
}

impl MergedRequests {
    /// The operation; `Peek` for an entry without requests.
    pub(super) fn op(&self) -> Op {
        self.requests.first().map_or(Op::Peek, |q| q.op)
    }

    pub(super) fn counters(&self) -> &[OwnedCounterOp] {
        self.requests
            .first()
            .map_or(&[], |request| &request.counters)
    }

    /// The number of equal requests.
    fn count(&self) -> u64 {
        self.requests.iter().map(count).sum::<u64>().min(MAX_COUNT)
    }

    /// The caller of each request, under each policy that records callers: at most as many as a full quota has
    /// units, since no more are charged.
    fn callers(&self) -> impl Iterator<Item = &str> {
        let recording = self.counters().iter().enumerate();
        let recording = recording.filter(|(_, counter)| counter.records_caller());
        recording.flat_map(move |(position, counter)| {
            let each = self.requests.iter().flat_map(move |request| {
                let caller = request.counters[position].caller().as_str();
                (0..count(request)).map(move |_| caller)
            });
            let limit = counter.limit.context::<RedisLimit>();
            each.take(limit.map_or(0, RedisLimit::capacity))
        })
    }
}

/// Until when a request with this deadline is awaited: if the batch is for one more timeout, from its own deadline on, and not from
/// that of an earlier request.
#[inline]
fn until(deadline: Instant, awaited_until: Option<Instant>, timeout: Duration) -> Instant {
    match awaited_until {
        Some(until) => until.max(deadline + timeout),
        None => deadline,
    }
}

/// The number of equal requests that a request stands for.
fn count(request: &PendingRequest) -> u64 {
    match request.op {
        Op::Acquire(times) => times.into(),
        Op::Adjust | Op::Peek | Op::Reset | Op::Renew => 1,
    }
}
