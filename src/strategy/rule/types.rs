//! Types that rules and stores exchange.

use std::time::Duration;

use super::Rule;
use crate::{clock::Timestamp, strategy::Lease};

/// How many numbers a [`Snapshot`] holds.
const MAX_VALUES: usize = 3;

/// The state of a key as up to three numbers, as it was read or right after it was changed.
///
/// Each rule defines what its numbers mean. Both halves of a rule report the same ones, so that
/// [`Rule::status`](super::Rule::status) is written once for all stores. Numbers that a half does not report are 0.
///
/// ```
/// use tollgate::strategy::Snapshot;
///
/// let snapshot = Snapshot::new([7, 60_000_000]);
/// let [used, ends] = snapshot.values();
/// assert_eq!((used, ends), (7, 60_000_000));
/// assert_eq!(snapshot.values(), [7]);
/// assert_eq!(snapshot.values(), [7, 60_000_000, 0]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Snapshot(pub(crate) [i64; MAX_VALUES]);

impl Snapshot {
    /// A snapshot of up to three numbers; more do not compile.
    pub const fn new<const N: usize>(values: [i64; N]) -> Self {
        const { assert!(N <= MAX_VALUES, "a snapshot holds three numbers at most") };
        let mut all = [0; MAX_VALUES];
        let mut i = 0;
        while i < N {
            all[i] = values[i];
            i += 1;
        }
        Self(all)
    }

    /// The first `N` numbers, up to three; more do not compile.
    pub const fn values<const N: usize>(&self) -> [i64; N] {
        const { assert!(N <= MAX_VALUES, "a snapshot holds three numbers at most") };
        let mut first = [0; N];
        let mut i = 0;
        while i < N {
            first[i] = self.0[i];
            i += 1;
        }
        first
    }
}

/// The status of a caller under a policy: the units left, and the waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaStatus {
    /// Whole units left; 0 in debt.
    pub remaining: u64,
    /// The wait until one more request of the same cost is admitted.
    pub retry_after: RetryAfter,
    /// The wait until the full quota is available again, if no other request comes.
    pub reset_after: Duration,
}

impl QuotaStatus {
    /// A status with the whole units left, the wait for one more request of the same cost, and that for the full quota.
    pub const fn new(remaining: u64, retry_after: RetryAfter, reset_after: Duration) -> Self {
        Self {
            remaining,
            retry_after,
            reset_after,
        }
    }

    /// The status of a request of `cost` units by its rule, from the snapshot that was taken at `now`. A request that costs 0 never
    /// waits, also in debt.
    pub(crate) fn of_request(
        rule: &dyn Rule,
        snapshot: &Snapshot,
        now: Timestamp,
        cost: u64,
    ) -> Self {
        let status = rule.status(snapshot, now, cost);
        match cost {
            0 => Self {
                retry_after: RetryAfter::Now,
                ..status
            },
            _ => status,
        }
    }

    /// The status `age` later, if nothing else happened: a wait that has passed is over, and `cost` units are available.
    pub(crate) fn advance(&mut self, age: Duration, cost: u64) {
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

/// A status: only the snapshot, until the status is read. Most never are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LazyStatus {
    Snapshot(Snapshot),
    Resolved(QuotaStatus),
}

impl LazyStatus {
    /// The status of a request of `cost` units that was decided at this time.
    pub(crate) fn get(&self, rule: &dyn Rule, decided_at: Timestamp, cost: u64) -> QuotaStatus {
        match self {
            Self::Snapshot(snapshot) => QuotaStatus::of_request(rule, snapshot, decided_at, cost),
            Self::Resolved(status) => *status,
        }
    }

    /// Whether so many units remain.
    #[inline]
    pub(crate) fn has_remaining(&self, rule: &dyn Rule, decided_at: Timestamp, units: u64) -> bool {
        match self {
            Self::Snapshot(snapshot) => rule.has_remaining(snapshot, decided_at, units),
            Self::Resolved(status) => status.remaining >= units,
        }
    }
}

/// The wait until a request would be admitted. A longer wait is greater; an unknown one is greater than any known one, and
/// [`Never`](RetryAfter::Never) is the greatest.
///
/// ```
/// use std::time::Duration;
/// use tollgate::RetryAfter;
///
/// assert_eq!(RetryAfter::Now.duration(), Some(Duration::ZERO));
/// assert!(RetryAfter::In(Duration::from_secs(60)) < RetryAfter::Unknown);
/// assert_eq!(RetryAfter::Never.duration(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryAfter {
    /// The request would be admitted at once.
    Now,
    /// After this wait, unless another request for the same key comes first; not a microsecond earlier.
    In(Duration),
    /// The wait is unknown, since the store failed. Retry after about a second, as the `Retry-After` of a response says.
    Unknown,
    /// The request is never admitted, however long the wait: it costs more than the quota's capacity, lacks a key or is on a
    /// deny list.
    Never,
}

