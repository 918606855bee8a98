//! Random runs: demand, delays, losses, crashes, sleep, clocks of other speeds, refunds, and requests without leases; or tiers that
//! share a key, which may be reset.

use std::collections::BTreeSet;

use super::{
    Rng,
    bounds::{Bound, Setting},
    fleet::{Agenda, Clocks, MS, Process, World},
};
use crate::{
    clock::Timestamp,
    key::Key,
    redis::{
        lease::{
            held_lease::{ClockReading, LeaseRequest},
            leased_key::Granted,
        },
        request::op::CounterOps,
    },
    store::{CounterOp, Op, OpResult},
};

/// What leases: a process, as it was last started, under a tier.
#[derive(Clone, Copy, Debug)]
struct Leaser {
    process: usize,
    generation: u64,
    tier: usize,
}

/// What happens at an instant.
#[derive(Debug)]
enum Event {
    /// Some requests of a process at once.
    Demand(usize, i64),
    Charge(Leaser, LeaseRequest),
    Response(Leaser, LeaseRequest, OpResult),
    Lost(Leaser, u64),
    /// A task looks for what is due to be refunded at this instant.
    Reclaim(Leaser, Timestamp),
    /// Under a tier.
    Refund(usize, CounterOps),
    /// A request of these costs, without a lease, reaches the store; sent at this instant.
    Ask(Leaser, i64, Vec<u64>),
    Answer(Leaser, i64, OpResult),
    /// The refund of an admitted request.
    RefundAdmission(usize),
    /// So many requests at once, as long as leases admit them.
    Spend(Leaser, i64),
    Crash(usize),
    /// A process resets the key, and the store does it.
    Reset(usize),
    ResetInStore,
}

impl Event {
    /// The process that it happens in.
    fn process(&self) -> Option<usize> {
        match self {
            Self::Answer(leaser, ..)
            | Self::Response(leaser, ..)
            | Self::Lost(leaser, _)
            | Self::Reclaim(leaser, _)
            | Self::Spend(leaser, _) => Some(leaser.process),
            Self::Demand(process, _) | Self::Crash(process) => Some(*process),
            _ => None,
        }
    }
}

/// What requests cost under one policy.
const COSTS: [&[u64]; 6] = [
    &[1],
    &[1],
    &[2],
    &[1, 2, 3],
    &[0, 1, 5],
    &[1, 1, 1, 1, 1, 20],
];

struct Run {
    rng: Rng,
    /// Of each tier; one with all policies if there are no tiers.
    worlds: Vec<World>,
    /// How many times each process was started again, and what it is under each tier.
    processes: Vec<(u64, Vec<Process>)>,
    /// Until when each process sleeps.
    awake_at: Vec<i64>,
    agenda: Agenda<Event>,
    /// The costs that a request may have under each policy.
    costs: Vec<&'static [u64]>,
    /// Whether processes crash and sleep, responses are lost or very late, and admitted requests are refunded.
    is_rough: bool,
    /// Whether the key is reset.
    is_reset: bool,
    ttl: i64,
    /// How many times as many units as a process requests are charged.
    greed: u32,
    now: i64,
    end: i64,
    resets: Vec<i64>,
    /// How many requests were admitted by leases, and by the store.
    by_lease: usize,
    by_store: usize,
    refunds: usize,
    late: usize,
}

impl Run {
    /// Policies that requests are charged under together.
    fn new(seed: u64, settings: &[Setting]) -> Self {
        let mut rng = Rng(seed);
        let costs = settings.iter().map(|_| rng.one_of(&COSTS)).collect();
        let processes = 1 + rng.below(6);
        let worlds = vec![World::new(settings)];
        Self::of(rng, settings, worlds, costs, processes)
    }

    /// The tiers of a policy. Requests cost one unit.
    fn of_tiers(seed: u64, tiers: &[Setting], is_reset: bool) -> Self {
        let mut rng = Rng(seed);
        let worlds = World::tiers(tiers);
        let costs = vec![COSTS[0]; worlds[0].limits.len()];
        let processes = 2 + rng.below(3);
        let mut run = Self::of(rng, tiers, worlds, costs, processes);
        (run.is_rough, run.is_reset) = (false, is_reset);
        if is_reset {
            // After a reset a process leases nothing for a second.
            run.end = run.end.max(4_000 * MS);
            run.reset_later();
        }
        run
    }

