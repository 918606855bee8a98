//! One shard: its part of every policy's table, and the bound on all of them.

use std::any::Any;

use smallvec::SmallVec;

use super::{CounterOp, clocks};
use crate::{
    clock::{Clock, Timestamp},
    strategy::rule::{AnyRule, table::Table},
};

/// Below this many keys, looking for full ones isn't worth it.
const FEW: usize = 64;

/// Where an operation's key is: in which locked shard, in which of its tables, and under what hash.
pub(super) struct Place {
    pub(super) guard: usize,
    pub(super) table: usize,
    pub(super) hash: u64,
}

#[derive(Debug)]
pub(super) struct Shard {
    /// One for each name and state format: mostly one.
    tables: SmallVec<[Kept; 1]>,
    most: usize,
    /// How many keys there may be before the full ones are forgotten: twice what was left the last time, so that
    /// forgetting costs each new key a constant.
    sweep_at: usize,
}

/// The states of one name and state format.
#[derive(Debug)]
struct Kept {
    table: Box<dyn Table>,
    /// Whether they count by the wall clock.
    follows_wall_clock: bool,
}

impl Kept {
    /// What this table's clock shows at an instant of the store's clock, if the wall clock is `ahead` of that.
    fn at(&self, time: Timestamp, ahead: i64) -> Timestamp {
        match self.follows_wall_clock {
            false => time,
            true => time.shifted(ahead),
        }
    }
}

impl Shard {
    pub(super) fn new(most: usize) -> Self {
        Self {
            tables: SmallVec::new(),
            most,
            sweep_at: most.min(FEW),
        }
    }

    pub(super) fn push(&mut self, table: Box<dyn Table>, follows_wall_clock: bool) {
        self.tables.push(Kept {
            table,
            follows_wall_clock,
        });
    }

    pub(super) fn holds(&self, place: usize, memory: &dyn AnyRule) -> bool {
        let table = self.tables.get(place);
        table.is_some_and(|kept| memory.holds(&*kept.table))
    }

    pub(super) fn len(&self) -> usize {
        self.tables.iter().map(|kept| kept.table.len()).sum()
    }

    /// The state of a line's key, if one is kept.
    pub(super) fn get(&mut self, line: &CounterOp<'_>, place: &Place) -> Option<&mut dyn Any> {
        self.table(place.table)?.get(place.hash, &line.key)
    }

    /// The table at a place.
    pub(super) fn table(&mut self, place: usize) -> Option<&mut dyn Table> {
        Some(&mut *self.tables.get_mut(place)?.table)
    }

    pub(super) fn remove(&mut self, line: &CounterOp<'_>, place: &Place) {
        if let Some(table) = self.table(place.table) {
            table.remove(place.hash, &line.key);
        }
    }

    /// The state of a line's key, made if there is none, and how many other keys were dropped for it.
    pub(super) fn entry(
        &mut self,
        line: &CounterOp<'_>,
        place: &Place,
        clock: &dyn Clock,
    ) -> (&mut dyn Any, u64) {
        let mut dropped = 0;
        if self.len() >= self.sweep_at && self.get(line, place).is_none() {
            dropped = self.make_room(clock);
        }
        let table = &mut *self.tables[place.table].table;
        (table.entry(place.hash, &line.key), dropped)
    }

    /// Forgets what is at its full quota, and if that isn't enough, an eighth of the keys: those that soonest will be.
    /// Returns how many of these there were.
    fn make_room(&mut self, clock: &dyn Clock) -> u64 {
        let (now, ahead) = (clock.now(), clocks::ahead(clock));
        self.forget(now, ahead, usize::MAX);
        let mut dropped = 0;
        if self.len() >= self.most {
            let mut times = Vec::with_capacity(self.len());
            for kept in &self.tables {
                let own = times.len();
                kept.table.expires_at(&mut times);
                for time in &mut times[own..] {
                    *time = kept.at(*time, ahead.saturating_neg());
                }
            }
            let surplus = self.len() - self.most + 1 + self.most / 8;
            let surplus = surplus.min(times.len());
            let (_, time, _) = times.select_nth_unstable(surplus - 1);
            let time = *time;
            // Those before the last instant first: at that instant there may be more than are to go.
            dropped = self.forget(time.shifted(-1), ahead, surplus);
            dropped += self.forget(time, ahead, surplus - dropped);
        }
        self.sweep_at = (self.len() * 2).max(FEW).min(self.most);
        dropped as u64
    }

    /// Forgets up to `most` keys that are at their full quota by `time` on the store's clock; returns how many.
    fn forget(&mut self, time: Timestamp, ahead: i64, most: usize) -> usize {
        let mut left = most;
        for kept in &mut self.tables {
            let time = kept.at(time, ahead);
            left -= kept.table.forget(time, left);
        }
        most - left
    }
}
