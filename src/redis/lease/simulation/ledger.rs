//! Replays the ledger of a key with leases: every admission is by units that were charged before, each spent once, and in time by
//! both clocks.

use std::{collections::VecDeque, time::Duration};

use proptest::prelude::*;

use super::{
    bounds::{Bound, Setting},
    fleet::{Clocks, MS, Process, START, World, counters_of},
};
use crate::{
    clock::Timestamp,
    redis::lease::{
        held_lease::{ClockReading, LeaseRequest, Unspent},
        leased_key::Granted,
    },
    store::{Op, OpResult, Units},
    strategy::Lease,
};

/// A lease as the ledger has it.
#[derive(Debug)]
struct Entry {
    sent: ClockReading,
    life: i64,
    left: Vec<u64>,
    charged_at: i64,
    /// Of each policy; 0 without windows.
    windows: Vec<i64>,
    has_ended: bool,
}

/// A lease that was requested.
struct Requested {
    request: LeaseRequest,
    /// The units under each policy.
    units: Vec<u64>,
    /// The response to come, and what was charged in all by then.
    charged: Option<(OpResult, Vec<u64>)>,
}

struct Ledger {
    world: World,
    process: Process,
    at: i64,
    ttl: i64,
    requested: VecDeque<Requested>,
    entries: VecDeque<Entry>,
    spent: Vec<u64>,
    /// When the store executed the last request whose response came, and what was charged in all by then.
    latest: (i64, Vec<u64>),
    /// When that came, and the windows of the response.
    latest_received: (Timestamp, Vec<i64>),
    /// What was charged by anyone.
    total: Vec<u64>,
    unspent: Vec<Unspent>,
    /// When a task looks for what is to be refunded.
    refund_at: Option<Timestamp>,
    admitted: usize,
}

impl Entry {
    fn refund_at(&self) -> Timestamp {
        let early = Duration::from_micros((self.life * 7 / 8) as u64);
        self.sent.monotonic + early
    }
}

impl Ledger {
    fn new(settings: &[Setting]) -> Self {
        let world = World::new(settings);
        Self {
            process: Process::new(&world, 0, Clocks::EXACT),
            world,
            at: 0,
            ttl: settings
                .iter()
                .map(|setting| setting.ttl)
                .min()
                .unwrap_or(0),
            requested: VecDeque::new(),
            entries: VecDeque::new(),
            spent: vec![0; settings.len()],
            latest: (0, vec![0; settings.len()]),
            latest_received: (Timestamp::default(), Vec::new()),
            total: vec![0; settings.len()],
            unspent: Vec::new(),
            refund_at: None,
            admitted: 0,
        }
    }

    fn now(&self) -> ClockReading {
        self.process.clocks.at(self.at)
    }

    fn is_live(&self, entry: &Entry) -> bool {
        let now = self.now();
        let age = |now: crate::clock::Timestamp, sent: crate::clock::Timestamp| {
            now.as_micros() - sent.as_micros()
        };
        let by_monotonic = age(now.monotonic, entry.sent.monotonic);
        let by_wall = age(now.wall, entry.sent.wall);
        !entry.has_ended && by_monotonic < entry.life && (-self.ttl..entry.life).contains(&by_wall)
    }

