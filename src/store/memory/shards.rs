//! All shards, and the operations on the keys in them.

use std::{
    any::Any,
    cmp::Reverse,
    collections::HashMap,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex, MutexGuard, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use smallvec::{SmallVec, smallvec};

use crate::{
    clock::{Clock, Timestamp},
    error::{InvalidValue, StoreError},
    key::Key,
    log::LogThrottle,
    store::{
        BlockedKey, BlockedKeys, CounterMode, CounterOp, CounterResult, Incomplete, LimitHandle,
        Op, OpResult, Units,
        fit::{admit, fit, rejected_charge},
    },
    strategy::{
        RetryAfter, Rule, Snapshot,
        rule::{
            AnyRule,
            table::{Table, hash},
        },
    },
    sync::{CachePadded, lock, write},
};

/// The states of all keys.
pub(super) struct Shards {
    /// Seeded for each process, so that clients cannot choose keys that collide.
    hasher: DefaultHashBuilder,
    pub(super) clock: Arc<dyn Clock>,
    /// What each table is for, by its index in every shard.
    tables: RwLock<Tables>,
    pub(super) shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// As it was set.
    #[cfg_attr(
        not(feature = "config"),
        allow(dead_code, reason = "a document says it")
    )]
    pub(super) max_keys: NonZeroUsize,
    dropped: AtomicU64,
    uncounted_log: LogThrottle,
}

