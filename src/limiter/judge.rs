//! How a limiter judges: from a request to the store's lines, and from the store's answer to a decision.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use smallvec::SmallVec;

use super::{Keys, Limiter, OnStoreError, Permit};
use crate::{
    clock::Timestamp,
    decision::{Counted, Decision, Outcome, Source},
    error::StoreError,
    key::Key,
    policy::MissingKey,
    store::{Answer, Ask, Line, Reply},
    strategy::{Receipt, Retry},
};

/// A question for the store, one item for each policy that applies.
pub(crate) type Items = SmallVec<[Item; 2]>;

#[derive(Debug)]
pub(crate) struct Item {
    pub(super) policy: usize,
    pub(super) key: Key,
    pub(super) cost: u64,
    pub(super) receipt: Receipt,
    pub(super) by: Key,
}

/// A decision, at once or later.
pub(crate) enum Judged {
    Now(Decision),
    Later(Pending),
}

/// A decision that the store is being asked for.
pub(crate) struct Pending {
    limiter: Limiter,
    ask: Ask,
    items: Items,
    answer: Pin<Box<dyn Future<Output = Result<Answer, StoreError>> + Send>>,
}

impl Limiter {
    /// Judges a request by what its head says.
    pub(crate) fn judge_request(&self, parts: &Parts) -> Judged {
        let mut items = Items::new();
        for (index, bound) in self.inner.policies.iter().enumerate() {
            let found = bound.policy.extractor().key(parts);
            let Some(key) = found.or_else(|| bound.missing_key()) else {
                match bound.policy.when_missing() {
                    MissingKey::Refuse => return Judged::Now(self.no_key(index)),
                    _ => continue,
                }
            };
            items.push(Item {
                policy: index,
                key,
                cost: bound.policy.cost_of(parts),
                receipt: Receipt::NONE,
                by: bound.by(key, || bound.policy.caller_of(parts)),
            });
        }
        self.judge(Ask::Take(1), items)
    }

    /// Judges a request by keys that were found elsewhere; `cost` in place of the policies' own.
    pub(super) fn judge_keys(
        &self,
        ask: Ask,
        keys: &Keys,
        cost: Option<u64>,
        costs: &[(String, u64)],
    ) -> Judged {
        keys.warn_of_strangers(|name| self.policies().any(|policy| policy.name() == name));
        let mut items = Items::new();
        for (index, bound) in self.inner.policies.iter().enumerate() {
            let name = bound.policy.name();
            let Some(key) = keys.of(name).or_else(|| bound.missing_key()) else {
                match bound.policy.when_missing() {
                    MissingKey::Refuse => return Judged::Now(self.no_key(index)),
                    _ => continue,
                }
            };
            let own = costs.iter().find(|(policy, _)| policy == name);
            let cost = own.map(|(_, cost)| *cost).or(cost);
            items.push(Item {
                policy: index,
                key,
                cost: cost.unwrap_or_else(|| bound.policy.plain_cost()),
                receipt: Receipt::NONE,
                by: bound.by(key, || keys.caller()),
            });
        }
        self.judge(ask, items)
    }

    fn judge(&self, ask: Ask, items: Items) -> Judged {
        if items.is_empty() {
            return Judged::Now(self.decision(Outcome::Admitted, Source::Unasked));
        }
        match self.ask(ask, &items) {
            Reply::Now(answer) => Judged::Now(self.decide(ask, &items, answer)),
            Reply::Later(answer) => Judged::Later(Pending {
                limiter: self.clone(),
                ask,
                items,
                answer,
            }),
        }
    }

    pub(super) fn ask(&self, ask: Ask, items: &[Item]) -> Reply {
        let lines: SmallVec<[Line<'_>; 2]> = items
            .iter()
            .map(|item| Line {
                account: &self.inner.policies[item.policy].account,
                key: item.key,
                units: item.cost,
                receipt: item.receipt,
                by: item.by,
            })
            .collect();
        self.inner.store.ask(ask, &lines)
    }

    fn decide(&self, ask: Ask, items: &[Item], answer: Result<Answer, StoreError>) -> Decision {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.fault(error),
        };
        let mut decision = self.decision(Outcome::Admitted, answer.source);
        decision.at = answer.at;
        decision.admitted = answer.admitted;
        for (item, line) in items.iter().zip(&answer.lines) {
            let bound = &self.inner.policies[item.policy];
            let rule = bound.account.rule();
            let mut outlook = rule.outlook(&line.seen, answer.at, item.cost);
            // `later` is 0 for whoever was refused among equals.
            if answer.later > 0 {
                // Equal requests were admitted after this one, so there was room for them.
                outlook.remaining += answer.later * item.cost;
                outlook.retry = Retry::Now;
            }
            decision.counted.push(Counted {
                policy: item.policy,
                key: item.key,
                by: item.by,
                quota: bound.policy.quota(),
                limit: rule.capacity(),
                cost: item.cost,
                outlook,
                receipt: Receipt {
                    at: answer.at,
                    left: line.units,
                    mark: rule.mark(&line.seen, answer.at),
                },
            });
        }
        let passes = match ask {
            Ask::Take(_) => answer.admitted > 0,
            Ask::Peek => decision.retry() == Retry::Now,
            Ask::Force | Ask::Give | Ask::Reset | Ask::Renew => true,
        };
        if !passes {
            decision.outcome = Outcome::Exhausted;
        }
        if matches!(ask, Ask::Take(_)) && passes && self.inner.life < Duration::MAX {
            let counted = decision.counted.iter();
            let places = counted.filter(|counted| self.inner.policies[counted.policy].is_permit());
            let places = places.filter(|counted| counted.receipt.left > 0).cloned();
            decision.permit = Permit::hold(&self.inner, places.collect(), self.inner.life);
        }
        decision
    }

    fn fault(&self, error: StoreError) -> Decision {
        let answer = self.inner.on_store_error;
        self.inner.faults.then(|unsaid| {
            tracing::warn!(%error, ?answer, unsaid, "the store of the rate limits is at fault");
        });
        let outcome = match answer {
            OnStoreError::Admit => Outcome::Admitted,
            OnStoreError::Refuse => Outcome::Fault(error),
        };
        self.decision(outcome, Source::Fallback)
    }

    fn no_key(&self, policy: usize) -> Decision {
        let policy = self.inner.policies[policy].policy.shared_name();
        self.decision(Outcome::MissingKey { policy }, Source::Unasked)
    }

    fn decision(&self, outcome: Outcome, source: Source) -> Decision {
        Decision {
            books: self.inner.clone(),
            outcome,
            source,
            admitted: 0,
            permit: None,
            at: Timestamp::default(),
            counted: SmallVec::new(),
        }
    }
}

impl Future for Pending {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        let answer = ready!(this.answer.as_mut().poll(cx));
        Poll::Ready(this.limiter.decide(this.ask, &this.items, answer))
    }
}
