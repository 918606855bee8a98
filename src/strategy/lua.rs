//! The half of a rule that counts on Redis.

/// The half of a rule that counts on Redis.
///
/// The source is a chunk of Lua 5.1 that returns a table of functions. `p` holds this rule's parameters; `a, b, c` are up
/// to three values of state that `available` read, that `charge` and `refund` return as they are afterwards, and that the
/// rule reports as its [`Snapshot`](super::Snapshot). Numbers are integers below 2^53.
///
/// - `available(key, p)` returns how many units could be charged now, then the state; it writes nothing.
/// - `charge(key, p, a, b, c, units, callers, each)` charges equal requests, `units` in all and `each` for one of them, and
///   returns the state. If it can't, it raises an error and leaves nothing charged. Where the rule [records
///   callers](super::Rule::records_caller), `callers` lists them, one for each request.
/// - `refund(key, p, a, b, c, charged_at, window_id, remaining, want, caller)` does what [`LocalRule::refund`](super::LocalRule::refund) does, and returns
///   how many units, then the state. `charged_at` is in microseconds since the Unix epoch; without a `window_id` it is the
///   window at hand.
/// - `renew(key, p, a, b, c, remaining, caller)`, of permits, extends them by one TTL, and returns how many, then the state.
/// - `repair(key, p, a, b, c)` is called after a rejection or a peek, when all else is written: it rewrites a state
///   that `available` found out of bounds, and a time to live that is missing or too long (`outlive`).
/// - `snapshot(key, p, a, b, c, cost)`, if there is one, returns the three numbers of the [`Snapshot`](super::Snapshot) in place of the state.
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
    /// How many of the three numbers of a [`Snapshot`](super::Snapshot) it reports, one at least; the others are 0. Each one that is left out
    /// makes answers shorter.
    pub snapshot_len: usize,
}
