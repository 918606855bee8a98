//! Counts this process's shares while the store fails, and charges them to the store afterwards.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use smallvec::SmallVec;

use crate::{
    error::InvalidValue,
    key::Key,
    observe::{Event, Observer, SharedObservers},
    policy::Policy,
    quota::Quota,
    store::{
        CallersFuture, CounterMode, CounterOp, CounterResult, LimitHandle, Op, OpResult, Store,
        StoreResponse, Units, memory::MemoryStore,
    },
    strategy::Rule,
    sync::lock,
};

/// Upper bound of the keys that wait for their write-back. Charges under further keys are not written back.
const MAX_PENDING_KEYS: usize = 10_000;

/// Upper bound of the keys that are written back at each response of the store, so that no request is delayed by all.
const WRITE_BACK_BATCH: usize = 64;

/// The shares of a limiter, counted in process through all outages, and the charges that the store does not have yet.
#[derive(Debug, Default)]
pub(crate) struct LocalShares {
    counts: MemoryStore,
    /// Whether there are any unwritten charges. Read by each decision.
    any: AtomicBool,
    unwritten: Mutex<WriteBackQueue>,
    observers: SharedObservers,
}

/// The context of a share's limit that is written back: the limits that count it in process and in the store.
struct WriteBackContext {
    local: LimitHandle,
    whole: LimitHandle,
    /// What the charge of a unit adds to a count, by which charges under several quotas are added up.
    unit: u128,
}

/// Identifies a count: the policy, the state format, and the key. Quotas of one policy share it.
type CountKey = (Box<str>, &'static str, Key);

/// Charges in process that the store does not have yet.
#[derive(Debug, Default)]
struct WriteBackQueue {
    by_key: HashMap<CountKey, WriteBackEntry>,
    /// The number of keys that were taken out, and whose charges are about to be sent.
    taken: usize,
    /// The number of charges that were not recorded, since there were too many keys.
    dropped: u64,
    /// Whether charges were dropped since the queue was last empty.
    is_dropping: bool,
}

#[derive(Debug)]
struct WriteBackEntry {
    /// That of the last charge.
    share: LimitHandle,
    /// The units of all charges, each times what a [unit](WriteBackContext::unit) of its quota adds.
    charged: u128,
}

/// What the charge of a unit under this quota adds to a count: the picoseconds in which it refills, if the policy's strategy counts time; or
/// else one.
pub(super) fn unit_of(policy: &Policy, quota: &Quota) -> u128 {
    if policy.strategy_or_default().tiers_share_period() {
        return 1;
    }
    let refills_in = quota.period().as_nanos() * 1_000;
    (refills_in / u128::from(quota.amount()).max(1)).max(1)
}

fn count_key(counter: &CounterOp<'_>) -> CountKey {
    let limit = counter.limit;
    (
        limit.policy().into(),
        limit.info().state_format,
        counter.key,
    )
}

/// Keys whose charges are about to be sent.
struct WriteBackBatch<'a> {
    shares: &'a LocalShares,
    keys: Vec<(Key, WriteBackEntry)>,
}

impl Drop for WriteBackBatch<'_> {
    fn drop(&mut self) {
        self.shares.unwritten().taken -= self.keys.len();
    }
}

impl LocalShares {
    /// Registers a share. With `whole`, the limit of the whole quota, and what a [unit](unit_of) of that is, its charges are written back
    /// there, except those of bans and of in-flight limits, whose permits are released in process.
    pub(crate) fn open_share(
        &self,
        policy: &str,
        rule: Arc<dyn Rule>,
        whole: Option<(&LimitHandle, u128)>,
    ) -> Result<LimitHandle, InvalidValue> {
        let local = self.counts.register(policy, rule.clone())?;
        let info = local.info();
        match whole.filter(|_| info.permit_ttl.is_none() && !info.counts_rejections) {
            None => Ok(local),
            Some((whole, unit)) => {
                let whole = whole.clone();
                let context = WriteBackContext { local, whole, unit };
                Ok(LimitHandle::new(policy, rule, context))
            }
        }
    }

    /// Adds an observer, which is called for each charge that is dropped.
    pub(crate) fn observe(&self, observer: &Arc<dyn Observer>) {
        self.observers.add(observer);
    }

    /// The number of keys that wait for their write-back.
    pub(crate) fn unwritten_keys(&self) -> usize {
        let unwritten = self.unwritten();
        unwritten.by_key.len() + unwritten.taken
    }

