//! Random histories: a seed makes one.

use std::ops::{Deref, DerefMut};

use tollgate_tests::{prelude::*, strategy_kind::StrategyKind as Plain};

use crate::differential::{
    history::{
        History, KEYS, Op, Overriding, PolicySpec, Rate, Request, Role, Settlement, Step,
        StrategyKind,
    },
    run::is_sound,
};

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

/// Where a round of GCRA's stored times ends: 2027-01-15 08:00 UTC.
const ROUND_END: u64 = 1_800_000_000 * SECOND;

/// The last instant to which clocks are set: 2077-01-01.
pub(crate) const LAST: u64 = 3_376_684_800 * SECOND;

/// The first one: 2020-01-02.
const FIRST: u64 = 1_577_923_200 * SECOND;

/// The longest period.
pub(crate) const MAX_PERIOD: u64 = 400 * DAY;

/// A history of some tens of steps.
pub(crate) fn history(seed: u64) -> History {
    let mut rng = Generator(Rng::new(seed));
    loop {
        let policies = rng.policies();
        if is_sound(&policies) {
            return rng.history(policies);
        }
    }
}

/// One of these policies.
pub(crate) fn history_of(seed: u64, policies: Vec<PolicySpec>) -> History {
    Generator(Rng::new(seed)).history(policies)
}

/// Draws policies and steps.
struct Generator(Rng);

impl Deref for Generator {
    type Target = Rng;

    fn deref(&self) -> &Rng {
        &self.0
    }
}

impl DerefMut for Generator {
    fn deref_mut(&mut self) -> &mut Rng {
        &mut self.0
    }
}

