//! The units of one lease: what was charged, what is left, and for how long it may be spent.

use std::{ops::Add, time::Duration};

use smallvec::SmallVec;

use crate::{
    clock::{Clock, SystemClock, Timestamp},
    redis::request::op::CounterOps,
    store::{CounterMode, CounterOp, OpResult},
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
    /// The hash of its key.
    pub(super) hash: u64,
    /// Unique among the leases of its key.
    pub(super) number: u64,
    /// The units to charge under each counter.
    pub(super) counters: CounterOps,
    pub(super) requested_at: ClockReading,
}

/// Units that were charged in the store, and may be spent.
#[derive(Debug)]
pub(super) struct HeldLease {
    /// The units under each counter.
    pub(super) units: SmallVec<[HeldUnits; 2]>,
    pub(super) charged_at: Timestamp,
    /// When it ends, by both clocks, since the machine may have slept.
    pub(super) ends_at: ClockReading,
    /// A TTL before it was requested, by the wall clock.
    min_wall: Timestamp,
    received_at: Timestamp,
    /// When it is reclaimed: early enough that what is left is refunded before it ends.
    pub(super) refund_at: Timestamp,
    pub(super) has_ended: bool,
}

/// The units of a lease under one counter, and their charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldUnits {
    pub(super) left: u64,
    /// The units of the charge, except those that were spent so soon after it that their requests may still refund them.
    charged: u64,
    charged_at: Timestamp,
    window_id: i64,
}

/// The units that are left of a lease, to be refunded.
#[derive(Debug)]
pub(super) struct Unspent {
    /// The hash of its key.
    pub(super) hash: u64,
    /// The refund under each counter that has units left.
    pub(super) counters: CounterOps,
}

impl HeldLease {
    /// The lease of a request with this result. `ttl` is the shortest one of the leases of its counters.
    pub(super) fn new(
        request: &LeaseRequest,
        result: &OpResult,
        ttl: Duration,
        now: Timestamp,
    ) -> Self {
        let window_ids = window_ids(&request.counters, result);
        let (mut life, mut units) = (ttl, SmallVec::new());
        let counters = request.counters.iter().zip(&result.counters);
        for ((own, charged), window_id) in counters.zip(window_ids) {
            let charged_at = result.time_of(charged);
            units.push(HeldUnits {
                left: charged.units,
                charged: charged.units,
                charged_at,
                window_id,
            });
            // A counter without units has no window to end with.
            if charged.units > 0
                && let Some(lease) = own.limit.info().lease
                && let Some(end) = own.limit.rule().window_end(&charged.snapshot, charged_at)
            {
                life = life.min(lease.lifetime_within(end.since(charged_at)));
            }
        }
        let ends_at = request.requested_at + life;
        // In whole microseconds, as instants are.
        let life = ends_at.monotonic.since(request.requested_at.monotonic);
        Self {
            units,
            charged_at: result.at,
            ends_at,
            min_wall: request.requested_at.wall - ttl,
            received_at: now,
            refund_at: request.requested_at.monotonic + (life - life / REFUND_MARGIN_DIVISOR),
            has_ended: false,
        }
    }

    /// Whether its units may be spent: not if the wall clock was set back, since the machine may have slept meanwhile.
    #[inline]
    pub(super) fn is_live(&self, now: ClockReading) -> bool {
        let is_over = now.monotonic >= self.ends_at.monotonic || now.wall >= self.ends_at.wall;
        !is_over && now.wall >= self.min_wall
    }

    /// Whether it was charged in these windows.
    pub(super) fn has_windows(&self, window_ids: &[i64]) -> bool {
        let own = self.units.iter().map(|units| &units.window_id);
        own.eq(window_ids)
    }

    /// Whether it has so many units under the counter at an index, and has not ended.
    #[inline]
    pub(super) fn has_units(&self, index: usize, units: u64) -> bool {
        self.units[index].left >= units && !self.has_ended
    }

    /// Spends units that it has under the counter at an index.
    #[inline]
    pub(super) fn spend(&mut self, index: usize, counter: &CounterOp<'_>, now: ClockReading) {
        let units = charged_units(counter);
        let lease = counter.limit.info().lease;
        let refundable_for = lease.map_or(Duration::ZERO, |lease| lease.refundable_for(units));
        let own = &mut self.units[index];
        own.left -= units;
        if now.monotonic.since(self.received_at) < refundable_for {
            own.charged -= units;
        }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.units.iter().all(|units| units.left == 0)
    }

    /// The refund of the units that are left. Its receipt does not name those that requests may refund, because spent units refill
    /// first.
    pub(super) fn refund(&self, counters: &CounterOps) -> CounterOps {
        let counters = counters.iter().zip(&self.units);
        let unspent = counters.filter(|(_, units)| units.left > 0);
        let refunds = unspent.map(|(own, units)| {
            let mut refund = own.clone();
            let charged_in = (units.charged_at, units.window_id);
            refund.set_refund_of(charged_in, units.charged, units.left);
            refund
        });
        refunds.collect()
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

/// The units that an admitted request is charged: none under a ban.
#[inline]
pub(super) fn charged_units(counter: &CounterOp<'_>) -> u64 {
    match counter.mode {
        CounterMode::Charge => counter.units.get(),
        _ => 0,
    }
}
