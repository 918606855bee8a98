//! The units of one lease: what was charged, what is left, and for how long it may be spent.

use std::{ops::Add, time::Duration};

use smallvec::SmallVec;

use super::demand::Demand;
use crate::{
    clock::{Clock, SystemClock, Timestamp},
    redis::request::op::{CounterOps, OwnedCounterOp},
    store::{CounterMode, CounterOp, CounterResult, OpResult},
};

/// A lease is refunded this part of its life before it ends.
const REFUND_MARGIN_DIVISOR: u32 = 8;

/// One instant by two clocks of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    /// A clock that does not step. It may stand still while the machine sleeps.
    pub(super) monotonic: Timestamp,
    pub(super) wall: Timestamp,
}

impl ClockReading {
    pub(super) fn read() -> Self {
        Self {
            monotonic: SystemClock.now(),
            wall: SystemClock.wall(),
        }
    }
}

impl Add<Duration> for ClockReading {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self {
            monotonic: self.monotonic + by,
            wall: self.wall + by,
        }
    }
}

/// A lease to request.
#[derive(Debug)]
pub(super) struct LeaseRequest {
    /// The ID of the `LeasedKey`.
    pub(super) key_id: u64,
    pub(super) number: u64,
    /// The units to charge under each counter.
    pub(super) counters: CounterOps,
    pub(super) requested_at: ClockReading,
}

/// Units that were charged in the store, and may be spent.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) number: u64,
    /// The units that are left, under each counter.
    pub(super) left: SmallVec<[u64; 2]>,
    /// Units per counter whose requests may still refund them: they were spent soon after their charge.
    pub(super) refundable: SmallVec<[u64; 2]>,
    pub(super) charge: Charge,
    /// When it ends, by both clocks, since the machine may have slept.
    pub(super) ends_at: ClockReading,
    ttl: Duration,
    requested_at: ClockReading,
    received_at: Timestamp,
    /// When it is reclaimed: early enough that what is left is refunded before it ends.
    pub(super) refund_at: Timestamp,
    pub(super) has_ended: bool,
}

/// The leased units of a counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeasedUnits {
    /// The units that may be spent.
    pub(super) held: u64,
    /// The units of leases that have ended, and have not been reclaimed yet.
    pub(super) ended: u64,
    pub(super) spent: u64,
    /// The units of all admitted requests.
    pub(super) demand: Demand,
    /// A lease is due when fewer units are held and requested.
    pub(super) due_below: u64,
}

impl LeasedUnits {
    /// Moves held units of a request to those that are spent.
    #[inline]
    pub(super) fn spend(&mut self, units: u64) {
        self.held -= units;
        self.spent = self.spent.saturating_add(units);
        self.demand.record(units);
    }
}

impl Default for LeasedUnits {
    fn default() -> Self {
        Self {
            held: 0,
            ended: 0,
            spent: 0,
            demand: Demand::default(),
            due_below: 1,
        }
    }
}

/// A charge in the store, as its refund needs it.
#[derive(Debug)]
pub(super) struct Charge {
    pub(super) at: Timestamp,
    /// The result of each counter.
    results: SmallVec<[CounterResult; 1]>,
    pub(super) window_ids: SmallVec<[i64; 2]>,
}

/// Units of a lease that are not spent any more.
#[derive(Debug)]
pub(super) struct Unspent {
    /// The units of the charge, and of them the unspent ones, under each counter.
    pub(super) counters: CounterOps,
}

