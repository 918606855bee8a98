//! A store on a clock that tests set, and processes that lease one key of it, by clocks of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    Rng,
    bounds::{Bound, Setting},
};
use crate::redis::lease::{
    held_lease::{ClockReading, LeaseRequest, Unspent},
    leased_key::{Granted, LeasedKey},
};
use crate::{
    ManualClock, MemoryStore,
    clock::Timestamp,
    key::Key,
    redis::request::op::{CounterOps, OwnedCounterOp},
    store::{CounterOp, LimitHandle, Op, OpResult, Store as _, StoreResponse, Units},
    strategy::{ChargeReceipt, Lease, QuotaStatus, Terms},
};

/// 2027-01-15 08:00 UTC, at which windows and buckets of all lengths here begin.
pub(super) const START: i64 = 1_800_000_000_000_000;

/// A millisecond, in microseconds.
pub(super) const MS: i64 = 1_000;

/// The counters of a request that costs so many units under each limit.
pub(super) fn counters_of<'a>(limits: &'a [LimitHandle], costs: &[u64]) -> Vec<CounterOp<'a>> {
    let counters = limits.iter().zip(costs).map(|(limit, cost)| {
        let counter = CounterOp::new(limit, Key::new("hot"));
        counter.with_units(Units::new(*cost))
    });
    counters.collect()
}

fn register(store: &MemoryStore, name: &str, setting: &Setting, tiers: &Terms) -> LimitHandle {
    let lease = Lease::max_units(1_000_000).ttl(Duration::from_micros(setting.ttl as u64));
    let terms = tiers.clone().with_lease(lease);
    let rule = setting.strategy.bind(&setting.quota, &terms);
    let limit = store.register(name, rule.expect("a strategy with leases"));
    limit.expect("a strategy that counts in process")
}

/// What one request was admitted by, as it is reported and refunded.
#[derive(Debug)]
pub(super) struct Admission {
    /// By the store's clock, which shows true time.
    at: i64,
    /// Of each policy; those that are refunded are taken off.
    units: Vec<i64>,
    refund: CounterOps,
}

/// The store with one key, under some policies.
pub(super) struct World {
    pub(super) settings: Vec<Setting>,
    pub(super) limits: Vec<LimitHandle>,
    clock: ManualClock,
    store: MemoryStore,
    admissions: Vec<Admission>,
    /// The ends of the windows that were charged, of each policy.
    ends: Vec<BTreeSet<i64>>,
}

