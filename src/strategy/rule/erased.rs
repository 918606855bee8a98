//! In-process halves of rules with an erased type of state.

use std::{
    any::{Any, TypeId},
    fmt,
};

use super::{
    ChargeReceipt, Snapshot,
    table::{KeyHasher, Table},
};
use crate::{clock::Timestamp, key::Key};

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
