//! A history: policies, and the operations on them, step by step. Its `Debug` form is Rust that builds it again.

use tollgate::Lease;
use tollgate_tests::{prelude::*, strategy_kind::StrategyKind as Plain};

use crate::differential::small_log::SmallLog;

/// How many keys a history is about.
pub(crate) const KEYS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct History {
    /// In microseconds since 1970.
    pub(crate) start: u64,
    /// The clock shows a multiple of this many microseconds: 1,000 where only the TTL ends a window.
    pub(crate) grain: u64,
    /// Whether the Redis store caches rejections.
    pub(crate) cache: bool,
    pub(crate) policies: Vec<PolicySpec>,
    pub(crate) steps: Vec<Step>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicySpec {
    pub(crate) strategy: StrategyKind,
    /// The policy's own, those of its tiers, and those that it is reconfigured to for a request.
    pub(crate) quotas: Vec<Rate>,
    /// Whether the policy declares its tiers.
    pub(crate) declared: bool,
    pub(crate) role: Role,
    /// The TTL of its leases, in milliseconds.
    pub(crate) lease: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StrategyKind {
    /// Any but calendar windows.
    Plain(Plain),
    /// At an offset from UTC, in seconds.
    Calendar(i64),
    Zone(&'static str),
    /// In windows from 1970 on.
    Epoch,
    SmallLog,
    /// Permits with a TTL in milliseconds.
    Permits(u64),
    /// The first ban and the longest one, in milliseconds.
    Ban(u64, u64),
}

/// Units, and a period in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rate {
    Per(u64, u64),
    /// With a burst of its own.
    Burst(u64, u64, u64),
    Concurrent(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Live,
    /// Rejections count.
    Charged,
    /// Charged by the response, which never comes: it is checked, and charged by hand.
    OnResponse,
    Shadow,
    /// The limiter does not have the policy, until a reload brings it back.
    Absent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// How far the clock moves before it, in microseconds.
    pub(crate) wait: i64,
    /// Whether that counts from the end of the last rejection's wait.
    pub(crate) after_wait: bool,
    pub(crate) op: Op,
    /// Whether the keys are peeked at afterwards.
    pub(crate) peek: bool,
}

/// `of` counts modulo how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Check(Request),
    /// Several checks at once, each about another key.
    AtOnce(Vec<(Request, usize)>),
    /// The limiters are reconfigured to these policies, while checks are under way.
    Reload {
        policies: Vec<PolicySpec>,
        pending: Vec<(Request, usize)>,
    },
    Charge(Request),
    Peek(Request),
    Reset(usize),
    Refund {
        of: usize,
        units: u64,
    },
    /// Charges or refunds by an admission, under each policy.
    Settle {
        of: usize,
        how: Settlement,
        units: u64,
    },
    /// Units are added by hand, under the policy at a place.
    Credit {
        place: usize,
        request: Request,
        units: u64,
    },
    /// An operator sets another quota for a key under a policy, or removes it.
    Override {
        place: usize,
        key: usize,
        setting: Overriding,
    },
    /// Drops an admission, and with it its permits.
    Drop {
        of: usize,
    },
    /// Another process takes a permit of so many units, under the policy at a place.
    Take {
        place: usize,
        key: usize,
        units: u64,
    },
    /// It renews its permits.
    Renew,
    /// For this many milliseconds.
    Block {
        key: usize,
        ms: u64,
    },
    /// For at least this many milliseconds.
    ProlongBlock {
        key: usize,
        ms: u64,
    },
    Unblock {
        key: usize,
    },
    /// A key on Redis loses its time to live.
    Persist {
        of: usize,
    },
    /// A key on Redis gets a longer TTL, by this many milliseconds.
    Prolong {
        of: usize,
        ms: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Charge,
    Refund,
    /// Of the true cost.
    Settle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overriding {
    /// By one of the policy's quotas.
    By(usize),
    Exempt,
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// From [`KEYS`] on, each policy's is another one.
    pub(crate) key: usize,
    pub(crate) cost: Option<u64>,
    pub(crate) times: u64,
    /// For each policy, which of its quotas; the first where there is none.
    pub(crate) tiers: Vec<usize>,
}

impl Request {
    pub(crate) fn of(key: usize) -> Self {
        Self {
            key,
            cost: None,
            times: 1,
            tiers: Vec::new(),
        }
    }

    pub(crate) fn cost(mut self, units: u64) -> Self {
        self.cost = Some(units);
        self
    }

    pub(crate) fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    pub(crate) fn tiers(mut self, tiers: &[usize]) -> Self {
        self.tiers = tiers.to_vec();
        self
    }

    /// The key under the policy with this index.
    pub(crate) fn key(&self, place: usize) -> usize {
        key_of(self.key, place)
    }

    pub(crate) fn tier(&self, policy: &PolicySpec, place: usize) -> usize {
        let tier = self.tiers.get(place).copied().unwrap_or(0);
        tier % policy.quotas.len()
    }
}

pub(crate) fn key_of(key: usize, place: usize) -> usize {
    if key < KEYS {
        key
    } else {
        (key + place) % KEYS
    }
}

pub(crate) fn key_named(key: usize) -> Key {
    Key::new(format!("k{key}"))
}

pub(crate) fn policy_name(place: usize) -> String {
    format!("p{place}")
}

impl Rate {
    pub(crate) fn quota(self) -> Quota {
        let per = |units, micros| Quota::requests(units).per(Duration::from_micros(micros));
        match self {
            Self::Per(units, micros) => per(units, micros),
            Self::Burst(units, micros, burst) => per(units, micros).burst(burst),
            Self::Concurrent(units) => Quota::concurrent(units),
        }
    }

    pub(crate) fn capacity(self) -> u64 {
        self.quota().capacity()
    }

    /// In microseconds.
    pub(crate) fn period(self) -> u64 {
        match self {
            Self::Per(_, micros) | Self::Burst(_, micros, _) => micros,
            Self::Concurrent(_) => 0,
        }
    }
}

impl From<Plain> for StrategyKind {
    fn from(strategy: Plain) -> Self {
        Self::Plain(strategy)
    }
}

impl StrategyKind {
    /// Whether units refill at an even rate. Of other strategies, a quota of another period can't be a tier.
    pub(crate) fn is_even(self) -> bool {
        matches!(self, Self::Plain(strategy) if strategy.is_even())
    }

    /// Whether its state on Redis contains its end, without the key's TTL.
    pub(crate) fn dates_itself(self) -> bool {
        !matches!(self, Self::Plain(strategy) if strategy.counting() == Counting::OpenedWindows)
    }

    pub(crate) fn bind(self, policy: Policy) -> Policy {
        let ms = Duration::from_millis;
        match self {
            Self::Plain(strategy) => strategy.of(policy),
            Self::Calendar(east @ 0..) => {
                let ahead = Duration::from_secs(east.unsigned_abs());
                policy.strategy(CalendarWindow::east_of_utc(ahead))
            }
            Self::Calendar(west) => {
                let behind = Duration::from_secs(west.unsigned_abs());
                policy.strategy(CalendarWindow::west_of_utc(behind))
            }
            Self::Zone(name) => policy.strategy(CalendarWindow::zone(name)),
            Self::Epoch => policy.strategy(CalendarWindow::from_epoch()),
            Self::SmallLog => policy.strategy(SmallLog),
            Self::Permits(life) => policy.strategy(Concurrency::with_ttl(ms(life))),
            Self::Ban(first, longest) => {
                policy.strategy(Ban::for_duration(ms(first)).max_duration(ms(longest)))
            }
        }
    }
}

impl PolicySpec {
    /// Which quota is the policy's own where requests come with this one: the first, unless its period makes this one a change
    /// of the policy.
    pub(crate) fn own(&self, quota: usize) -> usize {
        if self.share_tiers(0, quota) { 0 } else { quota }
    }

    pub(crate) fn share_tiers(&self, own: usize, other: usize) -> bool {
        let period = |quota: usize| self.quotas[quota].period();
        self.strategy.is_even() || period(own) == period(other)
    }

    /// The policy with one of its quotas as its own.
    pub(crate) fn policy(&self, place: usize, own: usize) -> Policy {
        let policy = Policy::new(policy_name(place), self.quotas[own].quota());
        let key = extract::header(policy_name(place)).readable();
        let mut policy = self.strategy.bind(policy.key(key));
        if self.declared {
            let tiers = (0..self.quotas.len()).filter(|quota| self.share_tiers(own, *quota));
            policy = policy.tier_quotas(tiers.map(|quota| self.quotas[quota].quota()));
        }
        policy = self.leased(policy);
        match self.role {
            Role::Live | Role::Absent => policy,
            Role::Charged => policy.charge_rejected(true),
            Role::OnResponse => policy.charge_after(|_| false),
            Role::Shadow => policy.shadow(),
        }
    }

    /// The same counts, enforced.
    pub(crate) fn plain(&self, place: usize) -> Policy {
        let policy = Policy::new(policy_name(place), self.quotas[0].quota());
        self.leased(self.strategy.bind(policy))
    }

    fn leased(&self, policy: Policy) -> Policy {
        match self.lease() {
            Some(lease) => policy.lease(lease),
            None => policy,
        }
    }

    pub(crate) fn lease(&self) -> Option<Lease> {
        let ttl = self.lease.map(Duration::from_millis);
        ttl.map(|ttl| Lease::max_units(64).ttl(ttl))
    }

    /// By how much later than its charge a unit may be spent, in microseconds.
    pub(crate) fn spread(&self) -> u64 {
        self.lease()
            .map_or(0, |lease| lease.spread().as_micros() as u64)
    }

    pub(crate) fn is_present(&self) -> bool {
        self.role != Role::Absent
    }

    pub(crate) fn is_ban(&self) -> bool {
        matches!(self.strategy, StrategyKind::Ban(..))
    }
}

impl History {
    /// Rust that builds it.
    pub(crate) fn source(&self) -> String {
        let vec = |text: String| text.replace('[', "vec![");
        let policies = self.policies.iter();
        let policies = policies.map(|policy| format!("        {policy:?},\n"));
        let steps = self.steps.iter();
        let steps = steps.map(|step| format!("        {step:?},\n"));
        format!(
            "History {{\n    start: {}, grain: {}, cache: {},\n    policies: vec![\n{}    ],\n    steps: vec![\n{}    ],\n}}",
            self.start,
            self.grain,
            self.cache,
            vec(policies.collect()),
            vec(steps.collect()),
        )
    }
}
