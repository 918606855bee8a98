//! The half of a rule that counts on Redis.

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
///   `charged_at` is in microseconds since the Unix epoch; `window_id` is `nil` for a charge of this very call, which went
///   into the current window.
/// - `renew(key, p, a, b, c, remaining, caller)`, only for rules with a [permit TTL](super::RuleInfo::permit_ttl), extends the
///   caller's permits to one TTL from now, and returns how many were extended, then `a, b, c`.
/// - `repair(key, p, a, b, c)` is called after an operation that charged nothing under this key, after all other writes of the
///   call. It rewrites a state that `available` found out of bounds, and a time to live that is missing or too long
///   (`cap_ttl`): every key must have one.
/// - `window_end(key, p, a, b, c)`, if the table has it, returns when the window ends that a charge would go into, in
///   microseconds since the Unix epoch: for rules that [support](super::RuleInfo::supports_lower)
///   [`Op::Lower`](crate::store::Op::Lower) and have windows.
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
