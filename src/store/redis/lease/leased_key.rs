//! The leases of one key, or of the keys of requests under several policies: how much they hold, and when more is requested.

use std::{collections::VecDeque, time::Duration};

use smallvec::SmallVec;

use super::{
    demand::{MIN_RATE, Rate},
    held_lease::{HeldLease, LeaseRequest, LeasedUnits, Now, Unspent, charged_units},
    processes::{Processes, State},
};
use crate::{
    clock::Timestamp,
    store::{
        CounterOp, CounterResult, DecisionSource, OpResult, Units,
        redis::request::op::{CounterOps, OwnedCounterOp},
    },
};

/// A lease is at most this part of what remains for each process. So the last units are charged one by one.
const REMAINING_PARTS: f64 = 4.0;

/// The requests of a lease while it is not known what remains.
const FIRST_LEASE: u64 = 2;

/// A lease that was requested is waited for so much longer than its TTL: the runtime that is to receive the response may not be
/// driven any more.
const MAX_WAIT: Duration = Duration::from_secs(1);

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
    rate: Rate,
    processes: Processes,
    /// The number of the next lease.
    next: u64,
    is_requested: bool,
    /// When the last lease was requested.
    requested_at: Timestamp,
    /// More is requested once it holds no more than the units of so many requests.
    low_water: u64,
    /// No lease is requested before.
    not_before: Timestamp,
}

/// The state of the counters by the last response of the store.
#[derive(Debug)]
struct Latest {
    received_at: Timestamp,
    at: Timestamp,
    results: SmallVec<[CounterResult; 1]>,
}

/// What became of a lease whose request was answered.
#[derive(Debug)]
pub(super) enum Granted {
    /// The units are held. What is left after so long is to be refunded.
    Held { refund_after: Duration },
    /// It is too late to spend them.
    Late(Unspent),
    /// The key was reset or blocked meanwhile.
    Ended,
    /// The store charged nothing.
    Rejected,
}

impl LeasedKey {
    pub(super) fn new((id, hash): (u64, u64), counters: &[CounterOp<'_>], now: Timestamp) -> Self {
        Self {
            id,
            hash,
            counters: counters.iter().map(OwnedCounterOp::of).collect(),
            units: vec![LeasedUnits::default(); counters.len()],
            leases: VecDeque::new(),
            latest: None,
            rate: Rate::new(now),
            processes: Processes::default(),
            next: 0,
            is_requested: false,
            requested_at: now,
            low_water: 0,
            not_before: now,
        }
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
            self.processes
                .note_own(counters.iter().map(charged_units).max().unwrap_or(0));
        }
        (result, self.note_request(counters, now))
    }

