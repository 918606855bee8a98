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

use std::sync::Arc;

pub(crate) mod acquire;
mod before;
mod parts;

pub(crate) use self::parts::parts;
use self::parts::{PartReply, await_replies, charged, merge, send_parts};
use super::{Inner, request::op::CounterOps};
use crate::store::{Op, StoreResponse};

/// Executes a request whose keys are in several slots.
pub(super) fn execute(store: &Arc<Inner>, op: Op, counters: CounterOps) -> StoreResponse {
    let workers = &store.workers;
    let deadline = workers.deadline();
    if let Op::Acquire(times) = op {
        return acquire::execute(store, times, counters, deadline);
    }
    let count = counters.len();
    let pending = send_parts(workers, op, parts(workers, counters), deadline);
    let store = store.clone();
    StoreResponse::pending(async move {
        let (mut replies, error) = await_replies(None, pending).await;
        let Some(error) = error else {
            return Ok(merge(&mut replies, count));
        };
        if op == Op::ForceAcquire {
            // As if it had not been sent: all or nothing.
            for PartReply { part, guard } in &mut replies {
                if let Some(result) = guard.read() {
                    let refund = charged(part, &result, 1, 1).counters;
                    store.workers.execute_detached(Op::Refund, refund);
                }
            }
        }
        Err(error)
    })
}