    fn of(
        mut rng: Rng,
        settings: &[Setting],
        worlds: Vec<World>,
        costs: Vec<&'static [u64]>,
        processes: i64,
    ) -> Self {
        let processes = (0..processes).map(|_| {
            let clocks = Clocks::any(&mut rng);
            let tiers = worlds.iter().map(|world| Process::new(world, 0, clocks));
            (0, tiers.collect())
        });
        let processes: Vec<_> = processes.collect();
        let lengths = settings.iter().map(Setting::length);
        let mut run = Self {
            ttl: settings.iter().map(|own| own.ttl).min().unwrap_or(0),
            greed: rng.one_of(&[1, 4, 50]),
            end: 3 * lengths.fold(500 * MS, i64::max),
            rng,
            worlds,
            awake_at: vec![0; processes.len()],
            processes,
            agenda: Agenda::default(),
            costs,
            is_rough: true,
            is_reset: false,
            now: 0,
            resets: Vec::new(),
            by_lease: 0,
            by_store: 0,
            refunds: 0,
            late: 0,
        };
        for process in 0..run.processes.len() {
            run.after(0, Event::Demand(process, 1));
        }
        run
    }

    fn after(&mut self, time: i64, event: Event) {
        self.agenda.add(self.now + time, event);
    }

    /// A reset, at some moment.
    fn reset_later(&mut self) {
        let process = self.rng.below(self.processes.len() as i64) as usize;
        let time = self.rng.below(1_500 * MS);
        self.after(time, Event::Reset(process));
    }

    /// A delay of up to two TTLs, or one, most often a short one.
    fn delay(&mut self) -> i64 {
        let longest = self.ttl * (1 + i64::from(self.is_rough));
        let delays = [1, MS, MS, 5 * MS, self.ttl, longest];
        let most = self.rng.one_of(&delays);
        self.rng.below(most)
    }

