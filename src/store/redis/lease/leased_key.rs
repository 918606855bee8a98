//! The leases of one key, or of the keys of requests under several policies: how much they hold, and when more is requested.

use std::{collections::VecDeque, time::Duration};

use smallvec::SmallVec;

use super::{
    held_lease::{HeldLease, LeaseRequest, LeasedUnits, Now, Unspent, charged_units},
    keeper::Keeper,
    requested::RequestedLeases,
    size::{Latest, Sizing},
    stripes::MIN_SHARED_RATE,
};
use crate::{
    clock::Timestamp,
    store::{
        CounterOp, CounterResult, DecisionSource, OpResult, Units,
        redis::request::op::{CounterOps, OwnedCounterOp},
    },
};

/// How long the response to a request of a lease is waited for, at least. A runtime that is not polled sends none.
const GIVE_UP: Duration = Duration::from_secs(1);

/// The leases of the requests with the same keys under the same limits.
#[derive(Debug)]
pub(super) struct LeasedKey {
    /// Unique in its shard.
    pub(super) id: u64,
    pub(super) hash: u64,
    /// Those of its first request.
    counters: CounterOps,
    /// Of each counter.
    units: Vec<LeasedUnits>,
    /// The oldest first.
    leases: VecDeque<HeldLease>,
    /// The last response of the store.
    latest: Option<Latest>,
    sizing: Sizing,
    /// The number of the last lease that was requested.
    last_number: u64,
    requested: RequestedLeases,
    /// Leases up to this number are not refunded: the key was reset after they were requested.
    reset_number: u64,
    /// The task that takes the leases back.
    keeper: Keeper,
}

/// What became of a lease whose request was answered.
#[derive(Debug)]
pub(super) enum Granted {
    /// The units are held. What is left after so long is to be refunded.
    Held { refund_after: Duration },
    /// It is too late to spend them.
    Late(Unspent),
    /// The key was reset meanwhile.
    Ended,
    /// The store charged nothing.
    Rejected,
}

impl LeasedKey {
    pub(super) fn new((id, hash): (u64, u64), counters: &[CounterOp<'_>], now: Timestamp) -> Self {
        let leases = counters.iter().filter_map(|own| own.limit.lease());
        let ttl = leases.map(|lease| lease.lifetime()).min();
        let sizing = Sizing::new(ttl.unwrap_or_default(), now);
        let counters = counters.iter().map(OwnedCounterOp::of).collect();
        Self::without_leases((id, hash), counters, sizing)
    }

    /// The same key for the threads of one stripe, without leases.
    pub(super) fn for_stripe(&self, id: u64) -> Self {
        let (counters, sizing) = (self.counters.clone(), self.sizing.of_stripe());
        Self {
            latest: self.latest.as_ref().map(Latest::for_stripe),
            ..Self::without_leases((id, self.hash), counters, sizing)
        }
    }

    fn without_leases((id, hash): (u64, u64), counters: CounterOps, sizing: Sizing) -> Self {
        Self {
            id,
            hash,
            units: vec![LeasedUnits::default(); counters.len()],
            counters,
            leases: VecDeque::new(),
            latest: None,
            sizing,
            last_number: 0,
            requested: RequestedLeases::default(),
            reset_number: 0,
            keeper: Keeper::default(),
        }
    }

    /// Whether so many requests come for it that threads should not share it. It says so once an interval.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        let rate = &self.sizing.rate;
        rate.is_new() && rate.per_second() >= MIN_SHARED_RATE
    }