    /// The number of charges that were dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.unwritten().dropped
    }

    /// Records the charges and refunds of one counter.
    fn record(&self, op: Op, counter: &CounterOp<'_>, result: &OpResult, counted: &CounterResult) {
        match op.for_counter(counter) {
            Op::Acquire(count) => {
                let rejected = match counter.mode {
                    CounterMode::ChargeRejectedToo => {
                        u64::from(count).saturating_sub(result.admitted)
                    }
                    _ => 0,
                };
                let rejected_units = counter.units.of(rejected);
                self.add(counter, counted.units.saturating_add(rejected_units));
            }
            Op::ForceAcquire | Op::Settle => self.add(counter, counted.units),
            Op::Refund => self.subtract(counter, counted.units),
            Op::Peek | Op::Inspect | Op::Reset | Op::Renew | Op::Lower { .. } => {}
        }
    }

    fn add(&self, counter: &CounterOp<'_>, units: u64) {
        if units == 0 {
            return;
        }
        let (key, share) = (count_key(counter), counter.limit);
        let mut unwritten = self.unwritten();
        let is_full = unwritten.by_key.len() >= MAX_PENDING_KEYS;
        if is_full && !unwritten.by_key.contains_key(&key) {
            unwritten.dropped += 1;
            let begins = !std::mem::replace(&mut unwritten.is_dropping, true);
            drop(unwritten);
            let policy = counter.limit.policy();
            self.observers.on_event(&Event::WriteBackDropped { policy });
            if begins {
                tracing::warn!(
                    max_keys = MAX_PENDING_KEYS,
                    "write-backs dropped: too many keys were charged in process while the store failed"
                );
            }
            return;
        }
        let before = unwritten.by_key.get(&key).map_or(0, |entry| entry.charged);
        let entry = WriteBackEntry {
            share: share.clone(),
            charged: before.saturating_add(charged_by(share, units)),
        };
        let replaced = unwritten.by_key.insert(key, entry);
        self.any.store(true, Ordering::Relaxed);
        drop(unwritten);
        drop(replaced);
    }

    fn subtract(&self, counter: &CounterOp<'_>, units: u64) {
        let key = count_key(counter);
        if let Some(entry) = self.unwritten().by_key.get_mut(&key) {
            let refunded = charged_by(counter.limit, units);
            entry.charged = entry.charged.saturating_sub(refunded);
        }
    }

    /// Removes what is not written back of a key under a policy, also if the policy has no share any more. To be called before the
    /// counts are reset: a concurrent charge is either reset too, or written back.
    pub(crate) fn forget(&self, policy: &str, key: Key) {
        let is_own =
            |(of, _, own): &CountKey, _: &mut WriteBackEntry| **of == *policy && *own == key;
        let forgotten: Vec<_> = self.unwritten().by_key.extract_if(is_own).collect();
        drop(forgotten);
    }

    /// Takes up to [`WRITE_BACK_BATCH`] keys out of the queue. They count as unwritten until the batch is dropped.
    fn take_batch(&self) -> WriteBackBatch<'_> {
        let mut unwritten = self.unwritten();
        let keys = unwritten.by_key.keys().take(WRITE_BACK_BATCH);
        let batch: Vec<_> = keys.cloned().collect();
        let taken = batch.into_iter().filter_map(|key| {
            let entry = unwritten.by_key.remove(&key)?;
            Some((key.2, entry))
        });
        let keys: Vec<_> = taken.collect();
        let any = !unwritten.by_key.is_empty();
        unwritten.is_dropping &= any;
        unwritten.taken += keys.len();
        self.any.store(any, Ordering::Relaxed);
        WriteBackBatch { shares: self, keys }
    }

    fn unwritten(&self) -> MutexGuard<'_, WriteBackQueue> {
        lock(&self.unwritten)
    }
}

/// All operations on shares go through this implementation, so that each charge is recorded.
impl Store for LocalShares {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.open_share(policy, rule, None)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        let is_written_back =
            |counter: &&CounterOp<'_>| counter.limit.context::<WriteBackContext>().is_some();
        let local = counters.iter().map(|counter| CounterOp {
            limit: match counter.limit.context::<WriteBackContext>() {
                Some(share) => &share.local,
                None => counter.limit,
            },
            ..*counter
        });
        let local: SmallVec<[CounterOp<'_>; 4]> = local.collect();
        let response = self.counts.execute(op, &local);
        if let StoreResponse::Ready(Ok(result)) = &response {
            let counters = counters.iter().zip(&result.counters);
            let counters = counters.filter(|(counter, _)| is_written_back(counter));
            counters.for_each(|(counter, counted)| self.record(op, counter, result, counted));
        }
        response
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        let share = limit.context::<WriteBackContext>();
        let local = share.map_or(limit, |share| &share.local);
        self.counts.callers(local, key)
    }

