//! How a limiter judges: from a request to the store's lines.

use std::{net::IpAddr, sync::Arc};

use http::request::Parts;
use smallvec::SmallVec;

use super::{Bound, Desk, Keys, Pending};
use crate::{
    decision::{Counted, Decision, Part, Ruling},
    policy::Tiers,
    quota::Quota,
    store::{Ask, Line, Reply, Source, Store},
    tier::Tier,
};

/// What a request is counted by: one item for each policy that applies. What is known of it once it's answered is not, yet.
pub(crate) type Items = SmallVec<[Counted; 1]>;

/// A decision, at once or later.
pub(crate) enum Judged {
    Now(Decision),
    Later(Pending),
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
        Judged::Later(Pending::looking_up(self, items, lookups))
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
    pub(super) fn tier(&self, bound: &Bound, quota: Option<Quota>) -> Option<Tier> {
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
            Reply::Later(answer) => {
                Judged::Later(Pending::asked(self, (ask, retries), items, answer))
            }
        }
    }

    pub(super) fn ask(&self, ask: Ask, retries: bool, items: &[Counted]) -> Reply {
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

    #[cold]
    fn no_key(self: Arc<Self>, policy: usize) -> Decision {
        let policy = self.policies[policy].policy.shared_name();
        self.decision(Ruling::MissingKey { policy }, Source::Unasked)
    }
}

fn of<T: Copy>(own: &[(String, T)], policy: &str) -> Option<T> {
    let (_, value) = own.iter().find(|(name, _)| name == policy)?;
    Some(*value)
}
