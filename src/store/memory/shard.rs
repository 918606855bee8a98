//! One shard: its part of every policy's table, and the bound on all of them.

use std::{any::Any, cmp::Reverse, time::Duration};

use smallvec::SmallVec;

use super::CounterOp;
use crate::{
    clock::{Clock, Timestamp, wall_offset_us},
    key::Key,
    strategy::rule::{AnyRule, table::Table},
};

/// With fewer keys than this, looking for expired ones costs more than they take.
const MIN_SWEEP_LEN: usize = 64;

/// A full shard is searched for expired keys this often at most, so that each new key costs a constant also while keys expire one
/// by one.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// For how long no room is looked for again once all keys had to stay, which takes a look at all of them.
const FULL_FOR: Duration = Duration::from_millis(1);

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
    /// When they were last looked for, on the store's clock.
    swept_at: Option<Timestamp>,
}

/// An instant on the store's clock, and how far the wall clock is ahead of that.
struct TwoClocks {
    now: Timestamp,
    wall_offset_us: i64,
}

/// The states of one policy name and state format.
#[derive(Debug)]
struct PolicyTable {
    states: Box<dyn Table>,
    follows_wall_clock: bool,
    /// When there was no room for another key, on the store's clock.
    full_at: Option<Timestamp>,
}

impl PolicyTable {
    /// What the table's clock shows at an instant of the store's clock, if the wall clock is `wall_offset_us` ahead of that.
    fn at(&self, time: Timestamp, wall_offset_us: i64) -> Timestamp {
        if self.follows_wall_clock {
            time.shifted(wall_offset_us)
        } else {
            time
        }
    }
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            tables: SmallVec::new(),
            capacity,
            sweep_at: capacity.min(MIN_SWEEP_LEN),
            swept_at: None,
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
            full_at: None,
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
        table.states.remove_expired(now, &[]);
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

    /// The state of a counter's key, added if the key is not held.
    pub(super) fn entry(&mut self, counter: &CounterOp<'_>, slot: &KeySlot) -> &mut dyn Any {
        let states = &mut *self.tables[slot.table.0].states;
        states.entry(slot.hash, &counter.key)
    }

    /// Makes room for a key that is added to a table, beside so many `pending` ones. Keeps the keys of `counters`. Returns how
    /// many other keys were evicted, and whether there is room.
    pub(super) fn make_room(
        &mut self,
        TableIndex(index): TableIndex,
        pending: usize,
        counters: &[CounterOp<'_>],
        clock: &dyn Clock,
    ) -> (u64, bool) {
        if self.len() + pending < self.sweep_at {
            return (0, true);
        }
        let Some(max_len) = self.capacity.checked_sub(pending + 1) else {
            return (0, false);
        };
        let now = TwoClocks {
            now: clock.now(),
            wall_offset_us: wall_offset_us(clock),
        };
        if self.len() > max_len && is_recent(self.tables[index].full_at, now.now, FULL_FOR) {
            return (0, false);
        }
        let kept: SmallVec<[Key; 4]> = match counters {
            // Its key is the one that is added.
            [_] => SmallVec::new(),
            _ => counters.iter().map(|counter| counter.key).collect(),
        };
        let sweeps = self.len() <= max_len || !is_recent(self.swept_at, now.now, SWEEP_INTERVAL);
        if sweeps {
            self.sweep(&kept, &now);
        }
        let evicted = if self.len() > max_len {
            self.evict(index, max_len, &kept, &now)
        } else {
            0
        };
        if self.len() > max_len && !sweeps {
            self.sweep(&kept, &now);
        }
        let has_room = self.len() <= max_len;
        self.tables[index].full_at = (!has_room).then_some(now.now);
        (evicted as u64, has_room)
    }

    /// Removes all expired keys but those that are kept.
    fn sweep(&mut self, kept: &[Key], now: &TwoClocks) {
        for table in &mut self.tables {
            let now = table.at(now.now, now.wall_offset_us);
            table.states.remove_expired(now, kept);
        }
        self.swept_at = Some(now.now);
        self.sweep_at = (self.len() * 2).max(MIN_SWEEP_LEN).min(self.capacity);
    }

    /// Evicts keys until there are `max_len` or fewer, if it can: of the policies that have more than an equal share, and of the
    /// one at `index`, to which a key is added. Those with the most keys come first. Returns how many had not expired.
    fn evict(&mut self, index: usize, max_len: usize, kept: &[Key], now: &TwoClocks) -> usize {
        let lens = self.tables.iter().enumerate();
        let lens =
            lens.map(|(table, states)| (states.states.len() + usize::from(table == index), table));
        let mut lens: SmallVec<[(usize, usize); 4]> = lens.filter(|(len, _)| *len > 0).collect();
        lens.sort_unstable_by_key(|(len, table)| (Reverse(*len), *table != index));
        let own_len = self.tables[index].states.len() + 1;
        let (mut capacity, mut surplus, mut evicted) = (self.capacity, self.len() - max_len, 0);
        let mut evict = |table: usize, max: usize| {
            let table = &mut self.tables[table];
            let now = table.at(now.now, now.wall_offset_us);
            let (removed, live) = match max {
                0 => (0, 0),
                max => table.states.evict(now, surplus, max, kept),
            };
            evicted += live;
            surplus = surplus.saturating_sub(removed);
            (removed, surplus == 0)
        };
        loop {
            let share = capacity / lens.len().max(1);
            for (len, table) in &mut lens {
                let max = if *table == index && *len > share {
                    *len
                } else {
                    len.saturating_sub(share)
                };
                let (removed, has_room) = evict(*table, max);
                *len -= removed;
                if has_room {
                    return evicted;
                }
            }
            // Keys that had to stay leave smaller shares to the other policies.
            let policies = lens.len();
            lens.retain(|(len, table)| {
                let stays = *table != index && *len > share;
                if stays {
                    capacity = capacity.saturating_sub(*len);
                }
                !stays
            });
            if own_len > share || lens.len() == policies {
                break;
            }
        }
        evict(index, own_len);
        evicted
    }
}

/// Whether an instant lies less than `time` before now.
fn is_recent(at: Option<Timestamp>, now: Timestamp, time: Duration) -> bool {
    at.is_some_and(|at| at <= now && now.since(at) < time)
}
