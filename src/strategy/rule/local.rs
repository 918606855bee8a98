//! The half of a rule that counts in process.

use std::{
    any::{Any, TypeId},
    fmt,
};

use super::{
    ChargeReceipt, Rule, Snapshot,
    table::{KeyHasher, State, Table, TypedTable},
};
use crate::{clock::Timestamp, key::Key};

/// The half of a rule that counts in process.
///
/// A store keeps a [`State`](LocalRule::State) for each key, and calls these methods with it, under a lock: they must not
/// block, and must not call the store. `now` is the store's clock, or the wall clock if the rule
/// [follows](super::RuleInfo::follows_wall_clock) it. It may step in either direction: a state that is impossible after a step must not
/// reject for longer than one period.
///
/// `units`, `times * units` and `want` are at most [`Units::MAX`](crate::store::Units::MAX) for each request, far more than any
/// capacity.
///
/// ```
/// use std::{sync::Arc, time::Duration};
///
/// use tollgate::{
///     Key, Limiter, Policy, Quota, RetryAfter, clock::Timestamp, error::InvalidValue,
///     strategy::{ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, Rule, RuleInfo, Snapshot, State, Strategy, Terms},
/// };
///
/// /// Units that are available again when a key was not charged for a period.
/// #[derive(Clone, Copy, Debug)]
/// struct Cooldown;
///
/// impl Strategy for Cooldown {
///     fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
///         let (units, period) = (quota.amount(), quota.period());
///         Ok(Arc::new(Cooling { units, period }))
///     }
/// }
///
/// #[derive(Debug)]
/// struct Cooling {
///     units: u64,
///     period: Duration,
/// }
///
/// #[derive(Default)]
/// struct Used {
///     units: u64,
///     until: Timestamp,
/// }
///
/// impl State for Used {
///     fn expires_at(&self) -> Timestamp {
///         self.until
///     }
/// }
///
/// impl Cooling {
///     fn used(&self, state: &Used, now: Timestamp) -> u64 {
///         if state.until > now { state.units } else { 0 }
///     }
/// }
///
/// impl LocalRule for Cooling {
///     type State = Used;
///
///     fn available(&self, state: &mut Used, now: Timestamp) -> i64 {
///         // Should the clock have stepped back, it ends one period from now.
///         state.until = state.until.min(now + self.period);
///         self.units as i64 - self.used(state, now) as i64
///     }
///
///     fn charge(&self, state: &mut Used, now: Timestamp, units: u64, _caller: &Key) {
///         let units = self.used(state, now) + units;
///         *state = Used { units, until: now + self.period };
///     }
///
///     fn refund(
///         &self,
///         state: &mut Used,
///         now: Timestamp,
///         _receipt: &ChargeReceipt,
///         want: u64,
///         _caller: &Key,
///     ) -> u64 {
///         let refunded = want.min(self.used(state, now));
///         state.units -= refunded;
///         refunded
///     }
///
///     fn snapshot(&self, state: &Used, now: Timestamp, _cost: u64) -> Snapshot {
///         let wait = state.until.since(now).min(self.period).as_micros() as i64;
///         Snapshot::new([self.used(state, now) as i64, wait])
///     }
/// }
///
/// impl Rule for Cooling {
///     fn info(&self) -> RuleInfo {
///         RuleInfo::new("q1", self.units)
///     }
///
///     fn status(&self, snapshot: &Snapshot, _now: Timestamp, cost: u64) -> QuotaStatus {
///         let [used, wait] = snapshot.values();
///         let remaining = self.units.saturating_sub(used as u64);
///         let wait = Duration::from_micros(wait as u64);
///         let retry_after = match cost {
///             cost if cost > self.units => RetryAfter::Never,
///             cost if cost > remaining => RetryAfter::In(wait),
///             _ => RetryAfter::Now,
///         };
///         QuotaStatus::new(remaining, retry_after, wait)
///     }
///
///     fn script(&self) -> Option<LuaScript> {
///         None
///     }
///
///     fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
///         Some(ErasedLocalRule::new(self))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("logins", Quota::requests(2).per_minute()).strategy(Cooldown);
/// let limiter = Limiter::builder().policy(policy).build()?;
/// let decision = limiter.check("alice").times(3).await;
/// assert_eq!(decision.admitted(), 2);
/// # Ok(())
/// # }
/// ```
pub trait LocalRule: Rule {
    /// The state of one key.
    type State: State;

