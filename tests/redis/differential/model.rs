//! The reference model of a history, as far as it is defined.

use std::{cell::Cell, collections::HashMap, rc::Rc};

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

/// By which of its quotas each policy counts a request; `None` if it does not apply.
pub(crate) type Quotas = Vec<Option<usize>>;

#[derive(Debug)]
pub(crate) struct Model {
    /// All policies that were ever in force. What was charged is refunded by the policy that charged it.
    policies: Vec<Counted>,
    /// Which of them is in force at each place.
    in_force: Vec<Option<usize>>,
    /// By place and key.
    states: HashMap<(usize, usize), State>,
    /// What each decision charged, under each policy.
    charged: Vec<Vec<Charge>>,
    now: i128,
}

#[derive(Debug)]
struct Counted {
    spec: PolicySpec,
    quotas: Vec<Limit>,
    /// The longest refill of the quotas that it declares or has met; shared by policies that count the same quotas, one after the
    /// other.
    longest: Rc<Cell<i128>>,
}

/// A charge under a policy, by one of its quotas.
#[derive(Clone, Copy, Debug)]
struct Charge {
    place: usize,
    policy: usize,
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
        StrategyKind::SmallLog => Rule::Log {
            period: even_period,
        },
        StrategyKind::Permits(_) | StrategyKind::Ban(..) => return None,
    };
    Some(Limit::counted(rule, requests))
}

impl Counted {
    /// The policy, if it is modelled: a strategy of rates, or of windows with one period.
    fn new(spec: &PolicySpec) -> Option<Self> {
        let has_one_period = { spec.quotas.iter() }
            .all(|rate| spec.strategy.is_even() || rate.period() == spec.quotas[0].period());
        let is_modelled = matches!(spec.role, Role::Live | Role::Charged | Role::Shadow);
        if !has_one_period || !is_modelled {
            return None;
        }
        let quotas = spec.quotas.iter().map(|rate| limit(spec, *rate));
        let quotas: Vec<_> = quotas.collect::<Option<_>>()?;
        let declared = if spec.declared { quotas.len() } else { 1 };
        let longest = quotas[..declared].iter().map(|quota| quota.refill).max();
        Some(Self {
            spec: spec.clone(),
            quotas,
            longest: Rc::new(Cell::new(longest.unwrap_or(0))),
        })
    }

    fn is_shadow(&self) -> bool {
        self.spec.role == Role::Shadow
    }

    /// Whether it counts the same quotas as another.
    fn counts_like(&self, other: &Self) -> bool {
        let counted = |policy: &Self| {
            let PolicySpec {
                quotas, declared, ..
            } = &policy.spec;
            let declared = if *declared { &quotas[..] } else { &[] };
            (quotas[0], declared.to_vec(), policy.spec.lease)
        };
        counted(self) == counted(other)
    }
}

impl Model {
    /// The model of these policies, if each is modelled.
    pub(crate) fn new(policies: &[PolicySpec]) -> Option<Self> {
        let mut model = Self {
            policies: Vec::new(),
            in_force: vec![None; policies.len()],
            states: HashMap::new(),
            charged: Vec::new(),
            now: 0,
        };
        model.reload(policies).then_some(model)
    }

    /// Puts other policies in force, which find the counts of those before; returns whether the model says what follows.
    pub(crate) fn reload(&mut self, policies: &[PolicySpec]) -> bool {
        for (spec, in_force) in policies.iter().zip(&mut self.in_force) {
            let before = in_force.take();
            if !spec.is_present() {
                continue;
            }
            let Some(mut policy) = Counted::new(spec) else {
                return false;
            };
            if let Some(before) = before
                && policy.counts_like(&self.policies[before])
            {
                policy.longest = Rc::clone(&self.policies[before].longest);
            }
            *in_force = Some(self.policies.len());
            self.policies.push(policy);
        }
        true
    }

    /// Sets the clock; returns whether the model says what follows. Only GCRA has the same states after a step back.
    pub(crate) fn set(&mut self, micros: u64) -> bool {
        let before = std::mem::replace(&mut self.now, micros.into());
        let mut policies = self.policies.iter();
        self.now >= before || policies.all(|policy| policy.spec.strategy == Plain::Gcra.into())
    }

