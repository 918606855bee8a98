//! The state of a request's counters before it, by the responses of its parts.

use super::parts::PartReply;
use crate::store::{
    CounterMode, CounterOp, CounterResult, OpResult, Units,
    fit::{countable_rejections, fit_excluding, rejected_charge},
    redis::request::op::OwnedCounterOp,
};

/// The enforced counters of a request, and the units that each had available before it: what was charged by the request,
/// and by equal ones admitted with it, counts as available.
pub(crate) struct Stood<'a> {
    /// With their positions in the request.
    own: Vec<(usize, &'a OwnedCounterOp)>,
    counters: Vec<CounterOp<'a>>,
    rooms: Vec<u64>,
}

impl<'a> Stood<'a> {
    pub(crate) fn before(parts: &'a [PartReply]) -> Self {
        let mut stood = Self {
            own: Vec::new(),
            counters: Vec::new(),
            rooms: Vec::new(),
        };
        for PartReply { part, delivery } in parts {
            let Some(answer) = delivery.answer() else {
                continue;
            };
            let counters = part.counters.iter().zip(&answer.counters);
            for ((line, snapshot), place) in counters.zip(&part.places) {
                stood.own.push((*place, line));
                stood.counters.push(line.line());
                stood.rooms.push(room_before(line, snapshot, answer));
            }
        }
        stood
    }

    /// How many of `times` requests had units available, without the counter at a position.
    pub(crate) fn fit_excluding(&self, place: usize, times: u64) -> u64 {
        let without = self.own.iter().position(|(own, _)| *own == place);
        let without = without.unwrap_or(usize::MAX);
        fit_excluding(&self.counters, &self.rooms, without, times)
    }

    /// What the rejected ones of `times` requests charge, by counter.
    pub(crate) fn rejections(
        &self,
        times: u64,
        admitted: u64,
    ) -> impl Iterator<Item = (usize, OwnedCounterOp)> {
        let rejected = countable_rejections(&self.counters, &self.rooms, times - admitted);
        let rooms = self.own.iter().zip(&self.rooms);
        rooms
            .zip(&self.counters)
            .filter_map(move |((own, room), line)| {
                let rejected = line.units.of(rejected);
                let units = match line.mode {
                    CounterMode::CountRejections => rejected,
                    CounterMode::ChargeRejectedToo => {
                        let left = room.saturating_sub(line.units.of(admitted));
                        rejected_charge(line, i64::try_from(left).unwrap_or(i64::MAX), rejected)
                    }
                    CounterMode::Charge | CounterMode::Check | CounterMode::Shadow { .. } => 0,
                };
                let (place, mut line) = (own.0, own.1.clone());
                line.mode = CounterMode::Charge;
                line.units = Units::new(units);
                (units > 0).then_some((place, line))
            })
    }
}

fn room_before(line: &OwnedCounterOp, answered: &CounterResult, answer: &OpResult) -> u64 {
    let at = answer.time_of(answered);
    let left = line
        .limit
        .status(&answered.snapshot, at, line.units)
        .remaining;
    let charged = match line.mode {
        CounterMode::Charge | CounterMode::ChargeRejectedToo => {
            line.units.of(answer.admitted + answer.admitted_after)
        }
        CounterMode::Check | CounterMode::CountRejections | CounterMode::Shadow { .. } => 0,
    };
    left.saturating_add(charged)
}