    fn run(&mut self) {
        while let Some((at, event)) = self.agenda.next() {
            self.now = at;
            let awake_at = event.process().map_or(0, |process| self.awake_at[process]);
            if at < awake_at {
                self.after(awake_at - at, event);
            } else if at < self.end {
                self.handle(event);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let at = self.now;
        match event {
            Event::Demand(process, requests) => self.demand(process, requests),
            Event::Charge(leaser, request) => {
                let op = Op::Acquire(self.greed);
                let result = self.worlds[leaser.tier].execute_owned(at, op, &request.counters);
                let delay = self.delay();
                if self.is_rough && self.rng.one_in(12) {
                    self.after(delay, Event::Lost(leaser, request.number));
                } else {
                    self.after(delay, Event::Response(leaser, request, result));
                }
            }
            Event::Response(leaser, request, result) => self.respond(leaser, &request, &result),
            Event::Lost(leaser, number) => {
                if let Some((process, now)) = self.process(leaser) {
                    process.key.fail(number, now.monotonic);
                }
            }
            Event::Reclaim(leaser, due) => {
                if let Some((process, now)) = self.process(leaser) {
                    let all = process.key.reclaim_due(due, now.monotonic);
                    let next = process.key.schedule_refund();
                    for unspent in all {
                        self.send_refund(leaser.tier, unspent.counters);
                    }
                    self.reclaim_at(leaser, next);
                }
            }
            Event::Refund(tier, counters) => {
                self.refunds += 1;
                let _ = self.worlds[tier].execute_owned(at, Op::Adjust, &counters);
            }
            Event::Ask(leaser, sent, costs) => {
                let result = self.worlds[leaser.tier].response(at, &costs);
                if result.admitted == 1 {
                    self.by_store += 1;
                    self.refund_some();
                }
                let delay = self.delay();
                self.after(delay, Event::Answer(leaser, sent, result));
            }
            Event::Answer(leaser, sent, result) => {
                if let Some((process, _)) = self.process(leaser) {
                    process.record_response((sent, at), &result);
                }
            }
            Event::RefundAdmission(admission) => self.worlds[0].refund(at, admission),
            Event::Crash(process) => {
                let (generation, tiers) = &mut self.processes[process];
                *generation += 1;
                for (old, world) in tiers.iter_mut().zip(&self.worlds) {
                    *old = Process::new(world, at, old.clocks);
                }
            }
            Event::Spend(leaser, requests) => {
                for _ in 0..requests {
                    let costs = self.cost();
                    if !self.decide(leaser, &costs).0 {
                        break;
                    }
                }
            }
            Event::Reset(process) => {
                for own in &mut self.processes[process].1 {
                    own.key.pause(own.clocks.at(at).monotonic);
                    drop(own.key.discard_for_reset());
                }
                let delay = self.delay();
                self.after(delay, Event::ResetInStore);
            }
            Event::ResetInStore => {
                let limit = self.worlds[0].limits[0].clone();
                self.worlds[0].execute(at, Op::Reset, &[CounterOp::new(&limit, Key::new("hot"))]);
                self.resets.push(at);
                self.reset_later();
            }
        }
    }

    /// A process, if it has not crashed since, and what its clocks show.
    fn process(&mut self, leaser: Leaser) -> Option<(&mut Process, ClockReading)> {
        let (current, tiers) = &mut self.processes[leaser.process];
        let process = &mut tiers[leaser.tier];
        let now = process.clocks.at(self.now);
        (*current == leaser.generation).then_some((process, now))
    }

    /// Decides a request by leases, of the process as it is now.
    fn decide(&mut self, leaser: Leaser, costs: &[u64]) -> (bool, Option<LeaseRequest>) {
        let process = &mut self.processes[leaser.process].1[leaser.tier];
        let decision = process.decide(&mut self.worlds[leaser.tier], self.now, costs);
        if decision.0 {
            self.by_lease += 1;
        }
        decision
    }

    fn demand(&mut self, process: usize, requests: i64) {
        for _ in 0..requests {
            let leaser = Leaser {
                process,
                generation: self.processes[process].0,
                tier: self.rng.below(self.worlds.len() as i64) as usize,
            };
            let costs = self.cost();
            let (admitted, request) = self.decide(leaser, &costs);
            if admitted {
                self.refund_some();
            } else if self.rng.one_in(3) {
                let delay = self.delay();
                self.after(delay, Event::Ask(leaser, self.now, costs));
            }
            // Also when none is due: while little is left, or what is left is not known.
            let is_forced = self.is_rough && request.is_none() && self.rng.one_in(20);
            let units = 1 + self.rng.below(3) as u64;
            let own = &mut self.processes[process].1[leaser.tier];
            let force = || own.request(&self.worlds[leaser.tier], self.now, units);
            if let Some(request) = request.or_else(|| is_forced.then(force)) {
                let delay = self.delay();
                self.after(delay, Event::Charge(leaser, request));
            }
        }
        let pause = match self.rng.below(40) {
            0 => self.rng.below(3 * self.ttl),
            1 if self.is_rough => {
                let pause = self.rng.below(2 * self.ttl);
                // The monotonic clock stands still.
                self.awake_at[process] = self.now + pause;
                for own in &mut self.processes[process].1 {
                    own.clocks.slept += pause;
                }
                pause
            }
            2 if self.is_rough => {
                self.after(0, Event::Crash(process));
                1
            }
            _ => self.rng.below(4 * MS),
        };
        let requests = self.rng.one_of(&[1, 1, 1, 8]);
        self.after(pause, Event::Demand(process, requests));
    }

    /// What a request costs.
    fn cost(&mut self) -> Vec<u64> {
        let costs = self.costs.iter();
        costs.map(|costs| self.rng.one_of(costs)).collect()
    }

    fn refund_some(&mut self) {
        if self.is_rough && self.rng.one_in(8) {
            let admission = self.worlds[0].admissions() - 1;
            let delay = self.delay();
            self.after(delay, Event::RefundAdmission(admission));
        }
    }

    fn respond(&mut self, leaser: Leaser, request: &LeaseRequest, result: &OpResult) {
        let at = self.now;
        let Some((process, now)) = self.process(leaser) else {
            return;
        };
        match process.grant(at, request, result) {
            Granted::Held { refund_at } => {
                let lease = process.key.leases().last().expect("a lease");
                let left = lease.ends_at.monotonic.since(now.monotonic);
                let last = process.clocks.true_time(left.as_micros() as i64);
                self.reclaim_at(leaser, refund_at);
                // What is hoarded is spent in the last microseconds of the lease.
                for offset in [-2, -1, 0, 1] {
                    let requests = self.rng.one_of(&[0, 3, 1_000]);
                    let requests = requests.min(4 * i64::from(self.greed));
                    self.after((last + offset).max(0), Event::Spend(leaser, requests));
                }
            }
            Granted::Late(unspent) => {
                self.late += 1;
                self.send_refund(leaser.tier, unspent.counters);
            }
            Granted::Discarded => {}
        }
    }

    /// Has a task look for what is due to be refunded at an instant; it may be late.
    fn reclaim_at(&mut self, leaser: Leaser, due: Option<Timestamp>) {
        if let (Some(due), Some((process, now))) = (due, self.process(leaser)) {
            let left = due.since(now.monotonic).as_micros() as i64;
            let left = process.clocks.true_time(left);
            let late = self.rng.one_of(&[0, 0, MS, self.ttl]);
            self.after(left + late, Event::Reclaim(leaser, due));
        }
    }

    /// A refund is sent once, and may be lost.
    fn send_refund(&mut self, tier: usize, counters: CounterOps) {
        let delay = self.delay();
        if !self.is_rough || !self.rng.one_in(10) {
            self.after(delay, Event::Refund(tier, counters));
        }
    }
}

/// Runs policies together, by random choices of several seeds.
fn holds(settings: &[Setting]) {
    let seeds = if settings[0].length() > 1_000 * MS {
        12
    } else {
        40
    };
    // By leases, by the store, refunds, and late responses: to show that it tried something.
    let mut done = [0; 4];
    for seed in 0..seeds {
        let mut run = Run::new(seed, settings);
        run.run();
        let worst = run.worlds[0].worst();
        assert!(
            worst <= 0.0,
            "{worst} units too many by seed {seed} of {settings:?}"
        );
        let of_run = [run.by_lease, run.by_store, run.refunds, run.late];
        for (all, of_run) in done.iter_mut().zip(of_run) {
            *all += of_run;
        }
    }
    let tried = done.iter().all(|done| *done >= 20);
    assert!(tried, "it tried little: {done:?} of {settings:?}");
}

#[test]
fn gcra_holds() {
    holds(&[Setting::gcra(100, 1_000 * MS, 40, 50 * MS)]);
    holds(&[Setting::gcra(1_000, 1_000 * MS, 200, 50 * MS)]);
    holds(&[Setting::gcra(333, 1_000 * MS, 90, 80 * MS)]);
    holds(&[Setting::gcra(40, 1_000 * MS, 30, 40 * MS)]);
}

#[test]
fn token_buckets_hold() {
    holds(&[Setting::token_bucket(100, 1_000 * MS, 40, 50 * MS)]);
    holds(&[Setting::token_bucket(700, 1_000 * MS, 100, 50 * MS)]);
}

#[test]
fn windows_hold() {
    holds(&[Setting::fixed_window(100, 180 * MS, 50 * MS)]);
    holds(&[Setting::fixed_window(40, 40 * MS, 60 * MS)]);
    holds(&[Setting::list_window(100, 180 * MS, 50 * MS)]);
    holds(&[Setting::calendar_window(100, 200 * MS, 50 * MS)]);
}

#[test]
fn sliding_logs_hold() {
    holds(&[Setting::sliding_log(300, 4_000 * MS, 40 * MS)]);
}

#[test]
fn sliding_windows_hold() {
    for buckets in [2, 4, 8] {
        holds(&[Setting::sliding_window(100, 400 * MS, buckets, 60 * MS)]);
    }
}

#[test]
fn policies_hold_together() {
    holds(&[
        Setting::gcra(200, 1_000 * MS, 60, 50 * MS),
        Setting::fixed_window(100, 250 * MS, 60 * MS),
    ]);
    holds(&[
        Setting::sliding_window(100, 400 * MS, 4, 60 * MS),
        Setting::token_bucket(200, 1_000 * MS, 60, 40 * MS),
        Setting::calendar_window(150, 300 * MS, 80 * MS),
    ]);
}

impl Run {
    /// By how much the promise is broken, of each tier alone, and of all together that of the largest one.
    fn excess(&self) -> f64 {
        let bounds = self.worlds.iter().map(|world| world.settings[0].bound);
        let of_tiers = self.worlds.iter().zip(bounds.clone());
        let of_tiers = of_tiers
            .map(|(world, bound)| self.excess_of(bound, &world.admitted(0), &world.ends(0)));
        let mut all: Vec<_> = self
            .worlds
            .iter()
            .zip(bounds.clone())
            .flat_map(|(world, bound)| {
                let admitted = world.admitted(0).into_iter();
                admitted.map(move |(at, units)| (at, units * bound.weight()))
            })
            .collect();
        all.sort_unstable();
        let ends = self.worlds.iter().flat_map(|world| world.ends(0)).collect();
        let together = self.excess_of(Bound::largest(bounds), &all, &ends);
        of_tiers.fold(together, f64::max)
    }

    fn excess_of(&self, bound: Bound, admitted: &[(i64, i64)], ends: &BTreeSet<i64>) -> f64 {
        if self.is_reset {
            // A refund of what was leased before the reset may come as late.
            bound.excess_after_resets(admitted, &self.resets, 5 * self.ttl)
        } else {
            bound.excess(admitted, ends)
        }
    }
}

/// Runs the tiers of a policy, by random choices of several seeds.
fn tiers_hold(tiers: &[Setting], is_reset: bool) {
    let (mut by_lease, mut by_store, mut resets) = (0, 0, 0);
    for seed in 0..8 {
        let mut run = Run::of_tiers(seed, tiers, is_reset);
        run.run();
        let excess = run.excess();
        assert!(
            excess <= 0.0,
            "{excess} over the promise by seed {seed}, reset {is_reset}, of {tiers:?}"
        );
        by_lease += run.by_lease;
        by_store += run.by_store;
        resets += run.resets.len();
    }
    let tried = by_lease.min(by_store) >= 100 && (!is_reset || resets >= 20);
    assert!(
        tried,
        "it tried little: {by_lease} {by_store} {resets} of {tiers:?}"
    );
}

/// Policies of each strategy, of one tier.
fn policies() -> [Setting; 6] {
    [
        Setting::gcra(200, 1_000 * MS, 60, 50 * MS),
        Setting::token_bucket(200, 1_000 * MS, 60, 50 * MS),
        Setting::fixed_window(100, 180 * MS, 50 * MS),
        Setting::calendar_window(100, 200 * MS, 50 * MS),
        Setting::sliding_log(100, 4_000 * MS, 40 * MS),
        Setting::sliding_window(100, 400 * MS, 4, 50 * MS),
    ]
}

#[test]
fn a_reset_admits_one_more_burst_at_most() {
    for policy in policies() {
        tiers_hold(&[policy], true);
    }
}

#[test]
fn tiers_that_share_a_key_hold() {
    let rate = Setting::gcra;
    let bucket = Setting::token_bucket;
    for tiers in [
        [40, 80].map(|burst| rate(200, 1_000 * MS, burst, 50 * MS)),
        [
            rate(100, 1_000 * MS, 40, 50 * MS),
            rate(500, 1_000 * MS, 100, 50 * MS),
        ],
        [
            bucket(100, 1_000 * MS, 30, 50 * MS),
            bucket(700, 1_000 * MS, 200, 50 * MS),
        ],
        [40, 120].map(|n| Setting::fixed_window(n, 180 * MS, 50 * MS)),
        [40, 120].map(|n| Setting::calendar_window(n, 200 * MS, 50 * MS)),
        [60, 200].map(|n| Setting::sliding_log(n, 4_000 * MS, 40 * MS)),
        [40, 100].map(|n| Setting::sliding_window(n, 400 * MS, 4, 50 * MS)),
    ] {
        tiers_hold(&tiers, false);
    }
    let tiers = [40, 80].map(|burst| rate(200, 1_000 * MS, burst, 50 * MS));
    tiers_hold(&tiers, true);
}