impl RetryAfter {
    /// Returns the wait if it is known: zero for [`Now`](RetryAfter::Now), `None` for [`Unknown`](RetryAfter::Unknown) and
    /// [`Never`](RetryAfter::Never).
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::In(wait) => Some(wait),
            Self::Unknown | Self::Never => None,
        }
    }

    /// Returns the [wait](RetryAfter::duration) in whole seconds, rounded up: for texts, and for a `Retry-After` of one's own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::RetryAfter;
    ///
    /// assert_eq!(RetryAfter::In(Duration::from_secs(20)).whole_seconds(), Some(20));
    /// assert_eq!(RetryAfter::In(Duration::from_millis(1_001)).whole_seconds(), Some(2));
    /// assert_eq!(RetryAfter::Never.whole_seconds(), None);
    /// ```
    pub const fn whole_seconds(self) -> Option<u64> {
        match self.duration() {
            Some(wait) => Some(whole_seconds(wait)),
            None => None,
        }
    }
}

/// A duration in whole seconds, rounded up.
pub(crate) const fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add((duration.subsec_nanos() > 0) as u64)
}

/// Records what was charged, where and when, so that it can be refunded. The limiter makes it of a store's result, and passes it to
/// the store with an [`Adjust`](crate::store::Op::Adjust).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChargeReceipt {
    /// The instant of the charge, on the clock that the rule counts by. Later than any other in a [receipt of now](Self::now).
    pub charged_at: Timestamp,
    /// The window or bucket of the charge, from [`Rule::window_id`](super::Rule::window_id). Not read in a receipt of now.
    pub window_id: i64,
    /// The units that have not been refunded.
    pub remaining: u64,
}

impl ChargeReceipt {
    /// The receipt of no charge: it refunds nothing.
    pub const EMPTY: Self = Self::new(Timestamp::from_micros(0), 0);

    /// The receipt of a charge of `units`, none of which has been refunded, with a window ID of 0.
    pub const fn new(charged_at: Timestamp, units: u64) -> Self {
        Self {
            charged_at,
            window_id: 0,
            remaining: units,
        }
    }

    /// A receipt of `units` of those that are in use now, whatever charges they are of: for a
    /// [credit](crate::limiter::PolicyHandle::credit), under a rule with [`units_in_use`](super::Rule::units_in_use).
    pub const fn now(units: u64) -> Self {
        Self {
            charged_at: Timestamp::MAX,
            window_id: 0,
            remaining: units,
        }
    }

    /// Whether it is a receipt of [now](Self::now).
    pub fn is_now(&self) -> bool {
        self.charged_at == Timestamp::MAX
    }

    /// Whether the units are of the window or bucket of that ID, the current one; those of a receipt of [now](Self::now) always are.
    /// A rule with windows refunds nothing if not.
    pub fn is_of_window(&self, window_id: i64) -> bool {
        self.is_now() || self.window_id == window_id
    }

    /// This receipt with another [window ID](ChargeReceipt::window_id).
    #[must_use]
    pub const fn with_window_id(mut self, window_id: i64) -> Self {
        self.window_id = window_id;
        self
    }
}

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
    /// time that [`RateLimitHeaders::draft`](crate::RateLimitHeaders::draft) gives for the remaining units. Default:
    /// false.
    pub refills_gradually: bool,

    /// Whether the [`Snapshot`](super::Snapshot) of a key is the same whatever a request costs, so that
    /// [`status`](super::Rule::status) can be computed from it for other costs. It must be false if the
    /// [script](super::LuaScript) has a `snapshot` function that reads the cost. Default: false.
    pub snapshot_ignores_cost: bool,

    /// Whether the rule counts by the [wall clock](crate::clock::Clock::wall), because its windows are those of a calendar, and not
    /// by the store's monotonic clock. A store that has one clock may ignore it. Default: false.
    pub follows_wall_clock: bool,

    /// Whether the caller's key is stored with each charge, so that [`StoreAdmin::callers`](crate::store::StoreAdmin::callers) can list
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

    /// The time after which a permit expires unless it is renewed, for a rule whose charges are permits that a request holds
    /// until it has ended (an in-flight limit). The store [keeps](crate::store::Store::keep_alive) them alive meanwhile: in process by
    /// [`LocalRule::hold`](super::LocalRule::hold), on Redis by the script's `renew`. Such a rule
    /// [records callers](RuleInfo::records_caller), by which its permits are distinguished. Default: `None`, for rules whose units refill
    /// with time.
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
            permit_ttl: None,
            lease: None,
        }
    }
}

