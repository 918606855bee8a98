//! Settlements in the background.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::{runtime::Handle, sync::OwnedMutexGuard};

use super::{Admission, settle::PlannedAdjustment};
use crate::{
    decision::{AdjustFuture, AllAdjusted},
    error::StoreError,
    log::LogThrottle,
    store::Op,
};

/// A settlement without a waiter. Dropping it sends it, unless it was sent before.
struct Settlement {
    admission: Admission,
    true_costs: Vec<(Arc<str>, u64)>,
}

impl Admission {
    /// Settles on any thread, also outside a runtime. What the store can't be sent now, it keeps.
    pub(super) fn settle_in_background(self, true_costs: Vec<(Arc<str>, u64)>) {
        let lock = self.settle_lock();
        let mut settlement = Settlement {
            admission: self,
            true_costs,
        };
        match (lock.clone().try_lock_owned(), Handle::try_current()) {
            (Ok(lock), _) => settlement.send(Some(lock)),
            // Another settlement of this request is in progress: send it afterwards, or when the runtime ends.
            (Err(_), Ok(runtime)) => drop(runtime.spawn(async move {
                let lock = lock.lock_owned().await;
                settlement.send(Some(lock));
            })),
            // Charges of that settlement already count as made.
            (Err(_), Err(_)) => drop(settlement),
        }
    }

    /// Notes what was settled. Without an result it counts as settled: it may be, or will be.
    fn apply_observed(
        &self,
        adjustments: &[PlannedAdjustment],
        result: Result<AllAdjusted, StoreError>,
    ) {
        if result.is_ok() {
            self.apply_result(adjustments, &result);
        }
    }
}

impl Settlement {
    fn send(&mut self, lock: Option<OwnedMutexGuard<()>>) {
        let true_costs = mem::take(&mut self.true_costs);
        if true_costs.is_empty() {
            return;
        }
        let admission = &self.admission;
        let mut corrections = match admission.corrections(&true_costs) {
            Ok(corrections) => corrections,
            Err(error) => return warn(&true_costs, &error),
        };
        let mut pending: Vec<(Vec<PlannedAdjustment>, AdjustFuture)> = Vec::new();
        loop {
            let mut adjustments = admission.next_adjustments(&mut corrections);
            if adjustments.is_empty() {
                break;
            }
            while let Some(first) = adjustments.first().map(|adjustment| adjustment.call) {
                let rest = adjustments
                    .split_off(adjustments.partition_point(|adjustment| adjustment.call == first));
                let call = mem::replace(&mut adjustments, rest);
                let result = admission.with_adjustments(&call, |backend, adjustments| {
                    backend.adjust_detached(Op::Settle, adjustments)
                });
                pending.extend(result.map(|result| (call, result)));
            }
        }
        // Results of an in-process store are ready.
        pending.retain_mut(|(adjustments, result)| {
            let mut cx = Context::from_waker(Waker::noop());
            match result.as_mut().poll(&mut cx) {
                Poll::Ready(result) => {
                    admission.apply_observed(adjustments, result);
                    false
                }
                Poll::Pending => true,
            }
        });
        if pending.is_empty() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let admission = admission.clone();
            drop(runtime.spawn(async move {
                let _lock = lock;
                for (adjustments, result) in pending {
                    admission.apply_observed(&adjustments, result.await);
                }
            }));
        }
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.send(None);
    }
}

fn warn(true_costs: &[(Arc<str>, u64)], error: &StoreError) {
    static FAILED: LogThrottle = LogThrottle::new();
    FAILED.log_with(|suppressed| {
        tracing::warn!(
            ?true_costs,
            %error,
            suppressed,
            "a request's true cost may not have been settled"
        );
    });
}
