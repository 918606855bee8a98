//! Acquiring under keys in several slots.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use smallvec::SmallVec;
use tokio::{runtime::Handle, time::Instant};

use super::{
    before::CountersBefore,
    parts::{
        PartReply, PendingPart, SlotPart, await_replies, charged, merge, parts, send_parts,
        with_skew,
    },
};
use crate::{
    error::StoreError,
    store::{
        CounterMode, CounterResult, Op, OpResult, StoreResponse, Units,
        redis::{
            Inner,
            request::{
                RefundRetry,
                op::{CounterOps, OwnedCounterOp},
            },
        },
    },
};

/// An acquire in progress.
struct CrossSlotAcquire {
    /// It lives until the request is done, since what its parts refund is sent by it.
    store: Arc<Inner>,
    deadline: Instant,
    times: u32,
    count: usize,
    /// Whether a rejection charges something.
    charges_rejections: bool,
    pending: SmallVec<[PendingPart; 2]>,
    /// Shadows, and the counters that they replace.
    shadows: Vec<(usize, OwnedCounterOp, Option<usize>)>,
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
pub(super) fn execute(
    store: &Arc<Inner>,
    times: u32,
    counters: CounterOps,
    deadline: Instant,
) -> StoreResponse {
    let count = counters.len();
    let charges_rejections = counters.iter().any(counts_rejections);
    let mut shadows = Vec::new();
    for (index, counter) in counters.iter().enumerate() {
        if let CounterMode::Shadow {
            replaces: replaced,
            charges,
        } = counter.mode
        {
            let mut counter = counter.clone();
            counter.mode = CounterMode::Shadow {
                replaces: None,
                charges,
            };
            shadows.push((index, counter, replaced));
        }
    }
    let workers = &store.workers;
    let mut parts = parts(workers, counters);
    parts.iter_mut().for_each(SlotPart::drop_shadows);
    parts.retain(|part| !part.counters.is_empty());
    let pending = parts.into_iter().map(|part| {
        let counters = part.counters.iter().map(without_rejections).collect();
        let response = workers.execute_with_refund_retry(
            Op::Acquire(times),
            counters,
            deadline,
            RefundRetry::Always,
        );
        PendingPart { part, response }
    });
    let acquire = CrossSlotAcquire {
        pending: pending.collect(),
        store: store.clone(),
        deadline,
        times,
        count,
        charges_rejections,
        shadows,
    };
    if charges_rejections {
        StoreResponse::pending(read(RunToCompletion::new(acquire.run())))
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
    fn drop_shadows(&mut self) {
        let Self { counters, indices } = self;
        let mut is_kept = counters.iter().map(|counter| !counter.mode.is_shadow());
        indices.retain(|_| is_kept.next().unwrap_or(false));
        counters.retain(|counter| !counter.mode.is_shadow());
    }

    fn of(index: usize, counter: OwnedCounterOp) -> Self {
        Self {
            counters: [counter].into(),
            indices: [index].into_iter().collect(),
        }
    }
}

impl CrossSlotAcquire {
    async fn run(mut self) -> Result<CompletedAcquire, StoreError> {
        let (mut parts, error) = await_replies(None, mem::take(&mut self.pending)).await;
        if let Some(error) = error {
            // What the others charged is refunded with them.
            return Err(error);
        }
        let admitted = parts.iter().filter_map(|part| part.guard.result());
        let admitted = admitted.map(|result| result.admitted);
        let admitted = admitted.fold(self.times.into(), u64::min);
        let followups = self.send_followups(&parts, admitted);
        self.refund_unread(&mut parts, admitted).await;
        // Their errors do not change the decision.
        let (followups, _) = await_replies(Some(self.deadline), followups).await;
        Ok(CompletedAcquire {
            admitted,
            count: self.count,
            parts,
            followups,
        })
    }

    /// Refunds what not all parts admitted. A refund that fails is made later, and does not change the decision.
    async fn refund_unread(&self, parts: &mut [PartReply], admitted: u64) {
        let mut refunds = SmallVec::<[SlotPart; 2]>::new();
        for PartReply { part, guard } in parts.iter_mut() {
            let Some(result) = guard.result_mut() else {
                continue;
            };
            let over = result.admitted - admitted;
            if over > 0 {
                let refund = charged(part, result, over, result.admitted);
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
        let workers = &self.store.workers;
        let refunds = send_parts(workers, Op::Refund, refunds, workers.deadline());
        let (replies, _) = await_replies(Some(self.deadline), refunds).await;
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
        let is_needed = self.charges_rejections || !self.shadows.is_empty();
        let before = (is_needed && admitted < times).then(|| CountersBefore::of(parts));
        let rejections = before
            .iter()
            .flat_map(|before| before.rejections(times, admitted));
        let rejections =
            rejections.map(|(index, counter)| (Op::ForceAcquire, SlotPart::of(index, counter)));
        let shadows = self.shadows.iter().map(|(index, counter, replaced)| {
            let without = match (replaced, &before) {
                (Some(replaced), Some(before)) => before.fit_excluding(*replaced, times),
                _ => admitted,
            };
            let op = match without {
                0 => Op::Peek,
                times => Op::Acquire(u32::try_from(times).unwrap_or(u32::MAX)),
            };
            (op, SlotPart::of(*index, counter.clone()))
        });
        let followups = rejections.chain(shadows);
        let workers = &self.store.workers;
        let followups =
            followups.flat_map(|(op, part)| send_parts(workers, op, [part], workers.deadline()));
        followups.collect()
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

/// A future that continues in a task of its own when it is dropped on a runtime before it completes. Its output is
/// dropped then.
pub(crate) struct RunToCompletion<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> RunToCompletion<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for RunToCompletion<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let output = ready!(future.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for RunToCompletion<F> {
    fn drop(&mut self) {
        if let Some(future) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn(async { drop(future.await) }));
        }
    }
}