impl World {
    pub(super) fn new(settings: &[Setting]) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(START));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limits = settings.iter().enumerate();
        let limits = limits.map(|(number, setting)| {
            register(&store, &number.to_string(), setting, &Terms::default())
        });
        let limits = limits.collect();
        Self::of(settings, limits, clock, store)
    }

    /// The tiers of one policy, which share its key: a view of the store for each.
    pub(super) fn tiers(settings: &[Setting]) -> Vec<Self> {
        let clock = ManualClock::at(Timestamp::from_micros(START));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let terms = Terms::default();
        let tier = |setting: &Setting| {
            let limit = register(&store, "0", setting, &terms);
            let settings = std::slice::from_ref(setting);
            Self::of(settings, vec![limit], clock.clone(), store.clone())
        };
        settings.iter().map(tier).collect()
    }

    fn of(
        settings: &[Setting],
        limits: Vec<LimitHandle>,
        clock: ManualClock,
        store: MemoryStore,
    ) -> Self {
        Self {
            limits,
            settings: settings.to_vec(),
            clock,
            store,
            admissions: Vec::new(),
            ends: vec![BTreeSet::new(); settings.len()],
        }
    }

    /// Does an operation, at an instant in microseconds after the start.
    pub(super) fn execute(&mut self, at: i64, op: Op, counters: &[CounterOp<'_>]) -> OpResult {
        self.clock.set(Timestamp::from_micros(START + at));
        let StoreResponse::Ready(Ok(result)) = self.store.execute(op, counters) else {
            panic!("no result of {op:?}");
        };
        for ((ends, counter), own) in self.ends.iter_mut().zip(&result.counters).zip(counters) {
            if counter.units > 0 {
                let rule = own.limit.rule();
                ends.insert(rule.window_id(&counter.snapshot, result.time_of(counter)));
            }
        }
        result
    }

    pub(super) fn execute_owned(&mut self, at: i64, op: Op, counters: &CounterOps) -> OpResult {
        let counters: Vec<_> = counters.iter().map(OwnedCounterOp::as_op).collect();
        self.execute(at, op, &counters)
    }

    /// Asks the store, without a lease.
    pub(super) fn ask(&mut self, at: i64, costs: &[u64]) -> bool {
        self.response(at, costs).admitted == 1
    }

    /// The store's response to a request.
    pub(super) fn response(&mut self, at: i64, costs: &[u64]) -> OpResult {
        let limits = self.limits.clone();
        let counters = counters_of(&limits, costs);
        let result = self.execute(at, Op::Acquire(1), &counters);
        if result.admitted == 1 {
            self.admit(at, &counters, &result);
        }
        result
    }

    /// Asks the store for as many requests of one unit as it admits.
    pub(super) fn ask_all(&mut self, at: i64) -> i64 {
        let costs = vec![1; self.limits.len()];
        let mut admitted = 0;
        while self.ask(at, &costs) {
            admitted += 1;
        }
        admitted
    }

    /// Notes an admission.
    pub(super) fn admit(&mut self, at: i64, counters: &[CounterOp<'_>], result: &OpResult) {
        let counters = counters.iter().zip(&result.counters);
        let refund = counters.map(|(counter, charged)| {
            let reported_at = result.time_of(charged);
            let window_id = counter
                .limit
                .rule()
                .window_id(&charged.snapshot, reported_at);
            let charged_at = reported_at - charged.charged_before;
            let receipt = ChargeReceipt::new(charged_at, charged.units).with_window_id(window_id);
            let units = Units::new(charged.units);
            OwnedCounterOp::of(&counter.with_units(units).with_receipt(receipt))
        });
        self.admissions.push(Admission {
            at,
            refund: refund.collect(),
            units: result
                .counters
                .iter()
                .map(|counter| counter.units as i64)
                .collect(),
        });
    }

    pub(super) fn admissions(&self) -> usize {
        self.admissions.len()
    }

    /// Refunds an admitted request, as its decision does: it counts as admitted no more, as far as the store refunds it.
    pub(super) fn refund(&mut self, at: i64, admission: usize) {
        let counters = self.admissions[admission].refund.clone();
        let result = self.execute_owned(at, Op::Adjust, &counters);
        let units = &mut self.admissions[admission].units;
        for (units, counter) in units.iter_mut().zip(&result.counters) {
            *units -= (counter.units as i64).min(*units);
        }
    }

    /// The instants of what a policy has admitted, in their order, and the units.
    pub(super) fn admitted(&self, policy: usize) -> Vec<(i64, i64)> {
        let admissions = self.admissions.iter();
        let admissions = admissions.map(|admission| (admission.at, admission.units[policy]));
        let mut admissions: Vec<_> = admissions.filter(|(_, units)| *units > 0).collect();
        admissions.sort_unstable();
        admissions
    }

    /// The ends of the windows that were charged, if the policy counts in windows of the store.
    pub(super) fn ends(&self, policy: usize) -> BTreeSet<i64> {
        match self.settings[policy].bound {
            Bound::Windows { .. } => self.ends[policy].iter().map(|end| end - START).collect(),
            _ => BTreeSet::new(),
        }
    }

    /// By how many units the promise of any policy is broken: 0 or less if all are kept.
    pub(super) fn worst(&self) -> f64 {
        let policies = self.settings.iter().enumerate();
        let excess = policies.map(|(policy, setting)| {
            let bound = setting.bound;
            bound.excess(&self.admitted(policy), &self.ends(policy))
        });
        excess.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The status of a policy that the store reports.
    pub(super) fn status(&mut self, at: i64, policy: usize) -> QuotaStatus {
        let limit = self.limits[policy].clone();
        let counter = CounterOp::new(&limit, Key::new("hot"));
        let result = self.execute(at, Op::Peek, &[counter]);
        limit.status(&result.counters[0].snapshot, result.at, Units::ONE)
    }
}

/// What happens at instants to come, in their order; at one instant, in the order in which it was added.
pub(super) struct Agenda<E> {
    events: BTreeMap<(i64, u64), E>,
    added: u64,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self {
            events: BTreeMap::new(),
            added: 0,
        }
    }
}

impl<E> Agenda<E> {
    pub(super) fn add(&mut self, at: i64, event: E) {
        self.added += 1;
        self.events.insert((at, self.added), event);
    }

    /// Removes the first event.
    pub(super) fn next(&mut self) -> Option<(i64, E)> {
        let ((at, _), event) = self.events.pop_first()?;
        Some((at, event))
    }
}

/// The clocks of a process, in microseconds: what they show is a function of true time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    /// How many milliseconds they advance in a second of true time.
    pub(super) speed: i64,
    /// How far ahead they are at the start.
    pub(super) ahead: (i64, i64),
    /// For how long the monotonic clock has stood still.
    pub(super) slept: i64,
}

