//! The reference model of a history, as far as it is defined.

use std::collections::HashMap;

use jiff::tz::{Offset, TimeZone};
use tollgate_tests::{
    model::{Limit, Receipt, Rule, State},
    prelude::*,
    strategy_kind::StrategyKind as Plain,
};

use crate::differential::{
    history::{PolicySpec, Rate, Request, Role, Settlement, StrategyKind, key_of},
    response::{OpResult, Under},
};

#[derive(Debug)]
pub(crate) struct Model {
    policies: Vec<Counted>,
    /// By policy and key.
    states: HashMap<(usize, usize), State>,
    /// What each decision charged, under each policy.
    charged: Vec<Vec<Charge>>,
    now: i128,
}

#[derive(Debug)]
struct Counted {
    spec: PolicySpec,
    quotas: Vec<Limit>,
    /// The longest refill of the quotas that it declares or has met.
    longest: i128,
}

/// A charge under a policy, by one of its quotas.
#[derive(Clone, Copy, Debug)]
struct Charge {
    key: usize,
    quota: usize,
    receipt: Receipt,
    /// A shadow would have rejected it, or some of many: no more is charged to it.
    is_skipped: bool,
}

/// How a policy counts one of its quotas, if that is modelled.
fn limit(policy: &PolicySpec, rate: Rate) -> Option<Limit> {
    let (quota, period) = (rate.quota(), rate.period());
    let (requests, even_period) = (quota.amount(), i128::from(period));
    let spread = policy.spread();
    let calendar = |zone| Rule::Calendar {
        zone,
        period: even_period,
    };
    let rule = match policy.strategy {
        StrategyKind::Plain(strategy) => match strategy.counting() {
            Counting::EvenRate => {
                return Some(Limit::even(requests, period, quota.capacity(), spread));
            }
            Counting::Buckets(buckets) => return Some(Limit::sliding(requests, period, buckets)),
            Counting::OpenedWindows => Rule::Window {
                period: even_period,
            },
            Counting::Log => Rule::Log {
                period: even_period + i128::from(spread),
            },
            Counting::CalendarWindows => calendar(Some(TimeZone::UTC)),
        },
        StrategyKind::Calendar(seconds) => {
            let offset = Offset::from_seconds(seconds as i32).ok()?;
            calendar(Some(TimeZone::fixed(offset)))
        }
        StrategyKind::Zone(name) => calendar(Some(TimeZone::get(name).ok()?)),
        StrategyKind::Epoch => calendar(None),
        StrategyKind::Permits(_) | StrategyKind::Ban(..) => return None,
    };
    Some(Limit::counted(rule, requests))
}

impl Model {
    /// The model of these policies, if each is modelled: strategies of rates and windows, of which the latter have one period.
    pub(crate) fn new(policies: &[PolicySpec]) -> Option<Self> {
        let counted = policies.iter().map(|spec| {
            let has_one_period = spec
                .quotas
                .iter()
                .all(|rate| spec.strategy.is_even() || rate.period() == spec.quotas[0].period());
            let is_modelled = matches!(spec.role, Role::Live | Role::Charged | Role::Shadow);
            if !has_one_period || !is_modelled {
                return None;
            }
            let quotas = spec.quotas.iter().map(|rate| limit(spec, *rate));
            let quotas: Vec<_> = quotas.collect::<Option<_>>()?;
            let declared = if spec.declared { quotas.len() } else { 1 };
            let longest = quotas[..declared].iter().map(|quota| quota.refill).max();
            Some(Counted {
                spec: spec.clone(),
                quotas,
                longest: longest.unwrap_or(0),
            })
        });
        Some(Self {
            policies: counted.collect::<Option<_>>()?,
            states: HashMap::new(),
            charged: Vec::new(),
            now: 0,
        })
    }

