//! When a key's next lease is due, and how many units it has.

use std::time::Duration;

pub(super) use self::last_response::LastResponse;
use self::processes::{CounterState, Processes};
use super::{
    demand::{MIN_RATE, Rate},
    held_lease::charged_units,
    stripes::MIN_STRIPE_LEASE_RATE,
};
use crate::{
    clock::Timestamp,
    store::{CounterOp, CounterResult, OpResult, Units, redis::request::op::CounterOps},
};

mod last_response;
mod processes;

/// A lease is at most this part of what remains for each process, so that the last units are charged one by one.
const REMAINING_DIVISOR: f64 = 4.0;

/// The requests of a lease while it is not known what remains.
const FIRST_LEASE_REQUESTS: u64 = 2;

/// The fewest requests of a lease.
const MIN_LEASE_REQUESTS: u64 = 2;

/// The most leases of the largest size that are held and requested at a time.
const MAX_LEASES: u64 = 4;

/// The units of a counter that a key has.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterUnits {
    /// The units that may be spent.
    pub(super) held: u64,
    /// The units of leases that have no response yet.
    pub(super) requested: u64,
}

/// What the size of a key's next lease depends on.
#[derive(Clone, Debug)]
pub(super) struct Sizing {
    pub(super) rate: Rate,
    pub(super) processes: Processes,
    /// At a lower rate, in requests per second, no lease is requested.
    min_rate: f64,
    /// The shortest TTL of the counters' leases.
    ttl: Duration,
    /// A lease is due when the held and requested units of the most expensive counter fall to this.
    low_water: u64,
    /// No lease is requested before.
    not_before: Timestamp,
    /// No lease is requested before a response either: this process's share is requested.
    awaits_response: bool,
}

impl Sizing {
    pub(super) fn new(ttl: Duration, now: Timestamp) -> Self {
        Self {
            rate: Rate::new(now),
            processes: Processes::default(),
            min_rate: MIN_RATE,
            ttl,
            low_water: 0,
            not_before: now,
            awaits_response: false,
        }
    }

    /// The initial sizing of a stripe.
    pub(super) fn of_stripe(&self) -> Self {
        Self {
            min_rate: MIN_STRIPE_LEASE_RATE,
            awaits_response: false,
            ..self.clone()
        }
    }

    /// Whether leases are requested at the current rate.
    pub(super) fn is_hot(&self, now: Timestamp) -> bool {
        self.rate.was_at_least(self.min_rate, now)
    }

    /// Records that a request of a lease has ended.
    pub(super) fn end_wait(&mut self) {
        self.awaits_response = false;
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Requests no lease for the time of `pause`.
    pub(super) fn pause(&mut self, now: Timestamp, pause: Duration) {
        self.not_before = now + pause;
    }

    /// Records a request, and returns whether a lease is due. `units` are those of each counter.
    #[inline]
    pub(super) fn record_request(
        &mut self,
        counters: &[CounterOp<'_>],
        units: impl Iterator<Item = CounterUnits>,
        now: Timestamp,
    ) -> bool {
        let cost = cost(counters);
        self.rate.record(now, cost);
        let units = counters.iter().zip(units);
        let units = units.filter(|(counter, _)| charged_units(counter) == cost);
        let units = units.map(|(_, units)| units.held + units.requested);
        let is_low = units.min().unwrap_or(0) <= self.low_water;
        is_low && now >= self.not_before && !self.awaits_response
    }

    /// Records the units of a request that the store decides.
    pub(super) fn record_store_decided(&mut self, counters: &[CounterOp<'_>]) {
        self.processes.record_own(cost(counters));
    }

    /// Records what others have charged since the last response.
    pub(super) fn record_response(
        &mut self,
        counters: &CounterOps,
        last_response: Option<&LastResponse>,
        result: &OpResult,
    ) {
        let mut all = counters.iter();
        let leased = all.position(|own| own.limit.lease().is_some());
        let (Some(index), Some(last_response)) = (leased, last_response) else {
            return;
        };
        let state = |at: Timestamp, results: &[CounterResult]| CounterState {
            at: at.shifted(results[index].clock_skew_us),
            snapshot: results[index].snapshot,
        };
        let before = state(last_response.at, &last_response.results);
        let after = state(result.at, &result.counters);
        self.processes.record_own(result.counters[index].units);
        self.processes
            .record_states(&counters[index].limit, before, after);
    }

    /// The number of such requests that the next lease is for; `None` if no lease is requested for now.
    pub(super) fn next_lease(
        &mut self,
        counters: &[CounterOp<'_>],
        units: impl Iterator<Item = CounterUnits>,
        last_response: Option<&LastResponse>,
        now: Timestamp,
    ) -> Option<u64> {
        if self.rate.per_second() < self.min_rate {
            self.pause(now, self.ttl / 2);
            return None;
        }
        let cost = cost(counters).max(1);
        let wanted_units = (self.rate.units_per_second() * self.ttl.as_secs_f64() / 2.0) as u64;
        let mut requests = wanted_units / cost;
        let (mut max_requests, mut is_requested) = (u64::MAX, false);
        for (index, (counter, own)) in counters.iter().zip(units).enumerate() {
            let (Some(lease), units @ 1..) = (counter.limit.lease(), charged_units(counter)) else {
                continue;
            };
            is_requested |= own.requested > 0;
            let room = (MAX_LEASES * lease.most()).saturating_sub(own.held + own.requested);
            let room = room.min(lease.most());
            max_requests = max_requests.min(room / units);
            requests = requests.min(match last_response {
                Some(last_response) => {
                    let share = self.share(last_response, index, counter, now);
                    // The last response counts held units as used, but not requested ones.
                    share.saturating_sub(own.requested / units)
                }
                None => FIRST_LEASE_REQUESTS,
            });
        }
        let requests = requests.min(max_requests);
        if requests >= MIN_LEASE_REQUESTS {
            // Low water is a quarter of the wanted units: the response then arrives before the last unit is spent, and held units (5/8
            // of a TTL) are spent before the lease is refunded (7/8).
            let units = requests * cost;
            let leases = if requests == max_requests {
                MAX_LEASES - 1
            } else {
                1
            };
            self.low_water = (wanted_units / 4).clamp(units / 4, leases * units);
            return Some(requests);
        }
        // An unusually expensive request does not hold back leases for the cheap ones.
        if max_requests >= MIN_LEASE_REQUESTS {
            match is_requested {
                true => self.awaits_response = true,
                false => self.pause(now, self.ttl / 2),
            }
        }
        None
    }

    /// This process's share of what remains under a counter, in requests.
    fn share(
        &self,
        last_response: &LastResponse,
        index: usize,
        counter: &CounterOp<'_>,
        now: Timestamp,
    ) -> u64 {
        let status = last_response.status(index, counter.limit, Units::ONE);
        let age = now.since(last_response.received_at);
        let has_window = !counter.limit.rule().refills_gradually();
        let has_reset = has_window && !status.reset_after.is_zero() && age >= status.reset_after;
        if age > self.ttl || has_reset {
            return FIRST_LEASE_REQUESTS;
        }
        let divisor = REMAINING_DIVISOR * self.processes.estimate();
        let units = (status.remaining as f64 / divisor) as u64;
        units / charged_units(counter).max(1)
    }
}

/// The most units that a request is charged under one counter.
#[inline]
fn cost(counters: &[CounterOp<'_>]) -> u64 {
    counters.iter().map(charged_units).max().unwrap_or(0)
}
