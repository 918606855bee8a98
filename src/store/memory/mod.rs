//! Counting in process.

use std::{
    fmt,
    future::ready,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use self::{
    clocks::Clocks,
    shard::{Place, Shard},
};
use super::{
    CallersFuture, CounterMode, CounterOp, CounterResult, DecisionSource, Glance, LimitHandle, Op,
    OpResult, Store, StoreResponse, Units,
    room::{denied_charge, fit, fit_without, judge},
};
use crate::{
    clock::{Clock, Timestamp},
    error::{InvalidValue, StoreError},
    key::Key,
    strategy::{
        ChargeReceipt, Rule, Snapshot,
        rule::{AnyRule, table::hash},
    },
    sync::CachePadded,
};

mod builder;
mod clocks;
mod shard;

pub use builder::MemoryStoreBuilder;

/// Counts in process, exactly, under any number of threads.
///
/// Keys are spread over shards, each under a lock of its own. A key that is at its full quota is forgotten as others
/// come; there is no thread for it, and none to run.
///
/// It counts by a monotonic clock, which begins with the wall clock's time when the process first reads it: a step of the
/// wall clock refills no quota and withholds none. [Calendar windows](crate::CalendarWindow) follow the wall clock.
///
/// It holds at most [`max_keys`](MemoryStoreBuilder::max_keys). When that many are in use, the ones nearest to their
/// full quota are **dropped** to make room, and start afresh when they come back: a client that can make that many keys
/// at once gets quota back that way, but only of the keys that had used the least of it. How many were dropped is
/// [counted](MemoryStore::dropped); if it isn't zero, allow more keys, or keys that are harder to come by.
///
/// ```
/// use std::num::NonZeroUsize;
/// use tollgate::{Key, Limiter, MemoryStore, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = MemoryStore::builder().max_keys(NonZeroUsize::MIN.saturating_add(999_999)).build();
/// let limiter = Limiter::builder()
///     .store(store)
///     .policy(Policy::new("logins", Quota::requests(1).per_minute()))
///     .build()?;
/// assert!(limiter.check(Key::new("alice")).await.is_admitted());
/// assert!(!limiter.check(Key::new("alice")).await.is_admitted());
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    /// Seeded for each process, so that clients cannot choose keys that collide.
    hasher: DefaultHashBuilder,
    clock: Arc<dyn Clock>,
    /// One per policy name and state format; a shard has a table for each. Only ever grows.
    names: RwLock<Vec<(Box<str>, &'static str)>>,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    dropped: AtomicU64,
}

impl MemoryStore {
    /// How many keys are held now. Some may be at their full quota, and not yet forgotten.
    pub fn keys(&self) -> usize {
        let shards = self.inner.shards.iter();
        shards.map(|shard| lock(shard).len()).sum()
    }

    /// Keys with quota in use that were evicted since there was no space left.
    pub fn dropped(&self) -> u64 {
        self.inner.dropped.load(Ordering::Relaxed)
    }

    /// Answers one request whose lines' shards are locked.
    fn answer(
        &self,
        op: Op,
        counters: &[CounterOp<'_>],
        locked: &mut Locked<'_>,
    ) -> Option<OpResult> {
        let clocks = Clocks::read(&*self.inner.clock, counters);
        let mut rooms: SmallVec<[u64; 4]> = SmallVec::new();
        let (mut admitted, mut refused) = (0, 0);
        if let Op::Acquire(times) = op {
            let times = u64::from(times);
            for (line, place) in counters.iter().zip(&locked.places) {
                let shard = &mut *locked.guards[place.guard];
                let now = clocks.of(line.limit);
                let available = memory(line)?.available(shard.get(line, place), now);
                rooms.push(u64::try_from(available).unwrap_or(0));
            }
            (admitted, refused) = judge(counters, &rooms, times);
        }
        let mut answers = SmallVec::new();
        for (index, (line, place)) in counters.iter().zip(&locked.places).enumerate() {
            let shard = &mut *locked.guards[place.guard];
            let (rule, now) = (memory(line)?, clocks.of(line.limit));
            let mut charge = 0;
            let units = match op.for_counter(line) {
                Op::Acquire(times) => {
                    let times = u64::from(times);
                    let available = rooms.get(index).copied().unwrap_or(0);
                    let units = match line.mode {
                        CounterMode::Check | CounterMode::CountRejections => 0,
                        CounterMode::Charge | CounterMode::ChargeRejectedToo => {
                            line.units.of(admitted)
                        }
                        CounterMode::Shadow { charges: false, .. } => 0,
                        CounterMode::Shadow { replaces, .. } => {
                            let others = match replaces {
                                Some(live) => fit_without(counters, &rooms, live, times),
                                None => admitted,
                            };
                            line.units.of(fit(line, available, others))
                        }
                    };
                    charge = match line.mode {
                        CounterMode::CountRejections => line.units.of(refused).min(available),
                        _ => units,
                    };
                    if line.mode == CounterMode::ChargeRejectedToo && refused > 0 {
                        let denied = line.units.of(refused);
                        let available = rule.available(shard.get(line, place), now);
                        charge +=
                            denied_charge(line, available.saturating_sub_unsigned(units), denied);
                    }
                    units
                }
                Op::Peek => {
                    // A state that can't be is mended by a look and by a refund too, so that what it tells comes true.
                    rule.available(shard.get(line, place), now);
                    0
                }
                Op::Reset => 0,
                Op::ForceAcquire | Op::Settle => {
                    let available = rule.available(shard.get(line, place), now);
                    let most = available.saturating_add_unsigned(line.limit.rule().capacity());
                    charge = line.units.get().min(u64::try_from(most).unwrap_or(0));
                    charge
                }
                Op::Renew => shard
                    .get(line, place)
                    .map_or(0, |state| rule.renew(state, now, &line.caller)),
                Op::Refund => {
                    let state = shard.get(line, place);
                    let back =
                        rule.refund(state, now, &line.receipt, line.units.get(), &line.caller);
                    rule.available(shard.get(line, place), now);
                    back
                }
            };
            if charge > 0 {
                let (state, dropped) = shard.entry(line, place, &*self.inner.clock);
                // The permits of what was rejected are not the request's to give back or to renew.
                let unheld = match line.limit.permit_ttl() {
                    Some(_) => charge - units,
                    None => 0,
                };
                if charge > unheld {
                    rule.charge(state, now, charge - unheld, &line.caller);
                }
                if unheld > 0 {
                    rule.charge(state, now, unheld, &Key::unique());
                }
                if dropped > 0 {
                    self.inner.dropped.fetch_add(dropped, Ordering::Relaxed);
                }
            }
            let state = shard.get(line, place).map(|state| &*state);
            let snapshot = rule.snapshot(state, now, line.units.get());
            if op == Op::Reset {
                shard.remove(line, place);
            }
            answers.push(CounterResult {
                clock_skew_us: now.as_micros().saturating_sub(clocks.now.as_micros()),
                ..CounterResult::new(units, snapshot)
            });
        }
        Some(OpResult {
            admitted,
            at: clocks.now,
            age: Duration::ZERO,
            admitted_after: 0,
            source: DecisionSource::Store,
            counters: answers,
        })
    }

    /// Takes for as many of `times` requests as there is room for, under a key that is known; `None` if it isn't.
    #[inline]
    fn try_charge_known(
        &self,
        limit: &LimitHandle,
        key: &Key,
        times: u32,
        units: Units,
    ) -> Option<(Timestamp, u64, Snapshot)> {
        let (shard, place) = self.place(limit, key)?;
        let rule = limit.rule().local_rule()?.0;
        let mut shard = lock(&self.inner.shards[shard]);
        let now = clocks::read(&*self.inner.clock, limit);
        let (times, units) = (times.into(), units.get());
        let table = shard.table(place.table)?;
        let (admitted, snapshot) =
            rule.try_charge_known(table, (place.hash, key), now, times, units)?;
        Some((now, admitted, snapshot))
    }

    /// Which shard a limit's key is in, and where.
    #[inline]
    fn place(&self, limit: &LimitHandle, key: &Key) -> Option<(usize, Place)> {
        let hash = hash(&self.inner.hasher, key);
        // Of its bits, those that a table looks at neither first nor last; scaled, which is no division.
        let middle = u64::from((hash >> 24) as u32);
        let shard = ((middle * self.inner.shards.len() as u64) >> 32) as usize;
        let Table(table) = *limit.context()?;
        let guard = 0;
        Some((shard, Place { guard, table, hash }))
    }

    fn lock<'a>(&'a self, counters: &[CounterOp<'_>]) -> Option<Locked<'a>> {
        let inner = &*self.inner;
        let mut shards: SmallVec<[usize; 4]> = SmallVec::new();
        let mut places: SmallVec<[Place; 4]> = counters
            .iter()
            .map(|line| {
                let (shard, place) = self.place(line.limit, &line.key)?;
                shards.push(shard);
                Some(Place {
                    guard: shard,
                    ..place
                })
            })
            .collect::<Option<_>>()?;
        // One order for all, or two requests could wait for each other.
        shards.sort_unstable();
        shards.dedup();
        for place in &mut places {
            place.guard = shards
                .iter()
                .position(|shard| *shard == place.guard)
                .unwrap_or(0);
        }
        let guards = shards.iter().map(|shard| lock(&inner.shards[*shard]));
        Some(Locked {
            guards: guards.collect(),
            places,
        })
    }
}

/// The shards of one request's lines, all locked.
struct Locked<'a> {
    guards: SmallVec<[MutexGuard<'a, Shard>; 4]>,
    places: SmallVec<[Place; 4]>,
}

/// Which table a limit's keys are in.
struct Table(usize);

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // A strategy that panics leaves integers behind, and they are still the best there is.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn memory<'a>(line: &'a CounterOp<'_>) -> Option<&'a dyn AnyRule> {
    line.limit.rule().local_rule().map(|rule| rule.0)
}

impl Store for MemoryStore {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        let Some(local) = rule.local_rule().map(|rule| rule.0) else {
            return Err(InvalidValue::new(
                format!("{rule:?}, which counts on Redis alone"),
                "a strategy with an in-process half, or a RedisStore",
            ));
        };
        let mut names = self
            .inner
            .names
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let known = names
            .iter()
            .position(|(name, tag)| **name == *policy && *tag == rule.state_format());
        let place = match known {
            Some(place) if !lock(&self.inner.shards[0]).holds(place, local) => {
                return Err(InvalidValue::new(
                    format!(
                        "{rule:?}, whose state format {:?} is another's",
                        rule.state_format()
                    ),
                    "a state format that no other strategy has",
                ));
            }
            Some(place) => place,
            None => {
                for shard in &self.inner.shards {
                    let table = local.table(self.inner.hasher.clone());
                    lock(shard).push(table, rule.follows_wall_clock());
                }
                names.push((policy.into(), rule.state_format()));
                names.len() - 1
            }
        };
        Ok(LimitHandle::new(policy, rule, Table(place)))
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        if let (Op::Acquire(times), [line]) = (op, counters)
            && line.mode == CounterMode::Charge
            && !line.limit.records_caller()
            && let Some((at, admitted, snapshot)) =
                self.try_charge_known(line.limit, &line.key, times, line.units)
        {
            return StoreResponse::Ready(Ok(OpResult {
                admitted,
                at,
                age: Duration::ZERO,
                admitted_after: 0,
                source: DecisionSource::Store,
                counters: SmallVec::from_buf([CounterResult::new(
                    line.units.of(admitted),
                    snapshot,
                )]),
            }));
        }
        let locked = self.lock(counters);
        let answer = locked.and_then(|mut locked| self.answer(op, counters, &mut locked));
        StoreResponse::Ready(answer.ok_or(StoreError::Unsupported(
            "a limit registered by another store",
        )))
    }

    fn glance(&self, limit: &LimitHandle, key: &Key, units: Units) -> Option<Glance> {
        let (at, admitted, snapshot) = self.try_charge_known(limit, key, 1, units)?;
        let fits = admitted > 0;
        Some(Glance { fits, at, snapshot })
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        let line = CounterOp {
            limit,
            key: *key,
            units: Units::ZERO,
            receipt: ChargeReceipt::NONE,
            caller: *key,
            mode: CounterMode::Charge,
        };
        let callers = self.lock(&[line]).and_then(|mut locked| {
            let place = &locked.places[0];
            let state = locked.guards[place.guard].get(&line, place)?;
            let now = clocks::read(&*self.inner.clock, limit);
            Some(memory(&line)?.callers(state, now))
        });
        Box::pin(ready(Ok(callers.unwrap_or_default())))
    }

    fn wall(&self, at: Timestamp) -> Timestamp {
        at.shifted(clocks::ahead(&*self.inner.clock))
    }

    fn id(&self) -> Option<u64> {
        Some(Arc::as_ptr(&self.inner) as usize as u64)
    }

    fn execute_observed(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        self.execute(op, counters)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        let _ = self.execute(op, counters);
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("clock", &self.inner.clock)
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}
