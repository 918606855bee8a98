//! The parts of a request whose keys are in several slots: one for each slot.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use crate::{
    clock::Timestamp,
    error::StoreError,
    store::{
        CounterMode, CounterResult, DecisionSource, Op, OpResult, Units,
        redis::{
            request::{
                op::CounterOps,
                response_handle::{ResponseHandle, RollbackGuard},
            },
            worker::pool::WorkerPool,
        },
    },
    strategy::Snapshot,
};

/// The counters of a request whose keys share a slot, and their positions in the request.
pub(crate) struct SlotPart {
    pub(crate) counters: CounterOps,
    pub(super) places: SmallVec<[usize; 2]>,
}

/// A part that was sent.
pub(super) struct PendingPart {
    pub(super) part: SlotPart,
    pub(super) answer: Result<ResponseHandle, StoreError>,
}

/// A part that has a response. Dropping it unread refunds what it charged.
pub(crate) struct PartReply {
    pub(super) part: SlotPart,
    pub(super) delivery: RollbackGuard,
}

/// Whether a request's keys are in several slots.
pub(crate) fn spans_slots(workers: &WorkerPool, counters: &CounterOps) -> bool {
    let Some((first, rest)) = counters.split_first().filter(|(_, rest)| !rest.is_empty()) else {
        return false;
    };
    workers.tags().is_some_and(|tags| {
        let tag = tags.of(&first.key);
        rest.iter().any(|line| tags.of(&line.key) != tag)
    })
}

/// Splits a request's counters by slot.
pub(crate) fn parts(workers: &WorkerPool, counters: CounterOps) -> SmallVec<[SlotPart; 1]> {
    let mut parts: SmallVec<[(usize, SlotPart); 1]> = SmallVec::new();
    for (place, line) in counters.into_iter().enumerate() {
        let tag = workers.tags().map_or(0, |tags| tags.of(&line.key));
        let part = match parts.iter().position(|(its, _)| *its == tag) {
            Some(part) => part,
            None => {
                let part = SlotPart {
                    counters: CounterOps::new(),
                    places: SmallVec::new(),
                };
                parts.push((tag, part));
                parts.len() - 1
            }
        };
        parts[part].1.counters.push(line);
        parts[part].1.places.push(place);
    }
    let mut parts: SmallVec<[SlotPart; 1]> = parts.into_iter().map(|(_, part)| part).collect();
    parts.iter_mut().for_each(SlotPart::renumber);
    parts
}

impl SlotPart {
    /// A shadow stands for a counter of its own part, or for none.
    fn renumber(&mut self) {
        for line in &mut self.counters {
            if let CounterMode::Shadow {
                replaces: Some(live),
                charges,
            } = line.mode
            {
                let replaces = self.places.iter().position(|place| *place == live);
                line.mode = CounterMode::Shadow { replaces, charges };
            }
        }
    }
}

/// Sends all parts at once. A part that cannot be sent has an error for its response, so that the others are refunded.
pub(super) fn ask_parts(
    workers: &Arc<WorkerPool>,
    ask: Op,
    parts: impl IntoIterator<Item = SlotPart>,
    deadline: Instant,
) -> SmallVec<[PendingPart; 2]> {
    let asked = parts.into_iter().map(|part| {
        let answer = workers.execute_with_refund_retry(ask, part.counters.clone(), deadline);
        PendingPart { part, answer }
    });
    asked.collect()
}

/// Awaits all responses. An error of one is the error of all.
pub(super) async fn answers(
    asked: impl IntoIterator<Item = PendingPart>,
) -> (SmallVec<[PartReply; 2]>, Option<StoreError>) {
    let (mut answered, mut error) = (SmallVec::new(), None);
    for PendingPart { part, answer } in asked {
        let answer = match answer {
            Ok(awaited) => awaited.into_rollback_guard().await,
            Err(wrong) => Err(wrong),
        };
        match answer {
            Ok(delivery) => answered.push(PartReply { part, delivery }),
            Err(wrong) => error = Some(wrong),
        }
    }
    (answered, error)
}

/// The same, until the request's deadline, which is earlier than those of requests that were queued before it.
pub(super) async fn answers_by(
    deadline: Instant,
    asked: impl IntoIterator<Item = PendingPart>,
) -> (SmallVec<[PartReply; 2]>, Option<StoreError>) {
    let (mut answered, mut error) = (SmallVec::new(), None);
    for PendingPart { part, answer } in asked {
        let answer = match answer {
            Ok(awaited) => {
                let told = timeout_at(deadline, awaited.into_rollback_guard()).await;
                told.unwrap_or(Err(StoreError::Timeout))
            }
            Err(wrong) => Err(wrong),
        };
        match answer {
            Ok(delivery) => answered.push(PartReply { part, delivery }),
            Err(wrong) => error = Some(wrong),
        }
    }
    (answered, error)
}

/// Reads the parts' responses, and merges them into one, dated by the earliest of their instants.
pub(super) fn join(answered: &mut [PartReply], count: usize) -> OpResult {
    let mut whole = OpResult {
        admitted: u64::MAX,
        at: Timestamp::default(),
        age: Default::default(),
        admitted_after: u64::MAX,
        source: DecisionSource::Store,
        counters: SmallVec::from_elem(CounterResult::new(0, Snapshot::default()), count),
    };
    let instants = answered.iter_mut();
    let instants = instants.filter_map(|part| Some(part.delivery.answer()?.at));
    whole.at = instants.min().unwrap_or_default();
    for PartReply { part, delivery } in answered {
        let Some(answer) = delivery.read() else {
            continue;
        };
        whole.admitted = whole.admitted.min(answer.admitted);
        whole.admitted_after = whole.admitted_after.min(answer.admitted_after);
        for (place, line) in part.places.iter().zip(answer.counters) {
            whole.counters[*place] = late(line, &whole, answer.at);
        }
    }
    if whole.admitted == 0 {
        whole.admitted_after = 0;
    }
    whole
}

/// A counter's result with the instant of its own part.
pub(super) fn late(line: CounterResult, whole: &OpResult, at: Timestamp) -> CounterResult {
    let clock_skew_us = at.as_micros().saturating_sub(whole.at.as_micros());
    CounterResult {
        clock_skew_us,
        ..line
    }
}

/// The counters of a part that charged something: the `share` of `admitted` requests of it to refund.
pub(super) fn charged(part: &SlotPart, answer: &OpResult, share: u64, admitted: u64) -> SlotPart {
    let mut back = SlotPart {
        counters: CounterOps::new(),
        places: SmallVec::new(),
    };
    let counters = part.counters.iter().zip(&answer.counters);
    for ((line, charged), place) in counters.zip(&part.places) {
        if charged.units > 0 {
            let mut line = line.clone();
            line.charged(charged.units, &charged.snapshot, answer.at);
            line.units = Units::new(charged.units / admitted.max(1) * share);
            back.counters.push(line);
            back.places.push(*place);
        }
    }
    back
}
