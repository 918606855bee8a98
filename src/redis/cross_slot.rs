//! Requests whose keys are in several slots of a cluster.
//!
//! The counters of each slot form a part, and all parts are sent at once. If one of them rejects, the others are refunded before the
//! request completes, so no more is ever admitted than each policy allows. Meanwhile a part holds units that may be refunded: another
//! request may be rejected for lack of them, with a wait for units that are free again in a moment. So such rejections are not cached. A
//! part that fails or times out fails the request, and the others are refunded. If the process ends in between, what was charged stays
//! charged until its period ends.
//!
//! What a rejection charges depends on all parts. It is sent once they have responded, together with the refunds.

use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    io::Io,
    request::{
        Followers, Retry, ended,
        op::{CounterOps, OwnedCounterOp},
    },
};
use crate::{
    error::StoreError,
    store::{
        CounterMode, CounterResult, Op, OpResult, StoreResponse, Units,
        fit::{countable_rejections, rejected_charge},
    },
    strategy::Snapshot,
};

/// A counter, with its position in the request.
type Numbered = (usize, OwnedCounterOp);

type Positions = SmallVec<[usize; 2]>;

/// A request in several slots. An acquisition that is dropped before its result is read is refunded.
struct CrossSlotRequest {
    io: Arc<Io>,
    op: Op,
    counters: CounterOps,
    deadline: Instant,
    /// Merged from the parts that have responded; `None` before the first, and once it was read.
    result: Option<OpResult>,
}

/// Executes a request whose keys are in several slots. A caller that leaves cancels it, unless it adjusts, or its rejection would charge
/// something: then a task on the IO thread completes it.
pub(super) fn execute(io: &Arc<Io>, op: Op, counters: CounterOps) -> StoreResponse {
    let charges_rejections = matches!(op, Op::Acquire(_)) && counters.iter().any(counts_rejections);
    let sent: CounterOps = if charges_rejections {
        counters.iter().map(without_rejections).collect()
    } else {
        counters.clone()
    };
    let request = CrossSlotRequest {
        io: io.clone(),
        op,
        counters,
        deadline: io.deadline(),
        result: None,
    };
    let parts = request.send(op, sent.into_iter().enumerate(), Retry::Never);
    let completed = request.complete(parts);
    let runtime = if charges_rejections || op == Op::Adjust {
        io.runtime()
    } else {
        None
    };
    match runtime {
        Some(runtime) => {
            let task = runtime.spawn(completed);
            StoreResponse::pending(async { task.await.map_err(|_| ended())??.read() })
        }
        None => StoreResponse::pending(async { completed.await?.read() }),
    }
}

/// Executes an operation without a waiter in each of the slots of its keys.
pub(super) fn execute_detached(
    io: &Arc<Io>,
    op: Op,
    counters: impl IntoIterator<Item = OwnedCounterOp>,
) {
    for (_, counters) in by_slot(io, counters.into_iter().enumerate()) {
        io.execute_detached(op, counters, None);
    }
}

impl CrossSlotRequest {
    /// Sends counters to their slots. A part that can't be sent has an error for its response.
    fn send(
        &self,
        op: Op,
        counters: impl IntoIterator<Item = Numbered>,
        retry: Retry,
    ) -> Vec<(Positions, StoreResponse)> {
        let sent = by_slot(&self.io, counters).map(|(positions, counters)| {
            let followers = Followers::default();
            let io = &self.io;
            let response = io.execute(op, counters, self.deadline, followers, retry);
            (positions, response)
        });
        sent.collect()
    }

    async fn complete(
        mut self,
        parts: Vec<(Positions, StoreResponse)>,
    ) -> Result<Self, StoreError> {
        if let Some(error) = self.receive(parts).await {
            if self.op == Op::Adjust {
                // As if it had not been sent.
                self.refund();
            }
            return Err(error);
        }
        if let (Op::Acquire(times), Some(result)) = (self.op, &self.result)
            && result.admitted < times.into()
        {
            let admitted = result.admitted;
            let mut adjustments = self.rejections(result, times.into());
            adjustments.extend(self.take_surplus(admitted));
            self.adjust(adjustments).await;
        }
        Ok(self)
    }

    /// Awaits the parts and merges their results. The error of one is the error of all: that of a part that may have run, if there is
    /// one. A part of shadows alone decides nothing, nor does its error.
    async fn receive(&mut self, parts: Vec<(Positions, StoreResponse)>) -> Option<StoreError> {
        let mut error = None;
        for (positions, response) in parts {
            match response.result().await {
                Ok(part) => self.merge(&positions, &part),
                Err(_) if self.has_only_shadows(&positions) => {}
                Err(failed) => {
                    let worst = error.filter(StoreError::may_have_run);
                    error = worst.or(Some(failed));
                }
            }
        }
        error
    }

    fn has_only_shadows(&self, positions: &[usize]) -> bool {
        let mut positions = positions.iter();
        matches!(self.op, Op::Acquire(_))
            && positions.all(|position| self.counters[*position].mode.is_shadow())
    }

    /// Merges the result of a part. Instants are relative to that of the first.
    fn merge(&mut self, positions: &[usize], part: &OpResult) {
        let count = self.counters.len();
        let merged = self.result.get_or_insert_with(|| OpResult {
            counters: SmallVec::from_elem(CounterResult::new(0, Snapshot::default()), count),
            ..part.clone()
        });
        merged.admitted = merged.admitted.min(part.admitted);
        merged.admitted_after = merged.admitted_after.min(part.admitted_after);
        for (position, counter) in positions.iter().zip(&part.counters) {
            merged.counters[*position] = CounterResult {
                clock_skew_us: skew(merged, part, counter),
                ..*counter
            };
        }
    }

