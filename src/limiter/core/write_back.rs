//! This process's shares: counted in process while the store fails, and charged to the store afterwards.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use smallvec::SmallVec;

use crate::{
    error::InvalidValue,
    key::Key,
    store::{
        CallersFuture, CounterMode, CounterOp, CounterResult, LimitHandle, Op, OpResult, Store,
        StoreResponse, Units, memory::MemoryStore,
    },
    strategy::Rule,
};

/// Keys that await their write-back at most. What is charged under others stays in process.
const MAX_PENDING_KEYS: usize = 10_000;

/// How many are written back on each answer of the store, so that none is delayed by all of them.
const WRITE_BACK_BATCH: usize = 64;

/// Counts shares in process, through all outages, and notes what the store has not been charged for yet.
#[derive(Debug, Default)]
pub(crate) struct LocalShares {
    counts: MemoryStore,
    /// Whether there are any unwritten charges. Read by each decision.
    any: AtomicBool,
    unwritten: Mutex<WriteBackQueue>,
}

/// The context of a share's limit that is written back: where it is counted in process, and where in the store.
struct WriteBackContext {
    local: LimitHandle,
    whole: LimitHandle,
}

/// Charges in process that the store has not been charged for, by the share's limit and key.
#[derive(Debug, Default)]
struct WriteBackQueue {
    by_key: HashMap<(u64, Key), WriteBackEntry>,
    /// Charges that were not noted, since there were too many keys.
    dropped: u64,
    /// Whether some were dropped since there were none to write back.
    is_dropping: bool,
}

#[derive(Debug)]
struct WriteBackEntry {
    share: LimitHandle,
    units: u64,
}

