//! Adjustments in all mixtures, asked of the stores themselves: units up and down in one call, over several counters and several of
//! one key, by receipts of windows that have ended, that are empty or of now, in any order, with requests and resets between.

use std::collections::{HashMap, HashSet};

use testkit::Clock as ServerClock;

use tollgate::{
    CalendarWindow, Concurrency, FixedWindow, Gcra, ListWindow, SlidingLog, SlidingWindow,
    TokenBucket,
    clock::Timestamp,
    store::{CounterOp, LimitHandle, Op, OpResult, Store, StoreResponse, Units},
    strategy::{ChargeReceipt, QuotaStatus, Strategy, Terms},
};
use tollgate_tests::{
    model::{Limit, Receipt, Rule, State},
    prelude::*,
    strategy_kind::StrategyKind as Kind,
};

const SECOND: u64 = 1_000_000;

/// Shortly before a round of GCRA's stored times ends.
const START: u64 = 1_799_999_600 * SECOND;
const REQUESTS: u64 = 12;
const PERIOD: u64 = 60 * SECOND;
const KEYS: u64 = 2;

/// One of each kind, which the model has, and permits, which it has not.
const POLICIES: usize = Kind::ALL.len() + 1;

/// Histories of 40 operations each.
const HISTORIES: u64 = 150;

/// What one counter of an operation is asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    policy: usize,
    key: u64,
    units: u64,
    /// The caller that is stored with a charge: each has its own.
    caller: u64,
    refunds: Option<Refunds>,
}

#[derive(Clone, Copy, Debug)]
enum Refunds {
    /// A charge that was made before.
    Charge(usize),
    Empty,
    Now,
}

/// A charge that was made, as each of the three knows it.
#[derive(Clone, Copy, Debug)]
struct Charge {
    policy: usize,
    key: u64,
    caller: u64,
    redis: ChargeReceipt,
    memory: ChargeReceipt,
    model: Receipt,
}

impl Asked {
    fn is_modelled(&self) -> bool {
        self.policy < Kind::ALL.len()
    }
}

struct Side {
    store: Box<dyn Store>,
    limits: Vec<LimitHandle>,
}

impl Side {
    fn new(store: impl Store) -> Self {
        let limits = (0..POLICIES).map(|policy| {
            let rule = bind(Kind::ALL.get(policy).copied()).expect("a rule");
            store
                .register(&format!("p{policy}"), rule)
                .expect("a limit")
        });
        Self {
            limits: limits.collect(),
            store: Box::new(store),
        }
    }

    async fn execute(
        &self,
        op: Op,
        asked: &[Asked],
        receipt: impl Fn(&Asked) -> Option<ChargeReceipt>,
    ) -> OpResult {
        let counters = asked.iter().map(|asked| {
            let key = Key::new(asked.key.to_string());
            let counter = CounterOp::new(&self.limits[asked.policy], key);
            let counter = counter.with_units(Units::new(asked.units));
            let counter = counter.with_caller(Key::new(format!("c{}", asked.caller)));
            match receipt(asked) {
                Some(receipt) => counter.with_receipt(receipt),
                None => counter,
            }
        });
        let counters: Vec<_> = counters.collect();
        match self.store.execute(op, &counters) {
            StoreResponse::Ready(result) => result.expect("a result"),
            StoreResponse::Pending(result) => result
                .await
                .unwrap_or_else(|error| panic!("{op:?} {asked:?}: {error}")),
        }
    }

    /// What each counter moved, and the status of a request of one unit.
    fn read(&self, asked: &[Asked], result: &OpResult) -> Vec<(u64, QuotaStatus)> {
        let counters = asked.iter().zip(result.counters());
        let read = counters.map(|(asked, counter)| {
            let at = Timestamp::from_micros(result.at.as_micros() + counter.clock_skew_us);
            let status = self.limits[asked.policy].status(&counter.snapshot, at, Units::ONE);
            (counter.units, status)
        });
        read.collect()
    }

    fn receipt(&self, asked: &Asked, result: &OpResult, index: usize) -> ChargeReceipt {
        let counter = &result.counters()[index];
        let at = Timestamp::from_micros(result.at.as_micros() + counter.clock_skew_us);
        let rule = self.limits[asked.policy].rule();
        ChargeReceipt::new(at, counter.units).with_window_id(rule.window_id(&counter.snapshot, at))
    }
}