/// What tables are for, found in the same time however many there are.
#[derive(Default)]
struct Tables {
    entries: Vec<TableEntry>,
    indices: HashMap<(Arc<str>, &'static str), usize>,
    /// Where unused tables are looked for next.
    next: usize,
}

/// How many tables are looked at before another one is added.
const MAX_LOOKED_AT: usize = 8;

/// The policy name and the state format that a table is for, and the limits that use it.
struct TableEntry {
    policy_and_format: (Arc<str>, &'static str),
    users: Weak<()>,
}

impl Tables {
    /// The index of a table that is not in use, or of a new one.
    fn free(&mut self, is_unused: impl Fn(&TableEntry, TableIndex) -> bool) -> usize {
        for _ in 0..self.entries.len().min(MAX_LOOKED_AT) {
            let index = self.next % self.entries.len();
            self.next = index + 1;
            if is_unused(&self.entries[index], TableIndex(index)) {
                return index;
            }
        }
        self.entries.len()
    }
}

/// The table of a limit. Once no limit has it and its keys have expired, that of another policy takes its place.
pub(super) struct TableRef {
    index: TableIndex,
    _user: Arc<()>,
}

/// The shards of a request's counters, all locked, and where in them each counter's key is.
struct LockedShards<'a> {
    shards: SmallVec<[MutexGuard<'a, Shard>; 4]>,
    slots: SmallVec<[KeySlot; 4]>,
}

/// The units that a counter is charged.
#[derive(Default)]
struct Charge {
    /// Those that are returned to the caller.
    reported: u64,
    /// Those that are taken from the key.
    charged: u64,
}

/// The instants that both clocks showed.
struct Clocks {
    now: Timestamp,
    wall: Timestamp,
}

impl Clocks {
    /// Reads the wall clock only if a counter follows it.
    fn read(clock: &dyn Clock, counters: &[CounterOp<'_>]) -> Self {
        let now = clock.now();
        let follows_wall = |counter: &CounterOp<'_>| counter.limit.info().follows_wall_clock;
        let wall = if counters.iter().any(follows_wall) {
            clock.wall()
        } else {
            now
        };
        Self { now, wall }
    }

    fn both(clock: &dyn Clock) -> Self {
        let (now, wall) = (clock.now(), clock.wall());
        Self { now, wall }
    }

    /// The instant on the clock that a limit counts by.
    fn of(&self, follows_wall_clock: bool) -> Timestamp {
        if follows_wall_clock {
            self.wall
        } else {
            self.now
        }
    }
}

/// The units that an adjustment charges a counter with so many available: down to a debt of one capacity.
fn forced_charge(counter: &CounterOp<'_>, available: i64) -> u64 {
    let max = available.saturating_add_unsigned(counter.limit.info().capacity);
    counter.units.get().min(u64::try_from(max).unwrap_or(0))
}

const OTHER_STORE: StoreError = StoreError::Unsupported("a limit registered by another store");

/// The present instant on the clock that a limit counts by.
#[inline]
fn now_of(clock: &dyn Clock, limit: &LimitHandle) -> Timestamp {
    if limit.info().follows_wall_clock {
        clock.wall()
    } else {
        clock.now()
    }
}

fn local_rule<'a>(counter: &'a CounterOp<'_>) -> Option<&'a dyn AnyRule> {
    counter.limit.rule().local_rule().map(|rule| rule.0)
}

impl Shards {
    pub(super) fn new(clock: Arc<dyn Clock>, max_keys: NonZeroUsize) -> Self {
        // With few keys there is one shard, so that eviction compares all of them.
        let count = (max_keys.get() / 1_024).clamp(1, 64);
        let shard = || CachePadded::new(Mutex::new(Shard::new(max_keys.get() / count)));
        Self {
            hasher: DefaultHashBuilder::default(),
            clock,
            tables: RwLock::default(),
            shards: (0..count).map(|_| shard()).collect(),
            max_keys,
            dropped: AtomicU64::new(0),
            uncounted_log: LogThrottle::new(),
        }
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// How many keys were dropped with quota in use.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The table of a policy's states, which is added if there is none.
    pub(super) fn table(&self, policy: &str, rule: &dyn Rule) -> Result<TableRef, InvalidValue> {
        let local = super::local_rule(rule)?.0;
        let info = rule.info();
        let mut tables = write(&self.tables);
        let policy_and_format = (Arc::from(policy), info.state_format);
        let index = match tables.indices.get(&policy_and_format) {
            Some(index) if lock(&self.shards[0]).stores_type_of(TableIndex(*index), local) => {
                *index
            }
            Some(_) => {
                return Err(InvalidValue::new(
                    format!(
                        "{rule:?}, whose state format {:?} is that of another strategy",
                        info.state_format
                    ),
                    "a state format of its own",
                ));
            }
            None => {
                let index = tables.free(|table, index| self.is_unused(table, index));
                for shard in &self.shards {
                    let table = local.table(self.hasher.clone());
                    lock(shard).set_table(TableIndex(index), table, info.follows_wall_clock);
                }
                tables.indices.insert(policy_and_format.clone(), index);
                let entry = TableEntry {
                    policy_and_format,
                    users: Weak::new(),
                };
                match tables.entries.get_mut(index) {
                    Some(replaced) => {
                        let replaced = std::mem::replace(replaced, entry);
                        tables.indices.remove(&replaced.policy_and_format);
                    }
                    None => tables.entries.push(entry),
                }
                index
            }
        };
        let users = &mut tables.entries[index].users;
        let user = users.upgrade().unwrap_or_default();
        *users = Arc::downgrade(&user);
        Ok(TableRef {
            index: TableIndex(index),
            _user: user,
        })
    }

    /// Whether no limit uses a table, and all of its keys have expired.
    fn is_unused(&self, table: &TableEntry, index: TableIndex) -> bool {
        let has_expired = |shard: &CachePadded<Mutex<Shard>>| {
            let mut shard = lock(shard);
            shard.has_expired(index, &*self.clock)
        };
        table.users.strong_count() == 0 && self.shards.iter().all(has_expired)
    }

    /// Does an operation on all counters.
    pub(super) fn execute(
        &self,
        op: Op,
        counters: &[CounterOp<'_>],
    ) -> Result<OpResult, StoreError> {
        let mut locked = self.lock_shards(counters).ok_or(OTHER_STORE)?;
        let result = self.execute_locked(op, counters, &mut locked);
        drop(locked);
        let (result, uncounted) = result?;
        if let Some(error) = uncounted {
            self.log_uncounted(&error);
        }
        Ok(result)
    }

    /// Logs a charge without room that no caller gets as an error.
    pub(super) fn log_uncounted(&self, error: &StoreError) {
        self.uncounted_log.log_with(|suppressed| {
            tracing::warn!(%error, suppressed, "a charge was not counted");
        });
    }

    /// Returns the result, and the error of a charge without room that the operation was done without.
    fn execute_locked(
        &self,
        op: Op,
        counters: &[CounterOp<'_>],
        locked: &mut LockedShards<'_>,
    ) -> Result<(OpResult, Option<StoreError>), StoreError> {
        let clocks = Clocks::read(&*self.clock, counters);
        // The units that each counter of an acquisition has available.
        let mut free: SmallVec<[u64; 4]> = SmallVec::new();
        let (mut admitted, mut rejected) = (0, 0);
        if let Op::Acquire(times) = op {
            let times = u64::from(times);
            for (counter, slot) in counters.iter().zip(&locked.slots) {
                let shard = &mut *locked.shards[slot.shard];
                let now = clocks.of(counter.limit.info().follows_wall_clock);
                let rule = local_rule(counter).ok_or(OTHER_STORE)?;
                let balance = rule.available(shard.get(counter, slot), now);
                free.push(u64::try_from(balance).unwrap_or(0));
            }
            (admitted, rejected) = admit(counters, &free, times);
        }
        let mut charges: SmallVec<[Charge; 4]> = SmallVec::new();
        for (index, (counter, slot)) in counters.iter().zip(&locked.slots).enumerate() {
            let shard = &mut *locked.shards[slot.shard];
            let rule = local_rule(counter).ok_or(OTHER_STORE)?;
            let now = clocks.of(counter.limit.info().follows_wall_clock);
            let mut balance = || rule.available(shard.get(counter, slot), now);
            let (mut charged, mut reported) = (0, 0);
            match op {
                Op::Acquire(_) => {
                    let own_free = free.get(index).copied().unwrap_or(0);
                    reported = match counter.mode {
                        CounterMode::Check | CounterMode::CountRejections => 0,
                        CounterMode::Charge | CounterMode::ChargeRejectedToo => {
                            counter.units.of(admitted)
                        }
                        CounterMode::Shadow { charges: false } => 0,
                        CounterMode::Shadow { charges: true } => {
                            counter.units.of(fit(counter, own_free, admitted))
                        }
                    };
                    charged = match counter.mode {
                        CounterMode::CountRejections => counter.units.of(rejected).min(own_free),
                        _ => reported,
                    };
                    if counter.mode == CounterMode::ChargeRejectedToo && rejected > 0 {
                        let wanted = counter.units.of(rejected);
                        let left = balance().saturating_sub_unsigned(reported);
                        charged = charged.saturating_add(rejected_charge(counter, left, wanted));
                    }
                }
                Op::Adjust if counter.receipt.is_none() => {
                    charged = forced_charge(counter, balance());
                    reported = charged;
                }
                Op::Adjust | Op::Peek | Op::Reset | Op::Renew => {}
            }
            charges.push(Charge { reported, charged });
        }
        let uncounted = self.make_room((op, admitted), counters, locked, &mut charges)?;

        if op == Op::Adjust {
            // All charges come before the first refund.
            for ((counter, slot), charge) in counters.iter().zip(&locked.slots).zip(&mut charges) {
                let shard = &mut *locked.shards[slot.shard];
                let rule = local_rule(counter).ok_or(OTHER_STORE)?;
                let now = clocks.of(counter.limit.info().follows_wall_clock);
                if charge.charged > 0 && counters.len() > 1 {
                    // Another counter may have charged the key.
                    let available = rule.available(shard.get(counter, slot), now);
                    charge.charged = forced_charge(counter, available);
                    charge.reported = charge.charged;
                }
                shard.charge(counter, slot, rule, now, charge);
            }
        }
        let mut results = SmallVec::new();
        for ((counter, slot), charge) in counters.iter().zip(&locked.slots).zip(charges) {
            let shard = &mut *locked.shards[slot.shard];
            let rule = local_rule(counter).ok_or(OTHER_STORE)?;
            let now = clocks.of(counter.limit.info().follows_wall_clock);
            if op != Op::Adjust {
                shard.charge(counter, slot, rule, now, &charge);
            }
            let mut units = charge.reported;
            if let (Op::Adjust, Some(receipt)) = (op, &counter.receipt) {
                let (want, caller) = (counter.units.get(), &counter.caller);
                units = rule.refund(shard.get(counter, slot), now, receipt, want, caller);
            }
            if op == Op::Renew {
                let state = shard.get(counter, slot);
                units = state.map_or(0, |state| rule.renew(state, now, &counter.caller));
            }
            if matches!(op, Op::Adjust | Op::Renew) {
                // Corrects a state that the clock made impossible.
                rule.available(shard.get(counter, slot), now);
            }
            let state = shard.get(counter, slot).map(|state| &*state);
            let snapshot = rule.snapshot(state, now, counter.units.get());
            // A key without permits makes room for others at once.
            let is_over = counter.limit.info().permit_ttl.is_some()
                && state.is_some_and(|state| rule.expires_at(state) <= now);
            if op == Op::Reset || op == Op::Adjust && is_over {
                shard.remove(counter, slot);
            }
            results.push(CounterResult {
                clock_skew_us: now.as_micros().saturating_sub(clocks.now.as_micros()),
                ..CounterResult::new(units, snapshot)
            });
        }
        Ok((OpResult::of(clocks.now, admitted, results), uncounted))
    }

    /// Makes room for the keys that are charged and not held yet. If there is none, it fails, unless the charge is not needed:
    /// then it cancels the charge and returns the error.
    fn make_room(
        &self,
        (op, admitted): (Op, u64),
        counters: &[CounterOp<'_>],
        locked: &mut LockedShards<'_>,
        charges: &mut [Charge],
    ) -> Result<Option<StoreError>, StoreError> {
        let mut uncounted = None;
        let mut pending: SmallVec<[usize; 4]> = smallvec![0; locked.shards.len()];
        for ((counter, slot), charge) in counters.iter().zip(&locked.slots).zip(charges) {
            let shard = &mut *locked.shards[slot.shard];
            if charge.charged == 0 || shard.get(counter, slot).is_some() {
                continue;
            }
            let pending = &mut pending[slot.shard];
            let (evicted, has_room) = shard.make_room(slot.table, *pending, counters, &*self.clock);
            if evicted > 0 {
                self.dropped.fetch_add(evicted, Ordering::Relaxed);
            }
            if has_room {
                *pending += 1;
                continue;
            }
            let policy = counter.limit.policy().into();
            let error = StoreError::Full { policy };
            // A request that is rejected without it stays rejected, also if a ban can't count that; a shadow policy rejects nothing.
            let is_acquire = matches!(op, Op::Acquire(_));
            let is_needed = match counter.mode {
                CounterMode::CountRejections => !is_acquire,
                _ => admitted > 0 || !is_acquire,
            };
            if is_needed && !counter.mode.is_shadow() {
                return Err(error);
            }
            *charge = Charge::default();
            uncounted = Some(error);
        }
        Ok(uncounted)
    }

    /// Charges an existing key for as many of `times` requests as there are units for; `None` if there is no such key.
    #[inline]
    pub(super) fn try_charge_existing(
        &self,
        limit: &LimitHandle,
        key: &Key,
        times: u32,
        units: Units,
    ) -> Option<(Timestamp, u64, Snapshot)> {
        let slot = self.slot(limit, key)?;
        let rule = limit.rule().local_rule()?.0;
        let mut shard = lock(&self.shards[slot.shard]);
        let now = now_of(&*self.clock, limit);
        let (times, units) = (times.into(), units.get());
        let table = shard.table(slot.table)?;
        let (admitted, snapshot) =
            rule.try_charge_existing(table, (slot.hash, key), now, times, units)?;
        Some((now, admitted, snapshot))
    }

    /// Keeps a permit from expiring (`is_held`), or has it expire one TTL from now.
    pub(super) fn hold(&self, limit: &LimitHandle, key: &Key, caller: &Key, is_held: bool) {
        let Some((slot, rule)) = self.slot(limit, key).zip(limit.rule().local_rule()) else {
            return;
        };
        let mut shard = lock(&self.shards[slot.shard]);
        let now = now_of(&*self.clock, limit);
        let table = shard.table(slot.table);
        if let Some(state) = table.and_then(|table| table.get(slot.hash, key)) {
            rule.0.hold(state, now, caller, is_held);
        }
    }

    /// The callers recorded under a key; `None` if there is no such key.
    pub(super) fn recorded_callers(&self, limit: &LimitHandle, key: &Key) -> Option<Vec<Key>> {
        let counter = CounterOp {
            limit,
            key: *key,
            units: Units::ZERO,
            receipt: None,
            caller: *key,
            mode: CounterMode::Charge,
        };
        let slot = self.slot(limit, key)?;
        let mut shard = lock(&self.shards[slot.shard]);
        let now = now_of(&*self.clock, limit);
        let state = shard.get(&counter, &slot)?;
        Some(local_rule(&counter)?.callers(state, now))
    }

    /// The keys that these limits block, up to `max`. Each shard is locked while it is looked through.
    pub(super) fn blocked_keys(
        &self,
        limits: &[LimitHandle],
        max: usize,
    ) -> Result<BlockedKeys, StoreError> {
        let mut found = BlockedKeys::new(Vec::new(), None);
        for (index, limit) in limits.iter().enumerate() {
            let table = self.table_index(limit);
            let rule = limit.rule().local_rule().map(|rule| rule.0);
            let (Some(table), Some(rule)) = (table, rule) else {
                return Err(StoreError::Unsupported("a limit of another store"));
            };
            for shard in &self.shards {
                let (mut shard, now) = (lock(shard), now_of(&*self.clock, limit));
                let Some(states) = shard.table(table) else {
                    continue;
                };
                states.for_each(&mut |key, state| {
                    let snapshot = rule.snapshot(Some(state), now, 1);
                    let status = limit.status(&snapshot, now, Units::ONE);
                    match status.retry_after {
                        RetryAfter::In(ends_in) if found.keys.len() < max => {
                            found.keys.push(BlockedKey::new(index, *key, now, ends_in));
                        }
                        RetryAfter::In(_) => found.incomplete = Some(Incomplete::Limit),
                        _ => {}
                    }
                });
            }
        }
        Ok(found)
    }

    /// The table of a limit; `None` if the limit is of another store.
    fn table_index(&self, limit: &LimitHandle) -> Option<TableIndex> {
        Some(limit.context::<TableRef>()?.index)
    }

    /// Where a limit's key is, by the index of all shards; `None` if the limit is of another store.
    #[inline]
    fn slot(&self, limit: &LimitHandle, key: &Key) -> Option<KeySlot> {
        let hash = hash(&self.hasher, key);
        // The shard is chosen by bits between those by which tables choose a slot and compare. Multiply-shift in place of a modulo.
        let middle = u64::from((hash >> 24) as u32);
        let shard = ((middle * self.shards.len() as u64) >> 32) as usize;
        let table = self.table_index(limit)?;
        Some(KeySlot { shard, table, hash })
    }

    fn lock_shards<'a>(&'a self, counters: &[CounterOp<'_>]) -> Option<LockedShards<'a>> {
        let mut slots: SmallVec<[KeySlot; 4]> = counters
            .iter()
            .map(|counter| self.slot(counter.limit, &counter.key))
            .collect::<Option<_>>()?;
        let mut shards: SmallVec<[usize; 4]> = slots.iter().map(|slot| slot.shard).collect();
        // In one order for all requests, or two could wait for each other.
        shards.sort_unstable();
        shards.dedup();
        for slot in &mut slots {
            let index = shards.iter().position(|shard| *shard == slot.shard);
            slot.shard = index.unwrap_or(0);
        }
        let shards = shards.iter().map(|shard| lock(&self.shards[*shard]));
        Some(LockedShards {
            shards: shards.collect(),
            slots,
        })
    }
}

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

/// The states of one policy name and state format.
#[derive(Debug)]
struct PolicyTable {
    states: Box<dyn Table>,
    follows_wall_clock: bool,
    /// When there was no room for another key, on the store's clock.
    full_at: Option<Timestamp>,
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
        let now = Clocks::both(clock).of(table.follows_wall_clock);
        table.states.remove_expired(now, &[]);
        table.states.len() == 0
    }

    /// Whether a table holds states of the type of a rule.
    pub(super) fn stores_type_of(&self, TableIndex(index): TableIndex, rule: &dyn AnyRule) -> bool {
        let table = self.tables.get(index);
        table.is_some_and(|table| rule.state_type() == table.states.state_type())
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

    /// Charges a counter's key.
    #[inline]
    fn charge(
        &mut self,
        counter: &CounterOp<'_>,
        slot: &KeySlot,
        rule: &dyn AnyRule,
        now: Timestamp,
        charge: &Charge,
    ) {
        if charge.charged == 0 {
            return;
        }
        let state = self.entry(counter, slot);
        // Permits that rejected requests are charged have no holder that could renew or release them.
        let unheld = match counter.limit.info().permit_ttl {
            Some(_) => charge.charged - charge.reported,
            None => 0,
        };
        if charge.charged > unheld {
            rule.charge(state, now, charge.charged - unheld, &counter.caller);
        }
        if unheld > 0 {
            rule.charge(state, now, unheld, &Key::unique());
        }
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
        let clocks = Clocks::both(clock);
        let now = clocks.now;
        if self.len() > max_len && is_recent(self.tables[index].full_at, now, FULL_FOR) {
            return (0, false);
        }
        let kept: SmallVec<[Key; 4]> = match counters {
            // Its key is the one that is added.
            [_] => SmallVec::new(),
            _ => counters.iter().map(|counter| counter.key).collect(),
        };
        let sweeps = self.len() <= max_len || !is_recent(self.swept_at, now, SWEEP_INTERVAL);
        if sweeps {
            self.sweep(&kept, &clocks);
        }
        let evicted = if self.len() > max_len {
            self.evict(index, max_len, &kept, &clocks)
        } else {
            0
        };
        if self.len() > max_len && !sweeps {
            self.sweep(&kept, &clocks);
        }
        let has_room = self.len() <= max_len;
        self.tables[index].full_at = (!has_room).then_some(now);
        (evicted as u64, has_room)
    }

    /// Removes all expired keys but those that are kept.
    fn sweep(&mut self, kept: &[Key], clocks: &Clocks) {
        for table in &mut self.tables {
            let now = clocks.of(table.follows_wall_clock);
            table.states.remove_expired(now, kept);
        }
        self.swept_at = Some(clocks.now);
        self.sweep_at = (self.len() * 2).max(MIN_SWEEP_LEN).min(self.capacity);
    }

    /// Evicts keys until there are `max_len` or fewer, if it can: of the policies that have more than an equal share, and of the
    /// one at `index`, to which a key is added. Those with the most keys come first. Returns how many had not expired.
    fn evict(&mut self, index: usize, max_len: usize, kept: &[Key], clocks: &Clocks) -> usize {
        let lens = self.tables.iter().enumerate();
        let lens =
            lens.map(|(table, states)| (states.states.len() + usize::from(table == index), table));
        let mut lens: SmallVec<[(usize, usize); 4]> = lens.filter(|(len, _)| *len > 0).collect();
        lens.sort_unstable_by_key(|(len, table)| (Reverse(*len), *table != index));
        let own_len = self.tables[index].states.len() + 1;
        let (mut capacity, mut surplus, mut evicted) = (self.capacity, self.len() - max_len, 0);
        let mut evict = |table: usize, max: usize| {
            let table = &mut self.tables[table];
            let now = clocks.of(table.follows_wall_clock);
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
