//! Requests whose keys are in several slots of a cluster.
//!
//! The counters of each slot form a part, and all parts are sent at once. What one of them rejects, the others refund
//! before the request is completed; so no more is ever admitted than each policy allows. Meanwhile a part holds units
//! that it may have to refund: another request may be rejected for them, and get a wait for units that are free
//! again in a moment. So such rejections are not cached. A part that fails, or times out, fails the request, and
//! everything is refunded. If the process ends in between, one request's charge stays until its period ends.
//!
//! What rejections charge, and shadows, depend on the outcome of the whole request. They are sent once the parts have
//! responded: by the responses each counter's available units before the request are known, and the rest is decided as within
//! one slot. A request whose rejection would charge something continues when its caller leaves.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    io::Io,
    request::{
        Followers, Retry,
        op::{CounterOps, OwnedCounterOp},
        response_handle::{ResponseHandle, RollbackGuard},
    },
};
use crate::{
    clock::Timestamp,
    error::StoreError,
    store::{
        CounterMode, CounterOp, CounterResult, Op, OpResult, StoreResponse, Units,
        fit::{countable_rejections, rejected_charge},
    },
    strategy::Snapshot,
};

/// Executes a request whose keys are in several slots.
pub(super) fn execute(io: &Arc<Io>, op: Op, counters: CounterOps) -> StoreResponse {
    let deadline = io.deadline();
    if let Op::Acquire(times) = op {
        return execute_acquire(io, times, counters, deadline);
    }
    let count = counters.len();
    let parts = parts(io, counters.into_iter().enumerate());
    let pending = send_parts(io, op, parts, deadline, Retry::Never);
    let store = io.clone();
    let completed = async move {
        let (mut replies, error) = await_replies(pending).await;
        let Some(error) = error else {
            return Ok(merge(&mut replies, count));
        };
        if op == Op::Adjust {
            // As if it had not been sent: what the others charged is refunded.
            for PartReply { part, guard } in &mut replies {
                let result = guard.read();
                let refund = result.map(|result| refund_of(part, &result, 1, 1).counters);
                // A charge may have been of no unit.
                if let Some(refund) = refund.filter(|refund| !refund.is_empty()) {
                    store.execute_detached(Op::Adjust, refund, None);
                }
            }
        }
        Err(error)
    };
    match op {
        Op::Adjust => StoreResponse::pending(RunToCompletion::new(io, completed)),
        _ => StoreResponse::pending(completed),
    }
}

/// An acquire in progress.
struct CrossSlotAcquire {
    io: Arc<Io>,
    deadline: Instant,
    times: u32,
    count: usize,
    /// Whether a rejection charges something.
    charges_rejections: bool,
    pending: SmallVec<[PendingPart; 2]>,
    /// With their positions in the request.
    shadows: Vec<(usize, OwnedCounterOp)>,
}

/// A completed acquire. What it charged is refunded unless the result is read.
struct CompletedAcquire {
    admitted: u64,
    count: usize,
    parts: SmallVec<[PartReply; 2]>,
    /// The operations that depend on the outcome of the request.
    followups: SmallVec<[PartReply; 2]>,
}

/// Sends all counters but the shadows. Nothing is charged yet for rejections.
fn execute_acquire(
    io: &Arc<Io>,
    times: u32,
    counters: CounterOps,
    deadline: Instant,
) -> StoreResponse {
    let count = counters.len();
    let charges_rejections = counters.iter().any(counts_rejections);
    let counters = counters.into_iter().enumerate();
    let (shadows, live): (Vec<_>, Vec<_>) =
        counters.partition(|(_, counter)| counter.mode.is_shadow());
    let (op, parts) = (Op::Acquire(times), parts(io, live));
    let acquire = CrossSlotAcquire {
        pending: send_parts(io, op, parts, deadline, Retry::IfUnread),
        io: io.clone(),
        deadline,
        times,
        count,
        charges_rejections,
        shadows,
    };
    if charges_rejections {
        StoreResponse::pending(read(RunToCompletion::new(io, acquire.run())))
    } else {
        StoreResponse::pending(read(acquire.run()))
    }
}

async fn read(
    completed: impl Future<Output = Result<CompletedAcquire, StoreError>> + Send,
) -> Result<OpResult, StoreError> {
    Ok(completed.await?.read())
}

/// Whether a rejection charges something in this mode.
fn counts_rejections(counter: &OwnedCounterOp) -> bool {
    match counter.mode {
        CounterMode::CountRejections | CounterMode::ChargeRejectedToo => !counter.units.is_zero(),
        CounterMode::Charge | CounterMode::Check | CounterMode::Shadow { .. } => false,
    }
}