/// The half of a rule that counts on Redis: a chunk of Lua 5.1, and its parameters.
///
/// The chunk returns a table of functions. The store joins the chunks of all strategies in use with a driver into one
/// script; one call of it runs many operations, each of which reads all its keys before its first write.
///
/// # Functions
///
/// `key` is the key in Redis, which holds this policy's state for one client and nothing else. `p` is the list of
/// parameters. `a, b, c` are up to three values of the state as `available` read it; `charge`, `refund` and `renew` return
/// them as they are afterwards, and they are the numbers of the [`Snapshot`](super::Snapshot). All numbers are integers
/// below 2^53.
///
/// - `available(key, p)` returns how many units can be charged now (negative in debt), then `a, b, c`. It writes nothing.
/// - `charge(key, p, a, b, c, units, callers, each)` charges equal requests, `units` in all and `each` for one of them, and
///   returns `a, b, c`. `units` may be more than are available: the state goes into debt. If it can't write, it raises an
///   error and leaves nothing charged. Where the rule [records callers](super::RuleInfo::records_caller), `callers` lists them,
///   one for each request.
/// - `refund(key, p, a, b, c, charged_at, window_id, remaining, want, caller)` does what
///   [`LocalRule::refund`](super::LocalRule::refund) does, and returns how many units were refunded, then `a, b, c`.
///   `charged_at` is in microseconds since the Unix epoch. If `window_id` is `nil`, the units are of the current window, and
///   `charged_at` is `now` for charges of this call that are undone, and later than every instant for a
///   [receipt of now](ChargeReceipt::now).
/// - `renew(key, p, a, b, c, caller)`, only for rules with a [permit TTL](super::RuleInfo::permit_ttl), extends the
///   caller's permits to one TTL from now, and returns how many were extended, then `a, b, c`.
/// - `repair(key, p, a, b, c)` is called after an operation other than a peek that charged nothing under this key, after all other
///   writes of the call. It rewrites a state that `available` found out of bounds, and a time to live that is missing or too long
///   (`cap_ttl`): every key must have one.
/// - `snapshot(key, p, a, b, c, cost)`, if the table has it, returns the three numbers of the
///   [`Snapshot`](super::Snapshot) in place of `a, b, c`.
///
/// An error fails its operation, and no other one of the call: its charges under other policies are refunded, and the request
/// is handled as [`OnStoreError`](crate::OnStoreError) says.
///
/// # Names
///
/// A chunk uses no globals. It may use these locals of the driver: `call` (`redis.call`), `now` and `now_ms` (microseconds
/// and milliseconds since the Unix epoch, the same for the whole call), `now_s` and `now_us` (the two numbers of `TIME`),
/// `number(key, text, digits)` (an integer of at most so many digits, or else the error of `foreign`), `foreign(key, why)`
/// (raises the error for a value that the strategy has not written), `expiry(key)` (when a key expires, in milliseconds since
/// the epoch; -1 never, -2 no key), `cap_ttl(key, ms)` (shortens a TTL that is longer than `ms`, or missing, to
/// that), and `floor`, `ceil`, `min`, `max`, `abs`, `format`, `sub`, `match`, `pcall`, `error`.
///
/// `examples/custom_strategy.rs` is a complete example.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(feature = "redis"),
    expect(dead_code, reason = "only the Redis store sends scripts")
)]
pub struct LuaScript {
    /// Rules with the same source share it.
    pub(crate) source: &'static str,
    /// An optional chunk of Lua that decides entries in the script's main chunk. It makes no function, which takes half of the
    /// server's time of a call with one key. It runs for acquisitions that charge the admitted requests, under policies that all
    /// have this strategy. `gcra_fast.lua` is the only one; its `-- luacheck:` line lists the locals of `main.lua` that it uses.
    ///
    /// For each entry it writes to `reply` how many requests were admitted and the snapshot under each policy, and advances
    /// `reply_len` and `keys_done`. It stops at the first entry that it can't decide, and leaves that one uncharged: the
    /// functions decide it, and the chunk runs again for the rest. It raises no errors.
    pub(crate) fast_path: Option<&'static str>,
    pub(crate) params: Vec<i64>,
    pub(crate) snapshot_len: usize,
}

impl LuaScript {
    /// A chunk of Lua with its parameters `p`. The first must be the rule's [capacity](super::RuleInfo::capacity); else the
    /// limiter's build returns a [`ConfigError`](crate::ConfigError).
    pub fn new(source: &'static str, params: impl IntoIterator<Item = i64>) -> Self {
        Self {
            source,
            fast_path: None,
            params: params.into_iter().collect(),
            snapshot_len: 3,
        }
    }

    /// Sets how many numbers of the [`Snapshot`](super::Snapshot) the chunk reports: 1 to 3, and other values count as the
    /// nearest of these. The other numbers are 0. Default: 3. Fewer numbers make the server's replies shorter.
    #[must_use]
    pub fn snapshot_len(mut self, numbers: usize) -> Self {
        self.snapshot_len = numbers.clamp(1, 3);
        self
    }

    /// Sets the [fast path](Self::fast_path).
    #[must_use]
    pub(crate) fn with_fast_path(mut self, fast_path: &'static str) -> Self {
        self.fast_path = Some(fast_path);
        self
    }
}
