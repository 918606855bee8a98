//! When a key's next lease is due, and how many units it has.

use std::time::Duration;

use smallvec::SmallVec;

use super::{
    demand::{Demand, MIN_RATE, RATE_INTERVAL, Rate},
    held_lease::{LeasedUnits, charged_units},
    requested::RequestedLeases,
};
use crate::{
    clock::Timestamp,
    redis::request::op::CounterOps,
    store::{CounterOp, CounterResult, LimitHandle, OpResult, Units},
    strategy::{Lease, QuotaStatus},
};

/// A lease is at most this part of what remains, so that the last units are charged one by one.
///
/// A quarter is what a process by itself can take without others noticing, and its leases are no smaller than its requests need
/// until the quota is nearly used up. After four processes that each take their part at once, a third still remains. With a
/// smaller part each of them would call the store more often while the quota is short.
const REMAINING_DIVISOR: u64 = 4;

/// The fewest requests of a lease.
const MIN_LEASE_REQUESTS: f64 = 2.0;

/// The most leases of the largest size that are held and requested at a time.
const MAX_LEASES: u64 = 4;

/// What the size of a key's next lease depends on, beside the units of each counter.
#[derive(Clone, Debug)]
pub(super) struct Sizing {
    pub(super) rate: Rate,
    /// The shortest TTL of the counters' leases.
    ttl: Duration,
    /// No lease is requested before.
    not_before: Timestamp,
    /// Whether no lease is requested before the next response: by the last one a lease would be too small, or that one is too old.
    awaits_response: bool,
}

impl Sizing {
    pub(super) fn new(ttl: Duration, now: Timestamp) -> Self {
        Self {
            rate: Rate::hot(now),
            ttl,
            not_before: now,
            awaits_response: false,
        }
    }

    /// Whether leases are requested at the current rate.
    pub(super) fn is_hot(&self, now: Timestamp) -> bool {
        self.rate.is_hot(now)
    }

    /// Ends the wait for a response: leases may be requested again.
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

    /// Whether a lease may be requested now.
    #[inline]
    pub(super) fn is_ready(&self, now: Timestamp) -> bool {
        now >= self.not_before && !self.awaits_response
    }

    /// Whether a lease that is not sized may be requested now.
    pub(super) fn may_request(&self, now: Timestamp) -> bool {
        now >= self.not_before && self.is_hot(now)
    }

