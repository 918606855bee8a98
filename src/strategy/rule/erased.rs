//! In-process halves of rules, with the type of their state erased.

use std::{
    any::{Any, TypeId},
    fmt,
};

use super::{
    ChargeReceipt, Snapshot,
    table::{KeyHasher, Table},
};
use crate::{clock::Timestamp, key::Key};

/// A rule's in-process half ([`LocalRule`](super::LocalRule)), whatever the type of its state: what [`Rule::local_rule`](super::Rule::local_rule)
/// returns.
///
/// A store of your own counts by it: it keeps a [`LocalState`] for each key, and calls these methods with it.
/// [`Store`](crate::store::Store) has an example.
///
/// A state that a rule with another type of state has made counts as new: no units are in use.
#[derive(Clone, Copy)]
pub struct ErasedLocalRule<'a>(pub(crate) &'a dyn AnyRule);

impl ErasedLocalRule<'_> {
    /// The state of a key that was never charged.
    pub fn new_state(self) -> LocalState {
        LocalState(self.0.new_state())
    }

    /// See [`LocalRule::available`](super::LocalRule::available).
    pub fn available(self, state: &mut LocalState, now: Timestamp) -> i64 {
        self.0.available(Some(self.typed(state)), now)
    }

    /// See [`LocalRule::charge`](super::LocalRule::charge).
    pub fn charge(self, state: &mut LocalState, now: Timestamp, units: u64, caller: &Key) {
        self.0.charge(self.typed(state), now, units, caller);
    }

    /// See [`LocalRule::try_charge`](super::LocalRule::try_charge).
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

    /// See [`LocalRule::refund`](super::LocalRule::refund). No more than [remains](ChargeReceipt::remaining) on the receipt is refunded.
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

    /// See [`LocalRule::renew`](super::LocalRule::renew).
    pub fn renew(self, state: &mut LocalState, now: Timestamp, caller: &Key) -> u64 {
        self.0.renew(self.typed(state), now, caller)
    }

    /// See [`LocalRule::snapshot`](super::LocalRule::snapshot).
    pub fn snapshot(self, state: &LocalState, now: Timestamp, cost: u64) -> Snapshot {
        self.0.snapshot(Some(&*state.0), now, cost)
    }

    /// See [`LocalRule::callers`](super::LocalRule::callers).
    pub fn callers(self, state: &LocalState, now: Timestamp) -> Vec<Key> {
        self.0.callers(&*state.0, now)
    }

    /// See [`State::expires_at`](super::State::expires_at): from then on the state need not be kept.
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

/// The state of a key in process, of a type that its rule knows: see [`ErasedLocalRule::new_state`].
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
    /// Whether a table holds states of this rule's type.
    fn stores_type_of(&self, table: &dyn Table) -> bool;
}
