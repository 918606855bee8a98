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
    units: u64,
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
    /// Registers a share. With `whole`, the limit of the whole quota, its charges are written back there, except those of bans and
    /// of in-flight limits, whose permits are released in process.
    pub(crate) fn open_share(
        &self,
        policy: &str,
        rule: Arc<dyn Rule>,
        whole: Option<&LimitHandle>,
    ) -> Result<LimitHandle, InvalidValue> {
        let local = self.counts.register(policy, rule.clone())?;
        let info = local.info();
        match whole.filter(|_| info.permit_ttl.is_none() && !info.counts_rejections) {
            None => Ok(local),
            Some(whole) => {
                let whole = whole.clone();
                Ok(LimitHandle::new(
                    policy,
                    rule,
                    WriteBackContext { local, whole },
                ))
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
        let mut unwritten = self.unwritten();
        let full = unwritten.by_key.len() >= MAX_PENDING_KEYS;
        let key = count_key(counter);
        if full && !unwritten.by_key.contains_key(&key) {
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
        let before = unwritten
            .by_key
            .get(&key)
            .map_or(0, |charged| charged.units);
        let charged = WriteBackEntry {
            share: counter.limit.clone(),
            units: before.saturating_add(units),
        };
        let replaced = unwritten.by_key.insert(key, charged);
        self.any.store(true, Ordering::Relaxed);
        drop(unwritten);
        drop(replaced);
    }

    fn subtract(&self, counter: &CounterOp<'_>, units: u64) {
        let mut unwritten = self.unwritten();
        let key = count_key(counter);
        if let Some(charged) = unwritten.by_key.get_mut(&key) {
            charged.units = charged.units.saturating_sub(units);
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
            let charged = unwritten.by_key.remove(&key)?;
            Some((key.2, charged))
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
        for (key, charged) in &batch.keys {
            let Some(WriteBackContext { local, whole }) = charged.share.context() else {
                continue;
            };
            // Units that have refilled since are not charged.
            let units = charged.units.min(self.counts.units_in_use(local, *key));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        quota::Quota,
        strategy::{ChargeReceipt, Concurrency, FixedWindow, Strategy, Terms},
    };

    fn share(shares: &LocalShares, strategy: &dyn Strategy, quota: Quota) -> LimitHandle {
        let rule = strategy.bind(&quota, &Terms::default()).expect("a rule");
        let whole = LimitHandle::new("p", rule.clone(), ());
        let limit = shares.open_share("p", rule, Some(&whole));
        limit.expect("a share")
    }

    fn unwritten(shares: &LocalShares) -> Vec<u64> {
        let unwritten = shares.unwritten();
        let charged = unwritten.by_key.values();
        charged.map(|charged| charged.units).collect()
    }

    #[test]
    fn charges_are_recorded_refunds_are_subtracted_and_resets_remove_them() {
        let (shares, key) = (LocalShares::default(), Key::global());
        let limit = share(&shares, &FixedWindow, Quota::requests(9).per_month());
        let counter = |units, receipt| CounterOp {
            units: Units::new(units),
            receipt,
            ..CounterOp::new(&limit, key)
        };
        for (op, units, recorded) in [
            (Op::Peek, 1, vec![]),
            (Op::Acquire(2), 2, vec![4]),
            // Five more units are available.
            (Op::Acquire(9), 2, vec![8]),
            (Op::Acquire(1), 2, vec![8]),
            (Op::ForceAcquire, 3, vec![11]),
            (Op::Peek, 1, vec![11]),
        ] {
            shares.execute_detached(op, &[counter(units, ChargeReceipt::NONE)]);
            assert_eq!(unwritten(&shares), recorded, "{op:?}");
        }
        shares.forget("another", key);
        shares.forget("p", Key::new("another"));
        assert_eq!(unwritten(&shares), [11]);
        shares.forget("p", key);
        assert!(unwritten(&shares).is_empty());
        shares.execute_detached(Op::Reset, &[counter(1, ChargeReceipt::NONE)]);
        shares.execute_detached(Op::Acquire(1), &[counter(5, ChargeReceipt::NONE)]);
        assert_eq!(unwritten(&shares), [5]);
        let StoreResponse::Ready(Ok(result)) =
            shares.execute(Op::Acquire(1), &[counter(3, ChargeReceipt::NONE)])
        else {
            panic!("the result is ready");
        };
        let receipt = ChargeReceipt {
            charged_at: result.at,
            remaining: 3,
            window_id: limit
                .rule()
                .window_id(&result.counters[0].snapshot, result.at),
        };
        shares.execute_detached(Op::Refund, &[counter(2, receipt)]);
        assert_eq!(unwritten(&shares), [6]);
        let batch = shares.take_batch();
        assert_eq!((batch.keys.len(), shares.unwritten_keys()), (1, 1));
        drop(batch);
        assert_eq!(shares.unwritten_keys(), 0);
        assert!(unwritten(&shares).is_empty() && !shares.any.load(Ordering::Relaxed));
        // The charges still count in process.
        let context: &WriteBackContext = limit.context().expect("one that is written back");
        assert_eq!(shares.counts.units_in_use(&context.local, key), 6);
    }

    #[test]
    fn a_key_under_two_quotas_is_written_back_once() {
        let (shares, store, key) = (LocalShares::default(), MemoryStore::new(), Key::global());
        let share = |units| {
            let quota = Quota::requests(units).per_month();
            let rule = FixedWindow.bind(&quota, &Terms::default()).expect("a rule");
            let whole = store.register("p", rule.clone()).expect("a limit");
            let limit = shares.open_share("p", rule, Some(&whole));
            (limit.expect("a share"), whole)
        };
        let [(before, _), (after, whole)] = [90, 70].map(share);
        let charge = |limit| shares.execute_detached(Op::Acquire(7), &[CounterOp::new(limit, key)]);
        charge(&before);
        // As if they had refilled.
        shares.execute_detached(Op::Reset, &[CounterOp::new(&before, key)]);
        charge(&after);
        assert_eq!(unwritten(&shares), [14]);
        shares.write_back(&store);
        assert_eq!(store.units_in_use(&whole, key), 7);
    }

    #[test]
    fn permits_are_not_written_back() {
        let shares = LocalShares::default();
        let limit = share(&shares, &Concurrency::new(), Quota::concurrent(9));
        shares.execute_detached(Op::Acquire(1), &[CounterOp::new(&limit, Key::global())]);
        assert!(unwritten(&shares).is_empty());
    }
}
