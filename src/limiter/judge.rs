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

use super::{Bound, Desk, Keys, permit::Taken};
use crate::{
    clock::Timestamp,
    decision::{Counted, Decision, Part, Ruling},
    error::StoreError,
    log::Seldom,
    policy::{LookUp, Tiers},
    quota::Quota,
    store::{Answer, Ask, Line, LineAnswer, Manner, Reply, Source, Store},
    strategy::{Receipt, Retry},
    tier::Tier,
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
    retries: bool,
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
    /// Whether it's asked again if it is refused, so that a refusal is none to be counted yet.
    pub(super) retries: bool,
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
            return self.judge(Ask::Take(1), false, items);
        }
        Judged::Later(Pending {
            desk: self,
            ask: Ask::Take(1),
            retries: false,
            items,
            waits: Waits::LookUp(Box::pin(look_up(lookups))),
        })
    }

    /// Judges a request by keys that were found elsewhere.
    pub(super) fn judge_keys(self: Arc<Self>, ask: Ask, keys: &Keys, own: Option<&Own>) -> Judged {
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
        self.judge(ask, own.is_some_and(|own| own.retries), items)
    }

    /// A request's own quota under a policy, and its account.
    fn tier(&self, bound: &Bound, quota: Option<Quota>) -> Option<Tier> {
        let quota = quota.filter(|quota| *quota != bound.policy.quota())?;
        bound.tier(&*self.store, quota)
    }

    #[inline]
    fn judge(self: Arc<Self>, ask: Ask, retries: bool, items: Items) -> Judged {
        if items.is_empty() {
            return Judged::Now(self.decision(Ruling::Admitted, Source::Unasked));
        }
        match self.ask(ask, retries, &items) {
            Reply::Now(answer) => Judged::Now(self.decide(ask, retries, items, answer)),
            Reply::Later(answer) => Judged::Later(Pending {
                desk: self,
                ask,
                retries,
                items,
                waits: Waits::Store(answer),
            }),
        }
    }

    fn ask(&self, ask: Ask, retries: bool, items: &[Counted]) -> Reply {
        self.ask_in(&*self.store, ask, retries, items)
    }

    pub(super) fn ask_in(
        &self,
        store: &dyn Store,
        ask: Ask,
        retries: bool,
        items: &[Counted],
    ) -> Reply {
        let line = |item| {
            let mut line = self.line(item);
            line.units = item.cost;
            line.manner = self.manner(item, items, retries);
            if retries && item.part == Part::Ban {
                line.units = 0;
            }
            line
        };
        match items {
            [item] => store.ask(ask, &[line(item)]),
            items => {
                let lines: SmallVec<[Line<'_>; 4]> = items.iter().map(line).collect();
                store.ask(ask, &lines)
            }
        }
    }

    #[inline]
    fn decide(
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

    #[cold]
    fn no_key(self: Arc<Self>, policy: usize) -> Decision {
        let policy = self.policies[policy].policy.shared_name();
        self.decision(Ruling::MissingKey { policy }, Source::Unasked)
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
                    match this.desk.ask(this.ask, this.retries, &this.items) {
                        Reply::Now(answer) => {
                            this.waits = Waits::Store(Box::pin(std::future::ready(answer)))
                        }
                        Reply::Later(answer) => this.waits = Waits::Store(answer),
                    }
                }
                Waits::Store(answer) => {
                    let answer = ready!(answer.as_mut().poll(cx));
                    let (items, retries) = (mem::take(&mut this.items), this.retries);
                    let desk = this.desk.clone();
                    return Poll::Ready(desk.decide(this.ask, retries, items, answer));
                }
            }
        }
    }
}