/// The counter without the charge for rejections, which depends on the results of all parts.
fn without_rejections(counter: &OwnedCounterOp) -> OwnedCounterOp {
    let mut counter = counter.clone();
    match counter.mode {
        CounterMode::ChargeRejectedToo => counter.mode = CounterMode::Charge,
        CounterMode::CountRejections => counter.units = Units::ZERO,
        CounterMode::Charge | CounterMode::Check | CounterMode::Shadow { .. } => {}
    }
    counter
}

impl SlotPart {
    fn of(index: usize, counter: OwnedCounterOp) -> Self {
        Self {
            counters: [counter].into(),
            indices: [index].into_iter().collect(),
        }
    }
}

impl CrossSlotAcquire {
    async fn run(mut self) -> Result<CompletedAcquire, StoreError> {
        let (mut parts, error) = await_replies(mem::take(&mut self.pending)).await;
        if let Some(error) = error {
            // What the others charged is refunded with them.
            return Err(error);
        }
        let admitted = parts.iter().filter_map(|part| part.guard.result());
        let admitted = admitted.map(|result| result.admitted);
        let admitted = admitted.fold(self.times.into(), u64::min);
        let followups = self.send_followups(&parts, admitted);
        self.refund_surplus(&mut parts, admitted).await;
        // Their errors do not change the decision.
        let (followups, _) = await_replies(followups).await;
        Ok(CompletedAcquire {
            admitted,
            count: self.count,
            parts,
            followups,
        })
    }

    /// Refunds what not all parts admitted. A refund that fails is made later, and does not change the decision.
    async fn refund_surplus(&self, parts: &mut [PartReply], admitted: u64) {
        let mut refunds = SmallVec::<[SlotPart; 2]>::new();
        for PartReply { part, guard } in parts.iter_mut() {
            let Some(result) = guard.result_mut() else {
                continue;
            };
            let over = result.admitted - admitted;
            if over > 0 {
                let refund = refund_of(part, result, over, result.admitted);
                for counter in &mut result.counters {
                    counter.units = counter.units / result.admitted * admitted;
                }
                result.admitted = admitted;
                result.admitted_after = 0;
                refunds.push(refund);
            }
        }
        refunds.retain(|part| !part.counters.is_empty());
        // They are refunded also if the waiter has left.
        let refunds = send_parts(&self.io, Op::Adjust, refunds, self.deadline, Retry::Always);
        if !refunds.is_empty() {
            self.io.wake();
        }
        let (replies, _) = await_replies(refunds).await;
        for PartReply { part, mut guard } in replies {
            let Some(now) = guard.read() else {
                continue;
            };
            for (index, counter) in part.indices.iter().zip(now.counters) {
                let own_result = parts.iter_mut().find_map(|reply| {
                    let mut indices = reply.part.indices.iter();
                    let here = indices.position(|its| its == index)?;
                    reply.guard.result_mut()?.counters.get_mut(here)
                });
                if let Some(own_result) = own_result {
                    own_result.snapshot = counter.snapshot;
                }
            }
        }
    }

    /// Charges what counts rejections, and evaluates shadows, once the outcome of the request is known.
    fn send_followups(&self, parts: &[PartReply], admitted: u64) -> SmallVec<[PendingPart; 2]> {
        let times = u64::from(self.times);
        let before =
            (self.charges_rejections && admitted < times).then(|| CountersBefore::of(parts));
        let rejections = before
            .iter()
            .flat_map(|before| before.rejections(times, admitted));
        let rejections =
            rejections.map(|(index, counter)| (Op::Adjust, SlotPart::of(index, counter)));
        let shadows = self.shadows.iter().map(|(index, counter)| {
            let op = match admitted {
                0 => Op::Peek,
                times => Op::Acquire(u32::try_from(times).unwrap_or(u32::MAX)),
            };
            (op, SlotPart::of(*index, counter.clone()))
        });
        let followups = rejections.chain(shadows);
        let followups = followups.flat_map(|(op, part)| {
            let retry = match op {
                Op::Adjust => Retry::Always,
                _ => Retry::IfUnread,
            };
            send_parts(&self.io, op, [part], self.deadline, retry)
        });
        let followups: SmallVec<_> = followups.collect();
        if !followups.is_empty() {
            self.io.wake();
        }
        followups
    }
}

impl CompletedAcquire {
    fn read(mut self) -> OpResult {
        let mut result = merge(&mut self.parts, self.count);
        result.admitted = self.admitted;
        for PartReply { part, guard } in &mut self.followups {
            let Some(reply) = guard.read() else {
                continue;
            };
            let at = reply.at;
            for ((index, counter), reply) in
                part.indices.iter().zip(&part.counters).zip(reply.counters)
            {
                // What rejections charge is no part of the request's own charge, and does not change its
                // instant.
                let is_shadow = counter.mode.is_shadow();
                let own = &mut result.counters[*index];
                if !is_shadow && own.units > 0 {
                    own.snapshot = reply.snapshot;
                    continue;
                }
                let units = if is_shadow { reply.units } else { 0 };
                result.counters[*index] =
                    with_skew(CounterResult::new(units, reply.snapshot), &result, at);
            }
        }
        result
    }
}

