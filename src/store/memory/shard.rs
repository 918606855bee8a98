//! One shard: its part of every policy's table, and the bound on all of them.

use std::any::Any;

use smallvec::SmallVec;

use super::CounterOp;
use crate::{
    clock::{Clock, Timestamp, wall_offset_us},
    strategy::rule::{AnyRule, table::Table},
};

/// With fewer keys than this, looking for expired ones costs more than they take.
const MIN_SWEEP_LEN: usize = 64;

/// The index of a limit's table in each shard.
#[derive(Clone, Copy)]
pub(super) struct TableIndex(pub(super) usize);

/// Where the key of a counter is.
pub(super) struct KeySlot {
    /// The shard's index: of all shards, or of those that are locked for a request.
    pub(super) shard: usize,
    pub(super) table: TableIndex,
    pub(super) hash: u64,
}

#[derive(Debug)]
pub(super) struct Shard {
    /// One for each policy name and state format: most often one.
    tables: SmallVec<[PolicyTable; 1]>,
    /// The most keys that are held.
    capacity: usize,
    /// The number of keys at which expired ones are looked for: twice as many as were left the last time, so that each new key
    /// costs a constant.
    sweep_at: usize,
}

/// The states of one policy name and state format.
#[derive(Debug)]
struct PolicyTable {
    states: Box<dyn Table>,
    follows_wall_clock: bool,
}

impl PolicyTable {
    /// What the table's clock shows at an instant of the store's clock, if the wall clock is `wall_offset_us` ahead of that.
    fn at(&self, time: Timestamp, wall_offset_us: i64) -> Timestamp {
        match self.follows_wall_clock {
            false => time,
            true => time.shifted(wall_offset_us),
        }
    }
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            tables: SmallVec::new(),
            capacity,
            sweep_at: capacity.min(MIN_SWEEP_LEN),
        }
    }

    /// Sets the table at an index: the next one, or one that is replaced.
    pub(super) fn set_table(
        &mut self,
        TableIndex(index): TableIndex,
        states: Box<dyn Table>,
        follows_wall_clock: bool,
    ) {
        let table = PolicyTable {
            states,
            follows_wall_clock,
        };
        match self.tables.get_mut(index) {
            Some(replaced) => *replaced = table,
            None => self.tables.push(table),
        }
    }

    /// Whether all keys of a table have expired. Removes those that have.
    pub(super) fn has_expired(&mut self, TableIndex(index): TableIndex, clock: &dyn Clock) -> bool {
        let Some(table) = self.tables.get_mut(index) else {
            return false;
        };
        let now = table.at(clock.now(), wall_offset_us(clock));
        table.states.evict_expired(now, usize::MAX);
        table.states.len() == 0
    }

    /// Whether a table holds states of the type of a rule.
    pub(super) fn stores_type_of(&self, TableIndex(index): TableIndex, rule: &dyn AnyRule) -> bool {
        let table = self.tables.get(index);
        table.is_some_and(|table| rule.stores_type_of(&*table.states))
    }

    pub(super) fn len(&self) -> usize {
        self.tables.iter().map(|table| table.states.len()).sum()
    }

    pub(super) fn table(&mut self, TableIndex(index): TableIndex) -> Option<&mut dyn Table> {
        Some(&mut *self.tables.get_mut(index)?.states)
    }

    /// The state of a counter's key, if the key is held.
    pub(super) fn get(&mut self, counter: &CounterOp<'_>, slot: &KeySlot) -> Option<&mut dyn Any> {
        self.table(slot.table)?.get(slot.hash, &counter.key)
    }

    pub(super) fn remove(&mut self, counter: &CounterOp<'_>, slot: &KeySlot) {
        if let Some(table) = self.table(slot.table) {
            table.remove(slot.hash, &counter.key);
        }
    }

    /// The state of a counter's key, added if the key is not held, and how many other keys were dropped to make room for it.
    pub(super) fn entry(
        &mut self,
        counter: &CounterOp<'_>,
        slot: &KeySlot,
        clock: &dyn Clock,
    ) -> (&mut dyn Any, u64) {
        let mut dropped = 0;
        if self.len() >= self.sweep_at && self.get(counter, slot).is_none() {
            dropped = self.evict(clock);
        }
        let states = &mut *self.tables[slot.table.0].states;
        (states.entry(slot.hash, &counter.key), dropped)
    }

    /// Removes the expired keys and, if the shard is still full, an eighth of its capacity of others: those that expire first.
    /// Returns how many of the latter.
    fn evict(&mut self, clock: &dyn Clock) -> u64 {
        let (now, wall_offset_us) = (clock.now(), wall_offset_us(clock));
        self.evict_expired(now, wall_offset_us, usize::MAX);
        let mut dropped = 0;
        if self.len() >= self.capacity {
            let mut times = Vec::with_capacity(self.len());
            for table in &self.tables {
                let first = times.len();
                table.states.expires_at(&mut times);
                for time in &mut times[first..] {
                    *time = table.at(*time, wall_offset_us.saturating_neg());
                }
            }
            let surplus = self.len() - self.capacity + 1 + self.capacity / 8;
            let surplus = surplus.min(times.len());
            let (_, time, _) = times.select_nth_unstable(surplus - 1);
            let time = *time;
            // First the keys that expire before `time`: more keys than the surplus may expire at that very instant.
            dropped = self.evict_expired(time.shifted(-1), wall_offset_us, surplus);
            dropped += self.evict_expired(time, wall_offset_us, surplus - dropped);
        }
        self.sweep_at = (self.len() * 2).max(MIN_SWEEP_LEN).min(self.capacity);
        dropped as u64
    }

    /// Removes up to `max` keys that expire by `time` on the store's clock; returns how many.
    fn evict_expired(&mut self, time: Timestamp, wall_offset_us: i64, max: usize) -> usize {
        let mut left = max;
        for table in &mut self.tables {
            let time = table.at(time, wall_offset_us);
            left -= table.states.evict_expired(time, left);
        }
        max - left
    }
}
