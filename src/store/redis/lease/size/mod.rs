//! When a key's next lease is due, and how many units it has.

use std::time::Duration;

pub(super) use self::latest::Latest;
use self::processes::{Processes, State};
use super::{
    demand::{MIN_RATE, Rate},
    held_lease::charged_units,
    stripes::MIN_STRIPE_RATE,
};
use crate::{
    clock::Timestamp,
    store::{CounterOp, CounterResult, OpResult, Units, redis::request::op::CounterOps},
};

mod latest;
mod processes;

/// A lease is at most this part of what remains for each process. So the last units are charged one by one.
const REMAINING_PARTS: f64 = 4.0;

/// The requests of a lease while it is not known what remains.
const FIRST_LEASE: u64 = 2;

/// The most leases of the largest size that are held and requested at a time.
const MAX_LEASES: u64 = 4;

/// What the size of a key's next lease depends on.
#[derive(Clone, Debug)]
pub(super) struct Sizing {
    pub(super) rate: Rate,
    pub(super) processes: Processes,
    /// At a lower rate, in requests per second, no lease is requested.
    min_rate: f64,
    /// The shortest TTL of the counters' leases.
    ttl: Duration,
    /// Another lease is due once no more units than this are held of a counter, the one of which requests cost most.
    low_water: u64,
    /// No lease is requested before.
    not_before: Timestamp,
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
        }
    }

    /// That of a stripe, to begin with.
    pub(super) fn of_stripe(&self) -> Self {
        Self {
            min_rate: MIN_STRIPE_RATE,
            ..self.clone()
        }
    }

    /// Whether leases are requested at the current rate.
    pub(super) fn is_hot(&self, now: Timestamp) -> bool {
        self.rate.was_at_least(self.min_rate, now)
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Requests no lease for so long.
    pub(super) fn pause(&mut self, now: Timestamp, pause: Duration) {
        self.not_before = now + pause;
    }

    /// Counts a request, and returns whether a lease is due. `units` are those of each counter that are held, and that are requested.
    #[inline]
    pub(super) fn note_request(
        &mut self,
        counters: &[CounterOp<'_>],
        units: impl Iterator<Item = (u64, u64)>,
        now: Timestamp,
    ) -> bool {
        let cost = cost(counters);
        self.rate.record(now, cost);
        let units = counters.iter().zip(units);
        let units = units.filter(|(counter, _)| charged_units(counter) == cost);
        let units = units.map(|(_, (held, requested))| held + requested);
        units.min().unwrap_or(0) <= self.low_water && now >= self.not_before
    }

    /// Counts the units of a request that the store decides.
    pub(super) fn note_unleased(&mut self, counters: &[CounterOp<'_>]) {
        self.processes.note_own(cost(counters));
    }

    /// Notes what others have charged since the latest response.
    pub(super) fn note_response(
        &mut self,
        counters: &CounterOps,
        latest: Option<&Latest>,
        result: &OpResult,
    ) {
        let mut all = counters.iter();
        let leased = all.position(|own| own.limit.lease().is_some());
        let (Some(index), Some(latest)) = (leased, latest) else {
            return;
        };
        let state = |at: Timestamp, results: &[CounterResult]| State {
            at: at.shifted(results[index].clock_skew_us),
            snapshot: results[index].snapshot,
        };
        let before = state(latest.at, &latest.results);
        let after = state(result.at, &result.counters);
        self.processes.note_own(result.counters[index].units);
        self.processes
            .note_states(&counters[index].limit, before, after);
    }

    /// For how many such requests the next lease is; `None` if there is to be none for now.
    pub(super) fn size(
        &mut self,
        counters: &[CounterOp<'_>],
        units: impl Iterator<Item = (u64, u64)>,
        latest: Option<&Latest>,
        now: Timestamp,
    ) -> Option<u64> {
        if self.rate.per_second() < self.min_rate {
            self.pause(now, self.ttl / 2);
            return None;
        }
        let cost = cost(counters).max(1);
        let wanted_units = (self.rate.units_per_second() * self.ttl.as_secs_f64() / 2.0) as u64;
        let mut requests = wanted_units / cost;
        let mut most = u64::MAX;
        for (index, (counter, (held, requested))) in counters.iter().zip(units).enumerate() {
            let (Some(lease), units @ 1..) = (counter.limit.lease(), charged_units(counter)) else {
                continue;
            };
            let room = (MAX_LEASES * lease.most()).saturating_sub(held + requested);
            let room = room.min(lease.most());
            most = most.min(room / units);
            requests = requests.min(match latest {
                Some(latest) => {
                    let share = self.share(latest, index, counter, now);
                    share.saturating_sub(requested / units)
                }
                None => FIRST_LEASE,
            });
        }
        let requests = requests.min(most);
        if requests >= 2 {
            // Early enough that it is there before the last unit is spent, also if leases are smaller than wanted. So late that it
            // is spent before it is taken back: what was wanted and a quarter takes five eighths of a TTL.
            let units = requests * cost;
            let leases = if requests == most { MAX_LEASES - 1 } else { 1 };
            self.low_water = (wanted_units / 4).clamp(units / 4, leases * units);
            return Some(requests);
        }
        // A request that costs nearly a whole lease says nothing of the others.
        if most >= 2 {
            self.pause(now, self.ttl / 2);
        }
        None
    }

    /// This process's share of what remains under a counter, in requests.
    fn share(&self, latest: &Latest, index: usize, counter: &CounterOp<'_>, now: Timestamp) -> u64 {
        let status = latest.status(index, counter.limit, Units::ONE);
        let age = now.since(latest.received_at);
        // The window of the response has ended.
        let has_window = !counter.limit.rule().refills_gradually();
        let has_reset = has_window && !status.reset_after.is_zero() && age >= status.reset_after;
        if age > self.ttl || has_reset {
            return FIRST_LEASE;
        }
        let parts = REMAINING_PARTS * self.processes.estimate();
        let units = (status.remaining as f64 / parts) as u64;
        units / charged_units(counter).max(1)
    }
}

/// The most units that a request is charged under one counter.
#[inline]
fn cost(counters: &[CounterOp<'_>]) -> u64 {
    counters.iter().map(charged_units).max().unwrap_or(0)
}