/// The rule of a kind, or of permits.
fn bind(
    kind: Option<Kind>,
) -> Result<Arc<dyn tollgate::strategy::Rule>, tollgate::error::InvalidValue> {
    let (quota, terms) = (Quota::requests(REQUESTS).per_minute(), Terms::default());
    let Some(kind) = kind else {
        return Concurrency::with_ttl(Duration::from_micros(PERIOD))
            .bind(&Quota::concurrent(REQUESTS), &terms);
    };
    match kind {
        Kind::Gcra => Gcra.bind(&quota, &terms),
        Kind::Bucket => TokenBucket.bind(&quota, &terms),
        Kind::Fixed => FixedWindow.bind(&quota, &terms),
        Kind::Calendar => CalendarWindow::utc().bind(&quota, &terms),
        Kind::List => ListWindow.bind(&quota, &terms),
        Kind::Log => SlidingLog.bind(&quota, &terms),
        Kind::Sliding(buckets) => SlidingWindow::buckets(buckets).bind(&quota, &terms),
    }
}

fn limit(kind: Kind) -> Limit {
    let period = i128::from(PERIOD);
    let rule = match kind.counting() {
        Counting::EvenRate => return Limit::even(REQUESTS, PERIOD, REQUESTS, 0),
        Counting::Buckets(buckets) => return Limit::sliding(REQUESTS, PERIOD, buckets),
        Counting::OpenedWindows => Rule::Window { period },
        Counting::CalendarWindows => Rule::Calendar { zone: None, period },
        Counting::Log => Rule::Log { period },
    };
    Limit::counted(rule, REQUESTS)
}

#[derive(Default)]
struct Model {
    states: HashMap<(usize, u64), State>,
    now: i128,
}

impl Model {
    /// The units of each counter: first all charges, then the refunds. Those of permits stay as they were `moved`.
    fn adjust(
        &mut self,
        asked: &[Asked],
        moved: &[u64],
        charges: &mut [Charge],
    ) -> Vec<(u64, Receipt)> {
        let now = self.now;
        let moved = moved.iter().map(|units| (*units, Receipt::default()));
        let mut moved: Vec<_> = moved.collect();
        let ups = asked
            .iter()
            .zip(&mut moved)
            .filter(|(asked, _)| asked.is_modelled());
        for (asked, moved) in ups.filter(|(asked, _)| asked.refunds.is_none()) {
            let room = self.room(asked);
            let limit = limit(Kind::ALL[asked.policy]);
            let most = (room + limit.capacity).max(0);
            let units = i128::from(asked.units).min(most);
            let state = self.states.entry((asked.policy, asked.key)).or_default();
            *moved = (units as u64, limit.charge(state, now, limit.refill, units));
        }
        let modelled = asked
            .iter()
            .zip(&mut moved)
            .filter(|(asked, _)| asked.is_modelled());
        for (asked, moved) in modelled {
            let limit = limit(Kind::ALL[asked.policy]);
            let state = self.states.entry((asked.policy, asked.key)).or_default();
            let units = i128::from(asked.units);
            moved.0 = match asked.refunds {
                None => continue,
                Some(Refunds::Charge(of)) => {
                    limit.refund(state, now, limit.refill, &mut charges[of].model, units)
                }
                Some(Refunds::Empty) => 0,
                Some(Refunds::Now) => limit.credit(state, now, limit.refill, units),
            } as u64;
        }
        moved
    }

    fn room(&mut self, asked: &Asked) -> i128 {
        let limit = limit(Kind::ALL[asked.policy]);
        let state = self.states.entry((asked.policy, asked.key)).or_default();
        limit.room(state, self.now, limit.refill)
    }

    /// Charges for as many requests as fit; with permits, for as many as were admitted.
    fn take(&mut self, asked: &[Asked], times: i128, admitted: u64) -> (i128, Vec<Receipt>) {
        let fits = asked.iter().map(|asked| match i128::from(asked.units) {
            0 => times,
            _ if !asked.is_modelled() => admitted.into(),
            units => self.room(asked).max(0) / units,
        });
        let admitted = fits.fold(times, i128::min);
        let receipts = asked.iter().map(|asked| {
            if !asked.is_modelled() {
                return Receipt::default();
            }
            let limit = limit(Kind::ALL[asked.policy]);
            let state = self.states.entry((asked.policy, asked.key)).or_default();
            let units = i128::from(asked.units) * admitted;
            limit.charge(state, self.now, limit.refill, units)
        });
        let receipts = receipts.collect();
        (admitted, receipts)
    }
}