    /// Removes what is over.
    pub(crate) fn forget(&mut self, place: usize, key: usize) {
        self.states.remove(&(place, key));
    }

    /// Registers the quotas that a request is counted by.
    pub(crate) fn meet(&mut self, quotas: &Quotas) {
        for (quota, policy) in quotas.iter().zip(&self.in_force) {
            if let (Some(quota), Some(policy)) = (quota, policy) {
                let policy = &self.policies[*policy];
                let refill = policy.quotas[*quota].refill;
                policy.longest.set(policy.longest.get().max(refill));
            }
        }
    }

    /// Charges of nothing, one for each policy that applies.
    fn charges(&mut self, request: &Request, quotas: &Quotas) -> Vec<Charge> {
        self.meet(quotas);
        let applied = quotas.iter().zip(&self.in_force).enumerate();
        let charges = applied.filter_map(|(place, (quota, policy))| {
            Some(Charge {
                place,
                policy: (*policy)?,
                key: request.key(place),
                quota: (*quota)?,
                receipt: Receipt::default(),
                is_skipped: false,
            })
        });
        charges.collect()
    }

    /// The limit of a charge, its key's state, and the longest refill.
    fn find(&mut self, charge: &Charge) -> (&Limit, &mut State, i128) {
        let state = self.states.entry((charge.place, charge.key)).or_default();
        let policy = &self.policies[charge.policy];
        (&policy.quotas[charge.quota], state, policy.longest.get())
    }

    fn room(&mut self, charge: &Charge) -> i128 {
        let now = self.now;
        let (limit, state, longest) = self.find(charge);
        limit.room(state, now, longest)
    }

    fn add(&mut self, charge: &Charge, units: i128) -> Receipt {
        let now = self.now;
        let (limit, state, longest) = self.find(charge);
        limit.charge(state, now, longest, units)
    }

    fn result(&mut self, charges: &[Charge], cost: u64, admitted: Option<u64>) -> OpResult {
        let (now, mut under) = (self.now, vec![None; self.in_force.len()]);
        for charge in charges {
            let (limit, state, longest) = self.find(charge);
            let status = limit.status(state, now, longest, cost);
            under[charge.place] = Some(Under {
                limit: limit.capacity as u64,
                cost,
                remaining: status.remaining,
                wait: status.wait,
                reset: status.reset,
                rejects: None,
            });
        }
        OpResult::new(admitted, under)
    }

    /// All or nothing of each of the requests under the policies that are enforced; a shadow is charged for those of the
    /// admitted that it has room for.
    pub(crate) fn check(&mut self, request: &Request, quotas: &Quotas) -> OpResult {
        let cost = request.cost.unwrap_or(1);
        let units = i128::from(cost);
        let times = i128::from(request.times.min(u32::MAX.into()));
        let mut charges = self.charges(request, quotas);
        let fits = charges.iter().map(|charge| match self.room(charge) {
            _ if cost == 0 => times,
            room => (room.max(0) / units).min(times),
        });
        let fits: Vec<_> = fits.collect();
        let live = charges.iter().zip(&fits);
        let live = live.filter(|(charge, _)| !self.policies[charge.policy].is_shadow());
        let admitted = live.map(|(_, fits)| *fits).min().unwrap_or(times);
        for (charge, fits) in charges.iter_mut().zip(fits) {
            let is_shadow = self.policies[charge.policy].is_shadow();
            let charged = if is_shadow {
                admitted.min(fits)
            } else {
                admitted
            };
            charge.receipt = self.add(charge, charged * units);
            charge.is_skipped = is_shadow && charged < admitted;
            self.charge_for_rejections(charge, (times - admitted) * units, units);
        }
        let admitted = (!charges.is_empty()).then_some(admitted as u64);
        let result = self.result(&charges, cost, admitted);
        self.charged.push(charges);
        result
    }