    /// What the rejected ones of `times` requests are charged, by the units that were available before.
    fn rejections(&self, result: &OpResult, times: u64) -> Vec<Numbered> {
        let counters: Vec<_> = self.counters.iter().map(OwnedCounterOp::as_op).collect();
        let states = counters.iter().zip(&result.counters);
        let available = states.map(|(counter, state)| {
            let at = result.time_of(state);
            let status = counter.limit.status(&state.snapshot, at, counter.units);
            status.remaining.saturating_add(state.units)
        });
        let available: Vec<_> = available.collect();
        let rejected = countable_rejections(&counters, &available, times - result.admitted);
        let charged = counters.iter().zip(available).map(|(counter, available)| {
            let wanted = counter.units.of(rejected);
            match counter.mode {
                CounterMode::CountRejections => wanted,
                CounterMode::ChargeRejectedToo => {
                    let left = available.saturating_sub(counter.units.of(result.admitted));
                    rejected_charge(counter, i64::try_from(left).unwrap_or(i64::MAX), wanted)
                }
                CounterMode::Charge | CounterMode::Check | CounterMode::Shadow { .. } => 0,
            }
        });
        let charges = self.counters.iter().zip(charged).enumerate();
        let charges = charges.filter(|(_, (_, units))| *units > 0);
        let charges = charges.map(|(position, (counter, units))| {
            let mut charge = counter.clone();
            charge.units = Units::new(units);
            (position, charge)
        });
        charges.collect()
    }

    /// Takes what was charged for more than `admitted` requests out of the result, and returns its refunds.
    fn take_surplus(&mut self, admitted: u64) -> Vec<Numbered> {
        let Some(result) = &mut self.result else {
            return Vec::new();
        };
        let counters = self.counters.iter().zip(&mut result.counters);
        let refunds = counters
            .enumerate()
            .filter_map(|(position, (counter, charged))| {
                let kept = charged.units.min(counter.units.of(admitted));
                let surplus = charged.units - kept;
                if surplus == 0 || counter.receipt().is_some() {
                    return None;
                }
                let mut refund = counter.clone();
                let at = result.at.shifted(charged.clock_skew_us);
                refund.set_refund(charged.units, &charged.snapshot, at);
                refund.units = Units::new(surplus);
                charged.units = kept;
                Some((position, refund))
            });
        refunds.collect()
    }

    /// Adjusts counters, and sets their states. An adjustment that fails is sent again later, and does not change the decision.
    async fn adjust(&mut self, adjustments: Vec<Numbered>) {
        let parts = self.send(Op::Adjust, adjustments, Retry::Always);
        if !parts.is_empty() {
            self.io.wake();
        }
        for (positions, response) in parts {
            let (Ok(part), Some(result)) = (response.result().await, &mut self.result) else {
                continue;
            };
            for (position, state) in positions.iter().zip(&part.counters) {
                let clock_skew_us = skew(result, &part, state);
                let counter = &mut result.counters[*position];
                counter.snapshot = state.snapshot;
                // A ban is reported if it began at this instant. A charge of the request is refunded by its own instant.
                if counter.units == 0 {
                    counter.clock_skew_us = clock_skew_us;
                }
            }
        }
    }

    /// Refunds all that was charged.
    fn refund(&mut self) {
        let charged = self.take_surplus(0).into_iter();
        execute_detached(&self.io, Op::Adjust, charged.map(|(_, refund)| refund));
    }

    fn read(mut self) -> Result<OpResult, StoreError> {
        self.result.take().ok_or_else(ended)
    }
}

impl Drop for CrossSlotRequest {
    fn drop(&mut self) {
        if matches!(self.op, Op::Acquire(_)) {
            self.refund();
        }
    }
}

/// By how much the clock of a part's counter is ahead of the merged result's.
fn skew(merged: &OpResult, part: &OpResult, counter: &CounterResult) -> i64 {
    let at = part.time_of(counter).as_micros();
    at.saturating_sub(merged.at.as_micros())
}

/// Whether a rejection charges something.
fn counts_rejections(counter: &OwnedCounterOp) -> bool {
    matches!(
        counter.mode,
        CounterMode::CountRejections | CounterMode::ChargeRejectedToo
    )
}

/// The counter without the charge for rejections.
fn without_rejections(counter: &OwnedCounterOp) -> OwnedCounterOp {
    let mut counter = counter.clone();
    match counter.mode {
        CounterMode::ChargeRejectedToo => counter.mode = CounterMode::Charge,
        CounterMode::CountRejections => counter.units = Units::ZERO,
        CounterMode::Charge | CounterMode::Check | CounterMode::Shadow { .. } => {}
    }
    counter
}

/// Groups counters by slot.
fn by_slot(
    io: &Io,
    counters: impl IntoIterator<Item = Numbered>,
) -> btree_map::IntoValues<usize, (Positions, CounterOps)> {
    let mut parts = BTreeMap::<_, (Positions, CounterOps)>::new();
    for (position, counter) in counters {
        let (positions, counters) = parts.entry(io.tag_of(&counter.key)).or_default();
        positions.push(position);
        counters.push(counter);
    }
    parts.into_values()
}