    /// The units of the next lease under each counter, for which a request is due; `None` if none is requested for now.
    ///
    /// A lease fills up each counter to what the key's requests use in 5/8 of a TTL. So no more is ever held, and it is spent before
    /// the lease is refunded, after 7/8 of a TTL.
    pub(super) fn next_lease(
        &mut self,
        counters: &[CounterOp<'_>],
        units: &mut [LeasedUnits],
        requested: &RequestedLeases,
        last_response: &LastResponse,
        now: Timestamp,
    ) -> Option<SmallVec<[u64; 2]>> {
        if self.rate.per_second() < MIN_RATE {
            // Until the next interval ends.
            self.pause(now, RATE_INTERVAL.min(self.ttl / 2));
            return None;
        }
        self.awaits_response = true;
        let mut next = SmallVec::new();
        for (index, (counter, own)) in counters.iter().zip(&mut *units).enumerate() {
            let Some(lease) = counter.limit.info().lease else {
                next.push(0);
                continue;
            };
            let requested = requested.units(index);
            let per_second = self.rate.units_per_second(own.demand);
            let (size, most) = self.size(per_second.max(self.least(own.demand)), &lease);
            own.due_below = most - size + u64::from(size > 0);
            let owned = own.held.saturating_add(requested);
            // The last response counts held units as used, but not requested ones.
            let share = self.share(last_response, index, counter.limit, now)?;
            let share = share.saturating_sub(requested);
            let mut units = most.saturating_sub(owned).min(size).min(share);
            // Of requests that all cost the same none is left over.
            let cost = charged_units(counter);
            if (1..units).contains(&cost) {
                units -= units % cost;
            }
            let per_request = per_second / self.rate.per_second();
            let is_small = (units as f64) < MIN_LEASE_REQUESTS * per_request;
            if owned < own.due_below && is_small {
                return None;
            }
            next.push(units);
        }
        self.awaits_response = false;
        if next.iter().all(|units| *units == 0) {
            // Nothing is used yet.
            let all = units.iter_mut();
            all.for_each(|own| own.due_below = own.due_below.max(1));
            return None;
        }
        Some(next)
    }

    /// The units per second that are certain before the current interval ends, so that leases grow with each response while demand
    /// rises.
    fn least(&self, demand: Demand) -> f64 {
        demand.used() as f64 / self.ttl.max(RATE_INTERVAL).as_secs_f64()
    }

    /// The most units of a lease: those that requests use in half a TTL. And the most that are held: 5/8, so that the response to the
    /// next lease arrives before the last unit is spent.
    fn size(&self, per_second: f64, lease: &Lease) -> (u64, u64) {
        let per_ttl = per_second * self.ttl.as_secs_f64();
        let size = ((per_ttl / 2.0) as u64).min(lease.most());
        let most = ((per_ttl * 0.625) as u64).min(lease.most().saturating_mul(MAX_LEASES));
        (size, most.max(size))
    }

    /// The part of what remains under a counter that a lease may have; `None` if what remains is not known.
    fn share(
        &self,
        last_response: &LastResponse,
        index: usize,
        limit: &LimitHandle,
        now: Timestamp,
    ) -> Option<u64> {
        let status = last_response.status(index, limit);
        let age = now.since(last_response.received_at);
        let has_window = !limit.info().refills_gradually;
        let has_reset = has_window && !status.reset_after.is_zero() && age >= status.reset_after;
        let is_known = age <= self.ttl && !has_reset;
        is_known.then_some(status.remaining / REMAINING_DIVISOR)
    }
}

/// The state of the counters by the last response of the store.
#[derive(Clone, Debug)]
pub(super) struct LastResponse {
    pub(super) received_at: Timestamp,
    pub(super) at: Timestamp,
    pub(super) results: SmallVec<[CounterResult; 1]>,
    /// The window of each counter.
    pub(super) window_ids: SmallVec<[i64; 2]>,
}

impl LastResponse {
    /// Whether the response to a request that was sent at `requested_at` is older, because it came on another connection. One to
    /// a request that was sent later is not: the server's clock was set back.
    pub(super) fn is_after(&self, requested_at: Timestamp, result: &OpResult) -> bool {
        result.at < self.at && requested_at <= self.received_at
    }

    /// Takes the state of each counter from an earlier response of the same instant and window if less remains by it: requests of
    /// one batch are executed at one instant, and their responses may come in any order.
    pub(super) fn merge(&mut self, before: &Self, counters: &CounterOps) {
        if before.at != self.at || before.window_ids != self.window_ids {
            return;
        }
        for (index, own) in counters.iter().enumerate() {
            let remaining = |response: &Self| response.status(index, &own.limit).remaining;
            if remaining(before) < remaining(self) {
                self.results[index] = before.results[index];
            }
        }
    }

    /// Whether a request has enough units under each counter.
    pub(super) fn fits(&self, counters: &[CounterOp<'_>]) -> bool {
        let mut counters = counters.iter().enumerate();
        counters.all(|(index, counter)| {
            self.status(index, counter.limit).remaining >= charged_units(counter)
        })
    }

    /// The status of a counter for one unit.
    pub(super) fn status(&self, index: usize, limit: &LimitHandle) -> QuotaStatus {
        let result = &self.results[index];
        let at = self.at.shifted(result.clock_skew_us);
        limit.status(&result.snapshot, at, Units::ONE)
    }
}
