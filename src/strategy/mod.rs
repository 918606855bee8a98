//! How a quota is counted.
//!
//! | strategy | counts | at once, at most | over one period, at worst | choose it |
//! |---|---|---|---|---|
//! | [`Gcra`] (default) | a theoretical arrival time | burst | requests + burst | almost always: smooth, and the smallest |
//! | [`TokenBucket`] | what is missing of a bucket, and since when | burst | requests + burst | when others read the keys |
//! | [`FixedWindow`] | a counter that lives for one period from its first request | requests | 2 x requests | when people must be told "so many per window" |
//! | [`CalendarWindow`] | a counter per second … month of the clock | requests | 2 x requests | for what people count by the calendar |
//! | [`ListWindow`] | who called, for one period from the first request | requests | 2 x requests | when a limit that is hit must say by whom |
//! | [`SlidingWindow`] | the newest buckets, the oldest weighted | requests | 2 x requests with one bucket, one bucket's worth more with several | for large limits that should slide |
//! | [`SlidingLog`] | the instant of every unit | requests | requests | for small limits that must hold in any period |
//! | [`Concurrency`] | permits of what is in flight | concurrent | | for what is slow and dear |
//!
//! [`Ban`] counts what the others refuse, and blocks a key that is refused too often.
//!
#![doc = include_str!("../../docs/changing-policies.md")]
//!
//! # One of your own
//!
//! A [`Strategy`] binds to a [`Quota`] and becomes a [`Rule`]; a rule answers for one key at one instant. It has two
//! halves that do the same: [`LocalRule`] counts in process, and a piece of Lua ([`LuaScript`]) counts on Redis. Both know
//!
//! - `available`: how many units could be charged now (negative in debt), and the state that was read;
//! - `charge`: charges units, into debt if fewer were available;
//! - `refund`: gives units of a [`ChargeReceipt`] back, only as far as time has not already given them back.
//!
//! So n equal requests at one instant are one `charge` of k x cost with k = min(n, available / cost), and a request under
//! several rules is judged by the smallest k. Batches, merged questions and all-or-nothing over several rules need
//! nothing more, and a rule of your own gets them for free. See `examples/custom_strategy.rs`.

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{clock::Timestamp, error::InvalidValue, quota::Quota};

mod ban;
mod calendar_window;
mod concurrency;
pub(crate) mod erased;
mod fixed_window;
pub(crate) mod format;
mod gcra;
mod list_window;
mod local;
mod lua;
mod meter;
mod sliding_log;
mod sliding_window;
mod token_bucket;
mod types;
mod window;

pub use ban::Ban;
pub use calendar_window::{CalendarWindow, Weekday};
pub use concurrency::Concurrency;
pub use erased::ErasedLocalRule;
pub use fixed_window::FixedWindow;
pub use gcra::Gcra;
pub use list_window::ListWindow;
pub use local::{LocalRule, State};
pub use lua::LuaScript;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;
pub use types::{ChargeReceipt, QuotaStatus, RetryAfter, Snapshot};

/// How a quota is counted: chosen in [`Policy::strategy`](crate::Policy::strategy).
pub trait Strategy: fmt::Debug + Send + Sync + 'static {
    /// This strategy's rule for `quota`.
    ///
    /// # Errors
    ///
    /// If the quota is past what the strategy can count exactly, or has no meaning for it.
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue>;

    /// This strategy's rule for `quota`, one of the [tiers](crate::Policy::tier_quotas) of a policy. Rules that keep time, not
    /// units, note here how long they take to refill, and cut no debt that another tier allows.
    ///
    /// # Errors
    ///
    /// As of [`bind`](Strategy::bind), which it is unless a strategy says otherwise.
    fn bind_tier(
        &self,
        quota: &Quota,
        refills: &TierRefills,
    ) -> Result<Arc<dyn Rule>, InvalidValue> {
        let _ = refills;
        self.bind(quota)
    }

    /// Whether all tiers of a policy must have the policy's own period. They share a key, so that a request under a shorter
    /// period would end or shrink what is counted under a longer one. True, unless a strategy's state is independent of
    /// periods: that of [`Gcra`] and [`TokenBucket`] is.
    fn tiers_share_period(&self) -> bool {
        true
    }
}