impl LocalShares {
    /// Opens a share. With the limit of the `whole` quota, what it counts is charged there afterwards; but not bans, and
    /// not permits, which are given back in process.
    pub(crate) fn open_share(
        &self,
        policy: &str,
        rule: Arc<dyn Rule>,
        whole: Option<&LimitHandle>,
    ) -> Result<LimitHandle, InvalidValue> {
        let local = self.counts.register(policy, rule.clone())?;
        match whole.filter(|_| rule.permit_ttl().is_none() && !rule.counts_rejections()) {
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

    /// Keys that wait for their write-back.
    pub(crate) fn unwritten_keys(&self) -> usize {
        self.unwritten().by_key.len()
    }

    /// Charges that were dropped instead of noted, so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.unwritten().dropped
    }

    /// Notes what became of a line.
    fn note(&self, op: Op, line: &CounterOp<'_>, answer: &OpResult, answered: &CounterResult) {
        match op.for_counter(line) {
            Op::Acquire(times) => {
                let refused = match line.mode {
                    CounterMode::ChargeRejectedToo => {
                        u64::from(times).saturating_sub(answer.admitted)
                    }
                    _ => 0,
                };
                let denied = line.units.of(refused);
                self.add(line, answered.units.saturating_add(denied));
            }
            Op::ForceAcquire | Op::Settle => self.add(line, answered.units),
            Op::Refund => self.subtract(line, answered.units),
            Op::Peek | Op::Reset | Op::Renew => {}
        }
    }

    fn add(&self, line: &CounterOp<'_>, units: u64) {
        if units == 0 {
            return;
        }
        let mut unwritten = self.unwritten();
        let full = unwritten.by_key.len() >= MAX_PENDING_KEYS;
        let key = (line.limit.id(), line.key);
        if full && !unwritten.by_key.contains_key(&key) {
            unwritten.dropped += 1;
            let begins = !std::mem::replace(&mut unwritten.is_dropping, true);
            drop(unwritten);
            if begins {
                tracing::warn!(
                    max_keys = MAX_PENDING_KEYS,
                    "write-backs dropped: too many keys were charged in process while the store failed"
                );
            }
            return;
        }
        let charged = unwritten
            .by_key
            .entry(key)
            .or_insert_with(|| WriteBackEntry {
                share: line.limit.clone(),
                units: 0,
            });
        charged.units = charged.units.saturating_add(units);
        self.any.store(true, Ordering::Relaxed);
    }

    fn subtract(&self, line: &CounterOp<'_>, units: u64) {
        let mut unwritten = self.unwritten();
        let key = (line.limit.id(), line.key);
        if let Some(charged) = unwritten.by_key.get_mut(&key) {
            charged.units = charged.units.saturating_sub(units);
        }
    }

    fn forget(&self, line: &CounterOp<'_>) {
        let key = (line.limit.id(), line.key);
        let forgotten = self.unwritten().by_key.remove(&key);
        drop(forgotten);
    }

    /// Takes some of what is to be written back.
    fn take_some(&self) -> Vec<(Key, WriteBackEntry)> {
        let mut unwritten = self.unwritten();
        let keys = unwritten.by_key.keys().take(WRITE_BACK_BATCH);
        let some: Vec<_> = keys.copied().collect();
        let taken = some.into_iter().filter_map(|key| {
            let charged = unwritten.by_key.remove(&key)?;
            Some((key.1, charged))
        });
        let taken = taken.collect();
        let any = !unwritten.by_key.is_empty();
        unwritten.is_dropping &= any;
        self.any.store(any, Ordering::Relaxed);
        taken
    }

    /// How many units count now under a key.
    fn used(&self, local: &LimitHandle, key: Key) -> u64 {
        let StoreResponse::Ready(Ok(answer)) =
            self.counts.execute(Op::Peek, &[CounterOp::new(local, key)])
        else {
            return 0;
        };
        let left = answer.counters.first();
        let left = left.map(|line| {
            local
                .status(&line.snapshot, answer.at, Units::ONE)
                .remaining
        });
        left.map_or(0, |left| local.rule().capacity().saturating_sub(left))
    }

    fn unwritten(&self) -> MutexGuard<'_, WriteBackQueue> {
        self.unwritten
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever is done to a share is done here, so that nothing is charged and not noted.
impl Store for LocalShares {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.open_share(policy, rule, None)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        let written_back =
            |line: &&CounterOp<'_>| line.limit.context::<WriteBackContext>().is_some();
        if op == Op::Reset {
            // First, so that what is charged meanwhile is forgotten with the rest, or written back, and not more than that.
            counters
                .iter()
                .filter(written_back)
                .for_each(|line| self.forget(line));
        }
        let local = counters.iter().map(|line| CounterOp {
            limit: match line.limit.context::<WriteBackContext>() {
                Some(share) => &share.local,
                None => line.limit,
            },
            ..*line
        });
        let local: SmallVec<[CounterOp<'_>; 4]> = local.collect();
        let reply = self.counts.execute(op, &local);
        if let StoreResponse::Ready(Ok(answer)) = &reply {
            let counters = counters.iter().zip(&answer.counters);
            let counters = counters.filter(|(line, _)| written_back(line));
            counters.for_each(|(line, answered)| self.note(op, line, answer, answered));
        }
        reply
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        let share = limit.context::<WriteBackContext>();
        let local = share.map_or(limit, |share| &share.local);
        self.counts.callers(local, key)
    }

    fn execute_observed(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        self.execute(op, counters)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        // It is done at once.
        drop(self.execute(op, counters));
    }
}

impl LocalShares {
    /// The store answers: charges there some of what was charged in process. Each charge is sent once, so it is charged once
    /// or not at all.
    #[inline]
    pub(crate) fn write_back(&self, store: &dyn Store) {
        if self.any.load(Ordering::Relaxed) {
            self.flush_write_backs(store);
        }
    }

    #[cold]
    fn flush_write_backs(&self, store: &dyn Store) {
        for (key, charged) in self.take_some() {
            let Some(WriteBackContext { local, whole }) = charged.share.context() else {
                continue;
            };
            // What time has given back since is not charged.
            let units = charged.units.min(self.used(local, key));
            if units > 0 {
                let line = CounterOp {
                    units: Units::new(units),
                    ..CounterOp::new(whole, key)
                };
                store.execute_detached(Op::ForceAcquire, &[line]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        quota::Quota,
        strategy::{ChargeReceipt, Concurrency, FixedWindow, Strategy},
    };

    fn share(shares: &LocalShares, strategy: &dyn Strategy, quota: Quota) -> LimitHandle {
        let rule = strategy.bind(&quota).expect("a rule");
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
    fn charges_are_recorded_and_refunds_and_resets_are_not() {
        let (shares, key) = (LocalShares::default(), Key::global());
        let limit = share(&shares, &FixedWindow, Quota::requests(9).per_month());
        let line = |units, receipt| CounterOp {
            units: Units::new(units),
            receipt,
            ..CounterOp::new(&limit, key)
        };
        for (op, units, noted) in [
            (Op::Peek, 1, vec![]),
            (Op::Reset, 1, vec![]),
            (Op::Acquire(2), 2, vec![4]),
            // There is room for five more.
            (Op::Acquire(9), 2, vec![8]),
            (Op::Acquire(1), 2, vec![8]),
            (Op::ForceAcquire, 3, vec![11]),
            (Op::Peek, 1, vec![11]),
            (Op::Reset, 1, vec![]),
            (Op::Acquire(1), 5, vec![5]),
        ] {
            shares.execute_detached(op, &[line(units, ChargeReceipt::NONE)]);
            assert_eq!(unwritten(&shares), noted, "{op:?}");
        }
        let StoreResponse::Ready(Ok(answer)) =
            shares.execute(Op::Acquire(1), &[line(3, ChargeReceipt::NONE)])
        else {
            panic!("it is answered at once");
        };
        let receipt = ChargeReceipt {
            charged_at: answer.at,
            remaining: 3,
            window_id: limit
                .rule()
                .window_id(&answer.counters[0].snapshot, answer.at),
        };
        shares.execute_detached(Op::Refund, &[line(2, receipt)]);
        assert_eq!(unwritten(&shares), [6]);
        assert_eq!(shares.take_some().len(), 1);
        assert!(unwritten(&shares).is_empty() && !shares.any.load(Ordering::Relaxed));
        // It counts in process for as long as it would.
        let context: &WriteBackContext = limit.context().expect("one that is written back");
        assert_eq!(shares.used(&context.local, key), 6);
    }

    #[test]
    fn permits_are_not_written_back() {
        let shares = LocalShares::default();
        let limit = share(&shares, &Concurrency::new(), Quota::concurrent(9));
        shares.execute_detached(Op::Acquire(1), &[CounterOp::new(&limit, Key::global())]);
        assert!(unwritten(&shares).is_empty());
    }
}
