//! The state of a request's counters before it, by the responses of its parts.

use super::parts::PartReply;
use crate::store::{
    CounterMode, CounterOp, CounterResult, OpResult, Units,
    fit::{countable_rejections, fit_excluding, rejected_charge},
    redis::request::op::OwnedCounterOp,
};

/// The enforced counters of a request, and the units that each had available before it: what was charged by the request,
/// and by equal ones admitted with it, counts as available.
pub(crate) struct CountersBefore<'a> {
    /// With their positions in the request.
    own: Vec<(usize, &'a OwnedCounterOp)>,
    counters: Vec<CounterOp<'a>>,
    available: Vec<u64>,
}

impl<'a> CountersBefore<'a> {
    pub(crate) fn of(parts: &'a [PartReply]) -> Self {
        let mut before = Self {
            own: Vec::new(),
            counters: Vec::new(),
            available: Vec::new(),
        };
        for PartReply { part, guard } in parts {
            let Some(result) = guard.result() else {
                continue;
            };
            let counters = part.counters.iter().zip(&result.counters);
            for ((counter, counter_result), index) in counters.zip(&part.indices) {
                before.own.push((*index, counter));
                before.counters.push(counter.as_op());
                before
                    .available
                    .push(available_before(counter, counter_result, result));
            }
        }
        before
    }

    /// How many of `times` requests had units available, without the counter at a position.
    pub(crate) fn fit_excluding(&self, index: usize, times: u64) -> u64 {
        let without = self.own.iter().position(|(own, _)| *own == index);
        let without = without.unwrap_or(usize::MAX);
        fit_excluding(&self.counters, &self.available, without, times)
    }

    /// What the rejected ones of `times` requests charge, by counter.
    pub(crate) fn rejections(
        &self,
        times: u64,
        admitted: u64,
    ) -> impl Iterator<Item = (usize, OwnedCounterOp)> {
        let rejected = countable_rejections(&self.counters, &self.available, times - admitted);
        let available = self.own.iter().zip(&self.available);
        available
            .zip(&self.counters)
            .filter_map(move |((own, units), counter)| {
                let rejected = counter.units.of(rejected);
                let units = match counter.mode {
                    CounterMode::CountRejections => rejected,
                    CounterMode::ChargeRejectedToo => {
                        let left = units.saturating_sub(counter.units.of(admitted));
                        rejected_charge(counter, i64::try_from(left).unwrap_or(i64::MAX), rejected)
                    }
                    CounterMode::Charge | CounterMode::Check | CounterMode::Shadow { .. } => 0,
                };
                let (index, mut counter) = (own.0, own.1.clone());
                counter.mode = CounterMode::Charge;
                counter.units = Units::new(units);
                (units > 0).then_some((index, counter))
            })
    }
}

fn available_before(
    counter: &OwnedCounterOp,
    counter_result: &CounterResult,
    result: &OpResult,
) -> u64 {
    let at = result.time_of(counter_result);
    let left = counter
        .limit
        .status(&counter_result.snapshot, at, counter.units)
        .remaining;
    let charged = match counter.mode {
        CounterMode::Charge | CounterMode::ChargeRejectedToo => {
            counter.units.of(result.admitted + result.admitted_after)
        }
        CounterMode::Check | CounterMode::CountRejections | CounterMode::Shadow { .. } => 0,
    };
    left.saturating_add(charged)
}