/// Whether it can refund units whatever charge they are of.
fn credits(policy: usize) -> bool {
    let kinds = [Kind::Gcra, Kind::Bucket, Kind::Fixed, Kind::Calendar];
    Kind::ALL
        .get(policy)
        .is_some_and(|kind| kinds.contains(kind))
}

fn draw(rng: &mut Rng, charges: &[Charge], used: &mut Vec<usize>) -> Asked {
    let key = rng.below(KEYS);
    let (policy, units) = (rng.below(POLICIES as u64) as usize, rng.below(9));
    let of = rng.below(charges.len().max(1) as u64) as usize;
    let refunds = match rng.below(8) {
        // A receipt is passed once in a call: its rest is known afterwards.
        0..=3 if !charges.is_empty() && !used.contains(&of) => {
            used.push(of);
            Some(Refunds::Charge(of))
        }
        4 => Some(Refunds::Empty),
        5 if credits(policy) => Some(Refunds::Now),
        _ => None,
    };
    let caller = rng.any();
    let (policy, key, caller) = match refunds {
        Some(Refunds::Charge(of)) => (charges[of].policy, charges[of].key, charges[of].caller),
        // In the name of another charge.
        Some(Refunds::Empty) if !charges.is_empty() => {
            (charges[of].policy, charges[of].key, charges[of].caller)
        }
        _ => (policy, key, caller),
    };
    Asked {
        policy,
        key,
        units,
        caller,
        refunds,
    }
}

#[test]
fn both_stores_and_the_model_adjust_alike() {
    let clock = ServerClock::at(START);
    let server = Server::builder().clock(&clock).start();
    current_thread().block_on(async {
        for seed in 0..HISTORIES {
            server.flush();
            run(seed, &clock, &server).await;
        }
    });
}