impl Unspent {
    /// The units of some counters, and those of the others.
    pub(super) fn split(self, counters: &[CounterOp<'_>]) -> (Self, Self) {
        let is_own = |own: &OwnedCounterOp| {
            counters.iter().any(|counter| {
                own.key == counter.key && own.limit.policy() == counter.limit.policy()
            })
        };
        let (own, others): (Vec<_>, Vec<_>) = self.counters.into_iter().partition(is_own);
        let unspent = |counters: Vec<_>| Self {
            counters: counters.into(),
        };
        (unspent(own), unspent(others))
    }
}

impl HeldLease {
    pub(super) fn new(request: &LeaseRequest, result: &OpResult, now: Timestamp) -> Self {
        let counters = request.counters.iter().zip(&result.counters);
        // A counter without units has no window to end with.
        let lives = counters.filter(|(own, counter)| is_leased(own) && counter.units > 0);
        let lives = lives.filter_map(|(own, counter)| {
            let (lease, charged_at) = (own.limit.info().lease?, result.time_of(counter));
            let ends = own.limit.rule().window_end(&counter.snapshot, charged_at);
            Some(ends.map_or(lease.lifetime(), |ends| {
                lease.lifetime_within(ends.since(charged_at))
            }))
        });
        let ttls = request
            .counters
            .iter()
            .filter_map(|own| own.limit.info().lease);
        let ttl = ttls.map(|lease| lease.lifetime()).min().unwrap_or_default();
        let life = lives.min().unwrap_or_default().min(ttl);
        // In whole microseconds, as instants are.
        let ends_at = request.requested_at + life;
        let life = ends_at.monotonic.since(request.requested_at.monotonic);
        Self {
            number: request.number,
            left: result
                .counters
                .iter()
                .map(|counter| counter.units)
                .collect(),
            refundable: SmallVec::from_elem(0, result.counters.len()),
            charge: Charge {
                at: result.at,
                window_ids: window_ids(&request.counters, result),
                results: result.counters.clone(),
            },
            ends_at,
            ttl,
            requested_at: request.requested_at,
            received_at: now,
            refund_at: request.requested_at.monotonic + (life - life / REFUND_MARGIN_DIVISOR),
            has_ended: false,
        }
    }

    /// Whether its units may be spent: not if the wall clock was set back, since the machine may have slept meanwhile.
    #[inline]
    pub(super) fn is_live(&self, now: ClockReading) -> bool {
        let is_over = now.monotonic >= self.ends_at.monotonic || now.wall >= self.ends_at.wall;
        !is_over && now.wall + self.ttl >= self.requested_at.wall
    }

    /// Whether it has so many units under the counter at an index, and has not ended.
    #[inline]
    pub(super) fn has_units(&self, index: usize, units: u64) -> bool {
        self.left[index] >= units && !self.has_ended
    }

    /// Spends units that it has under the counter at an index.
    #[inline]
    pub(super) fn spend(&mut self, index: usize, counter: &CounterOp<'_>, now: ClockReading) {
        let units = charged_units(counter);
        self.left[index] -= units;
        if self.is_refundable(counter, units, now) {
            self.refundable[index] += units;
        }
    }

    /// Whether a refund of `units` that are spent now would still return any.
    #[inline]
    fn is_refundable(&self, counter: &CounterOp<'_>, units: u64, now: ClockReading) -> bool {
        let lease = counter.limit.info().lease;
        let refundable_for = lease.map_or(Duration::ZERO, |lease| lease.refundable_for(units));
        now.monotonic.since(self.received_at) < refundable_for
    }

    /// Builds the refund of the remaining units. Its receipt names the whole charge less `refundable`, because spent units refill
    /// first.
    pub(super) fn unspent(&self, counters: impl Iterator<Item = OwnedCounterOp>) -> Unspent {
        let charges = self.charge.results.iter().zip(&self.charge.window_ids);
        let units = self.left.iter().zip(&self.refundable);
        let refunds = counters.zip(charges.zip(units));
        let refunds = refunds.filter(|(_, (_, (left, _)))| **left > 0);
        let refunds = refunds.map(|(mut counter, ((result, window_id), (left, refundable)))| {
            let at = self.charge.at.shifted(result.clock_skew_us);
            let charged = result.units - refundable;
            counter.set_refund_of((at, *window_id), charged, *left);
            counter
        });
        Unspent {
            counters: refunds.collect(),
        }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.iter().all(|left| *left == 0)
    }

    /// Ends it: what is left of it, of the units of its key, is not spent any more.
    #[cold]
    pub(super) fn end(&mut self, units: &mut [LeasedUnits]) {
        self.has_ended = true;
        for (own, left) in units.iter_mut().zip(&self.left) {
            own.held -= left;
            own.ended += left;
        }
    }
}

/// The window of each counter by a result.
pub(super) fn window_ids(counters: &CounterOps, result: &OpResult) -> SmallVec<[i64; 2]> {
    let counters = counters.iter().zip(&result.counters);
    let ids = counters.map(|(own, counter)| {
        let at = result.time_of(counter);
        own.limit.rule().window_id(&counter.snapshot, at)
    });
    ids.collect()
}

/// Whether a lease can hold units of a counter.
fn is_leased(counter: &OwnedCounterOp) -> bool {
    counter.mode == CounterMode::Charge && counter.limit.info().lease.is_some()
}

/// The units that an admitted request is charged: none under a ban.
#[inline]
pub(super) fn charged_units(counter: &CounterOp<'_>) -> u64 {
    match counter.mode {
        CounterMode::Charge => counter.units.get(),
        _ => 0,
    }
}
