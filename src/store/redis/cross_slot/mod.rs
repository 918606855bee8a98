//! Requests whose keys are in several slots of a cluster.
//!
//! The lines of each slot are a part, and all parts are asked at once. What one of them refuses, the others give back before
//! the request is answered; so no more is ever admitted than each policy allows. Meanwhile a part holds what it may have to
//! give back: another request may be refused for it, and may be told to wait for what is back in a moment. So what is refused
//! in this way isn't remembered. A part that fails, or is late, fails the request, and all is given back. If the process ends
//! in between, one request's charge stays until its period ends.
//!
//! What rejections charge, and shadows, depend on what becomes of the whole request. They are asked once the parts are answered.
//! From the answers it is known what room each line had before, so the rest is decided as within one slot.
//! A request whose rejection would charge something goes on when its caller leaves.

use std::sync::Arc;

pub(crate) mod acquire;
mod finishing;
mod parts;
mod standing;

use self::parts::{PartReply, answers, ask_parts, charged, join};
pub(crate) use self::parts::{parts, spans_slots};
use super::{request::op::CounterOps, worker::pool::WorkerPool};
use crate::store::{Op, StoreResponse};

/// Asks about a request whose keys are in several slots.
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
            // As if it had not been asked: all or nothing.
            for PartReply { part, delivery } in &mut answered {
                if let Some(answer) = delivery.read() {
                    workers.execute_detached(Op::Refund, charged(part, &answer, 1, 1).counters);
                }
            }
        }
        Err(error)
    })
}
