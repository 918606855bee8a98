//! A batch: the requests of one script call.

use std::mem;

use hashbrown::HashTable;
use smallvec::SmallVec;
use tokio::time::Instant;

use self::deadline_timer::DeadlineTimer;
use super::{
    rejection_cache::CacheKey,
    request::{PendingRequest, limit::RedisLimit, op::OwnedCounterOp},
};
use crate::store::{CounterMode, LimitHandle, Op, Units};

pub(crate) mod deadline_timer;
pub(crate) mod decode;
pub(crate) mod encode;

/// Keys in one call at most: 512 blocked a server for 1.8 ms.
pub(super) const MAX_BATCH_KEYS: usize = 128;

/// Equal requests merged into one entry at most: what Lua counts exactly.
const MAX_MERGED: u64 = 1 << 52;

/// The requests of one call: those of one kind form a group, equal ones are merged.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    segments: Vec<OpGroup>,
    /// Groups of earlier batches, whose memory is reused.
    spare: Vec<OpGroup>,
    keys: usize,
    /// Whether it holds a request that needs a call of its own.
    alone: bool,
    /// Lower bound of the requests' deadlines.
    soonest: Option<Instant>,
    /// Fires at that deadline.
    pub(super) alarm: DeadlineTimer,
    /// Whether a request that is past its deadline may still be in it.
    late: bool,
}

/// Requests of one kind, under the same policies at the same cost.
#[derive(Debug)]
struct OpGroup {
    op: Op,
    limits: SmallVec<[LimitHandle; 2]>,
    units: SmallVec<[(Units, CounterMode); 2]>,
    entries: Vec<MergedRequests>,
    /// The entries, by the hash of their keys.
    places: HashTable<u32>,
}

/// Equal requests, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct MergedRequests {
    pub(super) requests: SmallVec<[PendingRequest; 1]>,
    hash: u64,
}

impl Batch {
    /// Adds a request, or returns it if the batch is full.
    pub(super) fn push(&mut self, request: PendingRequest) -> Result<(), Box<PendingRequest>> {
        let fits = self.keys + request.counters.len() <= MAX_BATCH_KEYS
            && !self.alone
            && !request.send_alone;
        let fits = fits || self.keys == 0;
        let merges = matches!(request.op, Op::Acquire(_) | Op::Peek);
        let segments = &mut self.segments;
        let segment = segments
            .iter_mut()
            .position(|segment| segment.takes(&request));
        let hash = request.hash;
        if merges
            && let Some(segment) = segment
            && let Some(entry) = segments[segment].equal(hash, &request)
        {
            let soonest = self.soonest.unwrap_or(request.deadline);
            self.soonest = Some(soonest.min(request.deadline));
            entry.requests.push(request);
            return Ok(());
        }
        if !fits {
            return Err(Box::new(request));
        }
        self.keys += request.counters.len();
        self.alone = request.send_alone;
        let segment = segment.unwrap_or_else(|| {
            let mut segment = self.spare.pop().unwrap_or_default();
            segment.begin(&request);
            segments.push(segment);
            segments.len() - 1
        });
        let soonest = self.soonest.unwrap_or(request.deadline);
        self.soonest = Some(soonest.min(request.deadline));
        segments[segment].add(hash, request);
        Ok(())
    }

    /// The number of keys.
    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Removes its requests, and keeps the memory for the next ones.
    pub(super) fn clear(&mut self) {
        for mut segment in self.segments.drain(..) {
            segment.entries.clear();
            self.spare.push(segment);
        }
        self.keys = 0;
        self.alone = false;
        self.soonest = None;
        self.late = false;
    }

