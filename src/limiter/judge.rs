//! How a limiter judges: from a request to the store's lines, and from the store's answer to a decision.

use std::{
    future::Future,
    mem,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::{Bound, Desk, Keys, OnStoreError, permit::Taken};
use crate::{
    clock::Timestamp,
    decision::{Counted, Decision, Part, Ruling, Tier},
    error::StoreError,
    log::Seldom,
    policy::{LookUp, Tiers},
    quota::Quota,
    store::{Answer, Ask, Line, Manner, Reply, Source},
    strategy::{Receipt, Retry},
};

/// What a request is counted by: one item for each policy that applies. What is known of it once it's answered is not, yet.
pub(crate) type Items = SmallVec<[Counted; 1]>;

/// A decision, at once or later.
pub(crate) enum Judged {
    Now(Decision),
    Later(Pending),
}

/// A decision that something is being waited for.
pub(crate) struct Pending {
    desk: Arc<Desk>,
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
    /// For the lists.
    pub(super) address: Option<IpAddr>,
}

impl Desk {
    /// Judges a request by what its head says.
    pub(super) fn judge_request(self: Arc<Self>, parts: &Parts) -> Judged {
        if let Some(ruling) = self.rule_request(parts) {
            return Judged::Now(self.decision(ruling, Source::Unasked));
        }
        let mut items = Items::new();
        let mut lookups = Vec::new();
        for (index, bound) in self.policies.iter().enumerate() {
            let policy = &bound.policy;
            if policy.skips(parts) {
                continue;
            }
            let found = policy.extractor().key(parts);
            let Some(key) = found.or_else(|| bound.missing_key()) else {
                if bound.refuses_missing() {
                    return Judged::Now(self.no_key(index));
                }
                continue;
            };
            let quota = match policy.tiers() {
                Tiers::None => None,
                Tiers::Found(find) => find(parts),
                Tiers::LookedUp(look_up, deadline) => {
                    lookups.push((items.len(), look_up(parts), *deadline));
                    None
                }
            };
            items.push(Counted::unasked(
                (index as u32, bound.part()),
                key,
                if bound.is_ban() {
                    1
                } else {
                    policy.cost_of(parts)
                },
                bound.by(|| policy.caller_of(parts)),
                self.tier(bound, quota),
            ));
        }
        if lookups.is_empty() {
            return self.judge(Ask::Take(1), items);
        }
        Judged::Later(Pending {
            desk: self.clone(),
            ask: Ask::Take(1),
            items,
            waits: Waits::LookUp(Box::pin(look_up(lookups))),
        })
    }

    /// Judges a request by keys that were found elsewhere.
    pub(super) fn judge_keys(self: &Arc<Self>, ask: Ask, keys: &Keys, own: Option<&Own>) -> Judged {
        keys.warn_of_strangers(|name| {
            self.policies
                .iter()
                .any(|bound| bound.policy.name() == name)
        });
        let asks = matches!(ask, Ask::Take(_) | Ask::Peek);
        if asks && let Some(ruling) = self.rule_keys(keys, own.and_then(|own| own.address)) {
            return Judged::Now(self.decision(ruling, Source::Unasked));
        }
        let mut items = Items::new();
        for (index, bound) in self.policies.iter().enumerate() {
            let policy = &bound.policy;
            let found = keys.of(policy.name());
            let found = found.or_else(|| self.key_of_live(bound, keys));
            if found.is_none() && !matches!(ask, Ask::Take(_)) {
                // Only those that are named are meant.
                continue;
            }
            if bound.is_ban() && ask == Ask::Force && !keys.name(policy.name()) {
                continue;
            }
            let Some(key) = found.or_else(|| bound.missing_key()) else {
                if bound.refuses_missing() {
                    return Judged::Now(self.no_key(index));
                }
                continue;
            };
            let costs = own.filter(|_| !bound.is_ban() || ask == Ask::Force);
            let cost = costs.and_then(|own| of(&own.costs, policy.name()).or(own.cost));
            let quota = own.and_then(|own| of(&own.quotas, policy.name()));
            let plain = || {
                if bound.is_ban() {
                    1
                } else {
                    policy.plain_cost()
                }
            };
            items.push(Counted::unasked(
                (index as u32, bound.part()),
                key,
                cost.unwrap_or_else(plain),
                bound.by(|| keys.caller()),
                self.tier(bound, quota),
            ));
        }
        self.judge(ask, items)
    }

    /// A request's own quota under a policy, and its account.
    fn tier(&self, bound: &Bound, quota: Option<Quota>) -> Option<Tier> {
        let quota = quota.filter(|quota| *quota != bound.policy.quota())?;
        bound.tier(&*self.store, quota)
    }

    fn judge(self: &Arc<Self>, ask: Ask, items: Items) -> Judged {
        if items.is_empty() {
            return Judged::Now(self.decision(Ruling::Admitted, Source::Unasked));
        }
        match self.ask(ask, &items) {
            Reply::Now(answer) => Judged::Now(self.decide(ask, items, answer)),
            Reply::Later(answer) => Judged::Later(Pending {
                desk: self.clone(),
                ask,
                items,
                waits: Waits::Store(answer),
            }),
        }
    }

    pub(super) fn ask(&self, ask: Ask, items: &[Counted]) -> Reply {
        let line = |item| {
            let mut line = self.line(item);
            line.units = item.cost;
            line.manner = self.manner(item, items);
            line
        };
        match items {
            [item] => self.store.ask(ask, &[line(item)]),
            items => {
                let lines: SmallVec<[Line<'_>; 4]> = items.iter().map(line).collect();
                self.store.ask(ask, &lines)
            }
        }
    }

    fn decide(
        self: &Arc<Self>,
        ask: Ask,
        items: Items,
        answer: Result<Answer, StoreError>,
    ) -> Decision {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.fault(error),
        };
        let mut decision = self.decision(Ruling::Admitted, answer.source);
        decision.at = answer.at;
        decision.admitted = answer.admitted;
        decision.counted = items;
        for (item, line) in decision.counted.iter_mut().zip(&answer.lines) {
            let (rule, at) = (self.account(item).rule(), answer.at_line(line));
            let mut outlook = rule.outlook(&line.seen, at, item.cost);
            // `later` is 0 for whoever was refused among equals.
            if answer.later > 0 && item.part == Part::Live {
                // Equal requests were admitted after this one, so there was room for them.
                if self.bound(item.policy).policy.manner() != Manner::Check {
                    outlook.remaining += answer.later * item.cost;
                }
                outlook.retry = Retry::Now;
            }
            let receipt = Receipt {
                at,
                left: line.units,
                mark: rule.mark(&line.seen, at),
            };
            outlook.pass(answer.age);
            item.outlook = outlook;
            item.receipt = receipt;
        }
        if answer.source == Source::Cache {
            let mut known = answer.lines.iter().map(|line| line.known);
            decision.counted.retain(|_| known.next().unwrap_or(false));
        }
        let passes = match ask {
            Ask::Take(_) => answer.admitted > 0,
            Ask::Peek => decision.retry() == Retry::Now,
            Ask::Force | Ask::Give | Ask::Withdraw | Ask::Reset | Ask::Renew => true,
        };
        if !passes {
            decision.ruling = Ruling::Exhausted;
        }
        if let Some(Part::Ban | Part::Shadow { .. }) = decision.counted.last().map(|last| last.part)
        {
            self.look_beside(ask, &mut decision);
        }
        if matches!(ask, Ask::Take(_)) && passes && self.life < Duration::MAX {
            let counted = decision.counted.iter();
            let places = counted.filter(|counted| self.bound(counted.policy).is_permit());
            let places = places.filter(|counted| counted.receipt.left > 0).cloned();
            decision.permit = Taken::hold(self.inner(), places.collect(), self.life);
        }
        decision
    }

    /// What is particular to bans and shadows.
    fn look_beside(&self, ask: Ask, decision: &mut Decision) {
        if matches!(ask, Ask::Take(_) | Ask::Peek) {
            self.compare(ask, decision);
        }
        if matches!(ask, Ask::Take(_)) {
            // Of refusals that are not yet too many there is nothing to tell.
            decision
                .counted
                .retain(|counted| counted.part != Part::Ban || counted.outlook.retry != Retry::Now);
        }
    }

    fn fault(self: &Arc<Self>, error: StoreError) -> Decision {
        let answer = self.on_store_error;
        self.faults.then(|unsaid| {
            tracing::warn!(%error, ?answer, unsaid, "the store of the rate limits is at fault");
        });
        let ruling = match answer {
            OnStoreError::Admit => Ruling::Admitted,
            OnStoreError::Refuse => Ruling::Fault(error),
        };
        self.decision(ruling, Source::Fallback)
    }

    fn no_key(self: &Arc<Self>, policy: usize) -> Decision {
        let policy = self.policies[policy].policy.shared_name();
        self.decision(Ruling::MissingKey { policy }, Source::Unasked)
    }

    fn decision(self: &Arc<Self>, ruling: Ruling, source: Source) -> Decision {
        Decision {
            books: self.clone(),
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
                        let bound = this.desk.bound(this.items[item].policy);
                        this.items[item].tier = this.desk.tier(bound, Some(quota));
                    }
                    match this.desk.ask(this.ask, &this.items) {
                        Reply::Now(answer) => {
                            this.waits = Waits::Store(Box::pin(std::future::ready(answer)))
                        }
                        Reply::Later(answer) => this.waits = Waits::Store(answer),
                    }
                }
                Waits::Store(answer) => {
                    let answer = ready!(answer.as_mut().poll(cx));
                    let items = mem::take(&mut this.items);
                    return Poll::Ready(this.desk.decide(this.ask, items, answer));
                }
            }
        }
    }
}