    /// The units of a policy that leases have left which have ended, or have not.
    fn left(&self, policy: usize, has_ended: bool) -> u64 {
        let entries = self.entries.iter();
        let entries = entries.filter(|entry| entry.has_ended == has_ended);
        entries.map(|entry| entry.left[policy]).sum()
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Advance(time) => self.at += time,
            Step::Sleep(time) => {
                self.at += time;
                self.process.clocks.slept += time;
            }
            Step::SetWall(by) => self.process.clocks.ahead.1 += by,
            Step::Decide(requests, costs) => {
                for _ in 0..*requests {
                    self.decide(&costs[..self.spent.len()])?;
                }
            }
            Step::Ask(costs) => self.ask(&costs[..self.spent.len()]),
            Step::Charge(times) => self.charge(*times),
            Step::Respond { newest } => self.respond(*newest)?,
            Step::Fail => {
                if let Some(requested) = self.requested.pop_front() {
                    let now = self.now().monotonic;
                    self.process.key.fail(requested.request.number, now);
                }
            }
            Step::Reclaim => {
                if let Some(due) = self.refund_at.filter(|due| *due <= self.now().monotonic) {
                    let now = self.now().monotonic;
                    let all = self.process.key.reclaim_due(due, now);
                    self.are_taken_back(all, |entry| entry.refund_at() <= now)?;
                    prop_assert_eq!(self.process.key.reclaim_due(due, now).len(), 0);
                    self.refund_at = self.process.key.schedule_refund();
                }
            }
            Step::TakeBackAll => {
                let all = self.process.key.discard_for_reset();
                self.are_taken_back(all, |_| true)?;
            }
            Step::Refund => {
                for unspent in std::mem::take(&mut self.unspent) {
                    let _ = self
                        .world
                        .execute_owned(self.at, Op::Adjust, &unspent.counters);
                }
            }
            Step::Others(requests) => {
                for _ in 0..*requests {
                    let costs = vec![1; self.spent.len()];
                    if self.world.ask(self.at, &costs) {
                        for (total, cost) in self.total.iter_mut().zip(costs) {
                            *total += cost;
                        }
                    }
                }
            }
        }
        let key = &self.process.key;
        for (policy, (_, spent)) in key.spent().enumerate() {
            prop_assert_eq!(key.held(policy), self.left(policy, false));
            let ended = key.leases().iter().filter(|lease| lease.has_ended);
            let ended: u64 = ended.map(|lease| lease.units[policy].left).sum();
            prop_assert_eq!(ended, self.left(policy, true));
            prop_assert_eq!(spent, self.spent[policy]);
        }
        Ok(())
    }

    /// All that was left of what is reclaimed is refunded.
    fn are_taken_back(
        &mut self,
        all: Vec<Unspent>,
        is_reclaimed: impl Fn(&Entry) -> bool,
    ) -> Result<(), TestCaseError> {
        let refunds = all.iter().map(|unspent| {
            let refunds = unspent.counters.iter();
            refunds.map(|counter| counter.units.get()).collect()
        });
        let reclaimed = self.entries.iter().filter(|entry| is_reclaimed(entry));
        let left = reclaimed.map(|entry| {
            let left = entry.left.iter().copied();
            left.filter(|left| *left > 0).collect::<Vec<_>>()
        });
        prop_assert_eq!(refunds.collect::<Vec<Vec<u64>>>(), left.collect::<Vec<_>>());
        self.entries.retain(|entry| !is_reclaimed(entry));
        self.unspent.extend(all);
        Ok(())
    }

    fn decide(&mut self, costs: &[u64]) -> Result<(), TestCaseError> {
        let limits = self.world.limits.clone();
        let counters = counters_of(&limits, costs);
        for index in 0..self.entries.len() {
            // A lease that has ended once is not spent again, also if a clock is set back.
            self.entries[index].has_ended |= !self.is_live(&self.entries[index]);
        }
        // Under each policy, the oldest lease that has enough.
        let payer = |(policy, cost): (usize, &u64)| {
            let has_units = |entry: &Entry| entry.left[policy] >= *cost && !entry.has_ended;
            self.entries.iter().position(has_units)
        };
        let paid_by: Option<Vec<_>> = costs.iter().enumerate().map(payer).collect();
        let (result, request) = self.process.key.decide(&counters, self.now());
        prop_assert_eq!(result.is_some(), paid_by.is_some(), "{:?}", self.entries);
        if let (Some(result), Some(paid_by)) = (result, paid_by) {
            for (policy, (cost, index)) in costs.iter().zip(paid_by).enumerate() {
                let entry = &mut self.entries[index];
                entry.left[policy] -= cost;
                self.spent[policy] += cost;
                let charged_before = result.counters[policy].charged_before.as_micros() as i64;
                let expected = (self.latest.0 - entry.charged_at).max(0);
                prop_assert_eq!(charged_before, expected);
            }
            let is_left = |entry: &Entry| entry.left.iter().any(|left| *left > 0);
            self.entries.retain(is_left);
            self.admitted += 1;
            self.is_reported(&result, costs)?;
        }
        if let Some(request) = request {
            let units = request.counters.iter().map(|counter| counter.units.get());
            self.requested.push_back(Requested {
                units: units.collect(),
                request,
                charged: None,
            });
            self.is_within_four_leases()?;
        }
        Ok(())
    }

    /// A request that the store decides, whatever is held.
    fn ask(&mut self, costs: &[u64]) {
        let result = self.world.response(self.at, costs);
        for (total, counter) in self.total.iter_mut().zip(&result.counters) {
            *total += counter.units;
        }
        self.process.record_response((self.at, self.at), &result);
        self.learn(self.now().monotonic, &result, self.total.clone());
    }

    /// Takes a response to a request that was sent at this instant as the latest one, unless a later one is known; returns whether
    /// one is.
    fn learn(&mut self, sent: Timestamp, result: &OpResult, total: Vec<u64>) -> bool {
        let (charged_at, windows) = (result.at.as_micros() - START, self.windows(result));
        if charged_at < self.latest.0 && sent <= self.latest_received.0 {
            return true;
        }
        self.latest = (charged_at, total);
        self.latest_received = (self.now().monotonic, windows.clone());
        for older in &mut self.entries {
            older.has_ended |= older.windows != windows || older.charged_at > charged_at;
        }
        false
    }

    /// The window of each policy by a response; 0 without windows.
    fn windows(&self, result: &OpResult) -> Vec<i64> {
        let settings = self.world.settings.iter().zip(&result.counters);
        let windows = settings.map(|(setting, counter)| match setting.bound {
            Bound::Windows { .. } => counter.snapshot.values::<2>()[1] - START,
            _ => 0,
        });
        windows.collect()
    }

    /// No more is held and requested than four of the largest leases.
    fn is_within_four_leases(&self) -> Result<(), TestCaseError> {
        let key = &self.process.key;
        let waits_for = |requested: &&Requested| key.is_waiting_for(requested.request.number);
        for (policy, limit) in self.world.limits.iter().enumerate() {
            let requested = self.requested.iter().filter(waits_for);
            let requested: u64 = requested.map(|requested| requested.units[policy]).sum();
            let most = limit.info().lease.as_ref().map_or(0, Lease::most);
            let units = requested + self.left(policy, false);
            prop_assert!(units <= 4 * most, "{units} units, of leases of {most}");
        }
        Ok(())
    }

    /// What is reported as remaining is no more than the store would report, with what this process holds, and what was charged
    /// since the last response.
    fn is_reported(&mut self, result: &OpResult, costs: &[u64]) -> Result<(), TestCaseError> {
        for (policy, cost) in costs.iter().enumerate() {
            let counter = &result.counters[policy];
            prop_assert_eq!(counter.units, *cost);
            let limit = self.world.limits[policy].clone();
            let at = result.time_of(counter);
            let mut status = limit.status(&counter.snapshot, at, Units::new(*cost));
            status.remaining += counter.held;
            status.advance(result.age, *cost);
            let since = self.total[policy] - self.latest.1[policy];
            let most =
                self.world.status(self.at, policy).remaining + self.left(policy, false) + since;
            prop_assert!(status.remaining <= most, "{} of {most}", status.remaining);
        }
        Ok(())
    }

    fn charge(&mut self, times: u32) {
        let mut requested = self.requested.iter_mut();
        if let Some(Requested {
            request, charged, ..
        }) = requested.find(|requested| requested.charged.is_none())
        {
            let op = Op::Acquire(times);
            let result = self.world.execute_owned(self.at, op, &request.counters);
            for (total, counter) in self.total.iter_mut().zip(&result.counters) {
                *total += counter.units;
            }
            *charged = Some((result, self.total.clone()));
        }
    }

    fn respond(&mut self, newest: bool) -> Result<(), TestCaseError> {
        let mut requested = self.requested.iter();
        let is_charged = |requested: &Requested| requested.charged.is_some();
        let index = if newest {
            requested.rposition(is_charged)
        } else {
            requested.position(is_charged)
        };
        let Some(requested) = index.and_then(|index| self.requested.remove(index)) else {
            return Ok(());
        };
        let (request, charged) = (requested.request, requested.charged);
        let (result, total) = charged.expect("a response");
        let is_waiting = self.process.key.is_waiting_for(request.number);
        let granted = self.process.grant(self.at, &request, &result);
        if !is_waiting {
            prop_assert!(matches!(granted, Granted::Discarded), "{granted:?}");
            return Ok(());
        }
        let entry = self.entry(&request, &result);
        let has_window = self.latest_received.1 == entry.windows;
        let is_older = self.learn(request.requested_at.monotonic, &result, total);
        if result.admitted == 0 {
            prop_assert!(matches!(granted, Granted::Discarded), "{granted:?}");
            return Ok(());
        }
        match (self.is_live(&entry) && (!is_older || has_window), granted) {
            (true, Granted::Held { refund_at }) => {
                let first = self.refund_at;
                if let Some(refund_at) = refund_at {
                    prop_assert!(first.is_none_or(|first| refund_at < first));
                    self.refund_at = Some(refund_at);
                }
                // A task looks for it in time.
                prop_assert!(self.refund_at <= Some(entry.refund_at()));
                self.entries.push_back(entry);
            }
            (false, Granted::Late(unspent)) => {
                let left = entry.left.iter().filter(|left| **left > 0);
                prop_assert_eq!(unspent.counters.len(), left.count());
                self.unspent.push(unspent);
            }
            (is_live, granted) => prop_assert!(false, "{is_live}: {granted:?} of {entry:?}"),
        }
        Ok(())
    }

    fn entry(&self, request: &LeaseRequest, result: &OpResult) -> Entry {
        let charged_at = result.at.as_micros() - START;
        let windows = self.windows(result);
        let mut life = self.ttl;
        for (window, counter) in windows.iter().zip(&result.counters) {
            if *window > 0 && counter.units > 0 {
                // Rounded down, and less a thousandth.
                let rest = window - charged_at;
                life = life.min(rest - (rest + 999).div_euclid(1_000) - 1);
            }
        }
        Entry {
            sent: request.requested_at,
            life,
            left: result
                .counters
                .iter()
                .map(|counter| counter.units)
                .collect(),
            charged_at,
            windows,
            has_ended: false,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_admission_is_prepaid_once_and_in_time(
        settings in settings(), steps in prop::collection::vec(step(), 1..250),
    ) {
        let mut ledger = Ledger::new(&settings);
        for step in steps {
            ledger.take(&step)?;
        }
    }
}

/// What happens to a process. Times are in microseconds.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Advance(i64),
    /// The machine sleeps: the monotonic clock stands still.
    Sleep(i64),
    /// The wall clock is set forward, or back.
    SetWall(i64),
    /// So many requests, of these costs under the policies.
    Decide(u32, [u64; 2]),
    /// A request of these costs that the store decides, and responds to at once.
    Ask([u64; 2]),
    /// The store charges a lease that was requested, of so many times as many requests.
    Charge(u32),
    /// The response to the oldest request of a lease that was charged comes, or to the newest one.
    Respond {
        newest: bool,
    },
    Fail,
    /// The task that refunds what is due wakes.
    Reclaim,
    TakeBackAll,
    Refund,
    /// Requests of other processes.
    Others(u32),
}