    /// What a policy charges for rejections that its own room is too small for: into a debt of one capacity, but for those that
    /// store each unit.
    fn charge_for_rejections(&mut self, charge: &Charge, rejected: i128, cost: i128) {
        let Counted { spec, quotas, .. } = &self.policies[charge.policy];
        let stores_each = matches!(
            spec.strategy,
            StrategyKind::Plain(Plain::List | Plain::Log) | StrategyKind::SmallLog
        );
        let debt = if stores_each {
            0
        } else {
            quotas[charge.quota].capacity
        };
        let is_charged = spec.role == Role::Charged && rejected > 0;
        if is_charged {
            let room = self.room(charge);
            if room < cost {
                self.add(charge, rejected.min((room + debt).max(0)));
            }
        }
    }

    /// Notes a decision that charged nothing.
    pub(crate) fn skip(&mut self) {
        self.charged.push(Vec::new());
    }

    /// Charges past what is left, down to a debt of one capacity.
    pub(crate) fn charge(&mut self, request: &Request, quotas: &Quotas) {
        let units = i128::from(request.cost.unwrap_or(1));
        let mut charges = self.charges(request, quotas);
        for charge in &mut charges {
            charge.receipt = self.force(charge, units);
        }
        self.charged.push(charges);
    }

    fn force(&mut self, charge: &Charge, units: i128) -> Receipt {
        let capacity = self.policies[charge.policy].quotas[charge.quota].capacity;
        let most = (self.room(charge) + capacity).max(0);
        self.add(charge, units.min(most))
    }

    pub(crate) fn peek(&mut self, request: &Request, quotas: &Quotas) -> OpResult {
        let before = self.states.clone();
        let charges = self.charges(request, quotas);
        let result = self.result(&charges, request.cost.unwrap_or(1), None);
        self.states = before;
        result
    }

    /// A check of which nothing is refunded or settled later.
    pub(crate) fn check_without_decision(
        &mut self,
        request: &Request,
        quotas: &Quotas,
    ) -> OpResult {
        let result = self.check(request, quotas);
        self.charged.pop();
        result
    }

    /// Credits under the policy at a place; returns the units and the status, if its strategy can credit.
    pub(crate) fn credit(
        &mut self,
        request: &Request,
        quotas: &Quotas,
        units: u64,
    ) -> Option<(u64, OpResult)> {
        let charges = self.charges(request, quotas);
        let (now, charge) = (self.now, charges[0]);
        let strategy = self.policies[charge.policy].spec.strategy;
        if matches!(
            strategy,
            StrategyKind::Plain(Plain::List | Plain::Log | Plain::Sliding(_))
                | StrategyKind::SmallLog
        ) {
            return None;
        }
        let (limit, state, longest) = self.find(&charge);
        let units = limit.credit(state, now, longest, units.into()) as u64;
        Some((units, self.result(&charges, 1, None)))
    }

    pub(crate) fn reset(&mut self, key: usize) {
        for place in 0..self.in_force.len() {
            if self.in_force[place].is_some() {
                self.forget(place, key_of(key, place));
            }
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
        let mut given = Vec::new();
        for charge in 0..self.charged[of].len() {
            let back = self.refund_charge(of, charge, units.into()) as u64;
            let policy = self.charged[of][charge].policy;
            if !self.policies[policy].is_shadow() {
                given.push(back);
            }
        }
        given
    }

    fn refund_charge(&mut self, of: usize, charge: usize, units: i128) -> i128 {
        let (now, mut charged) = (self.now, self.charged[of][charge]);
        // It is not sent, so it does not cut a debt either.
        if units.min(charged.receipt.left) == 0 {
            return 0;
        }
        let (limit, state, longest) = self.find(&charged);
        let back = limit.refund(state, now, longest, &mut charged.receipt, units);
        self.charged[of][charge] = charged;
        back
    }

    /// Charges or refunds by an admission; returns whether the model says what follows. Of units that were charged by two
    /// calls, it is not defined which are refunded first.
    pub(crate) fn settle(&mut self, of: usize, how: Settlement, units: u64) -> bool {
        for index in 0..self.charged[of].len() {
            let charge = self.charged[of][index];
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
            self.refund_charge(of, index, back);
            if more == 0 {
                continue;
            }
            let charged = self.force(&charge, more);
            let receipt = &mut self.charged[of][index].receipt;
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
