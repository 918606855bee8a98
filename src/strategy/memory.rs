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

    /// How many units could be taken now; negative in debt. A state that can't be (the clock stepped back) is mended.
    fn room(&self, state: &mut Self::State, now: Timestamp) -> i64;

    /// Charges `units`, into debt if there was less room.
    fn take(&self, state: &mut Self::State, now: Timestamp, units: u64, by: &Key);

    /// Charges as many of `times` requests of `units` each as there is [room](LocalRule::room) for; returns how many, and what
    /// is [seen](LocalRule::seen) then. One that works all of it out at a glance is faster, and does the same.
    fn admit(
        &self,
        state: &mut Self::State,
        now: Timestamp,
        times: u64,
        units: u64,
        by: &Key,
    ) -> (u64, Snapshot) {
        admit(self, state, now, times, units, by)
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
        by: &Key,
    ) -> u64;

    /// Lets the permit that `by` holds live for one life from now; returns its units, or 0 if it is gone.
    fn renew(&self, _state: &mut Self::State, _now: Timestamp, _by: &Key) -> u64 {
        0
    }

    /// What [`Rule::outlook`] needs to know.
    fn seen(&self, state: &Self::State, now: Timestamp, cost: u64) -> Snapshot;

    /// Who made the charges that count now, in order, one for each unit; nothing where the state doesn't say.
    fn callers(&self, _state: &Self::State, _now: Timestamp) -> Vec<Key> {
        Vec::new()
    }
}

/// [`LocalRule::admit`], of what every rule can do.
pub(super) fn admit<M: LocalRule + ?Sized>(
    rule: &M,
    state: &mut M::State,
    now: Timestamp,
    times: u64,
    units: u64,
    by: &Key,
) -> (u64, Snapshot) {
    let room = u64::try_from(rule.room(state, now)).unwrap_or(0);
    let fits = match times {
        1 => u64::from(room >= units),
        times => room.checked_div(units).unwrap_or(times).min(times),
    };
    if fits * units > 0 {
        rule.take(state, now, fits * units, by);
    }
    (fits, rule.seen(state, now, units))
}

/// What is kept for a key in process.
pub trait State: Default + Send + 'static {
    /// When the full quota is available again, so that the key need not be kept.
    fn full_at(&self) -> Timestamp;
}

/// Any rule's [`LocalRule`] half, over a state whose type is not known here. There is nothing to implement: every
/// [`LocalRule`] is one, and [`Rule::memory`] returns `Some(self)`.
pub trait ErasedLocalRule: sealed::Sealed + Send + Sync {
    /// See [`LocalRule::room`]; `None` is a key that was never charged.
    fn room(&self, state: Option<&mut dyn Any>, now: Timestamp) -> i64;
    /// See [`LocalRule::take`].
    fn take(&self, state: &mut dyn Any, now: Timestamp, units: u64, by: &Key);
    /// See [`LocalRule::refund`]; `None` is a key that was never charged. Never more than is left on the receipt.
    fn refund(
        &self,
        state: Option<&mut dyn Any>,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        by: &Key,
    ) -> u64;
    /// See [`LocalRule::renew`].
    fn renew(&self, state: &mut dyn Any, now: Timestamp, by: &Key) -> u64;
    /// See [`LocalRule::seen`]; `None` is a key that was never charged.
    fn seen(&self, state: Option<&dyn Any>, now: Timestamp, cost: u64) -> Snapshot;
    /// See [`LocalRule::callers`].
    fn callers(&self, state: &dyn Any, now: Timestamp) -> Vec<Key>;
    /// [`LocalRule::admit`], of a key that is in the table.
    #[doc(hidden)]
    fn take_known(
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
    fn room(&self, state: Option<&mut dyn Any>, now: Timestamp) -> i64 {
        match state.and_then(<dyn Any>::downcast_mut) {
            Some(state) => LocalRule::room(self, state, now),
            None => LocalRule::room(self, &mut M::State::default(), now),
        }
    }

    fn take(&self, state: &mut dyn Any, now: Timestamp, units: u64, by: &Key) {
        if let Some(state) = state.downcast_mut() {
            LocalRule::take(self, state, now, units, by);
        }
    }

    fn refund(
        &self,
        state: Option<&mut dyn Any>,
        now: Timestamp,
        receipt: &ChargeReceipt,
        want: u64,
        by: &Key,
    ) -> u64 {
        let want = want.min(receipt.left);
        match state.and_then(<dyn Any>::downcast_mut) {
            Some(state) => LocalRule::refund(self, state, now, receipt, want, by),
            None => LocalRule::refund(self, &mut M::State::default(), now, receipt, want, by),
        }
    }

    fn renew(&self, state: &mut dyn Any, now: Timestamp, by: &Key) -> u64 {
        state
            .downcast_mut()
            .map_or(0, |state| LocalRule::renew(self, state, now, by))
    }

    fn seen(&self, state: Option<&dyn Any>, now: Timestamp, cost: u64) -> Snapshot {
        match state.and_then(<dyn Any>::downcast_ref) {
            Some(state) => LocalRule::seen(self, state, now, cost),
            None => LocalRule::seen(self, &M::State::default(), now, cost),
        }
    }

    fn callers(&self, state: &dyn Any, now: Timestamp) -> Vec<Key> {
        state
            .downcast_ref()
            .map_or(Vec::new(), |state| LocalRule::callers(self, state, now))
    }

    fn take_known(
        &self,
        table: &mut dyn Table,
        (hash, key): (u64, &Key),
        now: Timestamp,
        times: u64,
        units: u64,
    ) -> Option<(u64, Snapshot)> {
        let states: &mut States<M::State> = table.as_any().downcast_mut()?;
        let state = states.find(hash, key)?;
        Some(self.admit(state, now, times, units, key))
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
