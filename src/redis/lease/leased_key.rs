//! The leases of one key, or of the keys of requests under several policies: how much they hold, and when more is requested.

use std::{collections::VecDeque, time::Duration};

use smallvec::SmallVec;

use super::{
    held_lease::{
        ClockReading, HeldLease, LeaseRequest, LeasedUnits, Unspent, charged_units, window_ids,
    },
    requested::RequestedLeases,
    size::{LastResponse, Sizing},
};
use crate::{
    clock::Timestamp,
    redis::request::op::{CounterOps, OwnedCounterOp},
    store::{CounterOp, CounterResult, DecisionSource, OpResult, Units},
};

/// For how long the request of a lease is awaited, at least.
const MIN_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The leases of the requests with the same keys under the same limits.
#[derive(Debug)]
pub(super) struct LeasedKey {
    /// Unique in its store.
    pub(super) id: u64,
    pub(super) hash: u64,
    /// The counters of its first request.
    counters: CounterOps,
    /// The leased units of each counter.
    units: Vec<LeasedUnits>,
    /// The oldest first.
    leases: VecDeque<HeldLease>,
    /// The last response of the store, to the request of a lease or to one that no lease decided.
    last_response: Option<LastResponse>,
    sizing: Sizing,
    /// The number of the last lease that was requested.
    last_number: u64,
    requested: RequestedLeases,
    /// Leases up to this number are not refunded: the key was reset after they were requested.
    reset_number: u64,
    /// When its leases are looked at next, to be refunded.
    refund_at: Option<Timestamp>,
}

/// What became of a lease whose request was answered.
#[derive(Debug)]
pub(super) enum Granted {
    /// The units are held. What is left after `refund_after` is to be refunded.
    Held { refund_after: Duration },
    /// It is too late to spend the units.
    Late(Unspent),
    /// The key was reset or removed after the request, or the store charged nothing; what it charged lapses.
    Discarded,
}

