//! From the store's answer to a decision.

use std::time::Duration;

use smallvec::SmallVec;

use super::draft::Draft;
use crate::{
    decision::{Counted, DecisionKind, Part, Receipts, Standing, retry},
    error::StoreError,
    limiter::{Desk, permit::Taken},
    store::{CounterMode, CounterResult, DecisionSource, Op, OpResult, TOO_FEW_RESULTS},
    strategy::{ChargeReceipt, RetryAfter},
};

impl Desk {
    /// The store has answered.
    #[inline(always)]
    pub(crate) fn decide(&self, draft: &mut Draft, answer: Result<OpResult, StoreError>) {
        match answer {
            Ok(answer) if answer.counters.len() < draft.items.len() => {
                self.fault(draft, TOO_FEW_RESULTS);
            }
            Ok(answer) => {
                if draft.ask == Op::Reset {
                    // Before anything is written back, or what was reset would be charged again.
                    self.forget(draft);
                }
                if answer.source == DecisionSource::Store {
                    self.write_back();
                }
                self.note(draft, &answer);
            }
            Err(error) => self.fault(draft, error),
        }
    }

    /// What was reset in the store is forgotten here, too.
    #[cold]
    fn forget(&self, draft: &Draft) {
        let keys = draft.items.iter().map(|item| (item.policy, item.key));
        self.queues
            .clear_rejections(&keys.collect::<SmallVec<[_; 1]>>());
        self.forget_shares(&draft.items);
    }

    /// Notes what was answered.
    #[inline(always)]
    pub(crate) fn note(&self, draft: &mut Draft, answer: &OpResult) {
        for (item, line) in draft.items.iter_mut().zip(&answer.counters) {
            self.note_line(item, line, answer);
        }
        draft.source = answer.source;
        draft.admitted = answer.admitted;
        let takes = matches!(draft.ask, Op::Acquire(_));
        if takes && answer.admitted == 0 {
            self.refuse(draft);
        }
        let holds = takes && self.permit_ttl < Duration::MAX;
        let beside = draft
            .items
            .last()
            .is_some_and(|last| last.part != Part::Live);
        if !takes || beside || holds {
            self.look_closer(draft);
        }
    }

    /// Notes what the store answered about one policy.
    #[inline(always)]
    fn note_line(&self, item: &mut Counted, line: &CounterResult, answer: &OpResult) {
        let at = answer.at_line(line);
        item.standing = Standing::Snapshot(line.snapshot);
        item.receipts = Receipts::from(ChargeReceipt {
            charged_at: at,
            remaining: line.units,
            window_id: self.limit(item).rule().window_id(&line.snapshot, at),
        });
        // `admitted_after` is 0 for those of equal requests that were rejected.
        if answer.admitted_after > 0 && item.part == Part::Live {
            // Equal requests were admitted after this one, so there was room for them.
            let later = match self.bound(item.policy).policy.mode() {
                CounterMode::Check => 0,
                _ => item.units().of(answer.admitted_after),
            };
            item.amend(self, |status| {
                status.remaining = status.remaining.saturating_add(later);
                status.retry_after = RetryAfter::Now;
            });
        }
        if answer.age > Duration::ZERO {
            // The wait for a permit is a hint, however old the answer is.
            if self.limit(item).permit_ttl().is_none() {
                let cost = item.cost;
                item.amend(self, |status| status.pass(answer.age, cost));
            }
            item.receipts.judged_later(answer.age);
        }
    }

    fn refuse(&self, draft: &mut Draft) {
        draft.kind = DecisionKind::Rejected;
        for item in &mut draft.items {
            // It will be read more than once.
            item.standing = Standing::Told(item.status(self));
        }
    }

    /// What is particular to looks, bans, shadows and permits.
    #[cold]
    fn look_closer(&self, draft: &mut Draft) {
        if !matches!(draft.ask, Op::Acquire(_)) && retry(self, &draft.items) != RetryAfter::Now {
            draft.kind = DecisionKind::Rejected;
        }
        if let Some(Part::Ban | Part::Shadow { .. }) = draft.items.last().map(|last| last.part) {
            self.look_beside(draft);
        }
        let admitted = matches!(draft.kind, DecisionKind::Admitted);
        if matches!(draft.ask, Op::Acquire(_)) && admitted && self.permit_ttl < Duration::MAX {
            let counted = draft.items.iter();
            let places = counted.filter(|counted| self.bound(counted.policy).is_permit());
            // Whichever of the two refunds a permit first, it is refunded once: it has a name of its own in the store.
            let places = places.filter_map(|counted| {
                let units = counted.receipts.first().remaining;
                (units > 0).then(|| counted.with_receipts(counted.receipts.part(units)))
            });
            draft.permit = Taken::hold(self.inner(), places.collect(), self.permit_ttl);
        }
    }

    /// What is particular to bans and shadows.
    fn look_beside(&self, draft: &mut Draft) {
        if matches!(draft.ask, Op::Acquire(_) | Op::Peek) {
            self.compare(draft);
        }
        if matches!(draft.ask, Op::Acquire(_)) {
            // Of refusals that are not yet too many there is nothing to tell.
            draft.items.retain(|counted| {
                counted.part != Part::Ban || counted.status(self).retry_after != RetryAfter::Now
            });
        }
    }
}
