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
    parts::{
        PartReply, PendingPart, SlotPart, answers, answers_by, ask_parts, charged, join, late,
        parts,
    },
    standing::Stood,
};
use crate::{
    error::StoreError,
    store::{
        CounterMode, CounterResult, Op, OpResult, StoreResponse, Units,
        redis::{
            request::op::{CounterOps, OwnedCounterOp},
            worker::pool::WorkerPool,
        },
    },
};

/// An acquire in progress.
struct CrossSlotAcquire {
    workers: Arc<WorkerPool>,
    deadline: Instant,
    times: u32,
    count: usize,
    /// Whether a rejection charges something.
    counts: bool,
    asked: SmallVec<[PendingPart; 2]>,
    /// Shadows, and the counters that they replace.
    shadows: Vec<(usize, OwnedCounterOp, Option<usize>)>,
}

/// A completed acquire. What it charged is refunded unless the result is read.
struct Taken {
    admitted: u64,
    count: usize,
    parts: SmallVec<[PartReply; 2]>,
    /// The follow-up operations, sent once the outcome of the request was known.
    beside: SmallVec<[PartReply; 2]>,
}

/// Sends all counters but the shadows. Nothing is charged yet for rejections.
pub(crate) fn ask(
    workers: &Arc<WorkerPool>,
    times: u32,
    counters: CounterOps,
    deadline: Instant,
) -> StoreResponse {
    let count = counters.len();
    let counts = counters.iter().any(counts_rejections);
    let mut shadows = Vec::new();
    for (place, line) in counters.iter().enumerate() {
        if let CounterMode::Shadow {
            replaces: of,
            charges,
        } = line.mode
        {
            let mut line = line.clone();
            line.mode = CounterMode::Shadow {
                replaces: None,
                charges,
            };
            shadows.push((place, line, of));
        }
    }
    let mut parts = parts(workers, counters);
    parts.iter_mut().for_each(SlotPart::drop_shadows);
    parts.retain(|part| !part.counters.is_empty());
    let asked = parts.into_iter().map(|part| {
        let counters = part.counters.iter().map(without_rejections).collect();
        let answer = workers.execute_with_refund_retry(Op::Acquire(times), counters, deadline);
        PendingPart { part, answer }
    });
    let taking = CrossSlotAcquire {
        asked: asked.collect(),
        workers: workers.clone(),
        deadline,
        times,
        count,
        counts,
        shadows,
    };
    match counts {
        true => StoreResponse::pending(read(Finishing::new(taking.take()))),
        false => StoreResponse::pending(read(taking.take())),
    }
}

async fn read(
    taken: impl Future<Output = Result<Taken, StoreError>> + Send,
) -> Result<OpResult, StoreError> {
    Ok(taken.await?.read())
}

/// Whether a rejection charges something in this mode.
fn counts_rejections(line: &OwnedCounterOp) -> bool {
    match line.mode {
        CounterMode::CountRejections | CounterMode::ChargeRejectedToo => !line.units.is_zero(),
        CounterMode::Charge | CounterMode::Check | CounterMode::Shadow { .. } => false,
    }
}

/// The counter without the charge for rejections, which depends on the results of all parts.
fn without_rejections(line: &OwnedCounterOp) -> OwnedCounterOp {
    let mut line = line.clone();
    match line.mode {
        CounterMode::ChargeRejectedToo => line.mode = CounterMode::Charge,
        CounterMode::CountRejections => line.units = Units::ZERO,
        CounterMode::Charge | CounterMode::Check | CounterMode::Shadow { .. } => {}
    }
    line
}

impl SlotPart {
    fn drop_shadows(&mut self) {
        let Self { counters, places } = self;
        let mut kept = counters.iter().map(|line| !line.mode.is_shadow());
        places.retain(|_| kept.next().unwrap_or(false));
        counters.retain(|line| !line.mode.is_shadow());
    }

    fn of(place: usize, line: OwnedCounterOp) -> Self {
        Self {
            counters: [line].into(),
            places: [place].into_iter().collect(),
        }
    }
}