impl LeasedKey {
    pub(super) fn new((id, hash): (u64, u64), counters: &[CounterOp<'_>], now: Timestamp) -> Self {
        let leases = counters.iter().filter_map(|own| own.limit.info().lease);
        let ttl = leases.map(|lease| lease.lifetime()).min();
        let sizing = Sizing::new(ttl.unwrap_or_default(), now);
        Self {
            id,
            hash,
            units: vec![LeasedUnits::default(); counters.len()],
            counters: counters.iter().map(OwnedCounterOp::of).collect(),
            leases: VecDeque::new(),
            last_response: None,
            sizing,
            last_number: 0,
            requested: RequestedLeases::default(),
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
        self.counters
            .iter()
            .any(|own| own.key == counter.key && own.limit.policy() == counter.limit.policy())
    }

    /// Decides a request, if leases have the units, and returns the lease to request, if one is due.
    #[inline]
    pub(super) fn decide(
        &mut self,
        counters: &[CounterOp<'_>],
        now: ClockReading,
    ) -> (Option<OpResult>, Option<LeaseRequest>) {
        let result = self.spend(counters, now);
        let due = self.record_request(counters, result.is_some(), now);
        (result, due)
    }

    /// Admits a request by the units of leases: under each counter those of the oldest one that has enough.
    #[inline]
    fn spend(&mut self, counters: &[CounterOp<'_>], now: ClockReading) -> Option<OpResult> {
        self.end_leases(now);
        let last_response = self.last_response.as_ref()?;
        let mut charged_to = SmallVec::<[usize; 4]>::new();
        for (index, counter) in counters.iter().enumerate() {
            let units = charged_units(counter);
            let mut leases = self.leases.iter();
            charged_to.push(leases.position(|lease| lease.has_units(index, units))?);
        }
        let mut results = SmallVec::new();
        let states = last_response.results.iter().zip(&mut self.units);
        let mut is_any_spent = false;
        for (index, (counter, (result, own))) in counters.iter().zip(states).enumerate() {
            let lease = &mut self.leases[charged_to[index]];
            lease.spend(index, counter, now);
            is_any_spent |= lease.is_spent();
            let units = charged_units(counter);
            own.spend(units);
            results.push(CounterResult {
                units,
                held: own.held,
                charged_before: last_response.at.since(lease.charge.at),
                ..*result
            });
        }
        let result = OpResult {
            age: now.monotonic.since(last_response.received_at),
            source: DecisionSource::Lease,
            ..OpResult::of(last_response.at, 1, results)
        };
        if is_any_spent {
            self.leases.retain(|lease| !lease.is_spent());
        }
        Some(result)
    }

    /// Ends the leases whose time has passed.
    #[inline]
    fn end_leases(&mut self, now: ClockReading) {
        for lease in &mut self.leases {
            if !lease.has_ended && !lease.is_live(now) {
                lease.end(&mut self.units);
            }
        }
    }

    /// Records a request, and returns the lease to request, if one is due.
    #[inline]
    fn record_request(
        &mut self,
        counters: &[CounterOp<'_>],
        is_admitted: bool,
        now: ClockReading,
    ) -> Option<LeaseRequest> {
        let at = now.monotonic;
        let demand = self.units.iter_mut().map(|own| &mut own.demand);
        self.sizing.rate.record(at, demand);
        let timeout = MIN_RESPONSE_TIMEOUT.max(self.sizing.ttl());
        if self.requested.remove_timed_out(timeout, at) {
            self.sizing.end_wait();
        }
        let mut units = self.units.iter().enumerate();
        let is_low = units.any(|(index, own)| {
            own.held.saturating_add(self.requested.units(index)) < own.due_below
        });
        if is_low && self.sizing.is_ready(at) {
            self.next_lease(counters, is_admitted, now)
        } else {
            None
        }
    }

    /// The next lease, if one is to be requested: not along with a request that the store will reject, since it could take the units
    /// that the request waits for.
    #[cold]
    fn next_lease(
        &mut self,
        counters: &[CounterOp<'_>],
        is_admitted: bool,
        now: ClockReading,
    ) -> Option<LeaseRequest> {
        let last_response = self.last_response.as_ref()?;
        if !is_admitted && !last_response.fits(counters) {
            return None;
        }
        let units = self.sizing.next_lease(
            counters,
            &mut self.units,
            &self.requested,
            last_response,
            now.monotonic,
        )?;
        Some(self.request(counters, units, now))
    }

    /// The lease of the units of one request, which is not sent itself, if the key is hot, and waits for no lease. Such requests alone
    /// bring no response of the store, by which larger leases are sized.
    pub(super) fn lease_of_one(
        &mut self,
        counters: &[CounterOp<'_>],
        now: ClockReading,
    ) -> Option<LeaseRequest> {
        let units: SmallVec<[u64; 2]> = counters.iter().map(charged_units).collect();
        let mut most = counters.iter().zip(&units);
        let is_leasable = most.all(|(counter, units)| {
            let lease = counter.limit.info().lease;
            lease.is_none_or(|lease| *units <= lease.most())
        });
        let is_due = self.requested.is_empty() && self.sizing.may_request(now.monotonic);
        (is_leasable && is_due).then(|| self.request(counters, units, now))
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
            key_id: self.id,
            number: self.last_number,
            counters: lease_counters.collect(),
            requested_at: now,
        };
        self.requested.add(self.last_number, now.monotonic, units);
        request
    }

    /// Whether the lease of this number is still waited for.
    #[cfg(test)]
    pub(super) fn is_waiting_for(&self, number: u64) -> bool {
        self.requested.contains(number)
    }

    /// Whether a lease has no response yet that was requested at this moment or before.
    pub(super) fn awaits_requested_by(&self, moment: Timestamp) -> bool {
        self.requested.any_requested_by(moment)
    }

    /// Records that a request got no response: no lease is requested for one TTL.
    pub(super) fn fail(&mut self, number: u64, now: Timestamp) {
        self.sizing.end_wait();
        if self.requested.remove(number) {
            self.sizing.pause(now, self.sizing.ttl());
        }
    }

    /// Holds what the store has charged for a lease.
    pub(super) fn grant(
        &mut self,
        request: &LeaseRequest,
        result: &OpResult,
        now: ClockReading,
    ) -> Granted {
        let is_waiting = self.requested.remove(request.number);
        self.sizing.end_wait();
        // A malformed reply has fewer results than counters: nothing of it can be held or refunded.
        if request.number <= self.reset_number || result.counters.len() < self.counters.len() {
            return Granted::Discarded;
        }
        let requested_at = request.requested_at.monotonic;
        let last = self.last_response.as_ref();
        let is_older = last.is_some_and(|last| last.is_after(requested_at, result));
        let lease = HeldLease::new(request, result, now.monotonic);
        let has_window = last.is_some_and(|last| last.window_ids == lease.charge.window_ids);
        if is_waiting {
            self.set_last_response(requested_at, result, now.monotonic);
        }
        if result.admitted == 0 {
            self.sizing.pause(now.monotonic, self.sizing.ttl());
            return Granted::Discarded;
        }
        if !is_waiting || !lease.is_live(now) || (is_older && !has_window) {
            let own = request.counters.iter().cloned();
            return Granted::Late(lease.unspent(own));
        }
        for (own, left) in self.units.iter_mut().zip(&lease.left) {
            own.held += left;
        }
        let refund_after = lease.refund_at.since(now.monotonic);
        self.leases.push_back(lease);
        Granted::Held { refund_after }
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
        self.sizing.end_wait();
        let charged = self.counters.iter().zip(&result.counters);
        // No lease is for requests that cost more than the largest one.
        let is_leasable = charged.clone().all(|(own, charged)| {
            let lease = own.limit.info().lease;
            lease.is_none_or(|lease| charged.units <= lease.most())
        });
        if is_leasable {
            for (own, charged) in self.units.iter_mut().zip(&result.counters) {
                own.demand.record(charged.units);
            }
        }
        self.set_last_response(requested_at, result, now);
    }

    /// Sets the last response, unless a later one is known.
    fn set_last_response(&mut self, requested_at: Timestamp, result: &OpResult, now: Timestamp) {
        let last = self.last_response.as_ref();
        if last.is_some_and(|last| last.is_after(requested_at, result)) {
            return;
        }
        let mut response = LastResponse {
            received_at: now,
            at: result.at,
            results: result.counters.clone(),
            window_ids: window_ids(&self.counters, result),
        };
        if let Some(last) = last {
            response.merge(last, &self.counters);
        }
        // Receipts carry the last response's window, so leases of another window end. So do those that were charged later, by a
        // clock that was set back meanwhile.
        for older in &mut self.leases {
            let is_of_window = older.charge.window_ids == response.window_ids;
            if !older.has_ended && (!is_of_window || older.charge.at > response.at) {
                older.end(&mut self.units);
            }
        }
        self.last_response = Some(response);
    }

    /// Takes what is left of a lease, to be refunded; `None` if the key does not hold it any more.
    pub(super) fn reclaim(&mut self, number: u64) -> Option<Unspent> {
        let mut leases = self.leases.iter();
        let index = leases.position(|lease| lease.number == number)?;
        let lease = self.leases.remove(index)?;
        for (own, left) in self.units.iter_mut().zip(&lease.left) {
            if lease.has_ended {
                own.ended -= left;
            } else {
                own.held -= left;
            }
        }
        let own = self.counters.iter().cloned();
        Some(lease.unspent(own))
    }

    /// Takes all leases of a key that is reset. One that is requested is discarded when its response comes.
    pub(super) fn discard_for_reset(&mut self) -> Vec<Unspent> {
        self.reset_number = self.last_number;
        self.release()
    }

    /// Requests no lease for a second, or for a TTL if that is longer: the reset or ban is under way.
    pub(super) fn pause(&mut self, now: Timestamp) {
        self.sizing
            .pause(now, MIN_RESPONSE_TIMEOUT.max(self.sizing.ttl()));
    }

    /// Takes all leases, to be refunded. One that is requested is refunded when its response comes.
    pub(super) fn release(&mut self) -> Vec<Unspent> {
        self.requested.abandon();
        self.sizing.end_wait();
        self.reclaim_where(|_| true)
    }

    /// Returns when it has to be looked at for a lease that is due to be refunded at an instant; `None` if it does so by then.
    pub(super) fn schedule_refund(&mut self, due: Timestamp) -> Option<Timestamp> {
        if self.refund_at.is_some_and(|at| at <= due) {
            return None;
        }
        self.refund_at = Some(due);
        self.refund_at
    }

    /// Takes the leases that are due to be refunded, and returns when it has to be looked at again.
    pub(super) fn reclaim_due(&mut self, now: Timestamp) -> (Vec<Unspent>, Option<Timestamp>) {
        self.refund_at = None;
        let due = self.reclaim_where(|lease| lease.refund_at <= now);
        let next = self.leases.iter().map(|lease| lease.refund_at).min();
        (due, next.and_then(|next| self.schedule_refund(next)))
    }

    fn reclaim_where(&mut self, is_taken: impl Fn(&HeldLease) -> bool) -> Vec<Unspent> {
        let taken = self.leases.iter().filter(|lease| is_taken(lease));
        let numbers: SmallVec<[u64; 8]> = taken.map(|lease| lease.number).collect();
        let taken = numbers.into_iter();
        taken.filter_map(|number| self.reclaim(number)).collect()
    }

    /// Whether it holds no lease, has none that is without a response, and is not hot any more.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.leases.is_empty() && self.requested.is_empty() && !self.sizing.is_hot(now)
    }

    /// The counters, and their leased units.
    pub(super) fn units(&self) -> impl Iterator<Item = (&OwnedCounterOp, LeasedUnits)> {
        self.counters.iter().zip(self.units.iter().copied())
    }
}
