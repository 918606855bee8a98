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
mod fixed_window;
pub(crate) mod format;
mod gcra;
mod list_window;
mod memory;
mod meter;
mod sliding_log;
mod sliding_window;
pub(crate) mod table;
mod token_bucket;
mod window;

pub use ban::Ban;
pub use calendar_window::{CalendarWindow, Weekday};
pub use concurrency::Concurrency;
pub use fixed_window::FixedWindow;
pub use gcra::Gcra;
pub use list_window::ListWindow;
pub use memory::{ErasedLocalRule, LocalRule, State};
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;

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

    /// Whether a refund takes units from all that is in use, or from the window at hand, whichever charge they are of, so that
    /// units can be [credited](crate::PolicyHandle::credit). False, unless a rule says otherwise.
    fn credits(&self) -> bool {
        false
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

/// What a rule's half reports of a key's state, right after it was read or charged. Each rule says what its three
/// numbers mean; both halves report the same, so that [`Rule::status`] is written once.
pub type Snapshot = [i64; 3];

/// What a caller may expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaStatus {
    /// Whole units left.
    pub remaining: u64,
    /// When one more request of the same cost would pass.
    pub retry_after: RetryAfter,
    /// The wait until the full quota is available again, were nobody else to ask.
    pub reset_after: Duration,
}

impl QuotaStatus {
    /// The status `age` later, if nothing else happened: a wait that has passed is over, and there is room for `cost`.
    pub(crate) fn pass(&mut self, age: Duration, cost: u64) {
        self.reset_after = self.reset_after.saturating_sub(age);
        if let RetryAfter::In(wait) = self.retry_after {
            self.retry_after = match wait.saturating_sub(age) {
                Duration::ZERO => RetryAfter::Now,
                left => RetryAfter::In(left),
            };
            if self.retry_after == RetryAfter::Now {
                self.remaining = self.remaining.max(cost);
            }
        }
    }
}

/// When a request would pass. A later time is greater; one that is not known is greater than any that is, and
/// [`Never`](RetryAfter::Never) is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryAfter {
    /// At once.
    Now,
    /// After this wait, unless another request for the same key comes first; not a microsecond earlier.
    In(Duration),
    /// It is not known: the store could not answer.
    Unknown,
    /// Never, however long the wait: the request costs more than the quota's capacity, lacks a key or is on a deny list.
    Never,
}

impl RetryAfter {
    /// The wait, where waiting helps and its length is known: zero for [`Now`](RetryAfter::Now), `None` for
    /// [`Unknown`](RetryAfter::Unknown) and [`Never`](RetryAfter::Never).
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::In(wait) => Some(wait),
            Self::Unknown | Self::Never => None,
        }
    }
}

/// What was charged where and when, so that it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeReceipt {
    /// When it was charged, on the store's clock.
    pub charged_at: Timestamp,
    /// The window or bucket it went into, by [`Rule::window_id`].
    pub window_id: i64,
    /// How many units of it have not been refunded.
    pub remaining: u64,
}

impl ChargeReceipt {
    /// Nothing was charged.
    pub const NONE: Self = Self {
        charged_at: Timestamp::from_micros(0),
        window_id: 0,
        remaining: 0,
    };
}

/// The half of a rule that counts on Redis.
///
/// The source is a chunk of Lua 5.1 that returns a table of functions. `p` holds this rule's parameters; `a, b, c` are up
/// to three values of state that `available` read, that `charge` and `refund` return as they are afterwards, and that the
/// rule reports as its [`Snapshot`]. Numbers are integers below 2^53.
///
/// - `available(key, p)` returns how many units could be charged now, then the state; it writes nothing.
/// - `charge(key, p, a, b, c, units, callers, each)` charges equal requests, `units` in all and `each` for one of them, and
///   returns the state. If it can't, it raises an error and leaves nothing charged. Where the rule [records
///   callers](Rule::records_caller), `callers` lists them, one for each request.
/// - `refund(key, p, a, b, c, charged_at, window_id, remaining, want, caller)` does what [`LocalRule::refund`] does, and returns
///   how many units, then the state. `charged_at` is in microseconds since the Unix epoch; without a `window_id` it is the
///   window at hand.
/// - `renew(key, p, a, b, c, remaining, caller)`, of permits, extends them by one TTL, and returns how many, then the state.
/// - `repair(key, p, a, b, c)` is called after a rejection or a peek, when all else is written: it rewrites a state
///   that `available` found out of bounds, and a time to live that is missing or too long (`outlive`).
/// - `snapshot(key, p, a, b, c, cost)`, if there is one, returns the three numbers of the [`Snapshot`] in place of the state.
///
/// A chunk may use what the driver defines: `call` (`redis.call`), `now` and `now_ms` (microseconds and milliseconds
/// since the Unix epoch), `now_s` and `now_us` (`TIME`), `number(key, text, digits)` (an integer of at most so many
/// digits, or an error that leaves the key alone), `foreign(key, why)` (that error), `expiry(key)` (when a key ends, in
/// milliseconds since the epoch; -1 never, -2 no key), `outlive(key, ms)` (ends a key that would live for longer than
/// that from now, or for ever), and `floor`, `ceil`, `min`, `max`, `abs`, `format`, `sub`, `match`, `pcall`, `error`.
#[derive(Clone, Debug)]
pub struct LuaScript {
    /// The chunk. Rules with the same source share it.
    pub source: &'static str,
    /// A piece of Lua, if there is one, that judges plain takes in the main chunk, under one policy or several of this
    /// strategy, up to the first that isn't plain to it: half of the time of a call for one key goes to making functions.
    ///
    /// It finds how many policies there are (`count`) and, of the i-th, in `plan[head + 3 * i]` a place in `plan` that its
    /// `p` follows, after three other values of which the last is the length of `p`, and in `plan[head + 3 * i + 1]` the
    /// units of one request. Questions are about `count` keys each, from `KEYS[judged + 1]` to `KEYS[upto]`, and one request each or, if there is a list `counts`, as
    /// many as `counts[(judged - from) / count + 1]`. For each question it moves `judged` on by `count`, and `last` to the
    /// end of what it appends to `answer`: how many requests were admitted, and the state under each policy. What it stops
    /// at must be as if it had not been asked; the chunk judges it, and the piece runs again for what follows. It must not
    /// raise errors (`try` is `redis.pcall`). The default strategy's, `gcra_short.lua`, is an example.
    pub shortcut: Option<&'static str>,
    /// `p`. The first is the capacity.
    pub params: Vec<i64>,
    /// How many of the three numbers of a [`Snapshot`] it reports, one at least; the others are 0. Each one that is left out
    /// makes answers shorter.
    pub snapshot_len: usize,
}