    /// Returns the number of units that can be charged now; negative in debt. It is called before every charge, and corrects a
    /// state that is out of bounds because the clock stepped back.
    fn available(&self, state: &mut Self::State, now: Timestamp) -> i64;

    /// Charges `units`, at least 1, into debt if fewer are available. `caller` is the key to store with the charge, if the rule
    /// [records callers](super::RuleInfo::records_caller).
    fn charge(&self, state: &mut Self::State, now: Timestamp, units: u64, caller: &Key);

    /// Charges as many of `times` equal requests of `units` each as fit. Returns their number, and the
    /// [snapshot](LocalRule::snapshot) afterwards.
    ///
    /// The default calls the other methods. A rule that overrides it to save time must do the same.
    fn try_charge(
        &self,
        state: &mut Self::State,
        now: Timestamp,
        times: u64,
        units: u64,
        caller: &Key,
    ) -> (u64, Snapshot) {
        try_charge(self, state, now, times, units, caller)
    }

    /// Refunds up to `want` units of the charge that `receipt` describes, and returns the number of refunded units.
    ///
    /// Only units that have not refilled already are refunded, and only to the window, bucket or entries that were charged;
    /// `want` is at most the number of units [remaining](ChargeReceipt::remaining) on the receipt. If units refill
    /// continuously, the rest of a partly refilled unit is refunded too, and counts as one. Of a
    /// [receipt of now](ChargeReceipt::is_now) no unit has refilled, and the window is the current one
    /// ([`is_of_window`](ChargeReceipt::is_of_window)). `caller` is the key that was stored with the charge.
    fn refund(
        &self,
        state: &mut Self::State,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        caller: &Key,
    ) -> u64;

    /// Extends the permits of `caller` to one [TTL](super::RuleInfo::permit_ttl) from now. Returns their number, or 0 if they have
    /// expired. Default: 0, for rules without permits.
    fn renew(&self, state: &mut Self::State, now: Timestamp, caller: &Key) -> u64 {
        let _ = (state, now, caller);
        0
    }

    /// Keeps the permits of `caller` from expiring (`is_held`), or has them expire one [TTL](super::RuleInfo::permit_ttl) from now.
    /// A store in process calls it when a request begins and ends to hold them ([`Store::keep_alive`](crate::store::Store::keep_alive)).
    /// Default: does nothing, for rules without permits.
    fn hold(&self, state: &mut Self::State, now: Timestamp, caller: &Key, is_held: bool) {
        let _ = (state, now, caller, is_held);
    }

    /// Returns the state as the numbers that [`Rule::status`] reads. `cost` is that of the request the status is for; a rule
    /// whose numbers include this request's wait reads it, others ignore it. A peek does not call [`available`](LocalRule::available)
    /// first: a state that is out of bounds is reported as that would correct it.
    fn snapshot(&self, state: &Self::State, now: Timestamp, cost: u64) -> Snapshot;

    /// Returns the callers whose charges count now, oldest first, one for each unit. Default: none, for rules that don't
    /// [record callers](super::RuleInfo::records_caller).
    fn callers(&self, state: &Self::State, now: Timestamp) -> Vec<Key> {
        let _ = (state, now);
        Vec::new()
    }
}

/// [`LocalRule::try_charge`] by the methods that every rule has.
pub(crate) fn try_charge<R: LocalRule + ?Sized>(
    rule: &R,
    state: &mut R::State,
    now: Timestamp,
    times: u64,
    units: u64,
    caller: &Key,
) -> (u64, Snapshot) {
    let available = u64::try_from(rule.available(state, now)).unwrap_or(0);
    let fits = fit(available, units, times);
    let charged = fits.saturating_mul(units);
    if charged > 0 {
        rule.charge(state, now, charged, caller);
    }
    (fits, rule.snapshot(state, now, units))
}

/// For how many of `times` requests of `units` each `available` units are enough.
#[inline]
pub(crate) fn fit(available: u64, units: u64, times: u64) -> u64 {
    match times {
        // A single request, the most frequent case, needs no division.
        1 => u64::from(available >= units),
        _ => available.checked_div(units).unwrap_or(times).min(times),
    }
}

impl<'a> ErasedLocalRule<'a> {
    /// The in-process half of `rule`, for [`Rule::local_rule`](super::Rule::local_rule).
    pub fn new<R: LocalRule>(rule: &'a R) -> Self {
        Self(rule)
    }
}