impl Generator {
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number of any size, up to a bound.
    fn up_to(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(most.ilog2()) + 1) + 1;
        let number = self.any() >> (64 - bits);
        number.clamp(1, most)
    }

    fn policies(&mut self) -> Vec<PolicySpec> {
        let several = 1 + self.below(2);
        let (counted, permits, ban) = match self.below(10) {
            0..=4 => (1, false, false),
            5 | 6 => (1 + several, false, false),
            7 => (several, false, true),
            8 => (several - 1, true, false),
            _ => (several, true, true),
        };
        let is_gcra = self.one_in(3);
        let mut strategies = Vec::new();
        for _ in 0..counted {
            strategies.push(match is_gcra {
                true => Plain::Gcra.into(),
                false => self.any_strategy(),
            });
        }
        if permits {
            strategies.push(self.permits());
        }
        if ban {
            strategies.push(self.ban());
        }
        let policies = strategies.into_iter();
        let mut policies: Vec<_> = policies
            .map(|strategy| self.policy_spec(strategy))
            .collect();
        if policies.len() > 1 {
            if permits == ban {
                self.vary_roles(&mut policies);
            }
            for policy in &mut policies {
                policy.lease = self.lease(policy);
            }
        }
        policies
    }

    /// Leases of some policies that can have them.
    fn lease(&mut self, policy: &PolicySpec) -> Option<u64> {
        let most = match policy.strategy {
            StrategyKind::Permits(_) | StrategyKind::Ban(..) | StrategyKind::SmallLog => 0,
            StrategyKind::Plain(Plain::Log) => {
                let periods = policy.quotas.iter().map(|rate| rate.period() / 100_000);
                periods.min().unwrap_or(0)
            }
            _ => 10_000,
        };
        let is_leased = policy.role == Role::Live && most >= 5 && self.one_in(3);
        is_leased.then(|| self.up_to(most.min(10_000)).max(5))
    }

    fn any_strategy(&mut self) -> StrategyKind {
        match self.below(13) {
            0 => StrategyKind::Calendar(self.one_of(&[0, 0, 28_800, -18_000, 20_700])),
            1 => StrategyKind::Zone(self.one_of(&[
                "Europe/Berlin",
                "America/New_York",
                "Asia/Shanghai",
            ])),
            2 => Plain::Sliding(2 + self.below(10) as u32).into(),
            3 => StrategyKind::SmallLog,
            4 => StrategyKind::Epoch,
            _ => match self.one_of(&Plain::ALL) {
                Plain::Calendar => StrategyKind::Calendar(0),
                strategy => strategy.into(),
            },
        }
    }

    /// Permits with a TTL of at least half an hour: no heartbeat comes by itself meanwhile.
    fn permits(&mut self) -> StrategyKind {
        StrategyKind::Permits(1_800_000 + self.up_to(80_000_000))
    }

    fn ban(&mut self) -> StrategyKind {
        let first = self.up_to(DAY / 1_000);
        StrategyKind::Ban(first, first * (1 + self.below(9)))
    }

    fn vary_roles(&mut self, policies: &mut [PolicySpec]) {
        for policy in &mut policies[1..] {
            policy.role = match self.below(12) {
                _ if policy.is_ban() => Role::Live,
                0 if !matches!(policy.strategy, StrategyKind::Permits(_)) => Role::Charged,
                1 => Role::OnResponse,
                2 | 3 => Role::Shadow,
                _ => Role::Live,
            };
        }
    }

    fn policy_spec(&mut self, strategy: StrategyKind) -> PolicySpec {
        let quotas = 1 + if self.one_in(2) { self.below(4) } else { 0 };
        let mut quotas: Vec<_> = (0..quotas).map(|_| self.rate(strategy)).collect();
        let has_one_period = match strategy {
            StrategyKind::Permits(_) => false,
            strategy if strategy.is_even() => false,
            // If a ban's tiers differ in their periods, how long it is kept depends on which was evaluated last.
            StrategyKind::Ban(..) => true,
            _ => self.one_in(2),
        };
        if has_one_period {
            let period = quotas[0].period();
            for quota in &mut quotas {
                *quota = Rate::Per(quota.capacity(), period);
            }
        }
        PolicySpec {
            strategy,
            quotas,
            declared: self.one_in(2),
            role: Role::Live,
            lease: None,
        }
    }

    fn rate(&mut self, strategy: StrategyKind) -> Rate {
        // No two differ by a millisecond or two, which a key may live longer than its state.
        let ms = 10_000;
        let (units, period) = (self.few(), self.period());
        match strategy {
            strategy if strategy.is_even() => self.even_rate(),
            StrategyKind::Permits(_) => Rate::Concurrent(units),
            StrategyKind::Zone(_) => Rate::Per(units, self.one_of(&[1, 7, 30, 365]) * DAY),
            StrategyKind::Calendar(_) | StrategyKind::Epoch if self.one_in(2) => {
                Rate::Per(units, self.one_of(&[1, 7, 30, 365]) * DAY)
            }
            StrategyKind::Plain(Plain::Sliding(buckets)) => {
                let bucket = u64::from(buckets) * ms;
                let units = if self.one_in(8) {
                    self.up_to(1_000_000_000)
                } else {
                    units
                };
                Rate::Per(units, period.div_ceil(bucket) * bucket)
            }
            StrategyKind::Plain(Plain::Fixed) | StrategyKind::Calendar(_) | StrategyKind::Epoch
                if self.one_in(4) =>
            {
                Rate::Per(self.up_to(999_999_999_999_999), period.div_ceil(ms) * ms)
            }
            StrategyKind::Ban(..) => Rate::Per(1 + self.below(6), period.div_ceil(ms) * ms),
            _ => Rate::Per(units, period.div_ceil(ms) * ms),
        }
    }

    fn few(&mut self) -> u64 {
        match self.below(20) {
            0 => 1_000 + self.below(1_500),
            _ => 1 + self.below(20),
        }
    }

    fn period(&mut self) -> u64 {
        let usual = [SECOND, 10 * SECOND, 60 * SECOND, 3_600 * SECOND, DAY];
        match self.below(2) {
            0 => self.one_of(&usual),
            _ => (SECOND - 1 + self.up_to(MAX_PERIOD)).min(MAX_PERIOD),
        }
    }

    /// A rate that refills within 400 days.
    fn even_rate(&mut self) -> Rate {
        loop {
            let (units, period) = match self.below(2) {
                0 => (1 + self.below(20), self.period()),
                _ => {
                    let period = self.up_to(MAX_PERIOD).max(SECOND);
                    (self.up_to(period), period)
                }
            };
            let burst = match self.below(3) {
                0 => self.up_to(units.saturating_mul(8)),
                1 => 1 + self.below(40),
                _ => units,
            };
            let interval = (u128::from(period) * 20).div_ceil(units.into());
            if interval * u128::from(burst) <= u128::from(MAX_PERIOD) * 20 {
                return match burst {
                    burst if burst == units => Rate::Per(units, period),
                    burst => Rate::Burst(units, period, burst),
                };
            }
        }
    }

    fn history(&mut self, policies: Vec<PolicySpec>) -> History {
        let cache = self.one_in(5);
        let whole = policies
            .iter()
            .any(|policy| !policy.strategy.dates_itself());
        let grain = if whole { 1_000 } else { 1 };
        let start = self.start().next_multiple_of(grain);
        // The model of most strategies ends with the first step back.
        let is_forward = cache || !self.one_in(3);
        let steps = 10 + self.below(60);
        let mut current = policies.clone();
        let steps = (0..steps).map(|_| {
            let step = self.step(&current, is_forward);
            if let Op::Reload { policies, .. } = &step.op {
                current.clone_from(policies);
            }
            step
        });
        let steps = steps.collect();
        History {
            start,
            grain,
            cache,
            policies,
            steps,
        }
    }

    fn start(&mut self) -> u64 {
        match self.below(4) {
            0 => ROUND_END - self.up_to(2 * DAY),
            1 => ROUND_END + self.up_to(2 * DAY) - DAY,
            2 => ROUND_END,
            _ => FIRST + self.below(LAST - FIRST),
        }
    }

    fn step(&mut self, policies: &[PolicySpec], is_forward: bool) -> Step {
        let (wait, after_wait) = match self.below(20) {
            0..=8 => (0, false),
            // The microsecond before, the instant itself, and the one after.
            9..=11 => (self.below(3) as i64 - 1, true),
            12..=15 => {
                let place = self.below(policies.len() as u64) as usize;
                let rate = self.one_of(&policies[place].quotas);
                let interval = rate.period() / rate.quota().amount() + 1;
                (self.below(3 * interval) as i64, false)
            }
            16 | 17 => (self.up_to(DAY) as i64, false),
            18 if !is_forward => (-(self.up_to(DAY) as i64), false),
            _ if self.one_in(3) => (self.up_to(800 * DAY) as i64, false),
            _ => (self.up_to(60 * SECOND) as i64, false),
        };
        Step {
            wait,
            after_wait,
            op: self.op(policies),
            peek: self.below(3) > 0,
        }
    }

    fn op(&mut self, policies: &[PolicySpec]) -> Op {
        let has = |strategy: fn(&StrategyKind) -> bool| {
            let present = policies.iter().filter(|policy| policy.is_present());
            { present }.any(|policy| strategy(&policy.strategy))
        };
        let bans = has(|strategy| matches!(strategy, StrategyKind::Ban(..)));
        let permits = has(|strategy| matches!(strategy, StrategyKind::Permits(_)));
        let of = self.below(1 << 16) as usize;
        let place = self.below(policies.len() as u64) as usize;
        match self.below(40) {
            0..=13 => Op::Check(self.request(policies)),
            14 | 15 => Op::AtOnce(self.requests_at_once(policies)),
            16..=18 => Op::Charge(self.request(policies)),
            19 | 20 if !bans && !permits => Op::Settle {
                of,
                how: self.one_of(&[Settlement::Charge, Settlement::Refund, Settlement::Settle]),
                units: self.cost(policies),
            },
            19..=22 => Op::Refund {
                of,
                units: self.cost(policies),
            },
            23 => Op::Peek(self.request(policies)),
            24 => Op::Reset(self.key()),
            25 | 26 => Op::Persist { of },
            27 => Op::Prolong {
                of,
                ms: self.up_to(MAX_PERIOD / 1_000),
            },
            28 if bans => Op::Block {
                key: self.key(),
                ms: self.up_to(DAY / 1_000),
            },
            29 if bans => Op::Unblock { key: self.key() },
            30 if bans => Op::ProlongBlock {
                key: self.key(),
                ms: self.up_to(DAY / 1_000),
            },
            28..=30 if permits => Op::Drop { of },
            31 if permits => Op::Renew,
            37 if permits => Op::Take {
                place,
                key: self.below(KEYS as u64) as usize,
                units: self.few(),
            },
            32 | 33 => Op::Reload {
                policies: self.changed(policies),
                pending: if self.one_in(2) {
                    self.requests_at_once(policies)
                } else {
                    Vec::new()
                },
            },
            34 => Op::Credit {
                place,
                request: self.request(policies),
                units: self.cost(policies),
            },
            35 | 36 => Op::Override {
                place,
                key: self.below(KEYS as u64) as usize,
                setting: match self.below(6) {
                    0 => Overriding::Exempt,
                    1 | 2 => Overriding::Remove,
                    quota => Overriding::By(quota as usize),
                },
            },
            _ => Op::Check(self.request(policies)),
        }
    }

    fn requests_at_once(&mut self, policies: &[PolicySpec]) -> Vec<(Request, usize)> {
        let keys = 1 + self.below(KEYS as u64) as usize;
        let requests = (0..keys).map(|key| {
            let mut request = self.request(policies);
            (request.key, request.times) = (key, 1);
            (request, 1 + self.below(6) as usize)
        });
        requests.collect()
    }

    /// What policies are reconfigured to: some with other settings, some left out, some back.
    fn changed(&mut self, policies: &[PolicySpec]) -> Vec<PolicySpec> {
        let has_roles = { policies.iter() }
            .all(|policy| !policy.is_ban() && !matches!(policy.strategy, StrategyKind::Permits(_)));
        loop {
            let changed = policies.iter().map(|policy| self.changed_policy(policy));
            let mut changed: Vec<_> = changed.collect();
            if has_roles && changed.len() > 1 && self.one_in(4) {
                self.vary_roles(&mut changed);
            }
            if is_sound(&changed) {
                return changed;
            }
        }
    }

    fn changed_policy(&mut self, policy: &PolicySpec) -> PolicySpec {
        let mut changed = policy.clone();
        if !policy.is_present() && self.one_in(2) {
            changed.role = Role::Live;
        }
        match self.below(8) {
            0 => changed.quotas.rotate_left(1),
            1 | 2 => {
                for quota in &mut changed.quotas {
                    *quota = match self.rate(policy.strategy) {
                        Rate::Per(units, _) if !policy.strategy.is_even() => {
                            Rate::Per(units, quota.period())
                        }
                        rate => rate,
                    };
                }
            }
            3 => changed.declared = !policy.declared,
            // How long a log keeps its charges depends on the leases.
            4 if policy.strategy != Plain::Log.into() => changed.lease = self.lease(policy),
            5 => changed.role = Role::Absent,
            _ => {}
        }
        changed
    }

    fn key(&mut self) -> usize {
        match self.below(8) {
            0 => KEYS + self.below(KEYS as u64) as usize,
            1 => 1,
            2 => 2,
            _ => 0,
        }
    }

    fn request(&mut self, policies: &[PolicySpec]) -> Request {
        let cost = (!self.one_in(3)).then(|| self.cost(policies));
        // If their callers are recorded for a shadow, there are no more of them.
        let shadows = policies.iter().any(|policy| policy.role != Role::Live);
        let most = if shadows { 10_000 } else { u64::MAX };
        let times = match self.below(10) {
            0 | 1 => 2 + self.below(12),
            2 => self.up_to(most),
            _ => 1,
        };
        // A permit is held by one request.
        let has_permits =
            { policies.iter() }.any(|policy| matches!(policy.strategy, StrategyKind::Permits(_)));
        let times = if has_permits { 1 } else { times };
        let tiers = match self.below(2) {
            0 => Vec::new(),
            _ => policies.iter().map(|_| self.below(4) as usize).collect(),
        };
        Request {
            key: self.key(),
            cost,
            times,
            tiers,
        }
    }

    fn cost(&mut self, policies: &[PolicySpec]) -> u64 {
        let place = self.below(policies.len() as u64) as usize;
        let capacity = self.one_of(&policies[place].quotas).capacity();
        match self.below(16) {
            0 => 0,
            1..=5 => 1 + self.below(6),
            6..=9 => 1 + self.below(capacity),
            10 => capacity,
            11 => capacity / 2 + 1,
            12 => (capacity - 1).max(1),
            13 => capacity + 1 + self.below(2) * capacity,
            14 if self.one_in(2) => u64::MAX - self.below(capacity),
            14 => 2 * capacity,
            _ => self.up_to(u64::MAX),
        }
    }
}