    /// Whether it is of these counters.
    #[inline]
    pub(super) fn is_of(&self, hash: u64, counters: &[CounterOp<'_>]) -> bool {
        let is_same = |(own, counter): (&OwnedCounterOp, &CounterOp<'_>)| {
            own.limit.id() == counter.limit.id()
                && own.key == counter.key
                && (!counter.limit.records_caller() || *own.caller() == counter.caller)
        };
        self.hash == hash
            && self.counters.len() == counters.len()
            && self.counters.iter().zip(counters).all(is_same)
    }

    /// Whether a counter of this policy and key is among its counters.
    pub(super) fn counts(&self, counter: &CounterOp<'_>) -> bool {
        self.counters
            .iter()
            .any(|own| own.key == counter.key && own.limit.policy() == counter.limit.policy())
    }

    /// Decides a request, if a lease has the units, and returns the lease to request, if one is due.
    #[inline]
    pub(super) fn decide(
        &mut self,
        counters: &[CounterOp<'_>],
        now: Now,
    ) -> (Option<OpResult>, Option<LeaseRequest>) {
        let result = self.spend(counters, now);
        if result.is_none() {
            self.note_unleased(counters);
        }
        (result, self.note_request(counters, now))
    }

    /// Counts the units of a request that the store decides.
    fn note_unleased(&mut self, counters: &[CounterOp<'_>]) {
        self.sizing.note_unleased(counters);
        for (own, counter) in self.units.iter_mut().zip(counters) {
            own.unleased += charged_units(counter);
        }
    }

    /// Admits a request by the units of the oldest lease that has enough, if there is one.
    #[inline]
    fn spend(&mut self, counters: &[CounterOp<'_>], now: Now) -> Option<OpResult> {
        self.end_leases(now);
        let latest = self.latest.as_ref()?;
        let mut leases = self.leases.iter_mut().enumerate();
        let (index, lease) = leases.find(|(_, lease)| lease.has(counters))?;
        let (mut more, mut uncounted) = (u64::MAX, 0);
        let mut results = SmallVec::new();
        let charges = latest
            .results
            .iter()
            .zip(&latest.unleased)
            .zip(&mut self.units);
        for (index, (counter, ((latest, latest_unleased), own))) in
            counters.iter().zip(charges).enumerate()
        {
            let units = charged_units(counter);
            lease.left[index] -= units;
            if lease.is_refundable(counter, units, now) {
                lease.refundable[index] += units;
            }
            own.held -= units;
            own.spent += units;
            // The latest response does not have what was left to the store since.
            let unleased = own.unleased - latest_unleased;
            let shown = own.held.saturating_sub(unleased);
            more = more.min(shown.checked_div(units).unwrap_or(u64::MAX));
            let missing = unleased.saturating_sub(own.held);
            uncounted = uncounted.max(missing.div_ceil(units.max(1)));
            results.push(CounterResult { units, ..*latest });
        }
        let result = OpResult {
            admitted: 1,
            at: latest.at,
            age: now.monotonic.since(latest.received_at),
            charged_before: latest.at.since(lease.charge.at),
            uncounted,
            admitted_after: more,
            source: DecisionSource::Lease,
            counters: results,
        };
        if lease.is_spent() {
            self.leases.remove(index);
        }
        Some(result)
    }

    /// Ends the leases whose time has passed.
    #[inline]
    fn end_leases(&mut self, now: Now) {
        for lease in &mut self.leases {
            if !lease.has_ended && !lease.is_live(now) {
                lease.end(&mut self.units);
            }
        }
    }

    /// Counts a request, and returns the lease to request, if one is due.
    #[inline]
    fn note_request(&mut self, counters: &[CounterOp<'_>], now: Now) -> Option<LeaseRequest> {
        let (latest, at) = (self.latest.as_ref(), now.monotonic);
        let longest = GIVE_UP.max(self.sizing.ttl());
        self.requested.give_up(longest, at);
        let units = || {
            let units = self.units.iter().enumerate();
            units.map(|(index, own)| (own.held, self.requested.units(index)))
        };
        if !self.sizing.note_request(counters, units(), at) {
            return None;
        }
        let requests = self.sizing.size(counters, units(), latest, at)?;
        self.last_number += 1;
        let units = counters.iter().map(|own| charged_units(own) * requests);
        self.requested.add(self.last_number, at, units.collect());
        Some(LeaseRequest {
            key_id: self.id,
            number: self.last_number,
            requests: u32::try_from(requests).unwrap_or(u32::MAX),
            counters: counters.iter().map(charging).collect(),
            unleased: self.units.iter().map(|own| own.unleased).collect(),
            requested_at: now,
        })
    }

    /// Whether the lease of this number is still waited for.
    #[cfg(test)]
    pub(super) fn is_waiting_for(&self, number: u64) -> bool {
        self.requested.contains(number)
    }

    /// Whether a lease is waited for that was requested at this moment or before.
    pub(super) fn awaits_requested_by(&self, moment: Timestamp) -> bool {
        self.requested.any_requested_by(moment)
    }

    /// No response, so that nothing is leased for a while.
    pub(super) fn fail(&mut self, number: u64, now: Timestamp) {
        if self.requested.remove(number) {
            self.sizing.pause(now, self.sizing.ttl());
        }
    }

    /// Holds what the store has charged for a lease.
    pub(super) fn grant(&mut self, request: &LeaseRequest, result: &OpResult, now: Now) -> Granted {
        // A response that is older than the latest one has perhaps another window.
        let is_older = (self.latest.as_ref()).is_some_and(|latest| result.at < latest.at);
        let is_waiting = self.requested.remove(request.number) && !is_older;
        if request.number <= self.reset_number || result.counters.len() < self.counters.len() {
            return match result.admitted {
                0 => Granted::Rejected,
                _ => Granted::Ended,
            };
        }
        let lease = HeldLease::new(request, result, now.monotonic);
        if is_waiting {
            self.note_response(request, &lease, result, now.monotonic);
        }
        if result.admitted == 0 {
            return Granted::Rejected;
        }
        if !is_waiting || !lease.is_live(now) {
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

    /// Notes the response to the request of a lease.
    fn note_response(
        &mut self,
        request: &LeaseRequest,
        lease: &HeldLease,
        result: &OpResult,
        now: Timestamp,
    ) {
        let (counters, latest) = (&self.counters, self.latest.as_ref());
        self.sizing.note_response(counters, latest, result);
        let latest = Latest {
            received_at: now,
            at: result.at,
            results: result.counters.clone(),
            unleased: request.unleased.clone(),
        };
        if result.admitted == 0 {
            let wait = latest.retry_after(&self.counters, GIVE_UP);
            let pause = wait.clamp(self.sizing.ttl() / 2, GIVE_UP.max(self.sizing.ttl()));
            self.sizing.pause(now, pause);
        }
        self.latest = Some(latest);
        // The receipt of a request has the window of the latest response.
        for older in &mut self.leases {
            if !older.has_ended && older.charge.window_ids != lease.charge.window_ids {
                older.end(&mut self.units);
            }
        }
    }

    /// Takes back what is left of a lease; `None` if that is nothing.
    pub(super) fn take_back(&mut self, number: u64) -> Option<Unspent> {
        let mut leases = self.leases.iter();
        let index = leases.position(|lease| lease.number == number)?;
        let lease = self.leases.remove(index)?;
        for (own, left) in self.units.iter_mut().zip(&lease.left) {
            match lease.has_ended {
                true => own.ended -= left,
                false => own.held -= left,
            }
        }
        let own = self.counters.iter().cloned();
        Some(lease.unspent(own))
    }

    /// Takes back all leases since the key is reset. One that is requested will not be held, nor refunded.
    pub(super) fn take_back_all(&mut self) -> Vec<Unspent> {
        self.reset_number = self.last_number;
        self.take_back_held()
    }

    /// Requests no lease until the operation has been done by which the leases end.
    pub(super) fn pause(&mut self, now: Timestamp) {
        self.sizing.pause(now, GIVE_UP.max(self.sizing.ttl()));
    }

    /// Takes back all leases. One that is requested will be refunded.
    pub(super) fn take_back_held(&mut self) -> Vec<Unspent> {
        self.requested.clear();
        self.take_back_where(|_| true)
    }

    /// The number of the task that is to take the leases back when they are due, if it has to be started: if there is none, or
    /// its runtime is not polled.
    pub(super) fn start_keeper(&mut self, now: Timestamp) -> Option<u64> {
        let acts_at = self.next_refund().unwrap_or(now);
        self.keeper.start(acts_at, now)
    }

    /// Takes back the leases that are due, and returns the time until the next one is. If that is `None`, the task ends: there is
    /// no other lease, or another task.
    pub(super) fn take_back_due(
        &mut self,
        keeper: u64,
        now: Timestamp,
    ) -> (Vec<Unspent>, Option<Duration>) {
        if !self.keeper.is(keeper) {
            return (Vec::new(), None);
        }
        let due = self.take_back_where(|lease| lease.refund_at <= now);
        let next = self.next_refund();
        self.keeper.acts_at(next);
        (due, next.map(|next| next.since(now)))
    }

    /// Notes that a task has ended before its time, and takes back all leases unless there is another one.
    pub(super) fn end_keeper(&mut self, keeper: u64) -> Vec<Unspent> {
        if !self.keeper.is(keeper) {
            return Vec::new();
        }
        self.keeper.acts_at(None);
        self.take_back_held()
    }

    fn next_refund(&self) -> Option<Timestamp> {
        self.leases.iter().map(|lease| lease.refund_at).min()
    }

    fn take_back_where(&mut self, is_taken: impl Fn(&HeldLease) -> bool) -> Vec<Unspent> {
        let taken = self.leases.iter().filter(|lease| is_taken(lease));
        let numbers: SmallVec<[u64; 8]> = taken.map(|lease| lease.number).collect();
        let taken = numbers.into_iter();
        taken.filter_map(|number| self.take_back(number)).collect()
    }

    /// Whether it holds nothing, waits for nothing, and is not hot any more.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.leases.is_empty() && self.requested.is_empty() && !self.sizing.is_hot(now)
    }

    /// The counters, and their leased units.
    pub(super) fn units(&self) -> impl Iterator<Item = (&OwnedCounterOp, LeasedUnits)> {
        self.counters.iter().zip(self.units.iter().copied())
    }
}

/// The counter by which a lease is requested. A ban rejects the request of a lease, and does not count it.
fn charging(counter: &CounterOp<'_>) -> OwnedCounterOp {
    OwnedCounterOp::of(&CounterOp {
        units: Units::new(charged_units(counter)),
        ..*counter
    })
}
