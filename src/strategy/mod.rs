//! Strategies: how quotas are counted.
//!
//! | strategy | counts | at once, at most | over one period, at worst | choose it |
//! |---|---|---|---|---|
//! | [`Gcra`] (default) | a theoretical arrival time | burst | requests + burst | almost always: smooth, and the smallest |
//! | [`TokenBucket`] | the units missing from a bucket, and when | burst | requests + burst | when other programs read the keys |
//! | [`FixedWindow`] | a counter that lives for one period from its first request | requests | 2 x requests | when the limit is documented as "so many per window" |
//! | [`CalendarWindow`] | a counter per second … year of the clock | requests | 2 x requests | for quotas by the day, week, month or year |
//! | [`ListWindow`] | the callers, for one period from the first request | requests | 2 x requests | when it must be known which callers used a limit up |
//! | [`SlidingWindow`] | counters of time buckets, the oldest weighted | requests | requests, and as many more as came within one bucket | for large limits that should slide |
//! | [`SlidingLog`] | the instant and the units of every charge | requests | requests | for small limits that must hold in any period |
//! | [`Concurrency`] | permits of requests in flight | concurrent | | for slow, expensive requests |
//!
//! [`Ban`] counts the requests that other policies reject, and blocks a key that is rejected too often.
//!
#![doc = include_str!("../../docs/changing-policies.md")]
//!
//! # In a configuration document
//!
//! A document (feature `config`) has a strategy as text, [`Strategy::config_text`], which [`Policy::strategy_text`](crate::Policy::strategy_text)
//! takes too:
//!
//! | text | strategy |
//! |---|---|
//! | `gcra`, `token_bucket`, `fixed_window`, `list_window`, `sliding_log` | those without settings |
//! | `sliding_window`, `sliding_window buckets 10` | [`SlidingWindow`] |
//! | `calendar_window utc`, `calendar_window east_of_utc 2h`, `calendar_window west_of_utc 5h`, `calendar_window zone Europe/Berlin`, each with `week_starts_on sunday` after it; `calendar_window from_epoch` | [`CalendarWindow`] |
//! | `concurrency`, `concurrency ttl 30s` | [`Concurrency`] |
//! | `ban 10min`, `ban 10min max 1day` | [`Ban`] |
//!
//! Other strategies are registered, and have the names that they are registered by.
//!
//! # A strategy of your own
//!
//! A [`Strategy`] bound to a [`Quota`] is a [`Rule`], which counts the units of one key at one instant. It has two halves
//! that count alike: [`LocalRule`] in process, and a chunk of Lua ([`LuaScript`]) on Redis. Either may be left out. Both
//! have three functions:
//!
//! - `available`: how many units can be charged now (negative in debt);
//! - `charge`: charges units, into debt if fewer are available;
//! - `refund`: refunds units of a [`ChargeReceipt`], only as far as time has not returned them already.
//!
//! Stores need no other functions. Of n equal requests at one instant, k = min(n, available / cost) are admitted and charged in
//! one step; under several policies, the smallest k. So every strategy is batched, merged and charged all or nothing together
//! with others. [`LocalRule`] has a complete example for one process, and `examples/custom_strategy.rs` one for both.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{error::InvalidValue, quota::Quota};

#[cfg(test)]
mod any_clock;
pub(crate) mod ban;
pub(crate) mod built_in;
pub(crate) mod concurrency;
pub(crate) mod entry;
pub(crate) mod lease;
pub(crate) mod rate;
pub(crate) mod rule;
pub(crate) mod window;

pub(crate) use self::{
    ban::Ban,
    concurrency::Concurrency,
    lease::Lease,
    rate::{Gcra, TokenBucket},
    rule::{LazyStatus, RetryAfter, whole_seconds},
    window::{CalendarWindow, FixedWindow, ListWindow, SlidingLog, SlidingWindow},
};
pub use rule::{
    ChargeReceipt, ErasedLocalRule, LocalRule, LocalState, LuaScript, QuotaStatus, Rule, RuleInfo,
    Snapshot, State,
};
pub use window::Weekday;

