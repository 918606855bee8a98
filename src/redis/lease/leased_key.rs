//! The leases of one key, or of the keys of requests under several policies: how much they hold, and when more is requested.

use std::time::Duration;

use smallvec::SmallVec;

use super::{
    demand::{DEMAND_INTERVAL, Demand, MIN_RATE},
    held_lease::{ClockReading, HeldLease, LeaseRequest, Unspent, charged_units, window_ids},
};
use crate::{
    clock::Timestamp,
    redis::request::op::{CounterOps, OwnedCounterOp},
    store::{CounterOp, CounterResult, DecisionSource, LimitHandle, OpResult, Units},
};

/// A lease is at most this part of what remains, so that the last units are charged one by one.
///
/// A quarter is what a process by itself can take without others noticing, and its leases are no smaller than its requests need
/// until the quota is nearly used up. After four processes that each take their part at once, a third still remains. With a
/// smaller part each of them would call the store more often while the quota is short.
const REMAINING_DIVISOR: u64 = 4;

/// The fewest requests of a lease.
const MIN_LEASE_REQUESTS: u64 = 2;

/// The most leases of the largest size that are held and requested at a time.
const MAX_LEASES: u64 = 4;

/// For how long no lease is requested while a reset, a ban or a shutdown is under way.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// The leases of the requests with the same keys under the same limits.
#[derive(Debug)]
pub(super) struct LeasedKey {
    /// Unique in its store.
    pub(super) hash: u64,
    /// The counters of its first request.
    counters: CounterOps,
    /// What is leased of each counter.
    units: SmallVec<[LeasedUnits; 2]>,
    /// The oldest first.
    leases: Vec<HeldLease>,
    /// The leases that have no response yet.
    requested: SmallVec<[Requested; 4]>,
    /// The last response of the store, to the request of a lease or to one that no lease decided.
    last_response: Option<LastResponse>,
    /// The shortest TTL of the counters' leases.
    ttl: Duration,
    /// The demand in requests.
    requests: Demand,
    /// The start of the interval in which demand is measured.
    interval: Timestamp,
    /// No lease is requested before.
    not_before: Timestamp,
    /// The number of the last lease that was requested.
    last_number: u64,
    /// Leases up to this number are refunded when their response comes.
    released_number: u64,
    /// Leases up to this number are not even refunded: the key was reset after they were requested.
    reset_number: u64,
    /// When a task looks for leases that are to be refunded.
    refund_at: Option<Timestamp>,
}

/// The leased units of a counter.
#[derive(Clone, Copy, Debug, Default)]
struct LeasedUnits {
    spent: u64,
    /// The units of all admitted requests.
    demand: Demand,
    /// A lease is due when fewer units are held and requested. 0 while no units are used, as under a ban.
    due_below: u64,
}

impl LeasedUnits {
    /// Counts the units of an admitted request.
    #[inline]
    fn record(&mut self, units: u64) {
        self.demand.record(units);
        self.due_below = self.due_below.max(units.min(1));
    }
}

/// A lease without a response.
#[derive(Debug)]
struct Requested {
    number: u64,
    /// The units of each counter.
    units: SmallVec<[u64; 2]>,
}

/// The state of the counters by the last response of the store.
#[derive(Debug)]
struct LastResponse {
    received_at: Timestamp,
    result: OpResult,
    /// The window of each counter.
    window_ids: SmallVec<[i64; 2]>,
}

/// What became of a lease whose request was answered.
#[derive(Debug)]
pub(super) enum Granted {
    /// The units are held. A task has to look for what is to be refunded at this instant, if none does so by then.
    Held { refund_at: Option<Timestamp> },
    /// It is too late to spend the units.
    Late(Unspent),
    /// The key was reset after the request, or the store charged nothing; what it charged lapses.
    Discarded,
}