    fn execute_detached_with_response(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        self.execute(op, counters)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        // An in-process store has executed it when this returns.
        drop(self.execute(op, counters));
    }
}

impl LocalShares {
    /// Sends the store, which responds again, some of the charges that were made in process. Each is sent once, so it is made once
    /// or not at all.
    #[inline]
    pub(crate) fn write_back(&self, store: &dyn Store) {
        if self.any.load(Ordering::Relaxed) {
            self.flush_write_backs(store);
        }
    }

    #[cold]
    fn flush_write_backs(&self, store: &dyn Store) {
        let batch = self.take_batch();
        for (key, entry) in &batch.keys {
            let Some(WriteBackContext { local, whole, unit }) = entry.share.context() else {
                continue;
            };
            let units = u64::try_from(entry.charged.div_ceil(*unit)).unwrap_or(u64::MAX);
            // Units that have refilled since are not charged.
            let units = units.min(self.counts.units_in_use(local, *key));
            if units > 0 {
                let counter = CounterOp {
                    units: Units::new(units),
                    ..CounterOp::new(whole, *key)
                };
                store.execute_detached(Op::ForceAcquire, &[counter]);
            }
        }
    }
}

fn charged_by(share: &LimitHandle, units: u64) -> u128 {
    let unit = share
        .context::<WriteBackContext>()
        .map_or(1, |share| share.unit);
    unit.saturating_mul(u128::from(units))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{FixedWindow, Gcra, Strategy, Terms};

    fn unwritten(shares: &LocalShares) -> Vec<u128> {
        let unwritten = shares.unwritten();
        unwritten
            .by_key
            .values()
            .map(|entry| entry.charged)
            .collect()
    }

    #[test]
    fn a_key_under_two_quotas_is_written_back_once() {
        let (shares, store, key) = (LocalShares::default(), MemoryStore::new(), Key::global());
        let share = |units| {
            let quota = Quota::requests(units).per_month();
            let rule = FixedWindow.bind(&quota, &Terms::default()).expect("a rule");
            let whole = store.register("p", rule.clone()).expect("a limit");
            let limit = shares.open_share("p", rule, Some((&whole, 1)));
            (limit.expect("a share"), whole)
        };
        let [(before, _), (after, whole)] = [90, 70].map(share);
        let charge = |limit| shares.execute_detached(Op::Acquire(7), &[CounterOp::new(limit, key)]);
        charge(&before);
        // As if they had refilled.
        shares.execute_detached(Op::Reset, &[CounterOp::new(&before, key)]);
        charge(&after);
        shares.forget("another", key);
        shares.forget("p", Key::new("another"));
        assert_eq!(unwritten(&shares), [14]);
        shares.write_back(&store);
        assert_eq!(store.units_in_use(&whole, key), 7);
        assert!(unwritten(&shares).is_empty());
        charge(&after);
        let batch = shares.take_batch();
        assert_eq!((batch.keys.len(), shares.unwritten_keys()), (1, 1));
        drop(batch);
        assert_eq!(shares.unwritten_keys(), 0);
    }

    /// A unit of one quota is a hundred of the other. The sum is rounded up to units of the last one.
    #[test]
    fn charges_under_two_rates_are_written_back_as_what_they_are_together() {
        for (before, during, in_use) in [
            (vec![], vec![(0, 6), (1, 1)], 601),
            (vec![(0, 6)], vec![(1, 100), (0, 1)], 800),
            (vec![(1, 300)], vec![(0, 2), (1, 5), (0, 1)], 700),
            (vec![(1, 300)], vec![(0, 2), (1, 5), (0, 1), (1, 1)], 606),
        ] {
            let (shares, store, key) = (LocalShares::default(), MemoryStore::new(), Key::global());
            let share = |units| {
                let quota = Quota::requests(units).per_month();
                let rule = Gcra.bind(&quota, &Terms::default()).expect("a rule");
                let whole = store.register("p", rule.clone()).expect("a limit");
                let unit = unit_of(&Policy::new("p", quota), &quota);
                let limit = shares.open_share("p", rule, Some((&whole, unit)));
                (limit.expect("a share"), whole)
            };
            let limits = [10, 1_000].map(share);
            for charges in [before, during] {
                for (quota, units) in charges {
                    let counter = CounterOp::new(&limits[quota].0, key);
                    shares.execute_detached(Op::Acquire(units), &[counter]);
                }
                shares.write_back(&store);
            }
            assert_eq!(store.units_in_use(&limits[1].1, key), in_use);
        }
    }
}