/// The longest refill among the quotas of a policy, which share its keys. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TierRefills(Arc<AtomicU64>);

impl TierRefills {
    /// Notes that the full burst of one of the quotas takes so long to refill, in whole microseconds.
    pub fn note(&self, refill: Duration) {
        let micros = u64::try_from(refill.as_micros()).unwrap_or(u64::MAX);
        self.0.fetch_max(micros, Ordering::Relaxed);
    }

    /// The longest that was noted.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A strategy bound to a quota.
pub trait Rule: Any + fmt::Debug + Send + Sync + 'static {
    /// The state format: the strategy and the version of what it stores. It stands in every key, and state of one format
    /// is never read as another.
    ///
    /// A lowercase letter and a digit, such as `"a1"`. The letters of the built-in strategies are reserved for these, used
    /// or not: `c f g l p r s t x`. Any other text is a [`ConfigError`](crate::ConfigError).
    fn state_format(&self) -> &'static str;

    /// The most units that can be charged at once. A limiter can't be built if they are more than 999,999,999,999,999.
    fn capacity(&self) -> u64;

    /// What a request of `cost` units may expect at `now`, by `snapshot`. For a request that costs nothing only the remaining
    /// units and the reset count: it passes at any time, also in debt (see [`LimitHandle::status`](crate::store::LimitHandle::status)).
    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus;

    /// Whether used units come back one after the other, not all together at the end of a window: it decides what
    /// [`RateLimitHeaders::draft_11`](crate::RateLimitHeaders::draft_11) tells a client to spread them over. False, unless a
    /// rule says otherwise.
    fn refills_gradually(&self) -> bool {
        false
    }

    /// Names the window or bucket that a charge at `now` went into, if the strategy has such, for
    /// [`ChargeReceipt::window_id`].
    fn window_id(&self, _snapshot: &Snapshot, _now: Timestamp) -> i64 {
        0
    }

    /// Whether the [`Snapshot`] is the same whatever a request costs, so that [`status`](Rule::status) answers for requests of
    /// other costs too. `false` for a rule whose [script](LuaScript) has a `snapshot` function.
    fn snapshot_ignores_cost(&self) -> bool {
        false
    }

    /// Whether the rule counts by the [wall clock](crate::Clock::wall), in place of the store's own: its windows are those of
    /// a calendar. A store whose clocks are one need not ask.
    fn follows_wall_clock(&self) -> bool {
        false
    }

    /// Whether the caller is stored with each charge.
    fn records_caller(&self) -> bool {
        false
    }

    /// Whether the state has an entry for each unit, so that rejected requests must not be charged.
    fn stores_each_unit(&self) -> bool {
        false
    }

    /// How many units of a key are in use, debts included, by its snapshot at `now`, if a refund takes units from all of them,
    /// whichever charge they are of: then units can be [credited](crate::PolicyHandle::credit). `None`, unless a rule says
    /// otherwise: a refund takes units from the charge of its receipt.
    fn units_in_use(&self, snapshot: &Snapshot, now: Timestamp) -> Option<u64> {
        let _ = (snapshot, now);
        None
    }

    /// The permit TTL, if charges are permits, which a request holds and then gives back: how long one lives without renewal.
    fn permit_ttl(&self) -> Option<Duration> {
        None
    }

    /// Whether it counts the requests that other policies reject, in place of those that are admitted: see
    /// [`CounterMode::CountRejections`](crate::store::CounterMode::CountRejections).
    fn counts_rejections(&self) -> bool {
        false
    }

    /// For a ban: the rule over the same state whose every charge bans for `ban`.
    fn manual_ban(&self, _ban: Duration) -> Option<Result<Arc<dyn Rule>, InvalidValue>> {
        None
    }

    /// The half that counts on Redis; `None` if there is none.
    fn script(&self) -> Option<LuaScript>;

    /// More parameters, behind those of the script, for calls at about `now` by the server's clock: what Lua can't find
    /// out. A half that is asked at another time than these are for raises the error `STALE`, and is asked once more.
    fn time_params(&self, _now: Timestamp) -> Vec<i64> {
        Vec::new()
    }

    /// The half that counts in process; `None` if there is none.
    fn memory(&self) -> Option<&dyn ErasedLocalRule>;
}
