//! Requests whose keys are in several slots of a cluster.
//!
//! The counters of each slot form a part, and all parts are sent at once. What one of them rejects, the others refund
//! before the request is completed; so no more is ever admitted than each policy allows. Meanwhile a part holds units
//! that it may have to refund: another request may be rejected for them, and get a wait for units that are free
//! again in a moment. So such rejections are not cached. A part that fails, or times out, fails the request, and
//! everything is refunded. If the process ends in between, one request's charge stays until its period ends.
//!
//! What rejections charge, and shadows, depend on the outcome of the whole request. They are sent once the parts have
//! responded: the responses tell the units that each counter had available before, so the rest is decided as within one
//! slot. A request whose rejection would charge something continues when its caller leaves.

use std::sync::Arc;

pub(crate) mod acquire;
mod parts;
mod standing;

use self::parts::{PartReply, answers, ask_parts, charged, join};
pub(crate) use self::parts::{parts, spans_slots};
use super::{request::op::CounterOps, worker::pool::WorkerPool};
use crate::store::{Op, StoreResponse};

/// Executes a request whose keys are in several slots.
pub(crate) fn ask(workers: &Arc<WorkerPool>, ask: Op, counters: CounterOps) -> StoreResponse {
    let deadline = workers.deadline();
    if let Op::Acquire(times) = ask {
        return acquire::ask(workers, times, counters, deadline);
    }
    let count = counters.len();
    let asked = ask_parts(workers, ask, parts(workers, counters), deadline);
    let workers = workers.clone();
    StoreResponse::pending(async move {
        let (mut answered, error) = answers(asked).await;
        let Some(error) = error else {
            return Ok(join(&mut answered, count));
        };
        if ask == Op::ForceAcquire {
            // As if it had not been sent: all or nothing.
            for PartReply { part, delivery } in &mut answered {
                if let Some(answer) = delivery.read() {
                    workers.execute_detached(Op::Refund, charged(part, &answer, 1, 1).counters);
                }
            }
        }
        Err(error)
    })
}
