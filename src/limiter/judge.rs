//! How a limiter judges: from a request to the store's lines, and from the store's answer to a decision.

use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::{Bound, Keys, Limiter, OnStoreError, permit::Taken};
use crate::{
    clock::Timestamp,
    decision::{Counted, Decision, Ruling},
    error::StoreError,
    extract::MissingKey,
    key::Key,
    log::Seldom,
    policy::{LookUp, Tiers},
    quota::Quota,
    store::{Account, Answer, Ask, Line, Manner, Reply, Source},
    strategy::{Receipt, Retry},
};

/// A question for the store, one item for each policy that applies.
pub(crate) type Items = SmallVec<[Item; 2]>;

#[derive(Debug)]
pub(crate) struct Item {
    pub(super) policy: usize,
    /// The request's own quota, if it has one, and its account.
    pub(super) tier: Option<(Quota, Account)>,
    pub(super) key: Key,
    pub(super) cost: u64,
    pub(super) receipt: Receipt,
    pub(super) by: Key,
    pub(super) manner: Manner,
}

/// A decision, at once or later.
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the common one, and a box would be an allocation for each request"
)]
pub(crate) enum Judged {
    Now(Decision),
    Later(Pending),
}

/// A decision that something is being waited for.
pub(crate) struct Pending {
    limiter: Limiter,
    ask: Ask,
    items: Items,
    waits: Waits,
}

/// Quotas that are being looked up, by item.
type LookUps = Pin<Box<dyn Future<Output = Vec<(usize, Quota)>> + Send>>;

enum Waits {
    /// For requests' own quotas.
    LookUp(LookUps),
    /// For the store.
    Store(Pin<Box<dyn Future<Output = Result<Answer, StoreError>> + Send>>),
}

/// What a question says in place of what the policies say.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    pub(super) cost: Option<u64>,
    pub(super) costs: Vec<(String, u64)>,
    pub(super) quotas: Vec<(String, Quota)>,
}

impl Limiter {
    /// Judges a request by what its head says.
    pub(crate) fn judge_request(&self, parts: &Parts) -> Judged {
        let mut items = Items::new();
        let mut lookups = Vec::new();
        for (index, bound) in self.inner.policies.iter().enumerate() {
            let policy = &bound.policy;
            let found = policy.extractor().key(parts);
            let Some(key) = found.or_else(|| bound.missing_key()) else {
                match policy.when_missing() {
                    MissingKey::Refuse => return Judged::Now(self.no_key(index)),
                    _ => continue,
                }
            };
            let quota = match policy.tiers() {
                Tiers::None => None,
                Tiers::Found(find) => find(parts),
                Tiers::LookedUp(look_up, deadline) => {
                    lookups.push((items.len(), look_up(parts), *deadline));
                    None
                }
            };
            items.push(Item {
                policy: index,
                tier: self.tier(bound, quota),
                key,
                cost: policy.cost_of(parts),
                receipt: Receipt::NONE,
                by: bound.by(key, || policy.caller_of(parts)),
                manner: policy.manner(),
            });
        }
        if lookups.is_empty() {
            return self.judge(Ask::Take(1), items);
        }
        Judged::Later(Pending {
            limiter: self.clone(),
            ask: Ask::Take(1),
            items,
            waits: Waits::LookUp(Box::pin(look_up(lookups))),
        })
    }

    /// Judges a request by keys that were found elsewhere.
    pub(super) fn judge_keys(&self, ask: Ask, keys: &Keys, own: &Own) -> Judged {
        keys.warn_of_strangers(|name| self.policies().any(|policy| policy.name() == name));
        let mut items = Items::new();
        for (index, bound) in self.inner.policies.iter().enumerate() {
            let policy = &bound.policy;
            let found = keys.of(policy.name());
            if found.is_none() && !matches!(ask, Ask::Take(_)) {
                // Only those that are named are meant.
                continue;
            }
            let Some(key) = found.or_else(|| bound.missing_key()) else {
                match policy.when_missing() {
                    MissingKey::Refuse => return Judged::Now(self.no_key(index)),
                    _ => continue,
                }
            };
            let cost = of(&own.costs, policy.name()).or(own.cost);
            items.push(Item {
                policy: index,
                tier: self.tier(bound, of(&own.quotas, policy.name())),
                key,
                cost: cost.unwrap_or_else(|| policy.plain_cost()),
                receipt: Receipt::NONE,
                by: bound.by(key, || keys.caller()),
                manner: policy.manner(),
            });
        }
        self.judge(ask, items)
    }

    /// A request's own quota under a policy, and its account.
    fn tier(&self, bound: &Bound, quota: Option<Quota>) -> Option<(Quota, Account)> {
        let quota = quota.filter(|quota| *quota != bound.policy.quota())?;
        let account = bound.tier(&*self.inner.store, quota)?;
        Some((quota, account))
    }

    fn judge(&self, ask: Ask, items: Items) -> Judged {
        if items.is_empty() {
            return Judged::Now(self.decision(Ruling::Admitted, Source::Unasked));
        }
        match self.ask(ask, &items) {
            Reply::Now(answer) => Judged::Now(self.decide(ask, items, answer)),
            Reply::Later(answer) => Judged::Later(Pending {
                limiter: self.clone(),
                ask,
                items,
                waits: Waits::Store(answer),
            }),
        }
    }

