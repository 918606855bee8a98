//! The half of a rule that counts in process.

use std::any::{Any, TypeId};

use super::{
    ChargeReceipt, Rule, Snapshot,
    table::{Hashing, States, Table},
};
use crate::{clock::Timestamp, key::Key};

/// The half of a rule that counts in process. Its state is of a type of its own.
pub trait LocalRule: Rule {
    /// What is kept for a key. The default is a key that was never charged.
    type State: State;

    /// How many units could be charged now; negative in debt. A state that can't be (the clock stepped back) is mended.
    fn available(&self, state: &mut Self::State, now: Timestamp) -> i64;

    /// Charges `units`, into debt if fewer are available. `caller` is for rules that [record it](Rule::records_caller).
    fn charge(&self, state: &mut Self::State, now: Timestamp, units: u64, caller: &Key);

    /// Charges for as many of `times` requests of `units` each as there are units [available](LocalRule::available) for;
    /// returns how many, and the [snapshot](LocalRule::snapshot) afterwards. The default calls the other methods; a rule
    /// that does it in one step is faster, and does the same.
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

    /// Gives up to `want` units of `receipt` back, and returns how many: only what time has not given back already, and only
    /// where they were taken from. Where time gives units back continuously, the part of a unit that is left is given back
    /// too, and counts as one.
    fn refund(
        &self,
        state: &mut Self::State,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        caller: &Key,
    ) -> u64;

    /// Extends the permit that `caller` holds to one TTL from now; returns its units, or 0 if it is gone.
    fn renew(&self, _state: &mut Self::State, _now: Timestamp, _caller: &Key) -> u64 {
        0
    }

    /// The state in the three numbers that [`Rule::status`] reads, for a request of `cost` units.
    fn snapshot(&self, state: &Self::State, now: Timestamp, cost: u64) -> Snapshot;

    /// Who made the charges that count now, in order, one for each unit; nothing where the state doesn't say.
    fn callers(&self, _state: &Self::State, _now: Timestamp) -> Vec<Key> {
        Vec::new()
    }
}

/// [`LocalRule::try_charge`] by the methods that every rule has.
pub(super) fn try_charge<M: LocalRule + ?Sized>(
    rule: &M,
    state: &mut M::State,
    now: Timestamp,
    times: u64,
    units: u64,
    caller: &Key,
) -> (u64, Snapshot) {
    let available = u64::try_from(rule.available(state, now)).unwrap_or(0);
    let fits = match times {
        1 => u64::from(available >= units),
        times => available.checked_div(units).unwrap_or(times).min(times),
    };
    if fits * units > 0 {
        rule.charge(state, now, fits * units, caller);
    }
    (fits, rule.snapshot(state, now, units))
}

/// What is kept for a key in process.
pub trait State: Default + Send + 'static {
    /// When the full quota is available again, so that the key need not be kept.
    fn expires_at(&self) -> Timestamp;
}

/// Any rule's [`LocalRule`] half, over a state whose type is not known here. There is nothing to implement: every
/// [`LocalRule`] is one, and [`Rule::memory`] returns `Some(self)`.
pub trait ErasedLocalRule: sealed::Sealed + Send + Sync {
    /// See [`LocalRule::available`]; `None` is a key that was never charged.
    fn available(&self, state: Option<&mut dyn Any>, now: Timestamp) -> i64;
    /// See [`LocalRule::charge`].
    fn charge(&self, state: &mut dyn Any, now: Timestamp, units: u64, caller: &Key);
    /// See [`LocalRule::refund`]; `None` is a key that was never charged. Never more than remains on the receipt.
    fn refund(
        &self,
        state: Option<&mut dyn Any>,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        caller: &Key,
    ) -> u64;
    /// See [`LocalRule::renew`].
    fn renew(&self, state: &mut dyn Any, now: Timestamp, caller: &Key) -> u64;
    /// See [`LocalRule::snapshot`]; `None` is a key that was never charged.
    fn snapshot(&self, state: Option<&dyn Any>, now: Timestamp, cost: u64) -> Snapshot;
    /// See [`LocalRule::callers`].
    fn callers(&self, state: &dyn Any, now: Timestamp) -> Vec<Key>;
    /// [`LocalRule::try_charge`], of a key that is in the table.
    #[doc(hidden)]
    fn try_charge_known(
        &self,
        table: &mut dyn Table,
        at: (u64, &Key),
        now: Timestamp,
        times: u64,
        units: u64,
    ) -> Option<(u64, Snapshot)>;
    #[doc(hidden)]
    fn table(&self, hashing: Hashing) -> Box<dyn Table>;
    #[doc(hidden)]
    fn holds(&self, table: &dyn Table) -> bool;
}

/// A state of another type can't get here: [`ErasedLocalRule::holds`] is asked when a rule is bound to a table.
impl<M: LocalRule> ErasedLocalRule for M {
    fn available(&self, state: Option<&mut dyn Any>, now: Timestamp) -> i64 {
        match state.and_then(<dyn Any>::downcast_mut) {
            Some(state) => LocalRule::available(self, state, now),
            None => LocalRule::available(self, &mut M::State::default(), now),
        }
    }

    fn charge(&self, state: &mut dyn Any, now: Timestamp, units: u64, caller: &Key) {
        if let Some(state) = state.downcast_mut() {
            LocalRule::charge(self, state, now, units, caller);
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
            None => LocalRule::refund(self, &mut M::State::default(), now, receipt, want, caller),
        }
    }

    fn renew(&self, state: &mut dyn Any, now: Timestamp, caller: &Key) -> u64 {
        state
            .downcast_mut()
            .map_or(0, |state| LocalRule::renew(self, state, now, caller))
    }

    fn snapshot(&self, state: Option<&dyn Any>, now: Timestamp, cost: u64) -> Snapshot {
        match state.and_then(<dyn Any>::downcast_ref) {
            Some(state) => LocalRule::snapshot(self, state, now, cost),
            None => LocalRule::snapshot(self, &M::State::default(), now, cost),
        }
    }

    fn callers(&self, state: &dyn Any, now: Timestamp) -> Vec<Key> {
        state
            .downcast_ref()
            .map_or(Vec::new(), |state| LocalRule::callers(self, state, now))
    }

    fn try_charge_known(
        &self,
        table: &mut dyn Table,
        (hash, key): (u64, &Key),
        now: Timestamp,
        times: u64,
        units: u64,
    ) -> Option<(u64, Snapshot)> {
        let states: &mut States<M::State> = table.as_any().downcast_mut()?;
        let state = states.find(hash, key)?;
        Some(self.try_charge(state, now, times, units, key))
    }

    fn table(&self, hashing: Hashing) -> Box<dyn Table> {
        Box::new(States::<M::State>::new(hashing))
    }

    fn holds(&self, table: &dyn Table) -> bool {
        table.state_type() == TypeId::of::<M::State>()
    }
}

mod sealed {
    pub trait Sealed {}
    impl<M: super::LocalRule> Sealed for M {}
}
