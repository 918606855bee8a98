//! What is constant about a rule.

use std::time::Duration;

use crate::strategy::Lease;

/// The constants of a [`Rule`](super::Rule), from [`Rule::info`](super::Rule::info).
///
/// ```
/// use tollgate::strategy::RuleInfo;
///
/// let mut info = RuleInfo::new("q1", 100);
/// info.snapshot_ignores_cost = true;
/// assert!(!info.records_caller && info.lease.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleInfo {
    /// The state format, which names the strategy and the version of its encoding. It is part of every key in a store, so that
    /// a state is never read in another format. Change it when the encoding changes; the old keys expire.
    ///
    /// It is a lowercase letter and a digit, such as `"a1"`. The letters of the built-in strategies are reserved, used or not:
    /// `c f g l p r s t x`. Any other text is a [`ConfigError`](crate::ConfigError) when the limiter is built.
    pub state_format: &'static str,

    /// The most units that can be charged at one instant: the burst, or the whole quota of a window. A request that costs
    /// more is never admitted. A capacity of more than 999,999,999,999,999 is a [`ConfigError`](crate::ConfigError) when the
    /// limiter is built.
    pub capacity: u64,

    /// Whether units refill one after the other, rather than all together at the end of a window. It determines the
    /// time that [`RateLimitHeaders::draft_11`](crate::RateLimitHeaders::draft_11) gives for the remaining units. Default:
    /// false.
    pub refills_gradually: bool,

    /// Whether the [`Snapshot`](super::Snapshot) of a key is the same whatever a request costs, so that
    /// [`status`](super::Rule::status) can be computed from it for other costs. It must be false if the
    /// [script](super::LuaScript) has a `snapshot` function that reads the cost. Default: false.
    pub snapshot_ignores_cost: bool,

    /// Whether the rule counts by the [wall clock](crate::clock::Clock::wall), because its windows are those of a calendar, and not
    /// by the store's monotonic clock. A store that has one clock may ignore it. Default: false.
    pub follows_wall_clock: bool,

    /// Whether the caller's key is stored with each charge, so that [`Store::callers`](crate::store::Store::callers) can list
    /// it. For a rule without [permits](RuleInfo::permit_ttl), `RedisStore` lists the entries of the key's Redis list after
    /// the first, which is the strategy's own. Default: false.
    pub records_caller: bool,

    /// Whether the state has an entry for each charge, or each unit of one. Such a rule is never charged into debt for a rejected
    /// request ([`ChargeRejectedToo`](crate::store::CounterMode::ChargeRejectedToo)), so that its state stays bounded. Default:
    /// false.
    pub stores_each_unit: bool,

    /// Whether the rule counts the requests that other policies reject, in place of those that are admitted, as a ban does:
    /// see [`CounterMode::CountRejections`](crate::store::CounterMode::CountRejections). Default: false.
    pub counts_rejections: bool,

    /// Whether units may be charged that belong to no request, until at most so many are available
    /// ([`Op::Lower`](crate::store::Op::Lower)): a charge of any number of units has to be one that the rule counts as if requests
    /// had made it. If the rule has windows, [`window_end`](super::Rule::window_end) and the function of that name in its
    /// [script](super::LuaScript) say when the one ends that a charge would go into. It is read as false for rules that
    /// [record callers](RuleInfo::records_caller) or have [permits](RuleInfo::permit_ttl). Default: false.
    pub supports_lower: bool,

    /// The time after which a permit expires unless it is renewed, for a rule whose charges are permits that a request holds
    /// until it has ended (an in-flight limit). The limiter renews them three times per TTL
    /// ([`Op::Renew`](crate::store::Op::Renew)) and refunds them at the end. Default: `None`, for rules whose units refill with
    /// time.
    pub permit_ttl: Option<Duration>,

    /// The settings of the rule's [leases](crate::Policy::lease): those of the [terms](crate::strategy::Terms::lease) that it
    /// was bound under. A rule sets them if it keeps its promise although units are spent later than they are charged.
    /// Default: `None`, for a rule whose units are charged one request at a time.
    pub lease: Option<Lease>,
}

impl RuleInfo {
    /// The constants of a rule with this [state format](RuleInfo::state_format) and [capacity](RuleInfo::capacity), and the
    /// defaults of the other fields.
    pub const fn new(state_format: &'static str, capacity: u64) -> Self {
        Self {
            state_format,
            capacity,
            refills_gradually: false,
            snapshot_ignores_cost: false,
            follows_wall_clock: false,
            records_caller: false,
            stores_each_unit: false,
            counts_rejections: false,
            supports_lower: false,
            permit_ttl: None,
            lease: None,
        }
    }

    /// Whether the limiter may ask for [`Op::Lower`](crate::store::Op::Lower).
    pub(crate) const fn can_lower(&self) -> bool {
        self.supports_lower && !self.records_caller && self.permit_ttl.is_none()
    }
}