    pub(super) fn ask(&self, ask: Ask, items: &[Item]) -> Reply {
        let lines: SmallVec<[Line<'_>; 2]> = items
            .iter()
            .map(|item| Line {
                account: self.inner.account(item.policy, item.tier.as_ref()),
                key: item.key,
                units: item.cost,
                receipt: item.receipt,
                by: item.by,
                manner: item.manner,
            })
            .collect();
        self.inner.store.ask(ask, &lines)
    }

    fn decide(&self, ask: Ask, items: Items, answer: Result<Answer, StoreError>) -> Decision {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.fault(error),
        };
        let mut decision = self.decision(Ruling::Admitted, answer.source);
        decision.at = answer.at;
        decision.admitted = answer.admitted;
        for (item, line) in items.into_iter().zip(&answer.lines) {
            let account = self.inner.account(item.policy, item.tier.as_ref());
            let rule = account.rule();
            let own = self.inner.policies[item.policy].policy.quota();
            let mut outlook = rule.outlook(&line.seen, answer.at, item.cost);
            // `later` is 0 for whoever was refused among equals.
            if answer.later > 0 {
                // Equal requests were admitted after this one, so there was room for them.
                if item.manner != Manner::Check {
                    outlook.remaining += answer.later * item.cost;
                }
                outlook.retry = Retry::Now;
            }
            decision.counted.push(Counted {
                policy: item.policy,
                key: item.key,
                by: item.by,
                quota: item.tier.as_ref().map_or(own, |(quota, _)| *quota),
                limit: rule.capacity(),
                cost: item.cost,
                outlook,
                receipt: Receipt {
                    at: answer.at,
                    left: line.units,
                    mark: rule.mark(&line.seen, answer.at),
                },
                tier: item.tier,
                more: Vec::new(),
                settled: false,
                told: 0,
            });
        }
        let passes = match ask {
            Ask::Take(_) => answer.admitted > 0,
            Ask::Peek => decision.retry() == Retry::Now,
            Ask::Force | Ask::Give | Ask::Withdraw | Ask::Reset | Ask::Renew => true,
        };
        if !passes {
            decision.ruling = Ruling::Exhausted;
        }
        if matches!(ask, Ask::Take(_)) && passes && self.inner.life < Duration::MAX {
            let counted = decision.counted.iter();
            let places = counted.filter(|counted| self.inner.policies[counted.policy].is_permit());
            let places = places.filter(|counted| counted.receipt.left > 0).cloned();
            decision.permit = Taken::hold(&self.inner, places.collect(), self.inner.life);
        }
        decision
    }

    fn fault(&self, error: StoreError) -> Decision {
        let answer = self.inner.on_store_error;
        self.inner.faults.then(|unsaid| {
            tracing::warn!(%error, ?answer, unsaid, "the store of the rate limits is at fault");
        });
        let ruling = match answer {
            OnStoreError::Admit => Ruling::Admitted,
            OnStoreError::Refuse => Ruling::Fault(error),
        };
        self.decision(ruling, Source::Fallback)
    }

    fn no_key(&self, policy: usize) -> Decision {
        let policy = self.inner.policies[policy].policy.shared_name();
        self.decision(Ruling::MissingKey { policy }, Source::Unasked)
    }

    fn decision(&self, ruling: Ruling, source: Source) -> Decision {
        Decision {
            books: self.inner.clone(),
            ruling,
            source,
            admitted: 0,
            permit: None,
            at: Timestamp::default(),
            counted: SmallVec::new(),
        }
    }
}

/// Awaits quotas that are being looked up, each no longer than its deadline.
async fn look_up(lookups: Vec<(usize, LookUp, Duration)>) -> Vec<(usize, Quota)> {
    let start = Instant::now();
    let mut found = Vec::new();
    let mut waiting: Vec<_> = lookups
        .into_iter()
        .map(|(item, look_up, deadline)| {
            (
                item,
                deadline,
                Box::pin(timeout_at(start + deadline, look_up)),
            )
        })
        .collect();
    std::future::poll_fn(|cx| {
        waiting.retain_mut(|(item, deadline, look_up)| {
            let Poll::Ready(quota) = look_up.as_mut().poll(cx) else {
                return true;
            };
            match quota {
                Ok(quota) => found.extend(quota.map(|quota| (*item, quota))),
                Err(_) => {
                    static LATE: Seldom = Seldom::new();
                    LATE.then(|unsaid| {
                        tracing::warn!(
                            ?deadline,
                            unsaid,
                            "a quota was not found in time; the policy's is used"
                        );
                    });
                }
            }
            false
        });
        if waiting.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    found
}

fn of<T: Copy>(own: &[(String, T)], policy: &str) -> Option<T> {
    let (_, value) = own.iter().find(|(name, _)| name == policy)?;
    Some(*value)
}

impl Future for Pending {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        loop {
            match &mut this.waits {
                Waits::LookUp(look_up) => {
                    for (item, quota) in ready!(look_up.as_mut().poll(cx)) {
                        let bound = &this.limiter.inner.policies[this.items[item].policy];
                        this.items[item].tier = this.limiter.tier(bound, Some(quota));
                    }
                    match this.limiter.ask(this.ask, &this.items) {
                        Reply::Now(answer) => {
                            this.waits = Waits::Store(Box::pin(std::future::ready(answer)))
                        }
                        Reply::Later(answer) => this.waits = Waits::Store(answer),
                    }
                }
                Waits::Store(answer) => {
                    let answer = ready!(answer.as_mut().poll(cx));
                    let items = mem::take(&mut this.items);
                    return Poll::Ready(this.limiter.decide(this.ask, items, answer));
                }
            }
        }
    }
}
