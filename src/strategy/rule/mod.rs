//! A strategy bound to a quota: the trait, and what its implementations are made of. `store/memory/shards.rs` calls the half that
//! counts in process; `redis/script` runs the half in Lua.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use crate::{clock::Timestamp, error::InvalidValue};

mod local;
pub(crate) mod table;
pub(crate) mod types;

pub(super) use local::try_charge;
pub(crate) use local::{AnyRule, fit};
pub use local::{ErasedLocalRule, LocalRule, LocalState};
pub use table::State;
pub use types::{ChargeReceipt, LuaScript, QuotaStatus, RuleInfo, Snapshot};
pub(crate) use types::{LazyStatus, RetryAfter, whole_seconds};

/// A strategy bound to a quota: how the units of one key are counted.
///
/// A rule holds no counts. Stores keep a state for each key, and call the rule's in-process half
/// ([`local_rule`](Rule::local_rule)) or its Lua half ([`script`](Rule::script)) to read and change it. The methods of this
/// trait describe the rule and interpret a [`Snapshot`] of a key's state. They are called on request paths, from any
/// thread: they must not block or panic, and must return the same for the same arguments.
///
/// A rule that counts in process implements [`LocalRule`] too; its documentation has a complete example.
pub trait Rule: Any + fmt::Debug + Send + Sync + 'static {
    /// Returns the constants of the rule. A limit reads them once, when it is registered
    /// ([`LimitHandle::info`](crate::store::LimitHandle::info)).
    fn info(&self) -> RuleInfo;

    /// Computes the status of a request of `cost` units from the `snapshot` of its key.
    ///
    /// `now` is the instant at which the snapshot was taken, on the clock that the rule counts by
    /// ([`follows_wall_clock`](RuleInfo::follows_wall_clock)). [`QuotaStatus::retry_after`] must be exact: the request is admitted
    /// after that wait unless another request is charged first, and no earlier. For a `cost` of 0 only the remaining units and
    /// the reset are read, see [`LimitHandle::status`](crate::store::LimitHandle::status).
    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus;

    /// Whether at least so many units remain by the [status](Rule::status). The provided method is right for all rules; one of
    /// their own may be faster.
    fn has_remaining(&self, snapshot: &Snapshot, now: Timestamp, units: u64) -> bool {
        self.status(snapshot, now, 0).remaining >= units
    }

    /// Returns the ID of the window or bucket that a charge went into, for [`ChargeReceipt::window_id`]; `snapshot` is the
    /// key's state right after the charge, `now` the instant of the charge. Default: 0, for rules that have no windows.
    fn window_id(&self, snapshot: &Snapshot, now: Timestamp) -> i64 {
        let _ = (snapshot, now);
        0
    }

    /// Returns when the window or bucket ends that a charge went into, on the clock that the rule counts by: a
    /// [lease](RuleInfo::lease) ends with it, so that each unit that is spent in a window was charged in it. `snapshot` is the
    /// key's state right after the charge, `now` the instant of the charge. Units may be spent for
    /// [so long](super::Lease::lifetime_within) from the moment at which the process requested them. Default: `None`, for rules
    /// that have no windows, or whose leases may outlast them.
    fn window_end(&self, snapshot: &Snapshot, now: Timestamp) -> Option<Timestamp> {
        let _ = (snapshot, now);
        None
    }

    /// Returns the number of a key's units in use, debts included, from its `snapshot` taken at `now`, so that units can be
    /// [credited](crate::limiter::PolicyHandle::credit): for a rule that refunds by a [receipt of now](ChargeReceipt::now), from all
    /// units in use or those of the current window. Default: `None`, for rules that refund each charge separately.
    fn units_in_use(&self, snapshot: &Snapshot, now: Timestamp) -> Option<u64> {
        let _ = (snapshot, now);
        None
    }

    /// For a ban, returns the rule over the same state whose every charge bans the key for `ban`: for
    /// [`Limiter::block`](crate::Limiter::block). Default: `None`, for rules that are no ban.
    fn manual_ban(&self, ban: Duration) -> Option<Result<Arc<dyn Rule>, InvalidValue>> {
        let _ = ban;
        None
    }

    /// As [`manual_ban`](Rule::manual_ban), but a charge never shortens a ban in force: it ends at the later of both instants. For
    /// [`Limiter::prolong_block`](crate::Limiter::prolong_block). Default: `None`.
    fn prolonged_ban(&self, ban: Duration) -> Option<Result<Arc<dyn Rule>, InvalidValue>> {
        let _ = ban;
        None
    }

    /// For a ban, returns how long the ban lasts that began at `now`, by the snapshot of an operation at that instant; `None` if
    /// none began then. For [observers](crate::observe::Event::BanBegan). Default: `None`.
    fn ban_begun(&self, snapshot: &Snapshot, now: Timestamp) -> Option<Duration> {
        let _ = (snapshot, now);
        None
    }

    /// Returns the half that counts on Redis. If it is `None`, a limiter with this rule and a `RedisStore` is a
    /// [`ConfigError`](crate::ConfigError).
    fn script(&self) -> Option<LuaScript>;

    /// Returns parameters that depend on the time, which follow those of the [script](LuaScript::new): for values that Lua
    /// can't compute, such as the begin of a day in a time zone. Called for each call of the server, with this process's
    /// estimate of the server's time.
    ///
    /// A script that finds them too old for its `now` raises the error `STALE`: the parameters are computed again with the
    /// server's time, and the call is repeated once. Default: none.
    fn time_params(&self, now: Timestamp) -> Vec<i64> {
        let _ = now;
        Vec::new()
    }

    /// Returns the half that counts in process: `Some(ErasedLocalRule::new(self))` for a [`LocalRule`]. If it is `None`, a
    /// limiter with this rule and a [`MemoryStore`](crate::MemoryStore) or a [`LocalFallback`](crate::LocalFallback) is a
    /// [`ConfigError`](crate::ConfigError).
    fn local_rule(&self) -> Option<ErasedLocalRule<'_>>;
}