impl CrossSlotAcquire {
    async fn take(mut self) -> Result<Taken, StoreError> {
        let (mut parts, error) = answers(mem::take(&mut self.asked)).await;
        if let Some(error) = error {
            // What the others charged is refunded with them.
            return Err(error);
        }
        let admitted = parts.iter().filter_map(|part| part.delivery.answer());
        let admitted = admitted.map(|answer| answer.admitted);
        let admitted = admitted.fold(self.times.into(), u64::min);
        let beside = self.ask_beside(&parts, admitted);
        self.refund_unread(&mut parts, admitted).await?;
        // The decision stands, whatever becomes of these.
        let (beside, _) = answers_by(self.deadline, beside).await;
        Ok(Taken {
            admitted,
            count: self.count,
            parts,
            beside,
        })
    }

    /// Refunds what not all parts admitted.
    async fn refund_unread(
        &self,
        parts: &mut [PartReply],
        admitted: u64,
    ) -> Result<(), StoreError> {
        let mut back = SmallVec::<[SlotPart; 2]>::new();
        for PartReply { part, delivery } in parts.iter_mut() {
            let Some(answer) = delivery.answer_mut() else {
                continue;
            };
            let over = answer.admitted - admitted;
            if over > 0 {
                let given = charged(part, answer, over, answer.admitted);
                for line in &mut answer.counters {
                    line.units = line.units / answer.admitted * admitted;
                }
                answer.admitted = admitted;
                answer.admitted_after = 0;
                back.push(given);
            }
        }
        back.retain(|part| !part.counters.is_empty());
        // They are refunded also if the waiter has left.
        let back = ask_parts(&self.workers, Op::Refund, back, self.deadline);
        let (given, error) = answers_by(self.deadline, back).await;
        if let Some(error) = error {
            return Err(error);
        }
        for PartReply { part, mut delivery } in given {
            let Some(now) = delivery.read() else {
                continue;
            };
            for (place, line) in part.places.iter().zip(now.counters) {
                let theirs = parts.iter_mut().find_map(|answered| {
                    let mut places = answered.part.places.iter();
                    let here = places.position(|its| its == place)?;
                    answered.delivery.answer_mut()?.counters.get_mut(here)
                });
                if let Some(theirs) = theirs {
                    theirs.snapshot = line.snapshot;
                }
            }
        }
        Ok(())
    }

    /// Charges what counts rejections, and evaluates shadows, once the outcome of the request is known.
    fn ask_beside(&self, parts: &[PartReply], admitted: u64) -> SmallVec<[PendingPart; 2]> {
        let times = u64::from(self.times);
        let matters = self.counts || !self.shadows.is_empty();
        let stood = (matters && admitted < times).then(|| Stood::before(parts));
        let rejections = stood
            .iter()
            .flat_map(|stood| stood.rejections(times, admitted));
        let rejections =
            rejections.map(|(place, line)| (Op::ForceAcquire, SlotPart::of(place, line)));
        let shadows = self.shadows.iter().map(|(place, line, of)| {
            let without = match (of, &stood) {
                (Some(of), Some(stood)) => stood.fit_excluding(*of, times),
                _ => admitted,
            };
            let ask = match without {
                0 => Op::Peek,
                times => Op::Acquire(u32::try_from(times).unwrap_or(u32::MAX)),
            };
            (ask, SlotPart::of(*place, line.clone()))
        });
        let beside = rejections.chain(shadows);
        let beside =
            beside.flat_map(|(ask, part)| ask_parts(&self.workers, ask, [part], self.deadline));
        beside.collect()
    }
}

impl Taken {
    fn read(mut self) -> OpResult {
        let mut answer = join(&mut self.parts, self.count);
        answer.admitted = self.admitted;
        for PartReply { part, delivery } in &mut self.beside {
            let Some(told) = delivery.read() else {
                continue;
            };
            let at = told.at;
            for ((place, line), told) in part.places.iter().zip(&part.counters).zip(told.counters) {
                // What rejections charge is no part of the request's own charge, and does not change its
                // instant.
                let is_shadow = line.mode.is_shadow();
                let own = &mut answer.counters[*place];
                if !is_shadow && own.units > 0 {
                    own.snapshot = told.snapshot;
                    continue;
                }
                let units = if is_shadow { told.units } else { 0 };
                answer.counters[*place] =
                    late(CounterResult::new(units, told.snapshot), &answer, at);
            }
        }
        answer
    }
}

/// A future that continues in a task of its own when it is dropped on a runtime before it completes. Its output is
/// dropped then.
pub(crate) struct Finishing<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> Finishing<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for Finishing<F> {
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

impl<F: Future<Output: Send> + Send + 'static> Drop for Finishing<F> {
    fn drop(&mut self) {
        if let Some(future) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn(async { drop(future.await) }));
        }
    }
}
