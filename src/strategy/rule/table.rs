//! The state of a key in process, and the tables that hold one shard's part of a policy's states.

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
    /// Returns the instant at which the full quota is available again; a store may drop the state from then on.
    fn expires_at(&self) -> Timestamp;

    /// Returns how much of the quota is in use at `now`, as a number by which a full store orders the keys of one policy: those
    /// with the smallest are evicted first. `None` for a state that must not be evicted, such as a permit that a request
    /// holds. Called only before [`expires_at`](State::expires_at).
    ///
    /// Default: the microseconds until the full quota is available again. A state whose units come back all at once overrides
    /// it, by the thousandths of the quota that are in use.
    fn eviction_order(&self, now: Timestamp) -> Option<u64> {
        let left = self.expires_at().since(now).as_micros();
        Some(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

/// How many thousandths of a capacity are in use; more than 1,000 in debt.
pub(in crate::strategy) fn thousandths(used: u64, capacity: u64) -> u64 {
    used.saturating_mul(1_000) / capacity.max(1)
}

/// A table of states, with their type erased.
pub(crate) trait Table: fmt::Debug + Send {
    /// The state of `key`, if it has one.
    fn get(&mut self, hash: u64, key: &Key) -> Option<&mut dyn Any>;
    /// The state of `key`, added if it has none.
    fn entry(&mut self, hash: u64, key: &Key) -> &mut dyn Any;
    /// Removes the state of `key`.
    fn remove(&mut self, hash: u64, key: &Key);
    /// The number of keys.
    fn len(&self) -> usize;
    /// Calls `each` with every key and its state.
    fn for_each(&self, each: &mut dyn FnMut(&Key, &dyn Any));
    /// Removes the states that have expired at `now`, except those of `kept` keys.
    fn remove_expired(&mut self, now: Timestamp, kept: &[Key]);
    /// Removes states in their [order](State::eviction_order), expired ones first, except those of `kept` keys: an eighth of
    /// those that may go, but at least `min` of them, if there are so many, and at most `max`. Returns how many, and how many of
    /// them had not expired.
    fn evict(&mut self, now: Timestamp, min: usize, max: usize, kept: &[Key]) -> (usize, usize);
    /// The type of the states.
    fn state_type(&self) -> TypeId;
    /// The table, to be downcast to its type.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// The states of one type.
pub(crate) struct TypedTable<S> {
    slots: HashTable<Slot<S>>,
    /// The store's: all of its tables have the same.
    hasher: KeyHasher,
}

/// How keys are hashed.
pub(crate) type KeyHasher = DefaultHashBuilder;

/// Half a cache line if the state is small, since most of the time of a lookup among many keys is spent on loading the slot.
/// For that reason the hash is not stored, although growing would be faster with it.
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
    /// An empty table, whose keys are hashed by `hasher`.
    pub(crate) fn new(hasher: KeyHasher) -> Self {
        let slots = HashTable::new();
        Self { slots, hasher }
    }

    /// The state of `key`, if it has one.
    pub(crate) fn find(&mut self, hash: u64, key: &Key) -> Option<&mut S> {
        let slot = self.slots.find_mut(hash, |slot| slot.key == *key)?;
        Some(&mut slot.state)
    }
}

/// The hash by which a table finds a key.
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
            Entry::Vacant(entry) => entry.insert(Slot {
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

    fn for_each(&self, each: &mut dyn FnMut(&Key, &dyn Any)) {
        self.slots
            .iter()
            .for_each(|slot| each(&slot.key, &slot.state));
    }

    fn remove_expired(&mut self, now: Timestamp, kept: &[Key]) {
        self.slots
            .retain(|slot| slot.state.expires_at() > now || kept.contains(&slot.key));
        // The memory of a flood of keys is released when they have expired.
        if self.slots.len() < self.slots.capacity() / 4 {
            let hasher = &self.hasher;
            let capacity = self.slots.len() * 2;
            self.slots
                .shrink_to(capacity, |slot| slot_hash(hasher, slot));
        }
    }

    fn evict(&mut self, now: Timestamp, min: usize, max: usize, kept: &[Key]) -> (usize, usize) {
        let has_expired = |slot: &Slot<S>| slot.state.expires_at() <= now;
        let order = |slot: &Slot<S>| match kept.contains(&slot.key) {
            true => None,
            false if has_expired(slot) => Some(0),
            false => slot.state.eviction_order(now),
        };
        let mut orders: Vec<u64> = self.slots.iter().filter_map(order).collect();
        // Several at once, since all were looked through.
        let removed = (orders.len() / 8).max(min).min(max).min(orders.len());
        if removed == 0 {
            return (0, 0);
        }
        let (less, last, _) = orders.select_nth_unstable(removed - 1);
        let last = *last;
        // More keys than are evicted may have the last one's order.
        let mut ties = removed - less.iter().filter(|order| **order < last).count();
        let mut live = 0;
        self.slots.retain(|slot| {
            let is_removed = match order(slot) {
                Some(order) if order == last && ties > 0 => {
                    ties -= 1;
                    true
                }
                order => order.is_some_and(|order| order < last),
            };
            live += usize::from(is_removed && !has_expired(slot));
            !is_removed
        });
        (removed, live)
    }

    fn state_type(&self) -> TypeId {
        TypeId::of::<S>()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