/// States of another type never get here: `ErasedLocalRule::typed` replaces them, and stores check
/// [`AnyRule::state_type`].
impl<R: LocalRule> AnyRule for R {
    fn available(&self, state: Option<&mut dyn Any>, now: Timestamp) -> i64 {
        match state.and_then(<dyn Any>::downcast_mut) {
            Some(state) => LocalRule::available(self, state, now),
            None => LocalRule::available(self, &mut R::State::default(), now),
        }
    }

    fn charge(&self, state: &mut dyn Any, now: Timestamp, units: u64, caller: &Key) {
        if let Some(state) = state.downcast_mut() {
            LocalRule::charge(self, state, now, units, caller);
        }
    }

    fn try_charge(
        &self,
        state: &mut dyn Any,
        now: Timestamp,
        count: u64,
        units: u64,
        caller: &Key,
    ) -> (u64, Snapshot) {
        match state.downcast_mut() {
            Some(state) => LocalRule::try_charge(self, state, now, count, units, caller),
            None => Default::default(),
        }
    }

    fn refund(
        &self,
        state: Option<&mut dyn Any>,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        caller: &Key,
    ) -> u64 {
        let want = want.min(receipt.remaining);
        match state.and_then(<dyn Any>::downcast_mut) {
            Some(state) => LocalRule::refund(self, state, now, receipt, want, caller),
            None => LocalRule::refund(self, &mut R::State::default(), now, receipt, want, caller),
        }
    }

    fn renew(&self, state: &mut dyn Any, now: Timestamp, caller: &Key) -> u64 {
        state
            .downcast_mut()
            .map_or(0, |state| LocalRule::renew(self, state, now, caller))
    }

    fn hold(&self, state: &mut dyn Any, now: Timestamp, caller: &Key, is_held: bool) {
        if let Some(state) = state.downcast_mut() {
            LocalRule::hold(self, state, now, caller, is_held);
        }
    }

    fn snapshot(&self, state: Option<&dyn Any>, now: Timestamp, cost: u64) -> Snapshot {
        match state.and_then(<dyn Any>::downcast_ref) {
            Some(state) => LocalRule::snapshot(self, state, now, cost),
            None => LocalRule::snapshot(self, &R::State::default(), now, cost),
        }
    }

    fn callers(&self, state: &dyn Any, now: Timestamp) -> Vec<Key> {
        state
            .downcast_ref()
            .map_or(Vec::new(), |state| LocalRule::callers(self, state, now))
    }

    fn expires_at(&self, state: &dyn Any) -> Timestamp {
        let state: Option<&R::State> = state.downcast_ref();
        state.map_or(Timestamp::default(), State::expires_at)
    }

    fn new_state(&self) -> Box<dyn Any + Send> {
        Box::new(R::State::default())
    }

    fn state_type(&self) -> TypeId {
        TypeId::of::<R::State>()
    }

    fn try_charge_existing(
        &self,
        table: &mut dyn Table,
        (hash, key): (u64, &Key),
        now: Timestamp,
        count: u64,
        units: u64,
    ) -> Option<(u64, Snapshot)> {
        let states: &mut TypedTable<R::State> = table.as_any().downcast_mut()?;
        let state = states.find(hash, key)?;
        Some(LocalRule::try_charge(self, state, now, count, units, key))
    }

    fn table(&self, hasher: KeyHasher) -> Box<dyn Table> {
        Box::new(TypedTable::<R::State>::new(hasher))
    }
}

/// A rule's in-process half ([`LocalRule`](super::LocalRule)) with an erased type of state: from
/// [`Rule::local_rule`](super::Rule::local_rule).
///
/// A store of your own counts by it: it stores a [`LocalState`] for each key, and calls these methods with it.
/// [`Store`](crate::store::Store) has an example.
///
/// A state made by a rule with another type of state is treated as new: no units are in use.
#[derive(Clone, Copy)]
pub struct ErasedLocalRule<'a>(pub(crate) &'a dyn AnyRule);

