//! What is left to send of a refund, charge or settlement that failed.

use crate::{
    error::StoreError,
    store::{
        Op,
        redis::request::{
            PendingRequest, Sent,
            op::{CounterOps, OwnedCounterOp},
        },
    },
};

/// What is left to send of a failed request.
///
/// Kept are refunds and charges without a waiter, or whose retry was requested, if it is safe to send them again: if they did
/// not run, or refund permits, each of which is refunded once only. One by hand is kept if the server did not respond, and its
/// caller gets [`StoreError::Deferred`]. A request for a permit that was sent, and may have taken one, leaves a refund of it.
#[derive(Debug)]
pub(super) enum Unsettled {
    Nothing,
    /// It would fail each time that it is sent.
    Unsendable,
    Kept {
        retry: Option<Retry>,
        /// Whether some of it was sent, may have run, and is not sent again.
        is_unconfirmed: bool,
    },
}

/// What is sent later.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) op: Op,
    pub(super) counters: CounterOps,
    /// Whether it is kept however much is kept already.
    pub(super) always: bool,
}

impl Unsettled {
    pub(super) fn of(request: &PendingRequest, error: &StoreError, sent: Sent) -> Self {
        let (op, sent) = (request.op, sent == Sent::Maybe);
        let is_kept = match op {
            Op::Refund | Op::ForceAcquire | Op::Settle => {
                let is_deferred = !sent && request.is_by_hand() && is_unreached(error);
                request.retries_refunds() || is_deferred
            }
            Op::Acquire(_) => sent && request.counters.iter().any(is_permit),
            _ => false,
        };
        if !is_kept {
            return Self::Nothing;
        }
        // Only this request fails, and would each time that it is sent.
        let fails_again = matches!(
            error,
            StoreError::CorruptKey { .. } | StoreError::Unsupported(_)
        );
        if op != Op::Refund && !sent && fails_again {
            return Self::Unsendable;
        }
        let mut counters = request.counters.clone();
        if sent {
            let is_refund =
                |counter: &OwnedCounterOp| op != Op::Settle || counter.receipt().remaining > 0;
            counters.retain(|counter| {
                is_permit(counter) && is_refund(counter) && op != Op::ForceAcquire
            });
        }
        let is_unconfirmed =
            !matches!(op, Op::Acquire(_)) && counters.len() < request.counters.len();
        match op {
            Op::Acquire(times) => counters
                .iter_mut()
                .for_each(|counter| counter.set_permit_refund(times)),
            // The rest of a permit's receipt names the permits that are refunded.
            _ => {
                let by_time = counters.iter_mut().filter(|counter| !is_permit(counter));
                by_time.for_each(OwnedCounterOp::limit_receipt_to_units);
            }
        }
        let retry = (!counters.is_empty()).then(|| Retry {
            op: match op {
                Op::ForceAcquire | Op::Settle if !sent => op,
                _ => Op::Refund,
            },
            always: matches!(op, Op::Refund | Op::Settle) && counters.iter().any(is_permit),
            counters,
        });
        Self::Kept {
            retry,
            is_unconfirmed,
        }
    }
}

/// Whether the server was not reached. An error reply is a result, after which a call by hand may be repeated.
fn is_unreached(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Timeout | StoreError::Connection(_) | StoreError::CircuitOpen { .. }
    )
}

fn is_permit(counter: &OwnedCounterOp) -> bool {
    counter.limit.info().permit_ttl.is_some()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use crate::{
        key::Key,
        quota::Quota,
        store::{CounterMode, CounterOp, LimitHandle, Units, redis::request::RequestState},
        strategy::{ChargeReceipt, Concurrency, Gcra, Rule, Strategy, Terms},
    };

    /// What is sent later of a refund by a receipt with so many units left.
    fn retry_of(rule: Arc<dyn Rule>, remaining: u64, sent: Sent) -> OwnedCounterOp {
        let limit = LimitHandle::new("p", rule, ());
        let counter = CounterOp {
            limit: &limit,
            key: Key::global(),
            units: Units::ONE,
            receipt: ChargeReceipt {
                remaining,
                ..ChargeReceipt::NONE
            },
            caller: Key::global(),
            mode: CounterMode::Charge,
        };
        let counters = [OwnedCounterOp::of(&counter)].into();
        let state = RequestState::new(Op::Refund, counters, Instant::now(), 0);
        let request = PendingRequest::detached(state);
        let unsettled = Unsettled::of(&request, &StoreError::Timeout, sent);
        request.fail(StoreError::Timeout);
        match unsettled {
            Unsettled::Kept {
                retry: Some(retry), ..
            } => retry.counters[0].clone(),
            unsettled => panic!("{unsettled:?}"),
        }
    }

    #[test]
    fn a_kept_part_of_a_refund_takes_no_unit_of_another_part() {
        let rule = Gcra
            .bind(&Quota::requests(9).per_minute(), &Terms::default())
            .expect("a rule");
        assert_eq!(retry_of(rule, 5, Sent::No).receipt().remaining, 1);
    }

    #[test]
    fn a_kept_refund_of_one_of_several_permits_is_of_the_same_permit() {
        let rule = Concurrency::new().bind(&Quota::concurrent(9), &Terms::default());
        // The fifth of five.
        let refund = retry_of(rule.expect("a rule"), 5, Sent::Maybe);
        assert_eq!((refund.receipt().remaining, refund.units.get()), (5, 1));
    }
}