/// The costs of a request, one of which is not zero.
fn costs() -> impl Strategy<Value = [u64; 2]> {
    let cost = || prop_oneof![6 => 1_u64..4, 1 => Just(30)];
    let other = prop_oneof![6 => cost(), 1 => Just(0)];
    (cost(), other).prop_map(|(first, second)| [first, second])
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3 * MS).prop_map(Step::Advance),
        2 => (0..60 * MS).prop_map(Step::Advance),
        1 => prop_oneof![0..2 * MS, 0..200 * MS].prop_map(Step::Sleep),
        1 => prop_oneof![-2 * MS..2 * MS, -200 * MS..200 * MS].prop_map(Step::SetWall),
        16 => (1_u32..8, costs()).prop_map(|(requests, costs)| Step::Decide(requests, costs)),
        4 => costs().prop_map(Step::Ask),
        6 => (1_u32..12).prop_map(Step::Charge),
        6 => prop::bool::weighted(0.2).prop_map(|newest| Step::Respond { newest }),
        1 => Just(Step::Fail),
        3 => Just(Step::Reclaim),
        1 => Just(Step::TakeBackAll),
        2 => Just(Step::Refund),
        2 => (1_u32..20).prop_map(Step::Others),
    ]
}

pub(super) fn settings() -> impl Strategy<Value = Vec<Setting>> {
    prop::sample::select(vec![
        vec![Setting::gcra(1_000, 1_000 * MS, 300, 50 * MS)],
        vec![Setting::fixed_window(200, 130 * MS, 50 * MS)],
        vec![
            Setting::token_bucket(1_000, 1_000 * MS, 400, 60 * MS),
            Setting::fixed_window(150, 90 * MS, 50 * MS),
        ],
        vec![
            Setting::calendar_window(300, 200 * MS, 50 * MS),
            Setting::gcra(500, 1_000 * MS, 200, 80 * MS),
        ],
    ])
}