    /// Admits a request by the units of the oldest lease that has enough, if there is one.
    #[inline]
    fn spend(&mut self, counters: &[CounterOp<'_>], now: Now) -> Option<OpResult> {
        self.end_leases(now);
        let latest = self.latest.as_ref()?;
        let mut leases = self.leases.iter_mut().enumerate();
        let (index, lease) = leases.find(|(_, lease)| lease.has(counters))?;
        let mut more = u64::MAX;
        let mut results = SmallVec::new();
        let charges = latest.results.iter().zip(&mut self.units);
        for (index, (counter, (latest, own))) in counters.iter().zip(charges).enumerate() {
            let units = charged_units(counter);
            lease.left[index] -= units;
            if lease.is_refundable(counter, units, now) {
                lease.refundable[index] += units;
            }
            own.held -= units;
            own.spent += units;
            more = more.min(own.held.checked_div(units).unwrap_or(u64::MAX));
            results.push(CounterResult { units, ..*latest });
        }
        let result = OpResult {
            admitted: 1,
            at: latest.at,
            age: now.monotonic.since(latest.received_at),
            charged_before: latest.at.since(lease.charge.at),
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
        self.rate.note(now.monotonic);
        if self.is_requested && now.monotonic > self.requested_at + self.ttl() + MAX_WAIT {
            self.is_requested = false;
        }
        let is_due = !self.is_requested && self.held_requests(counters) <= self.low_water;
        if !is_due || now.monotonic < self.not_before {
            return None;
        }
        self.request(counters, now)
    }

    /// For how many such requests it holds units.
    fn held_requests(&self, counters: &[CounterOp<'_>]) -> u64 {
        let counters = counters.iter().zip(&self.units);
        let requests =
            counters.filter_map(|(counter, own)| own.held.checked_div(charged_units(counter)));
        requests.min().unwrap_or(0)
    }

    fn request(&mut self, counters: &[CounterOp<'_>], now: Now) -> Option<LeaseRequest> {
        let (requests, wanted) = self.size(counters, now);
        if requests < 2 {
            self.not_before = now.monotonic + self.ttl() / 2;
            return None;
        }
        // Early enough that it is there before the last unit is spent, also if leases are smaller than wanted.
        self.low_water = (wanted / 2).clamp(requests / 2, requests);
        self.is_requested = true;
        self.requested_at = now.monotonic;
        self.next += 1;
        Some(LeaseRequest {
            key_id: self.id,
            number: self.next,
            requests: u32::try_from(requests).unwrap_or(u32::MAX),
            counters: counters.iter().map(charging).collect(),
            requested_at: now,
        })
    }

    /// The number of requests of the next lease, and how many the key's rate makes worthwhile.
    fn size(&self, counters: &[CounterOp<'_>], now: Now) -> (u64, u64) {
        let rate = self.rate.per_second();
        if rate < MIN_RATE {
            return (0, 0);
        }
        let wanted = (rate * self.ttl().as_secs_f64() / 2.0) as u64;
        let is_fresh = |latest: &&Latest| now.monotonic.since(latest.received_at) <= self.ttl();
        let latest = self.latest.as_ref().filter(is_fresh);
        let mut requests = wanted;
        for (index, counter) in counters.iter().enumerate() {
            let (Some(lease), units @ 1..) = (counter.limit.lease(), charged_units(counter)) else {
                continue;
            };
            requests = requests.min(lease.most() / units);
            requests = requests.min(match latest {
                None => FIRST_LEASE,
                Some(latest) => {
                    let result = &latest.results[index];
                    let at = latest.at.shifted(result.clock_skew_us);
                    let status = counter.limit.status(&result.snapshot, at, Units::ONE);
                    let parts = REMAINING_PARTS * self.processes.estimate();
                    (status.remaining as f64 / parts) as u64 / units
                }
            });
        }
        (requests, wanted)
    }

    /// The shortest TTL of the counters' leases.
    fn ttl(&self) -> Duration {
        let leases = self.counters.iter().filter_map(|own| own.limit.lease());
        let ttls = leases.map(|lease| lease.lifetime());
        ttls.min().unwrap_or_default()
    }

    /// Whether the lease of this number is still waited for: not if the key was reset meanwhile.
    pub(super) fn is_waiting_for(&self, number: u64) -> bool {
        self.is_requested && self.next == number
    }

    /// Whether a lease is waited for that was requested at this moment or before.
    pub(super) fn waits_since(&self, moment: Timestamp) -> bool {
        self.is_requested && self.requested_at <= moment
    }

    /// No response, so that nothing is leased for a while.
    pub(super) fn fail(&mut self, number: u64, now: Timestamp) {
        if self.is_waiting_for(number) {
            self.is_requested = false;
            self.not_before = now + self.ttl();
        }
    }

    /// Holds what the store has charged for a lease.
    pub(super) fn grant(&mut self, request: &LeaseRequest, result: &OpResult, now: Now) -> Granted {
        let is_waiting = self.is_waiting_for(request.number);
        if !is_waiting || result.counters.len() < request.counters.len() {
            return match result.admitted {
                0 => Granted::Rejected,
                _ => Granted::Ended,
            };
        }
        self.is_requested = false;
        self.note_processes(result);
        self.latest = Some(Latest {
            received_at: now.monotonic,
            at: result.at,
            results: result.counters.clone(),
        });
        if result.admitted == 0 {
            self.not_before = now.monotonic + self.ttl() / 2;
            return Granted::Rejected;
        }
        let lease = HeldLease::new(request, result, now.monotonic);
        // A refund finds the window of its charge by the latest response.
        let window_ids = &lease.charge.window_ids;
        for older in &mut self.leases {
            if !older.has_ended && older.charge.window_ids != *window_ids {
                older.end(&mut self.units);
            }
        }
        if !lease.is_live(now) {
            let own = request.counters.iter().cloned();
            return Granted::Late(lease.unspent(own));
        }
        for (own, left) in self.units.iter_mut().zip(&lease.left) {
            own.held += left;
        }
        let life = lease.ends.monotonic.since(request.requested_at.monotonic);
        let elapsed = now.monotonic.since(request.requested_at.monotonic);
        self.leases.push_back(lease);
        Granted::Held {
            refund_after: (life * 3 / 4).saturating_sub(elapsed),
        }
    }

    /// Notes what others have charged since the last response.
    fn note_processes(&mut self, result: &OpResult) {
        let leased = self
            .counters
            .iter()
            .position(|own| own.limit.lease().is_some());
        let (Some(index), Some(latest)) = (leased, &self.latest) else {
            return;
        };
        let state = |at: Timestamp, results: &[CounterResult]| State {
            at: at.shifted(results[index].clock_skew_us),
            snapshot: results[index].snapshot,
        };
        let before = state(latest.at, &latest.results);
        let after = state(result.at, &result.counters);
        self.processes.note_own(result.counters[index].units);
        let limit = &self.counters[index].limit;
        self.processes.note_states(limit, before, after);
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

    /// Takes back all leases, and forgets one that is requested.
    pub(super) fn take_back_all(&mut self) -> Vec<Unspent> {
        self.is_requested = false;
        self.next += 1;
        let numbers: Vec<_> = self.leases.iter().map(|lease| lease.number).collect();
        let taken = numbers.into_iter();
        taken.filter_map(|number| self.take_back(number)).collect()
    }

    /// Whether it holds nothing, waits for nothing and is not requested any more.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.leases.is_empty() && !self.is_requested && self.rate.is_idle(now)
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