/// A future that continues on the IO thread when it is dropped before it completes. Its output is dropped then.
struct RunToCompletion<F: Future<Output: Send> + Send + 'static> {
    future: Option<Pin<Box<F>>>,
    io: Arc<Io>,
}

impl<F: Future<Output: Send> + Send + 'static> RunToCompletion<F> {
    fn new(io: &Arc<Io>, future: F) -> Self {
        Self {
            future: Some(Box::pin(future)),
            io: io.clone(),
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for RunToCompletion<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.future else {
            return Poll::Pending;
        };
        let output = ready!(future.as_mut().poll(cx));
        self.future = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for RunToCompletion<F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take()
            && let Some(runtime) = self.io.runtime()
        {
            drop(runtime.spawn(async { drop(future.await) }));
        }
    }
}

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

/// The counters of a request whose keys share a slot, and their positions in the request.
pub(crate) struct SlotPart {
    pub(crate) counters: CounterOps,
    indices: SmallVec<[usize; 2]>,
}

/// A part that was sent.
struct PendingPart {
    part: SlotPart,
    response: Result<ResponseHandle, StoreError>,
}

/// A part that has a response. Dropping it unread refunds what it charged.
pub(crate) struct PartReply {
    part: SlotPart,
    guard: RollbackGuard,
}

/// Splits a request's counters, with their positions in it, by slot.
pub(crate) fn parts(
    io: &Io,
    counters: impl IntoIterator<Item = (usize, OwnedCounterOp)>,
) -> SmallVec<[SlotPart; 1]> {
    let mut parts: SmallVec<[(usize, SlotPart); 1]> = SmallVec::new();
    for (index, counter) in counters {
        let tag = io.tag_of(&counter.key);
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
    parts.into_iter().map(|(_, part)| part).collect()
}

/// Sends all parts at once. A part that cannot be sent has an error for its response, so that the others are refunded.
fn send_parts(
    io: &Arc<Io>,
    op: Op,
    parts: impl IntoIterator<Item = SlotPart>,
    deadline: Instant,
    retry: Retry,
) -> SmallVec<[PendingPart; 2]> {
    let pending = parts.into_iter().map(|part| {
        let counters = match op {
            Op::Acquire(_) => part.counters.iter().map(without_rejections).collect(),
            _ => part.counters.clone(),
        };
        let response = io.execute(op, counters, deadline, Followers::default(), retry);
        PendingPart { part, response }
    });
    pending.collect()
}

/// Awaits all responses; each part has the deadline of the request. An error of one is the error of all: one of a part that may have
/// run, if there is one.
async fn await_replies(
    pending: impl IntoIterator<Item = PendingPart>,
) -> (SmallVec<[PartReply; 2]>, Option<StoreError>) {
    let (mut replies, mut error) = (SmallVec::new(), None);
    for PendingPart { part, response } in pending {
        let guard = match response {
            Ok(response) => response.into_rollback_guard().await,
            Err(failed) => Err(failed),
        };
        match guard {
            Ok(guard) => replies.push(PartReply { part, guard }),
            Err(failed) => {
                let worst = error.filter(StoreError::may_have_run);
                error = worst.or(Some(failed));
            }
        }
    }
    (replies, error)
}

/// Reads the parts' responses, and merges them into one, dated by the earliest of their instants.
fn merge(replies: &mut [PartReply], count: usize) -> OpResult {
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
fn with_skew(counter: CounterResult, merged: &OpResult, at: Timestamp) -> CounterResult {
    let clock_skew_us = at.as_micros().saturating_sub(merged.at.as_micros());
    CounterResult {
        clock_skew_us,
        ..counter
    }
}

/// The counters of a part that charged something: the `share` of `admitted` requests of it to refund.
fn refund_of(part: &SlotPart, result: &OpResult, share: u64, admitted: u64) -> SlotPart {
    let mut refund = SlotPart {
        counters: CounterOps::new(),
        indices: SmallVec::new(),
    };
    let counters = part.counters.iter().zip(&result.counters);
    for ((counter, charged), index) in counters.zip(&part.indices) {
        if charged.units > 0 && counter.receipt().is_none() {
            let mut counter = counter.clone();
            counter.set_refund(charged.units, &charged.snapshot, result.at);
            counter.units = Units::new(charged.units / admitted.max(1) * share);
            refund.counters.push(counter);
            refund.indices.push(*index);
        }
    }
    refund
}