impl LeasedKey {
    pub(super) fn new(hash: u64, counters: &[CounterOp<'_>], now: Timestamp) -> Self {
        let leases = counters.iter().filter_map(|own| own.limit.info().lease);
        let ttl = leases.map(|lease| lease.lifetime()).min();
        Self {
            hash,
            counters: counters.iter().map(OwnedCounterOp::of).collect(),
            units: SmallVec::from_elem(LeasedUnits::default(), counters.len()),
            leases: Vec::new(),
            requested: SmallVec::new(),
            last_response: None,
            ttl: ttl.unwrap_or_default(),
            requests: Demand::HOT,
            interval: now,
            not_before: now,
            last_number: 0,
            released_number: 0,
            reset_number: 0,
            refund_at: None,
        }
    }

    /// Whether this is the key of a request with these counters and this hash.
    #[inline]
    pub(super) fn matches(&self, hash: u64, counters: &[CounterOp<'_>]) -> bool {
        let is_same = |(own, counter): (&OwnedCounterOp, &CounterOp<'_>)| {
            own.limit.id() == counter.limit.id()
                && own.key == counter.key
                && (!counter.limit.info().records_caller || *own.caller() == counter.caller)
        };
        self.hash == hash
            && self.counters.len() == counters.len()
            && self.counters.iter().zip(counters).all(is_same)
    }

    /// Whether a counter of this policy and key is among its counters.
    pub(super) fn has_counter(&self, counter: &CounterOp<'_>) -> bool {
        self.counters.iter().any(|own| is_same(own, counter))
    }

    /// Decides a request, if leases have the units, and returns the lease to request, if one is due.
    #[inline]
    pub(super) fn decide(
        &mut self,
        counters: &[CounterOp<'_>],
        now: ClockReading,
    ) -> (Option<OpResult>, Option<LeaseRequest>) {
        let result = self.spend(counters, now);
        self.requests.record(1);
        // Zero if `now` is before the interval: the request then counts in it.
        let elapsed = now.monotonic.since(self.interval);
        if elapsed >= DEMAND_INTERVAL {
            self.end_interval(elapsed, now.monotonic);
        }
        let is_low = (0..self.units.len()).any(|index| {
            let owned = self.held(index).saturating_add(self.requested_units(index));
            owned < self.units[index].due_below
        });
        let due = if is_low && now.monotonic >= self.not_before {
            self.next_lease(counters, result.is_some(), now)
        } else {
            None
        };
        (result, due)
    }

    /// Admits a request by the units of leases: under each counter those of the oldest one that has enough.
    #[inline]
    fn spend(&mut self, counters: &[CounterOp<'_>], now: ClockReading) -> Option<OpResult> {
        for lease in &mut self.leases {
            // For good, also if a clock is set back.
            lease.has_ended |= !lease.is_live(now);
        }
        let last_response = self.last_response.as_ref()?;
        let mut charged_to = SmallVec::<[usize; 4]>::new();
        for (index, counter) in counters.iter().enumerate() {
            let units = charged_units(counter);
            let mut leases = self.leases.iter();
            charged_to.push(leases.position(|lease| lease.has_units(index, units))?);
        }
        let last = &last_response.result;
        let mut results = SmallVec::new();
        let mut is_any_spent = false;
        for (index, (counter, result)) in counters.iter().zip(&last.counters).enumerate() {
            let lease = &mut self.leases[charged_to[index]];
            lease.spend(index, counter, now);
            is_any_spent |= lease.is_spent();
            let charged_before = last.at.since(lease.charged_at);
            let units = charged_units(counter);
            let own = &mut self.units[index];
            own.spent = own.spent.saturating_add(units);
            own.record(units);
            results.push(CounterResult {
                units,
                held: held(&self.leases, index),
                charged_before,
                ..*result
            });
        }
        let result = OpResult {
            age: now.monotonic.since(last_response.received_at),
            source: DecisionSource::Lease,
            ..OpResult::of(last.at, 1, results)
        };
        if is_any_spent {
            self.leases.retain(|lease| !lease.is_spent());
        }
        Some(result)
    }

    #[cold]
    fn end_interval(&mut self, elapsed: Duration, now: Timestamp) {
        self.interval = now;
        self.requests.end_interval(elapsed);
        for own in &mut self.units {
            own.demand.end_interval(elapsed);
        }
    }

    /// The units of a counter that may be spent.
    #[inline]
    pub(super) fn held(&self, index: usize) -> u64 {
        held(&self.leases, index)
    }

    /// The units of a counter that are requested.
    #[inline]
    fn requested_units(&self, index: usize) -> u64 {
        let requested = self.requested.iter();
        let awaited = requested.filter(|lease| lease.number > self.released_number);
        awaited.map(|lease| lease.units[index]).sum()
    }

    /// The next lease, for which a request is due; `None` if none is requested for now.
    ///
    /// A lease fills up each counter to what the key's requests use in 5/8 of a TTL. So no more is ever held, and it is spent before
    /// the lease is refunded, after 7/8 of a TTL.
    #[cold]
    fn next_lease(
        &mut self,
        counters: &[CounterOp<'_>],
        is_admitted: bool,
        now: ClockReading,
    ) -> Option<LeaseRequest> {
        let last = self.last_response.as_ref()?;
        // Not along with a request that the store will reject: the lease could take the units that the request waits for.
        if self.requests.per_second() < MIN_RATE
            || now.monotonic.since(last.received_at) > self.ttl
            || !(is_admitted || last.fits(counters))
        {
            return None;
        }
        let mut next = SmallVec::<[u64; 2]>::new();
        for (index, counter) in counters.iter().enumerate() {
            let Some(lease) = counter.limit.info().lease else {
                next.push(0);
                continue;
            };
            let (held, requested) = (self.held(index), self.requested_units(index));
            let own = &mut self.units[index];
            let per_ttl = own.demand.within(self.ttl);
            // A half, and an eighth more, so that the response to the next lease arrives before the last unit is spent.
            let size = ((per_ttl / 2.0) as u64).min(lease.most());
            let most = ((per_ttl * 0.625) as u64).min(lease.most().saturating_mul(MAX_LEASES));
            let most = most.max(size);
            own.due_below = most - size + u64::from(size > 0);
            let owned = held.saturating_add(requested);
            // The last response counts held units as used, but not requested ones.
            let share = last.remaining(index, counter.limit) / REMAINING_DIVISOR;
            let share = share.saturating_sub(requested);
            let mut units = most.saturating_sub(owned).min(size).min(share);
            // Of requests that all cost the same none is left over.
            let cost = charged_units(counter).max(1);
            units -= units % cost;
            if owned < own.due_below && units / cost < MIN_LEASE_REQUESTS {
                return None;
            }
            next.push(units);
        }
        let is_any_due = next.iter().any(|units| *units > 0);
        is_any_due.then(|| self.request(counters, next, now))
    }

    /// The lease of the units of one request, which is not sent itself, if the key is hot, and waits for no lease. Such requests alone
    /// bring no response of the store, by which larger leases are sized.
    pub(super) fn lease_of_one(
        &mut self,
        counters: &[CounterOp<'_>],
        now: ClockReading,
    ) -> Option<LeaseRequest> {
        let units: SmallVec<[u64; 2]> = counters.iter().map(charged_units).collect();
        let mut charged = counters.iter().zip(&units);
        let is_due = self.requested.is_empty()
            && now.monotonic >= self.not_before
            && self.is_hot(now.monotonic)
            && charged.all(|(counter, units)| is_leasable(counter.limit, *units));
        is_due.then(|| self.request(counters, units, now))
    }

    /// The request of a lease of so many units under each counter.
    pub(super) fn request(
        &mut self,
        counters: &[CounterOp<'_>],
        units: SmallVec<[u64; 2]>,
        now: ClockReading,
    ) -> LeaseRequest {
        let lease_counters = counters.iter().zip(&units);
        let lease_counters = lease_counters.map(|(counter, units)| {
            // A ban rejects the request of a lease, and does not count it.
            OwnedCounterOp::of(&counter.with_units(Units::new(*units)))
        });
        self.last_number += 1;
        let request = LeaseRequest {
            hash: self.hash,
            number: self.last_number,
            counters: lease_counters.collect(),
            requested_at: now,
        };
        self.requested.push(Requested {
            number: self.last_number,
            units,
        });
        request
    }

    /// Removes a lease that has a response, and returns whether its units may be held.
    fn end_request(&mut self, number: u64) -> bool {
        self.requested.retain(|lease| lease.number != number);
        number > self.released_number
    }

    /// Records that a lease was not granted: none is requested for one TTL.
    pub(super) fn fail(&mut self, number: u64, now: Timestamp) {
        self.end_request(number);
        self.pause_for(now, self.ttl);
    }

    /// Holds what the store has charged for a lease.
    pub(super) fn grant(
        &mut self,
        request: &LeaseRequest,
        result: &OpResult,
        now: ClockReading,
    ) -> Granted {
        let is_awaited = self.end_request(request.number);
        // A malformed reply has fewer results than counters: nothing of it can be held or refunded.
        if request.number <= self.reset_number || result.counters.len() < self.counters.len() {
            return Granted::Discarded;
        }
        if is_awaited {
            self.set_last_response(request.requested_at.monotonic, result, now.monotonic);
        }
        if result.admitted == 0 {
            self.fail(request.number, now.monotonic);
            return Granted::Discarded;
        }
        let lease = HeldLease::new(request, result, self.ttl, now.monotonic);
        let last = self.last_response.as_ref();
        let has_window = last.is_some_and(|last| lease.has_windows(&last.window_ids));
        if !is_awaited || !has_window || !lease.is_live(now) {
            return Granted::Late(self.unspent(&lease));
        }
        self.leases.push(lease);
        Granted::Held {
            refund_at: self.schedule_refund(),
        }
    }

    /// Records the response to a request that no lease decided.
    pub(super) fn record_response(
        &mut self,
        requested_at: Timestamp,
        result: &OpResult,
        now: Timestamp,
    ) {
        // A malformed reply.
        if result.counters.len() < self.counters.len() {
            return;
        }
        let mut charged = self.counters.iter().zip(&result.counters);
        if charged.all(|(own, charged)| is_leasable(&own.limit, charged.units)) {
            for (own, charged) in self.units.iter_mut().zip(&result.counters) {
                own.record(charged.units);
            }
        }
        self.set_last_response(requested_at, result, now);
    }

    /// Sets the last response, unless a later one is known: this one came on another connection. One to a request that was sent after
    /// that is not older: the server's clock was set back.
    fn set_last_response(&mut self, requested_at: Timestamp, result: &OpResult, now: Timestamp) {
        let is_older =
            |last: &LastResponse| result.at < last.result.at && requested_at <= last.received_at;
        if self.last_response.as_ref().is_some_and(is_older) {
            return;
        }
        let window_ids = window_ids(&self.counters, result);
        // Receipts carry the last response's window, so leases of another window end. So do those that were charged later, by a
        // clock that was set back meanwhile.
        for lease in &mut self.leases {
            lease.has_ended |= !lease.has_windows(&window_ids) || lease.charged_at > result.at;
        }
        self.last_response = Some(LastResponse {
            received_at: now,
            result: result.clone(),
            window_ids,
        });
    }

    /// Requests no lease for some time.
    fn pause_for(&mut self, now: Timestamp, pause: Duration) {
        self.not_before = self.not_before.max(now + pause);
    }

    /// Requests no lease for a second, or for a TTL if that is longer: a reset, a ban or a shutdown is under way.
    pub(super) fn pause(&mut self, now: Timestamp) {
        self.pause_for(now, LONG_PAUSE.max(self.ttl));
    }

    /// Takes all leases of a key that is reset. Those that are requested are discarded when their responses come.
    pub(super) fn discard_for_reset(&mut self) -> Vec<Unspent> {
        self.reset_number = self.last_number;
        self.release()
    }

    /// Takes all leases, to be refunded. Those that are requested are refunded when their responses come.
    pub(super) fn release(&mut self) -> Vec<Unspent> {
        self.released_number = self.last_number;
        self.reclaim(|_| true)
    }

    /// Takes the leases that are due to be refunded, if the task is the one that looks for them at `refund_at`.
    pub(super) fn reclaim_due(&mut self, refund_at: Timestamp, now: Timestamp) -> Vec<Unspent> {
        if self.refund_at != Some(refund_at) {
            return Vec::new();
        }
        self.refund_at = None;
        self.reclaim(|lease| lease.refund_at <= now)
    }

    /// The instant at which a task has to look for leases that are to be refunded; `None` if one does so by then.
    pub(super) fn schedule_refund(&mut self) -> Option<Timestamp> {
        let first = self.leases.iter().map(|lease| lease.refund_at).min()?;
        if self.refund_at.is_some_and(|at| at <= first) {
            return None;
        }
        self.refund_at = Some(first);
        self.refund_at
    }

    /// Takes some leases, to be refunded.
    pub(super) fn reclaim(&mut self, is_taken: impl Fn(&HeldLease) -> bool) -> Vec<Unspent> {
        let taken = self.leases.iter().filter(|lease| is_taken(lease));
        let unspent = taken.map(|lease| self.unspent(lease)).collect();
        self.leases.retain(|lease| !is_taken(lease));
        unspent
    }

    fn unspent(&self, lease: &HeldLease) -> Unspent {
        Unspent {
            hash: self.hash,
            counters: lease.refund(&self.counters),
        }
    }

    /// Whether it was hot within the last two seconds.
    fn is_hot(&self, now: Timestamp) -> bool {
        self.requests.per_second() >= MIN_RATE && now.since(self.interval) < Duration::from_secs(2)
    }

    /// Whether it holds no lease, has none that is without a response, and is not hot any more.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.leases.is_empty() && self.requested.is_empty() && !self.is_hot(now)
    }

    /// Whether the lease of this number is still waited for.
    #[cfg(test)]
    pub(super) fn is_waiting_for(&self, number: u64) -> bool {
        let mut requested = self.requested.iter();
        number > self.released_number && requested.any(|lease| lease.number == number)
    }

    #[cfg(test)]
    pub(super) fn leases(&self) -> &[HeldLease] {
        &self.leases
    }

    /// The counters, and the units that were spent of each.
    pub(super) fn spent(&self) -> impl Iterator<Item = (&OwnedCounterOp, u64)> {
        let spent = self.units.iter().map(|own| own.spent);
        self.counters.iter().zip(spent)
    }
}

/// Whether two counters are of the same policy and key.
pub(super) fn is_same(own: &OwnedCounterOp, counter: &CounterOp<'_>) -> bool {
    own.key == counter.key && own.limit.policy() == counter.limit.policy()
}

/// The units of a counter that may be spent.
#[inline]
fn held(leases: &[HeldLease], index: usize) -> u64 {
    let live = leases.iter().filter(|lease| !lease.has_ended);
    live.map(|lease| lease.units[index].left).sum()
}

/// Whether a lease may have so many units: the demand of requests that cost more does not count.
fn is_leasable(limit: &LimitHandle, units: u64) -> bool {
    let lease = limit.info().lease;
    lease.is_none_or(|lease| units <= lease.most())
}

impl LastResponse {
    /// Whether a request has enough units under each counter.
    fn fits(&self, counters: &[CounterOp<'_>]) -> bool {
        let mut counters = counters.iter().enumerate();
        counters
            .all(|(index, counter)| self.remaining(index, counter.limit) >= charged_units(counter))
    }

    /// The units that remained under a counter.
    fn remaining(&self, index: usize, limit: &LimitHandle) -> u64 {
        let result = &self.result.counters[index];
        let at = self.result.time_of(result);
        limit.status(&result.snapshot, at, Units::ONE).remaining
    }
}
