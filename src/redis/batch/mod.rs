//! A batch: the requests of one script call.

use hashbrown::HashTable;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    rejection_cache::CacheKey,
    request::{
        PendingRequest,
        limit::RedisLimit,
        op::{CounterTerms, OwnedCounterOp},
    },
    script::msgpack::MsgPackWriter,
};
use crate::store::{LimitHandle, Op};

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
    /// The script's argument, whose memory is reused.
    args: MsgPackWriter,
    keys: usize,
    /// The number of the call that was encoded last, with which its reply begins.
    call_number: u32,
    /// Whether it holds a request that needs a call of its own.
    exclusive: bool,
    /// A lower bound of the waiters' deadlines: [`push`](Self::push) includes the requests without a waiter,
    /// [`expire`](Self::expire) leaves them out. `None` if no waiter is left.
    earliest_deadline: Option<Instant>,
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
    }

    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.earliest_deadline
    }

    /// Fails the waiters whose deadline has passed. Their requests stay in the batch, which was sent.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.earliest_deadline.is_none_or(|earliest| earliest > now) {
            return;
        }
        for entry in self.entries() {
            let requests = entry.requests.iter_mut();
            let expired = requests.filter(|request| request.deadline <= now);
            expired.for_each(PendingRequest::expire);
        }
        let waiting = self.requests().filter(|request| request.has_waiter());
        self.earliest_deadline = waiting.map(|request| request.deadline).min();
    }

    /// Removes the requests that only a waiter needs, and whose waiter has an error: the batch is sent again.
    pub(super) fn remove_answered(&mut self) {
        for group in &mut self.groups {
            let keys = group.limits.len();
            group.entries.retain_mut(|entry| {
                entry.requests.retain(|request| !request.is_answered());
                let is_kept = !entry.requests.is_empty();
                self.keys -= if is_kept { 0 } else { keys };
                is_kept
            });
        }
    }

    /// Has each request sent in a batch of its own.
    pub(super) fn send_alone(&mut self) {
        let requests = self.entries().flat_map(|entry| &mut entry.requests);
        requests.for_each(|request| request.send_alone = true);
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &PendingRequest> {
        let entries = self.groups.iter().flat_map(|group| &group.entries);
        entries.flat_map(|entry| &entry.requests)
    }

    /// The entries, in the order of the reply.
    pub(super) fn entries(&mut self) -> impl Iterator<Item = &mut MergedRequests> {
        self.groups.iter_mut().flat_map(|group| &mut group.entries)
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

/// The number of equal requests that a request stands for.
fn count(request: &PendingRequest) -> u64 {
    match request.op {
        Op::Acquire(times) => times.into(),
        Op::Adjust | Op::Peek | Op::Reset | Op::Renew => 1,
    }
}
