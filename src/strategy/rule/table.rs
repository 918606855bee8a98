//! States of keys in process, and the tables that hold one shard's part of a policy's.

use std::{
    any::{Any, TypeId},
    fmt,
    hash::BuildHasher,
};

use hashbrown::{DefaultHashBuilder, HashTable, hash_table::Entry};

use crate::{clock::Timestamp, key::Key};

/// The state of one key in process: see [`LocalRule::State`](super::LocalRule::State). The default is the state of a key that
/// was never charged.
pub trait State: Default + Send + 'static {
    /// When the full quota is available again, so that the state need not be kept: a store may drop it from then on.
    fn expires_at(&self) -> Timestamp;
}

/// A table of states whose type is not known here.
pub(crate) trait Table: fmt::Debug + Send {
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
    fn evict_expired(&mut self, time: Timestamp, most: usize) -> usize;
    /// The type of the states.
    fn state_type(&self) -> TypeId;
    /// Itself, as what it is.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// The states of one type.
pub(crate) struct TypedTable<S> {
    slots: HashTable<Slot<S>>,
    /// The store's own.
    hasher: KeyHasher,
}

/// How keys are hashed.
pub(crate) type KeyHasher = DefaultHashBuilder;

/// With a small state, half a cache line: finding a key among many is waiting for its slot. A hash beside it would be
/// quicker to grow by than to make anew, and slower to come by.
struct Slot<S> {
    key: Key,
    state: S,
}

impl<S> fmt::Debug for TypedTable<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedTable")
            .field("len", &self.slots.len())
            .finish_non_exhaustive()
    }
}

impl<S> TypedTable<S> {
    /// No states, of keys that are hashed so.
    pub(crate) fn new(hasher: KeyHasher) -> Self {
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
pub(crate) fn hash(hasher: &KeyHasher, key: &Key) -> u64 {
    hasher.hash_one(key.words())
}

fn slot_hash<S>(hasher: &KeyHasher, slot: &Slot<S>) -> u64 {
    hash(hasher, &slot.key)
}

impl<S: State> Table for TypedTable<S> {
    fn get(&mut self, hash: u64, key: &Key) -> Option<&mut dyn Any> {
        Some(self.find(hash, key)?)
    }

    fn entry(&mut self, hash: u64, key: &Key) -> &mut dyn Any {
        let hasher = &self.hasher;
        let entry = self.slots.entry(
            hash,
            |slot| slot.key == *key,
            |slot| slot_hash(hasher, slot),
        );
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

    fn evict_expired(&mut self, time: Timestamp, most: usize) -> usize {
        let before = self.slots.len();
        let mut left = most;
        self.slots.retain(|slot| {
            let evict_expired = left > 0 && slot.state.expires_at() <= time;
            left -= usize::from(evict_expired);
            !evict_expired
        });
        // A flood of keys that has passed must not keep its memory.
        if self.slots.len() < self.slots.capacity() / 4 {
            let hasher = &self.hasher;
            let few = self.slots.len() * 2;
            self.slots.shrink_to(few, |slot| slot_hash(hasher, slot));
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
