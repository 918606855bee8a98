//! Rules and tables of states whose type is not known.

use std::{
    any::{Any, TypeId},
    fmt,
    hash::BuildHasher,
};

use hashbrown::{DefaultHashBuilder, HashTable, hash_table::Entry};

use super::{ChargeReceipt, LocalRule, Snapshot, State};
use crate::{clock::Timestamp, key::Key};

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

/// A table of states whose type is not known here.
pub trait Table: fmt::Debug + Send {
    /// The state of `key`, if one is kept.
    fn get(&mut self, hash: u64, key: &Key) -> Option<&mut dyn Any>;
    /// The state of `key`, made if there is none.
    fn entry(&mut self, hash: u64, key: &Key) -> &mut dyn Any;
    /// Forgets `key`.
    fn remove(&mut self, hash: u64, key: &Key);
    /// How many keys are kept.
    fn len(&self) -> usize;
    /// Adds when each key will be at its full quota.
    fn expires_at(&self, times: &mut Vec<Timestamp>);
    /// Forgets up to `most` keys that are at their full quota by `time`; returns how many.
    fn forget(&mut self, time: Timestamp, most: usize) -> usize;
    /// The type of the states.
    fn state_type(&self) -> TypeId;
    /// Itself, as what it is.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// The states of one type.
pub(crate) struct States<S> {
    slots: HashTable<Slot<S>>,
    /// The store's own.
    hasher: Hashing,
}

/// How keys are hashed.
pub(crate) type Hashing = DefaultHashBuilder;

/// With a small state, half a cache line: finding a key among many is waiting for its slot. A hash beside it would be
/// quicker to grow by than to make anew, and slower to come by.
struct Slot<S> {
    key: Key,
    state: S,
}

impl<S> fmt::Debug for States<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("States")
            .field("len", &self.slots.len())
            .finish_non_exhaustive()
    }
}

impl<S> States<S> {
    /// No states, of keys that are hashed so.
    pub(crate) fn new(hasher: Hashing) -> Self {
        let slots = HashTable::new();
        Self { slots, hasher }
    }

    /// The state of `key`, if one is kept.
    pub(crate) fn find(&mut self, hash: u64, key: &Key) -> Option<&mut S> {
        let slot = self.slots.find_mut(hash, |slot| slot.key == *key)?;
        Some(&mut slot.state)
    }
}

/// Where a key stands.
#[inline]
pub(crate) fn hash(hasher: &Hashing, key: &Key) -> u64 {
    hasher.hash_one(key.words())
}

fn hash_of<S>(hasher: &Hashing, slot: &Slot<S>) -> u64 {
    hash(hasher, &slot.key)
}

impl<S: State> Table for States<S> {
    fn get(&mut self, hash: u64, key: &Key) -> Option<&mut dyn Any> {
        Some(self.find(hash, key)?)
    }

    fn entry(&mut self, hash: u64, key: &Key) -> &mut dyn Any {
        let hasher = &self.hasher;
        let entry = self
            .slots
            .entry(hash, |slot| slot.key == *key, |slot| hash_of(hasher, slot));
        let slot = match entry {
            Entry::Occupied(slot) => slot,
            Entry::Vacant(place) => place.insert(Slot {
                key: *key,
                state: S::default(),
            }),
        };
        &mut slot.into_mut().state
    }

    fn remove(&mut self, hash: u64, key: &Key) {
        if let Ok(slot) = self.slots.find_entry(hash, |slot| slot.key == *key) {
            drop(slot.remove());
        }
    }

    fn len(&self) -> usize {
        self.slots.len()
    }

    fn expires_at(&self, times: &mut Vec<Timestamp>) {
        times.extend(self.slots.iter().map(|slot| slot.state.expires_at()));
    }

    fn forget(&mut self, time: Timestamp, most: usize) -> usize {
        let before = self.slots.len();
        let mut left = most;
        self.slots.retain(|slot| {
            let forget = left > 0 && slot.state.expires_at() <= time;
            left -= usize::from(forget);
            !forget
        });
        // A flood of keys that has passed must not keep its memory.
        if self.slots.len() < self.slots.capacity() / 4 {
            let hasher = &self.hasher;
            let few = self.slots.len() * 2;
            self.slots.shrink_to(few, |slot| hash_of(hasher, slot));
        }
        before - self.slots.len()
    }

    fn state_type(&self) -> TypeId {
        TypeId::of::<S>()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