/// The algorithm that counts a quota: set by [`Policy::strategy`](crate::Policy::strategy).
///
/// A strategy holds settings, and no counts. It is bound to each quota of its policies when a limiter is built, and on request
/// paths to quotas that requests bring along.
pub trait Strategy: fmt::Debug + Send + Sync + 'static {
    /// Returns the rule that counts `quota`, one of the quotas of a policy ([tiers](crate::Policy::tier_quotas)), which share keys.
    ///
    /// A state that is a time rather than a number of units, as that of [`Gcra`], may show a deeper debt than its quota allows,
    /// because another tier does. The rules of such a strategy [note](TierRefills::note) their refill time in
    /// [`terms.refills`](Terms::refills), and don't cut a debt that is within the [longest](TierRefills::longest) of them.
    ///
    /// Under a policy with [leases](crate::Policy::lease), units are spent up to [`Lease::spread`] after their charge. A rule
    /// that sets [`terms.lease`](Terms::lease) as [its own](RuleInfo::lease) still has to keep its promise: it counts units
    /// for that much longer, allows a smaller burst, or lets leases end with the window of their charge ([`Rule::window_end`]).
    /// If a rule does not set it, the lease is a [`ConfigError`](crate::ConfigError): a strategy that ignores `terms` can't
    /// be leased.
    ///
    /// ```
    /// use tollgate::{Gcra, Lease, Quota, strategy::{Strategy, Terms}};
    ///
    /// let terms = Terms::default().with_lease(Lease::max_units(64));
    /// // With a TTL of 50 ms, the burst is smaller by the units that refill within that time.
    /// let info = Gcra.bind(&Quota::requests(100).per_second(), &terms)?.info();
    /// assert_eq!(info.capacity, 94);
    /// assert_eq!(info.lease.map(|lease| lease.most()), Some(64));
    /// # Ok::<(), tollgate::error::InvalidValue>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] if the strategy can't count the quota exactly, can't be leased by these settings, or the quota has no
    /// meaning for it (such as a burst for a window). It becomes the limiter's [`ConfigError`](crate::ConfigError); for a
    /// request's own quota it is logged, and the request is rejected.
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue>;

    /// Whether all quotas of a policy must have the policy's own period. They share keys, so a request under a shorter period
    /// would end or shrink the window of a longer one. Return false for a strategy whose state does not depend on the period,
    /// as that of [`Gcra`] and [`TokenBucket`]. Default: true.
    fn tiers_share_period(&self) -> bool {
        true
    }

    /// Returns the text that stands for the strategy in a configuration document, such as `"sliding_window buckets 10"`.
    ///
    /// It holds every setting: two strategies with the same text are taken for equal. Default: `None`, for code that no document
    /// describes; it is equal to itself alone.
    fn config_text(&self) -> Option<Cow<'_, str>> {
        None
    }
}

impl Strategy for Arc<dyn Strategy> {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        (**self).bind(quota, terms)
    }

    fn tiers_share_period(&self) -> bool {
        (**self).tiers_share_period()
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        (**self).config_text()
    }
}

/// The settings of a policy that its quotas are [bound](Strategy::bind) under. The default is a policy without leases, and the
/// first of its quotas.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Terms {
    /// The refill times of the quotas that share the policy's keys. To note a refill time is a side effect that lasts: clones
    /// share the times, and none is ever forgotten. So a quota that is bound to see whether it can be counted, rather than to count
    /// requests, needs fresh `TierRefills`; otherwise it deepens the debts that the policy's rules keep.
    pub refills: TierRefills,
    /// The settings of the policy's [leases](crate::Policy::lease), if it has them.
    pub lease: Option<Lease>,
}

impl Terms {
    /// Sets the policy's leases.
    #[must_use]
    pub fn with_lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }
}

/// The longest refill time of the quotas of a policy, which share its keys: see [`Terms::refills`]. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TierRefills(Arc<AtomicU64>);

impl TierRefills {
    /// Notes the time that the full burst of one quota takes to refill, in whole microseconds.
    pub fn note(&self, refill: Duration) {
        let micros = u64::try_from(refill.as_micros()).unwrap_or(u64::MAX);
        self.0.fetch_max(micros, Ordering::Relaxed);
    }

    /// Returns the longest refill time that was noted; zero before the first.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}
