//! Settling without waiting for it.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::{runtime::Handle, sync::OwnedMutexGuard};

use super::{Admission, settle::Line};
use crate::{
    decision::{Adjusting, AllAdjusted},
    error::StoreError,
    log::Seldom,
    store::Op,
};

/// A settlement that nothing waits for. It is sent when it's dropped, if it was not sent before.
struct Settlement {
    admission: Admission,
    true_costs: Vec<(Arc<str>, u64)>,
}

impl Admission {
    /// Settles on any thread, also outside a runtime. What the store can't be sent now, it keeps.
    pub(super) fn settle_in_background(self, true_costs: Vec<(Arc<str>, u64)>) {
        let turn = self.turn();
        let mut settlement = Settlement {
            admission: self,
            true_costs,
        };
        match (turn.clone().try_lock_owned(), Handle::try_current()) {
            (Ok(turn), _) => settlement.send(Some(turn)),
            // Another call of this request is under way: after it, or when the runtime ends.
            (Err(_), Ok(runtime)) => drop(runtime.spawn(async move {
                let turn = turn.lock_owned().await;
                settlement.send(Some(turn));
            })),
            // What that call charges counts as charged already.
            (Err(_), Err(_)) => drop(settlement),
        }
    }

    /// Notes what was settled. Without an answer it counts as settled: it may be, or will be.
    fn note_observed(&self, lines: &[Line], answer: Result<AllAdjusted, StoreError>) {
        if answer.is_ok() {
            self.note_answer(lines, &answer);
        }
    }
}

impl Settlement {
    fn send(&mut self, turn: Option<OwnedMutexGuard<()>>) {
        let true_costs = mem::take(&mut self.true_costs);
        if true_costs.is_empty() {
            return;
        }
        let admission = &self.admission;
        let mut corrections = match admission.corrections(&true_costs) {
            Ok(corrections) => corrections,
            Err(error) => return warn(&true_costs, &error),
        };
        let mut waiting: Vec<(Vec<Line>, Adjusting)> = Vec::new();
        loop {
            let mut lines = admission.next_lines(&mut corrections);
            if lines.is_empty() {
                break;
            }
            while let Some(first) = lines.first().map(|line| line.call) {
                let rest = lines.split_off(lines.partition_point(|line| line.call == first));
                let call = mem::replace(&mut lines, rest);
                let answer = admission.with_lines(&call, |books, lines| {
                    books.adjust_detached(Op::Settle, lines)
                });
                waiting.extend(answer.map(|answer| (call, answer)));
            }
        }
        // A store in process has answered.
        waiting.retain_mut(|(lines, answer)| {
            let mut cx = Context::from_waker(Waker::noop());
            match answer.as_mut().poll(&mut cx) {
                Poll::Ready(answer) => {
                    admission.note_observed(lines, answer);
                    false
                }
                Poll::Pending => true,
            }
        });
        if waiting.is_empty() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let admission = admission.clone();
            drop(runtime.spawn(async move {
                let _turn = turn;
                for (lines, answer) in waiting {
                    admission.note_observed(&lines, answer.await);
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
    static FAILED: Seldom = Seldom::new();
    FAILED.then(|suppressed| {
        tracing::warn!(
            ?true_costs,
            %error,
            suppressed,
            "a request's true cost may not have been settled"
        );
    });
}
