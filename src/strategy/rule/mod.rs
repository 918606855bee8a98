//! A strategy bound to a quota: the trait, and what its implementations are made of. `store/memory/shards.rs` calls the half that
//! counts in process; `store/redis/script` runs the half in Lua.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use super::Lease;
use crate::{clock::Timestamp, error::InvalidValue};

mod erased;
mod local;
mod lua;
pub(crate) mod table;
mod types;

pub(crate) use erased::AnyRule;
pub use erased::{ErasedLocalRule, LocalState};
pub use local::LocalRule;
pub(crate) use local::fit;
pub(super) use local::try_charge;
pub use lua::LuaScript;
pub use table::State;
pub use types::{ChargeReceipt, QuotaStatus, RetryAfter, Snapshot};
pub(crate) use types::{LazyStatus, whole_seconds};

/// A strategy bound to a quota: how the units of one key are counted.
///
/// A rule holds no counts. Stores keep a state for each key, and call the rule's in-process half
/// ([`local_rule`](Rule::local_rule)) or its Lua half ([`script`](Rule::script)) to read and change it. The methods of this
/// trait describe the rule and interpret a [`Snapshot`] of a key's state. They are called on request paths, from any
/// thread: they must not block or panic, and must return the same for the same arguments.
///
/// A rule that counts in process implements [`LocalRule`] too; its documentation has a complete example.
pub trait Rule: Any + fmt::Debug + Send + Sync + 'static {
    /// The state format, which names the strategy and the version of its encoding. It is part of every key in a store, so that
    /// a state is never read in another format. Change it when the encoding changes; the old keys expire.
    ///
    /// It is a lowercase letter and a digit, such as `"a1"`. The letters of the built-in strategies are reserved, used or not:
    /// `c f g l p r s t x`. Any other text is a [`ConfigError`](crate::ConfigError) when the limiter is built.
    fn state_format(&self) -> &'static str;

    /// The most units that can be charged at one instant: the burst, or the whole quota of a window. A request that costs
    /// more is never admitted. A capacity of more than 999,999,999,999,999 is a [`ConfigError`](crate::ConfigError) when the
    /// limiter is built.
    fn capacity(&self) -> u64;

    /// Computes the status of a request of `cost` units from the `snapshot` of its key.
    ///
    /// `now` is the instant at which the snapshot was taken, on the clock that the rule counts by
    /// ([`follows_wall_clock`](Rule::follows_wall_clock)). [`QuotaStatus::retry_after`] must be exact: the request is admitted
    /// after that wait unless another request is charged first, and no earlier. For a `cost` of 0 only the remaining units and
    /// the reset are read, see [`LimitHandle::status`](crate::store::LimitHandle::status).
    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus;

    /// Whether at least so many units remain by the [status](Rule::status). The provided method is right for all rules; one of
    /// their own may be faster.
    fn has_remaining(&self, snapshot: &Snapshot, now: Timestamp, units: u64) -> bool {
        self.status(snapshot, now, 0).remaining >= units
    }

    /// Whether units refill one after the other, rather than all together at the end of a window. It determines the
    /// time that [`RateLimitHeaders::draft_11`](crate::RateLimitHeaders::draft_11) gives for the remaining units. Default:
    /// false.
    fn refills_gradually(&self) -> bool {
        false
    }

    /// Returns the ID of the window or bucket that a charge went into, for [`ChargeReceipt::window_id`]; `snapshot` is the
    /// key's state right after the charge, `now` the instant of the charge. Default: 0, for rules that have no windows.
    fn window_id(&self, snapshot: &Snapshot, now: Timestamp) -> i64 {
        let _ = (snapshot, now);
        0
    }

    /// Whether the [`Snapshot`] of a key is the same whatever a request costs, so that [`status`](Rule::status) can be computed
    /// from it for other costs. It must be false if the [script](LuaScript) has a `snapshot` function that reads the cost.
    /// Default: false.
    fn snapshot_ignores_cost(&self) -> bool {
        false
    }

    /// Whether the rule counts by the [wall clock](crate::Clock::wall), because its windows are those of a calendar, and not
    /// by the store's monotonic clock. A store that has one clock may ignore it. Default: false.
    fn follows_wall_clock(&self) -> bool {
        false
    }

    /// Whether the caller's key is stored with each charge, so that [`Store::callers`](crate::store::Store::callers) can list
    /// it. For a rule without [permits](Rule::permit_ttl), `RedisStore` lists the entries of the key's Redis list after the
    /// first, which is the strategy's own. Default: false.
    fn records_caller(&self) -> bool {
        false
    }

    /// Whether the state has an entry for each charge, or each unit of one. Such a rule is never charged into debt for a rejected
    /// request ([`ChargeRejectedToo`](crate::store::CounterMode::ChargeRejectedToo)), so that its state stays bounded. Default:
    /// false.
    fn stores_each_unit(&self) -> bool {
        false
    }

    /// Returns the number of a key's units in use, debts included, from its `snapshot` taken at `now`, so that units can be
    /// [credited](crate::PolicyHandle::credit): for a rule whose refunds subtract from all units in use or from the current
    /// window, whatever charge they are of. Default: `None`, for rules that refund each charge separately.
    fn units_in_use(&self, snapshot: &Snapshot, now: Timestamp) -> Option<u64> {
        let _ = (snapshot, now);
        None
    }

    /// The time after which a permit expires unless it is renewed, for a rule whose charges are permits that a request holds
    /// until it has ended (an in-flight limit). The limiter renews them three times per TTL
    /// ([`Op::Renew`](crate::store::Op::Renew)) and refunds them at the end. Default: `None`, for rules whose units refill with
    /// time.
    fn permit_ttl(&self) -> Option<Duration> {
        None
    }

    /// Whether the rule counts the requests that other policies reject, in place of those that are admitted, as a ban does:
    /// see [`CounterMode::CountRejections`](crate::store::CounterMode::CountRejections). Default: false.
    fn counts_rejections(&self) -> bool {
        false
    }

    /// For a ban, returns the rule over the same state whose every charge bans the key for `ban`: for
    /// [`Limiter::block`](crate::Limiter::block). Default: `None`, for rules that are no ban.
    fn manual_ban(&self, ban: Duration) -> Option<Result<Arc<dyn Rule>, InvalidValue>> {
        let _ = ban;
        None
    }

    /// For a ban, returns how long the ban lasts that began at `now`, by the snapshot of an operation at that instant; `None` if
    /// none began then. For [observers](crate::observe::Event::BanBegan). Default: `None`.
    fn ban_begun(&self, snapshot: &Snapshot, now: Timestamp) -> Option<Duration> {
        let _ = (snapshot, now);
        None
    }

    /// Returns the settings of the rule's [leases](crate::Policy::lease): those that it was
    /// [bound with](super::Strategy::bind_leased). Default: `None`, for a rule whose units are charged one request at a time.
    fn lease(&self) -> Option<Lease> {
        None
    }

    /// Returns how long the units of a lease may be spent, from the moment at which the process requested it; `snapshot` is the
    /// key's state right after the charge, `now` the instant of the charge. Default: the lease's
    /// [lifetime](Lease::lifetime). A rule that counts in windows returns the rest of the charge's window, if that is shorter
    /// ([`Lease::lifetime_within`]).
    fn lease_lifetime(&self, snapshot: &Snapshot, now: Timestamp) -> Duration {
        let _ = (snapshot, now);
        self.lease()
            .map_or(Duration::ZERO, |lease| lease.lifetime())
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