impl ErasedLocalRule<'_> {
    /// Returns the state of a key that was never charged.
    pub fn new_state(self) -> LocalState {
        LocalState(self.0.new_state())
    }

    /// Returns the units that can be charged now: see [`LocalRule::available`](super::LocalRule::available).
    pub fn available(self, state: &mut LocalState, now: Timestamp) -> i64 {
        self.0.available(Some(self.typed(state)), now)
    }

    /// Charges `units`, into debt if need be: see [`LocalRule::charge`](super::LocalRule::charge).
    pub fn charge(self, state: &mut LocalState, now: Timestamp, units: u64, caller: &Key) {
        self.0.charge(self.typed(state), now, units, caller);
    }

    /// Charges as many of `count` equal requests as fit: see [`LocalRule::try_charge`](super::LocalRule::try_charge).
    pub fn try_charge(
        self,
        state: &mut LocalState,
        now: Timestamp,
        count: u64,
        units: u64,
        caller: &Key,
    ) -> (u64, Snapshot) {
        let state = self.typed(state);
        self.0.try_charge(state, now, count, units, caller)
    }

    /// Refunds up to `want` units, at most those [remaining](ChargeReceipt::remaining) on the receipt: see
    /// [`LocalRule::refund`](super::LocalRule::refund).
    pub fn refund(
        self,
        state: &mut LocalState,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        caller: &Key,
    ) -> u64 {
        let state = Some(self.typed(state));
        self.0.refund(state, now, receipt, want, caller)
    }

    /// Renews the caller's permits: see [`LocalRule::renew`](super::LocalRule::renew).
    pub fn renew(self, state: &mut LocalState, now: Timestamp, caller: &Key) -> u64 {
        self.0.renew(self.typed(state), now, caller)
    }

    /// Keeps the caller's permits from expiring, or lets them expire: see [`LocalRule::hold`](super::LocalRule::hold).
    pub fn hold(self, state: &mut LocalState, now: Timestamp, caller: &Key, is_held: bool) {
        self.0.hold(self.typed(state), now, caller, is_held);
    }

    /// Returns the state as a snapshot: see [`LocalRule::snapshot`](super::LocalRule::snapshot).
    pub fn snapshot(self, state: &LocalState, now: Timestamp, cost: u64) -> Snapshot {
        self.0.snapshot(Some(&*state.0), now, cost)
    }

    /// Returns the callers whose charges count: see [`LocalRule::callers`](super::LocalRule::callers).
    pub fn callers(self, state: &LocalState, now: Timestamp) -> Vec<Key> {
        self.0.callers(&*state.0, now)
    }

    /// Returns the instant from which the state need not be stored: see [`State::expires_at`](super::State::expires_at).
    pub fn expires_at(self, state: &LocalState) -> Timestamp {
        self.0.expires_at(&*state.0)
    }

    /// The state; one of another rule's type is replaced by a new one.
    fn typed(self, state: &mut LocalState) -> &mut dyn Any {
        if (*state.0).type_id() != self.0.state_type() {
            *state = self.new_state();
        }
        &mut *state.0
    }
}

impl fmt::Debug for ErasedLocalRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ErasedLocalRule").field(&self.0).finish()
    }
}

/// The state of a key in process, with an erased type: from [`ErasedLocalRule::new_state`].
pub struct LocalState(Box<dyn Any + Send>);

impl fmt::Debug for LocalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalState").finish_non_exhaustive()
    }
}

/// The methods of a [`LocalRule`](super::LocalRule), with the type of the state erased. A state of `None` is that of a key that
/// was never charged.
pub(crate) trait AnyRule: fmt::Debug + Send + Sync {
    fn available(&self, state: Option<&mut dyn Any>, now: Timestamp) -> i64;
    fn charge(&self, state: &mut dyn Any, now: Timestamp, units: u64, caller: &Key);
    fn try_charge(
        &self,
        state: &mut dyn Any,
        now: Timestamp,
        count: u64,
        units: u64,
        caller: &Key,
    ) -> (u64, Snapshot);
    fn refund(
        &self,
        state: Option<&mut dyn Any>,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        caller: &Key,
    ) -> u64;
    fn renew(&self, state: &mut dyn Any, now: Timestamp, caller: &Key) -> u64;
    fn hold(&self, state: &mut dyn Any, now: Timestamp, caller: &Key, is_held: bool);
    fn snapshot(&self, state: Option<&dyn Any>, now: Timestamp, cost: u64) -> Snapshot;
    fn callers(&self, state: &dyn Any, now: Timestamp) -> Vec<Key>;
    fn expires_at(&self, state: &dyn Any) -> Timestamp;
    fn new_state(&self) -> Box<dyn Any + Send>;
    fn state_type(&self) -> TypeId;
    /// [`LocalRule::try_charge`](super::LocalRule::try_charge) of a key, by its hash, if the table has a state of it.
    fn try_charge_existing(
        &self,
        table: &mut dyn Table,
        hash_and_key: (u64, &Key),
        now: Timestamp,
        count: u64,
        units: u64,
    ) -> Option<(u64, Snapshot)>;
    /// An empty table of this rule's states.
    fn table(&self, hasher: KeyHasher) -> Box<dyn Table>;
}