impl Clocks {
    pub(super) const EXACT: Self = Self {
        speed: 1_000,
        ahead: (0, 0),
        slept: 0,
    };

    /// Clocks of any speed that leases allow for.
    pub(super) fn any(rng: &mut Rng) -> Self {
        Self {
            speed: rng.one_of(&[999, 1_000, 1_001]),
            ahead: (rng.below(100 * MS), rng.below(900 * MS) - 400 * MS),
            slept: 0,
        }
    }

    pub(super) fn at(&self, at: i64) -> ClockReading {
        let elapsed = (at * self.speed).div_euclid(1_000);
        let (monotonic, wall) = self.ahead;
        ClockReading {
            monotonic: Timestamp::from_micros(START + elapsed + monotonic - self.slept),
            wall: Timestamp::from_micros(START + elapsed + wall),
        }
    }

    /// How much of true time passes until such a clock has advanced by `time`.
    pub(super) fn true_time(&self, time: i64) -> i64 {
        (time * 1_000 + self.speed - 1) / self.speed
    }
}

/// A process with leases of the key.
pub(super) struct Process {
    pub(super) key: LeasedKey,
    pub(super) clocks: Clocks,
}

impl Process {
    pub(super) fn new(world: &World, at: i64, clocks: Clocks) -> Self {
        let counters = counters_of(&world.limits, &vec![1; world.limits.len()]);
        Self {
            key: LeasedKey::new(0, &counters, clocks.at(at).monotonic),
            clocks,
        }
    }

    /// Decides a request by the leases that it holds: whether it is admitted, and what lease it requests.
    pub(super) fn decide(
        &mut self,
        world: &mut World,
        at: i64,
        costs: &[u64],
    ) -> (bool, Option<LeaseRequest>) {
        let now = self.clocks.at(at);
        let limits = world.limits.clone();
        let counters = counters_of(&limits, costs);
        let (result, request) = self.key.decide(&counters, now);
        if let Some(result) = &result {
            world.admit(at, &counters, result);
        }
        (result.is_some(), request)
    }

    /// Records the store's response to a request that was sent at one instant, at another one.
    pub(super) fn record_response(&mut self, (sent, at): (i64, i64), result: &OpResult) {
        let [sent, now] = [sent, at].map(|at| self.clocks.at(at).monotonic);
        self.key.record_response(sent, result, now);
    }

    /// Requests a lease of so many units under each policy, whatever is due.
    pub(super) fn request(&mut self, world: &World, at: i64, units: u64) -> LeaseRequest {
        let counters = counters_of(&world.limits, &vec![1; world.limits.len()]);
        let units = SmallVec::from_elem(units, counters.len());
        self.key.request(&counters, units, self.clocks.at(at))
    }

    /// Takes what is left of its lease; `None` if it holds none.
    pub(super) fn reclaim(&mut self) -> Option<Unspent> {
        let mut unspent = self.key.reclaim(|_| true);
        assert!(unspent.len() <= 1);
        unspent.pop()
    }

    pub(super) fn grant(&mut self, at: i64, request: &LeaseRequest, result: &OpResult) -> Granted {
        self.key.grant(request, result, self.clocks.at(at))
    }

    /// A process that leases as many requests as it can get, of so many: sent and charged at the given instants.
    pub(super) fn hoarding(
        world: &mut World,
        (sent, charged, received): (i64, i64, i64),
        requests: u32,
        clocks: Clocks,
    ) -> Self {
        let mut process = Self::new(world, sent, clocks);
        let (limits, costs) = (world.limits.clone(), vec![1; world.limits.len()]);
        // Records the demand of a request.
        assert!(!process.decide(world, sent, &costs).0);
        let request = process.request(world, sent, requests.into());
        let op = Op::Acquire(requests);
        let result = world.execute(charged, op, &counters_of(&limits, &costs));
        let _ = process.grant(received, &request, &result);
        process
    }

    /// Spends all that it holds at one instant; returns how many requests that admits.
    pub(super) fn spend(&mut self, world: &mut World, at: i64) -> i64 {
        let costs = vec![1; world.limits.len()];
        let mut admitted = 0;
        while self.decide(world, at, &costs).0 {
            admitted += 1;
        }
        admitted
    }
}