async fn run(seed: u64, clock: &ServerClock, server: &Server) {
    let mut rng = Rng::new(seed);
    let mut now = START + rng.below(1_000) * SECOND;
    clock.set(now);
    let local = ManualClock::at(Timestamp::from_micros(now as i64));
    let redis = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let redis = redis.rejection_cache_staleness(Duration::ZERO);
    let redis = Side::new(redis.build().expect("a store"));
    let memory = Side::new(MemoryStore::builder().clock(local.clone()).build());
    let mut model = Model::default();
    let mut charges: Vec<Charge> = Vec::new();
    for step in 0..40 {
        // In whole milliseconds, in which Redis ends windows.
        now += [0, 1, 5_000, 21_000, 61_000][rng.below(5) as usize] * 1_000;
        clock.set(now);
        local.set(Timestamp::from_micros(now as i64));
        model.now = now.into();
        let mut used = Vec::new();
        let counters = 1 + rng.below(4);
        let asked: Vec<_> = (0..counters)
            .map(|_| draw(&mut rng, &charges, &mut used))
            .collect();
        let case = format!("seed {seed}, step {step}: {asked:?}");
        let _case = Case(case.clone());
        // Each key once.
        let mut seen = HashSet::new();
        let distinct = asked.iter().copied();
        let distinct: Vec<_> = distinct
            .filter(|asked| seen.insert((asked.policy, asked.key)))
            .collect();
        match rng.below(8) {
            0 => {
                let of_memory = memory.execute(Op::Reset, &distinct, |_| None).await;
                let of_redis = redis.execute(Op::Reset, &distinct, |_| None).await;
                compare(&case, &redis, &of_redis, &memory, &of_memory, &distinct);
                for asked in &distinct {
                    model.states.remove(&(asked.policy, asked.key));
                    // Another window may have the end of the one that was reset.
                    charges.retain(|own| (own.policy, own.key) != (asked.policy, asked.key));
                }
            }
            1 | 2 => {
                let mut asked = distinct;
                asked.iter_mut().for_each(|asked| asked.caller = rng.any());
                let times = 1 + rng.below(3) as u32;
                let of_memory = memory.execute(Op::Acquire(times), &asked, |_| None).await;
                let of_redis = redis.execute(Op::Acquire(times), &asked, |_| None).await;
                compare(&case, &redis, &of_redis, &memory, &of_memory, &asked);
                let is_modelled = asked.iter().all(Asked::is_modelled);
                let (admitted, receipts) = model.take(&asked, times.into(), of_redis.admitted);
                if is_modelled {
                    assert_eq!(of_redis.admitted, admitted as u64, "by definition");
                }
                for (index, (asked, model)) in asked.iter().zip(receipts).enumerate() {
                    charges.push(Charge {
                        policy: asked.policy,
                        key: asked.key,
                        caller: asked.caller,
                        redis: redis.receipt(asked, &of_redis, index),
                        memory: memory.receipt(asked, &of_memory, index),
                        model,
                    });
                }
            }
            _ => {
                let receipt = |asked: &Asked, own: fn(&Charge) -> ChargeReceipt| {
                    Some(match asked.refunds? {
                        Refunds::Charge(of) => own(&charges[of]),
                        Refunds::Empty => ChargeReceipt::EMPTY,
                        Refunds::Now => ChargeReceipt::now(asked.units),
                    })
                };
                let of_redis = |asked: &Asked| receipt(asked, |own| own.redis);
                let of_redis = redis.execute(Op::Adjust, &asked, of_redis).await;
                let of_memory = |asked: &Asked| receipt(asked, |own| own.memory);
                let of_memory = memory.execute(Op::Adjust, &asked, of_memory).await;
                let moved = compare(&case, &redis, &of_redis, &memory, &of_memory, &asked);
                let by_model = model.adjust(&asked, &moved, &mut charges);
                let expected: Vec<_> = by_model.iter().map(|(units, _)| *units).collect();
                assert_eq!(moved, expected, "by definition");
                for (index, asked) in asked.iter().enumerate() {
                    match asked.refunds {
                        Some(Refunds::Charge(of)) => {
                            charges[of].redis.remaining -= moved[index];
                            charges[of].memory.remaining -= moved[index];
                        }
                        Some(_) => {}
                        None => charges.push(Charge {
                            policy: asked.policy,
                            key: asked.key,
                            caller: asked.caller,
                            redis: redis.receipt(asked, &of_redis, index),
                            memory: memory.receipt(asked, &of_memory, index),
                            model: by_model[index].1,
                        }),
                    }
                }
            }
        }
        let all = (0..POLICIES).flat_map(|policy| (0..KEYS).map(move |key| (policy, key)));
        let all: Vec<_> = all
            .map(|(policy, key)| Asked {
                policy,
                key,
                units: 1,
                caller: 0,
                refunds: None,
            })
            .collect();
        let of_memory = memory.execute(Op::Peek, &all, |_| None).await;
        let of_redis = redis.execute(Op::Peek, &all, |_| None).await;
        compare(&case, &redis, &of_redis, &memory, &of_memory, &all);
        let seen = all.iter().zip(redis.read(&all, &of_redis));
        for (asked, (_, status)) in seen.filter(|(asked, _)| asked.is_modelled()) {
            let room = model.room(asked).max(0) as u64;
            assert_eq!(status.remaining, room, "{asked:?}, by definition");
        }
    }
    assert_eq!(server.immortal_keys(), [""; 0]);
}

/// Fails unless both stores say the same; returns the units that moved.
fn compare(
    case: &str,
    redis: &Side,
    of_redis: &OpResult,
    memory: &Side,
    of_memory: &OpResult,
    asked: &[Asked],
) -> Vec<u64> {
    let (by_redis, by_memory) = (redis.read(asked, of_redis), memory.read(asked, of_memory));
    // Of several counters of one key, only the last that is done says what is left: refunds come after charges.
    let done = |index: usize| (asked[index].refunds.is_some(), index);
    let last = |index: usize| {
        let own = (asked[index].policy, asked[index].key);
        let of_key =
            (0..asked.len()).filter(|other| (asked[*other].policy, asked[*other].key) == own);
        of_key.map(done).max() == Some(done(index))
    };
    for index in 0..asked.len() {
        assert_eq!(by_redis[index].0, by_memory[index].0, "{case}");
        if last(index) {
            assert_eq!(by_redis[index].1, by_memory[index].1, "{case}");
        }
    }
    by_redis.into_iter().map(|(units, _)| units).collect()
}