    /// Sets the clock; returns whether the model says what follows. Only GCRA has the same states after a step back.
    pub(crate) fn set(&mut self, micros: u64) -> bool {
        let before = std::mem::replace(&mut self.now, micros.into());
        let mut policies = self.policies.iter();
        self.now >= before || policies.all(|policy| policy.spec.strategy == Plain::Gcra.into())
    }

    /// Removes what is over.
    pub(crate) fn forget(&mut self, policy: usize, key: usize) {
        self.states.remove(&(policy, key));
    }

    /// Registers the quotas that a request is counted by; returns which they are.
    pub(crate) fn quotas(&mut self, request: &Request) -> Vec<usize> {
        let policies = self.policies.iter_mut().enumerate();
        let quotas = policies.map(|(place, policy)| {
            let quota = request.tier_of(&policy.spec, place);
            policy.longest = policy.longest.max(policy.quotas[quota].refill);
            quota
        });
        quotas.collect()
    }

    fn room(&mut self, policy: usize, key: usize, quota: usize) -> i128 {
        let state = self.states.entry((policy, key)).or_default();
        let policy = &self.policies[policy];
        policy.quotas[quota].room(state, self.now, policy.longest)
    }

    fn add(&mut self, policy: usize, key: usize, quota: usize, units: i128) -> Charge {
        let state = self.states.entry((policy, key)).or_default();
        let policy = &self.policies[policy];
        let receipt = policy.quotas[quota].charge(state, self.now, policy.longest, units);
        Charge {
            key,
            quota,
            receipt,
            is_skipped: false,
        }
    }

    fn result(&mut self, request: &Request, cost: u64, admitted: Option<u64>) -> OpResult {
        let quotas = self.quotas(request).into_iter().enumerate();
        let under = quotas.map(|(place, quota)| {
            let state = (self.states.entry((place, request.key(place)))).or_default();
            let policy = &self.policies[place];
            let limit = &policy.quotas[quota];
            let status = limit.status(state, self.now, policy.longest, cost);
            Some(Under {
                limit: limit.capacity as u64,
                cost,
                remaining: status.remaining,
                wait: status.wait,
                reset: status.reset,
                rejects: None,
            })
        });
        let under: Vec<_> = under.collect();
        OpResult::new(admitted, under)
    }

    /// All or nothing of each of the requests under the policies that are enforced; a shadow is charged for those of the
    /// admitted that it has room for.
    pub(crate) fn check(&mut self, request: &Request) -> OpResult {
        let cost = request.cost.unwrap_or(1);
        let units = i128::from(cost);
        let times = i128::from(request.times.min(u32::MAX.into()));
        let quotas = self.quotas(request);
        let fits: Vec<_> = quotas
            .iter()
            .enumerate()
            .map(
                |(place, quota)| match self.room(place, request.key(place), *quota) {
                    _ if cost == 0 => times,
                    room => (room.max(0) / units).min(times),
                },
            )
            .collect();
        let is_shadow = |policy: &Counted| policy.spec.role == Role::Shadow;
        let live = self.policies.iter().zip(&fits);
        let live = live.filter(|(policy, _)| !is_shadow(policy));
        let admitted = live.map(|(_, fits)| *fits).min().unwrap_or(times);
        let mut charges = Vec::new();
        for (place, quota) in quotas.into_iter().enumerate() {
            let (key, is_shadow) = (request.key(place), is_shadow(&self.policies[place]));
            let charged = if is_shadow {
                admitted.min(fits[place])
            } else {
                admitted
            };
            let mut charge = self.add(place, key, quota, charged * units);
            charge.is_skipped = is_shadow && charged < admitted;
            charges.push(charge);
            self.charge_for_rejections(place, key, quota, (times - admitted) * units, units);
        }
        self.charged.push(charges);
        self.result(request, cost, Some(admitted as u64))
    }

