//! The parts of a request whose keys are in several slots: one for each slot.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use crate::{
    clock::Timestamp,
    error::StoreError,
    runtime::runtime_with_timers,
    store::{
        CounterMode, CounterResult, Op, OpResult, Units,
        redis::{
            request::{
                RefundRetry,
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
    pub(super) indices: SmallVec<[usize; 2]>,
}

/// A part that was sent.
pub(super) struct PendingPart {
    pub(super) part: SlotPart,
    pub(super) response: Result<ResponseHandle, StoreError>,
}

/// A part that has a response. Dropping it unread refunds what it charged.
pub(crate) struct PartReply {
    pub(super) part: SlotPart,
    pub(super) guard: RollbackGuard,
}

/// Splits a request's counters by slot.
pub(crate) fn parts(workers: &WorkerPool, counters: CounterOps) -> SmallVec<[SlotPart; 1]> {
    let mut parts: SmallVec<[(usize, SlotPart); 1]> = SmallVec::new();
    for (index, counter) in counters.into_iter().enumerate() {
        let tag = workers.tags().map_or(0, |tags| tags.of(&counter.key));
        let part = match parts.iter().position(|(its, _)| *its == tag) {
            Some(part) => part,
            None => {
                let part = SlotPart {
                    counters: CounterOps::new(),
                    indices: SmallVec::new(),
                };
                parts.push((tag, part));
                parts.len() - 1
            }
        };
        parts[part].1.counters.push(counter);
        parts[part].1.indices.push(index);
    }
    let mut parts: SmallVec<[SlotPart; 1]> = parts.into_iter().map(|(_, part)| part).collect();
    parts.iter_mut().for_each(SlotPart::renumber);
    parts
}

impl SlotPart {
    /// Points each shadow to the counter that it replaces in its own part, or to none.
    fn renumber(&mut self) {
        for counter in &mut self.counters {
            if let CounterMode::Shadow {
                replaces: Some(live),
                charges,
            } = counter.mode
            {
                let replaces = self.indices.iter().position(|index| *index == live);
                counter.mode = CounterMode::Shadow { replaces, charges };
            }
        }
    }
}

/// Sends all parts at once. A part that cannot be sent has an error for its response, so that the others are refunded.
pub(super) fn send_parts(
    workers: &Arc<WorkerPool>,
    op: Op,
    parts: impl IntoIterator<Item = SlotPart>,
    deadline: Instant,
) -> SmallVec<[PendingPart; 2]> {
    let pending = parts.into_iter().map(|part| {
        let response = workers.execute_with_refund_retry(
            op,
            part.counters.clone(),
            deadline,
            RefundRetry::Always,
        );
        PendingPart { part, response }
    });
    pending.collect()
}

/// Awaits all responses, until a deadline: the request's is earlier than those of requests that were queued before it. An error
/// of one is the error of all.
pub(super) async fn await_replies(
    deadline: Option<Instant>,
    pending: impl IntoIterator<Item = PendingPart>,
) -> (SmallVec<[PartReply; 2]>, Option<StoreError>) {
    let (mut replies, mut error) = (SmallVec::new(), None);
    for PendingPart { part, response } in pending {
        let guard = match (response, deadline) {
            // Elsewhere the part's own deadline applies.
            (Ok(response), Some(deadline)) if runtime_with_timers().is_some() => {
                let guard = timeout_at(deadline, response.into_rollback_guard()).await;
                guard.unwrap_or(Err(StoreError::Timeout))
            }
            (Ok(response), _) => response.into_rollback_guard().await,
            (Err(failed), _) => Err(failed),
        };
        match guard {
            Ok(guard) => replies.push(PartReply { part, guard }),
            Err(failed) => error = Some(failed),
        }
    }
    (replies, error)
}

/// Reads the parts' responses, and merges them into one, dated by the earliest of their instants.
pub(super) fn merge(replies: &mut [PartReply], count: usize) -> OpResult {
    let counters = SmallVec::from_elem(CounterResult::new(0, Snapshot::default()), count);
    let mut merged = OpResult {
        admitted_after: u64::MAX,
        ..OpResult::of(Timestamp::default(), u64::MAX, counters)
    };
    let instants = replies.iter_mut();
    let instants = instants.filter_map(|part| Some(part.guard.result()?.at));
    merged.at = instants.min().unwrap_or_default();
    for PartReply { part, guard } in replies {
        let Some(result) = guard.read() else {
            continue;
        };
        merged.admitted = merged.admitted.min(result.admitted);
        merged.admitted_after = merged.admitted_after.min(result.admitted_after);
        for (index, counter) in part.indices.iter().zip(result.counters) {
            merged.counters[*index] = with_skew(counter, &merged, result.at);
        }
    }
    if merged.admitted == 0 {
        merged.admitted_after = 0;
    }
    merged
}

/// A counter's result with the instant of its own part.
pub(super) fn with_skew(counter: CounterResult, merged: &OpResult, at: Timestamp) -> CounterResult {
    let clock_skew_us = at.as_micros().saturating_sub(merged.at.as_micros());
    CounterResult {
        clock_skew_us,
        ..counter
    }
}

/// The counters of a part that charged something: the `share` of `admitted` requests of it to refund.
pub(super) fn charged(part: &SlotPart, result: &OpResult, share: u64, admitted: u64) -> SlotPart {
    let mut refund = SlotPart {
        counters: CounterOps::new(),
        indices: SmallVec::new(),
    };
    let counters = part.counters.iter().zip(&result.counters);
    for ((counter, charged), index) in counters.zip(&part.indices) {
        if charged.units > 0 {
            let mut counter = counter.clone();
            counter.set_refund(charged.units, &charged.snapshot, result.at);
            counter.units = Units::new(charged.units / admitted.max(1) * share);
            refund.counters.push(counter);
            refund.indices.push(*index);
        }
    }
    refund
}
