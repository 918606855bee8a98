//! From the store's answer to a decision.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{Desk, judge::Items, permit::Taken};
use crate::{
    clock::Timestamp,
    decision::{Counted, Decision, Part, Ruling},
    error::StoreError,
    store::{Answer, Ask, LineAnswer, Manner, Source},
    strategy::{Receipt, Retry},
};

impl Desk {
    #[inline]
    pub(super) fn decide(
        self: Arc<Self>,
        ask: Ask,
        retries: bool,
        items: Items,
        answer: Result<Answer, StoreError>,
    ) -> Decision {
        match answer {
            Ok(answer) => {
                if answer.source == Source::Store {
                    self.write_back();
                }
                if ask == Ask::Reset {
                    let keys: SmallVec<[_; 1]> =
                        items.iter().map(|item| (item.policy, item.key)).collect();
                    self.queues.lift(&keys);
                    self.forget_shares(&items);
                }
                self.answered(ask, retries, items, answer)
            }
            Err(error) => self.fault(ask, retries, items, error),
        }
    }

    #[inline]
    pub(super) fn answered(
        self: Arc<Self>,
        ask: Ask,
        retries: bool,
        mut items: Items,
        answer: Answer,
    ) -> Decision {
        for (item, line) in items.iter_mut().zip(&answer.lines) {
            self.note(item, line, &answer);
        }
        if answer.source == Source::Cache {
            let mut known = answer.lines.iter().map(|line| line.known);
            items.retain(|_| known.next().unwrap_or(false));
        }
        let ruling = match ask {
            Ask::Take(_) if answer.admitted == 0 => Ruling::Exhausted,
            _ => Ruling::Admitted,
        };
        let beside = items.last().is_some_and(|last| last.part != Part::Live);
        let holds = matches!(ask, Ask::Take(_)) && self.life < Duration::MAX;
        let desk = (ask == Ask::Peek || beside || holds).then(|| self.clone());
        let mut decision = Decision {
            books: self,
            ruling,
            source: answer.source,
            admitted: answer.admitted,
            permit: None,
            at: answer.at,
            counted: items,
        };
        if let Some(desk) = desk {
            desk.look_closer(ask, retries, &mut decision);
        }
        decision
    }

    /// Notes what the store answered about one policy.
    #[inline]
    fn note(&self, item: &mut Counted, line: &LineAnswer, answer: &Answer) {
        let rule = self.account(item).rule();
        let at = answer.at_line(line);
        let mark = rule.mark(&line.seen, at);
        let outlook = rule.outlook(&line.seen, at, item.cost);
        item.outlook = outlook;
        item.receipt = Receipt {
            at,
            left: line.units,
            mark,
        };
        // `later` is 0 for whoever was refused among equals.
        if answer.later > 0 && item.part == Part::Live {
            // Equal requests were admitted after this one, so there was room for them.
            if self.bound(item.policy).policy.manner() != Manner::Check {
                item.outlook.remaining += answer.later * item.cost;
            }
            item.outlook.retry = Retry::Now;
        }
        if answer.age > Duration::ZERO {
            item.outlook.pass(answer.age);
        }
    }

    /// What is particular to looks, bans, shadows and permits.
    #[cold]
    fn look_closer(&self, ask: Ask, retries: bool, decision: &mut Decision) {
        if ask == Ask::Peek && decision.retry() != Retry::Now {
            decision.ruling = Ruling::Exhausted;
        }
        if let Some(Part::Ban | Part::Shadow { .. }) = decision.counted.last().map(|last| last.part)
        {
            self.look_beside(ask, retries, decision);
        }
        if matches!(ask, Ask::Take(_)) && decision.is_admitted() && self.life < Duration::MAX {
            let counted = decision.counted.iter();
            let places = counted.filter(|counted| self.bound(counted.policy).is_permit());
            let places = places.filter(|counted| counted.receipt.left > 0).cloned();
            decision.permit = Taken::hold(self.inner(), places.collect(), self.life);
        }
    }

    /// What is particular to bans and shadows.
    fn look_beside(&self, ask: Ask, retries: bool, decision: &mut Decision) {
        if matches!(ask, Ask::Take(_) | Ask::Peek) {
            self.compare(ask, retries, decision);
        }
        if matches!(ask, Ask::Take(_)) {
            // Of refusals that are not yet too many there is nothing to tell.
            decision
                .counted
                .retain(|counted| counted.part != Part::Ban || counted.outlook.retry != Retry::Now);
        }
    }

    pub(super) fn decision(self: Arc<Self>, ruling: Ruling, source: Source) -> Decision {
        Decision {
            books: self,
            ruling,
            source,
            admitted: 0,
            permit: None,
            at: Timestamp::default(),
            counted: SmallVec::new(),
        }
    }
}