    /// What a policy charges for rejections that its own room is too small for: into a debt of one capacity, but for those that
    /// store each unit.
    fn charge_for_rejections(
        &mut self,
        policy: usize,
        key: usize,
        quota: usize,
        rejected: i128,
        cost: i128,
    ) {
        let Counted { spec, quotas, .. } = &self.policies[policy];
        let stores_each = matches!(spec.strategy, StrategyKind::Plain(Plain::List | Plain::Log));
        let debt = if stores_each {
            0
        } else {
            quotas[quota].capacity
        };
        let is_charged = spec.role == Role::Charged && rejected > 0;
        if is_charged {
            let room = self.room(policy, key, quota);
            if room < cost {
                self.add(policy, key, quota, rejected.min((room + debt).max(0)));
            }
        }
    }

    /// Notes a decision that charged nothing.
    pub(crate) fn skip(&mut self) {
        self.charged.push(Vec::new());
    }

    /// Charges past what is left, down to a debt of one capacity.
    pub(crate) fn charge(&mut self, request: &Request) {
        let units = i128::from(request.cost.unwrap_or(1));
        let mut charges = Vec::new();
        for (place, quota) in self.quotas(request).into_iter().enumerate() {
            charges.push(self.force(place, request.key(place), quota, units));
        }
        self.charged.push(charges);
    }

    fn force(&mut self, policy: usize, key: usize, quota: usize, units: i128) -> Charge {
        let room = self.room(policy, key, quota);
        let most = (room + self.policies[policy].quotas[quota].capacity).max(0);
        self.add(policy, key, quota, units.min(most))
    }

    pub(crate) fn peek(&mut self, request: &Request) -> OpResult {
        self.result(request, request.cost.unwrap_or(1), None)
    }

    pub(crate) fn reset(&mut self, key: usize) {
        for policy in 0..self.policies.len() {
            self.forget(policy, key_of(key, policy));
        }
    }

    pub(crate) fn drop_decision(&mut self, of: usize) {
        self.charged.swap_remove(of);
    }

    pub(crate) fn drop_decisions(&mut self) {
        self.charged.clear();
    }

    /// Refunds; returns the units under each policy that is enforced.
    pub(crate) fn refund(&mut self, of: usize, units: u64) -> Vec<u64> {
        let each: Vec<_> = (0..self.policies.len())
            .map(|policy| self.refund_under(policy, of, units.into()) as u64)
            .collect();
        let roles = self.policies.iter().map(|policy| policy.spec.role);
        let live = each.into_iter().zip(roles);
        let live = live.filter(|(_, role)| *role != Role::Shadow);
        live.map(|(units, _)| units).collect()
    }

    fn refund_under(&mut self, policy: usize, of: usize, units: i128) -> i128 {
        let charge = &mut self.charged[of][policy];
        // It is not sent, so it does not cut a debt either.
        if units.min(charge.receipt.left) == 0 {
            return 0;
        }
        let state = self.states.entry((policy, charge.key)).or_default();
        let Counted {
            quotas, longest, ..
        } = &self.policies[policy];
        quotas[charge.quota].refund(state, self.now, *longest, &mut charge.receipt, units)
    }

    /// Charges or refunds by a decision; returns whether the model says what follows. Of units that were charged by two
    /// calls, it is not defined which are refunded first.
    pub(crate) fn settle(&mut self, of: usize, how: Settlement, units: u64) -> bool {
        for policy in 0..self.policies.len() {
            let charge = self.charged[of][policy];
            let (units, left) = (i128::from(units), charge.receipt.left);
            if charge.is_skipped && how != Settlement::Refund {
                if left > 0 {
                    return false;
                }
                continue;
            }
            let (more, back) = match how {
                Settlement::Charge => (units, 0),
                Settlement::Refund => (0, units),
                Settlement::Settle => ((units - left).max(0), (left - units).max(0)),
            };
            self.refund_under(policy, of, back);
            if more == 0 {
                continue;
            }
            let charged = self.force(policy, charge.key, charge.quota, more).receipt;
            let receipt = &mut self.charged[of][policy].receipt;
            if charged.left > 0 {
                if receipt.left > 0 {
                    return false;
                }
                *receipt = charged;
            }
        }
        true
    }
}