    /// The next deadline of a waiter; if none waits, the last deadline, if that is still to come.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.soonest.or_else(|| {
            let last = self.requests().map(|request| request.deadline).max();
            last.filter(|last| *last > Instant::now())
        })
    }

    /// Fails the requests past their deadline. They stay in the batch, since they may have been sent.
    pub(super) fn time_out(&mut self, now: Instant) {
        self.late = true;
        for entry in self.entries() {
            for request in &mut entry.requests {
                if request.deadline <= now {
                    request.expire();
                }
            }
        }
        let waiting = self.requests().filter(|q| q.has_waiter());
        let soonest = waiting.map(|request| request.deadline).min();
        self.soonest = soonest;
    }

    /// Removes the requests past their deadline before they are sent. Refunds are always sent.
    pub(super) fn expire_overdue(&mut self) {
        if !mem::take(&mut self.late) {
            return;
        }
        let now = Instant::now();
        let gone = |request: &mut PendingRequest| {
            let asks = matches!(request.op, Op::Acquire(_) | Op::Peek);
            asks && !request.has_waiter() && request.deadline <= now
        };
        for segment in &mut self.segments {
            let width = segment.limits.len();
            segment.entries.retain_mut(|entry| {
                entry.requests.retain(|request| !gone(request));
                let stays = !entry.requests.is_empty();
                self.keys -= if stays { 0 } else { width };
                stays
            });
        }
    }

    fn requests(&self) -> impl Iterator<Item = &PendingRequest> {
        let entries = self.segments.iter().flat_map(|segment| &segment.entries);
        entries.flat_map(|entry| &entry.requests)
    }

    /// The entries, in the order of the reply.
    pub(super) fn entries(&mut self) -> impl Iterator<Item = &mut MergedRequests> {
        self.segments
            .iter_mut()
            .flat_map(|segment| &mut segment.entries)
    }

    /// Whether it may invalidate a cached rejection.
    pub(super) fn lifts(&self) -> bool {
        self.segments.iter().any(OpGroup::lifts)
    }

    /// The counters whose cached rejections it may invalidate.
    pub(super) fn lifted(&self) -> impl Iterator<Item = CacheKey<'_>> {
        let lifting = self.segments.iter().filter(|segment| segment.lifts());
        let entries = lifting.flat_map(|segment| &segment.entries);
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
            units: SmallVec::new(),
            entries: Vec::with_capacity(MAX_BATCH_KEYS),
            places: HashTable::with_capacity(MAX_BATCH_KEYS),
        }
    }
}

impl OpGroup {
    /// Sets it up for requests such as this.
    fn begin(&mut self, request: &PendingRequest) {
        let counters = request.counters.iter();
        self.op = request.op;
        self.limits.clear();
        self.units.clear();
        self.places.clear();
        self.limits
            .extend(counters.clone().map(|line| line.limit.clone()));
        self.units
            .extend(counters.map(|line| (line.units, line.mode)));
    }

    /// The entry of requests equal to this.
    fn equal(&mut self, hash: u64, request: &PendingRequest) -> Option<&mut MergedRequests> {
        let entries = &mut self.entries;
        let equal = |place: &u32| {
            let entry = &entries[*place as usize];
            let mut counters = entry.counters().iter().zip(&request.counters);
            entry.hash == hash && counters.all(|(line, other)| line.key == other.key)
        };
        let place = *self.places.find(hash, equal)?;
        entries.get_mut(place as usize)
    }

    fn add(&mut self, hash: u64, request: PendingRequest) {
        let entries = &self.entries;
        let rehash = |place: &u32| entries[*place as usize].hash;
        self.places
            .insert_unique(hash, entries.len() as u32, rehash);
        self.entries.push(MergedRequests {
            requests: SmallVec::from_buf([request]),
            hash,
        });
    }

    fn takes(&self, request: &PendingRequest) -> bool {
        mem::discriminant(&self.op) == mem::discriminant(&request.op)
            && self.limits.len() == request.counters.len()
            && request
                .counters
                .iter()
                .zip(self.limits.iter().zip(&self.units))
                .all(|(line, (limit, units))| {
                    line.limit.id() == limit.id() && (line.units, line.mode) == *units
                })
    }
}

impl OpGroup {
    /// Whether it may invalidate a cached rejection. Those of in-flight limits are not cached.
    fn lifts(&self) -> bool {
        let remembered = |limit: &LimitHandle| limit.permit_ttl().is_none();
        self.op.may_admit_sooner() && self.limits.iter().any(remembered)
    }
}

impl MergedRequests {
    /// The operation; an empty group has none.
    pub(super) fn op(&self) -> Op {
        self.requests.first().map_or(Op::Peek, |q| q.op)
    }

    pub(super) fn counters(&self) -> &[OwnedCounterOp] {
        self.requests
            .first()
            .map_or(&[], |request| &request.counters)
    }

    /// The number of equal requests.
    fn times(&self) -> u64 {
        self.requests.iter().map(times).sum::<u64>().min(MAX_MERGED)
    }

    /// The caller of each request, under each policy that records callers: at most as many as a full quota has
    /// units, since no more are charged.
    fn signatures(&self) -> impl Iterator<Item = &str> {
        let signing = self.counters().iter().enumerate();
        let signing = signing.filter(|(_, line)| line.records_caller());
        signing.flat_map(move |(place, line)| {
            let each = self.requests.iter().flat_map(move |request| {
                let by = request.counters[place].caller().as_str();
                (0..times(request)).map(move |_| by)
            });
            let known = line.limit.context::<RedisLimit>();
            each.take(known.map_or(0, RedisLimit::capacity))
        })
    }
}

/// The number of equal requests that a request stands for.
fn times(request: &PendingRequest) -> u64 {
    match request.op {
        Op::Acquire(times) => times.into(),
        Op::Peek => 0,
        Op::ForceAcquire | Op::Refund | Op::Settle | Op::Reset | Op::Renew => 1,
    }
}
