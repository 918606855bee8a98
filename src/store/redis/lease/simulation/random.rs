//! Random runs: demand, delays, losses, crashes, sleep, clocks of other speeds, refunds, and requests without leases.

use super::{
    super::{
        held_lease::{ClockReading, LeaseRequest},
        leased_key::Granted,
    },
    Rng,
    fleet::{Agenda, Clocks, MS, Process, World},
    settings::Setting,
};
use crate::store::{Op, OpResult, redis::request::op::CounterOps};

/// What happens at an instant, to a process of this number and generation.
#[derive(Debug)]
enum Event {
    /// Some requests at once.
    Demand(usize, i64),
    Charge(usize, u64, LeaseRequest),
    Response(usize, u64, LeaseRequest, OpResult),
    Lost(usize, u64, u64),
    Reclaim(usize, u64, u64),
    Refund(CounterOps),
    /// A request of these costs, without a lease, reaches the store; sent at this instant.
    Ask(usize, u64, i64, Vec<u64>),
    Answer(usize, u64, i64, OpResult),
    /// The refund of an admitted request.
    RefundAdmission(usize),
    /// So many requests at once, as long as leases admit them.
    Spend(usize, i64),
    Crash(usize),
}

impl Event {
    /// The process that it happens in.
    fn process(&self) -> Option<usize> {
        match self {
            Self::Demand(process, _)
            | Self::Answer(process, ..)
            | Self::Response(process, ..)
            | Self::Lost(process, ..)
            | Self::Reclaim(process, ..)
            | Self::Spend(process, _)
            | Self::Crash(process) => Some(*process),
            Self::Charge(..) | Self::Refund(_) | Self::Ask(..) | Self::RefundAdmission(_) => None,
        }
    }
}

/// What a run did, to show that it tried something.
#[derive(Debug, Default)]
struct Done {
    by_lease: usize,
    by_store: usize,
    refunds: usize,
    late: usize,
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
    world: World,
    processes: Vec<(u64, Process)>,
    /// Until when each process sleeps.
    awake_at: Vec<i64>,
    agenda: Agenda<Event>,
    /// The costs that a request may have under each policy.
    costs: Vec<&'static [u64]>,
    ttl: i64,
    /// How many times as many units as a process requests are charged.
    greed: u32,
    now: i64,
    end: i64,
    done: Done,
}

impl Run {
    fn new(seed: u64, settings: &[Setting]) -> Self {
        let mut rng = Rng(seed);
        let world = World::new(settings);
        let processes = (0..1 + rng.below(6)).map(|_| {
            let clocks = Clocks::any(&mut rng);
            (0, Process::new(&world, 0, clocks))
        });
        let processes: Vec<_> = processes.collect();
        let mut run = Self {
            ttl: settings
                .iter()
                .map(|setting| setting.ttl)
                .min()
                .unwrap_or(0),
            costs: settings.iter().map(|_| rng.one_of(&COSTS)).collect(),
            greed: rng.one_of(&[1, 4, 50]),
            end: 3 * settings
                .iter()
                .map(Setting::length)
                .fold(500 * MS, i64::max),
            rng,
            world,
            awake_at: vec![0; processes.len()],
            processes,
            agenda: Agenda::default(),
            now: 0,
            done: Done::default(),
        };
        for process in 0..run.processes.len() {
            run.after(0, Event::Demand(process, 1));
        }
        run
    }

    fn after(&mut self, time: i64, event: Event) {
        self.agenda.add(self.now + time, event);
    }

    /// A delay of up to two TTLs, most often a short one.
    fn delay(&mut self) -> i64 {
        let most = self
            .rng
            .one_of(&[1, MS, MS, 5 * MS, self.ttl, 2 * self.ttl]);
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
        match event {
            Event::Demand(process, requests) => self.demand(process, requests),
            Event::Charge(process, generation, request) => {
                let op = Op::Acquire(self.greed);
                let result = self.world.execute_owned(self.now, op, &request.counters);
                let delay = self.delay();
                if self.rng.one_in(12) {
                    self.after(delay, Event::Lost(process, generation, request.number));
                } else {
                    self.after(delay, Event::Response(process, generation, request, result));
                }
            }
            Event::Response(process, generation, request, result) => {
                self.respond(process, generation, &request, &result);
            }
            Event::Lost(process, generation, number) => {
                let at = self.now;
                if let Some((process, now)) = self.process(process, generation, at) {
                    process.key.fail(number, now.monotonic);
                }
            }
            Event::Reclaim(process, generation, number) => {
                let at = self.now;
                let process = self.process(process, generation, at);
                let unspent = process.and_then(|(process, _)| process.key.reclaim(number));
                if let Some(unspent) = unspent {
                    self.send_refund(unspent.counters);
                }
            }
            Event::Refund(counters) => {
                self.done.refunds += 1;
                let _ = self.world.execute_owned(self.now, Op::Refund, &counters);
            }
            Event::Ask(process, generation, sent, costs) => {
                let result = self.world.response(self.now, &costs);
                if result.admitted == 1 {
                    self.done.by_store += 1;
                    self.refund_some();
                }
                let delay = self.delay();
                self.after(delay, Event::Answer(process, generation, sent, result));
            }
            Event::Answer(process, generation, sent, result) => {
                let at = self.now;
                if let Some((process, _)) = self.process(process, generation, at) {
                    process.record_response((sent, at), &result);
                }
            }
            Event::RefundAdmission(admission) => self.world.refund(self.now, admission),
            Event::Crash(process) => {
                let (generation, old) = &mut self.processes[process];
                *generation += 1;
                *old = Process::new(&self.world, self.now, old.clocks);
            }
            Event::Spend(process, requests) => {
                let costs = self.costs();
                for _ in 0..requests {
                    let process = &mut self.processes[process].1;
                    if !process.decide(&mut self.world, self.now, &costs).0 {
                        break;
                    }
                    self.done.by_lease += 1;
                }
            }
        }
    }

    /// A process, if it has not crashed since, and what its clocks show.
    fn process(
        &mut self,
        process: usize,
        generation: u64,
        at: i64,
    ) -> Option<(&mut Process, ClockReading)> {
        let (current, process) = &mut self.processes[process];
        let now = process.clocks.at(at);
        (*current == generation).then_some((process, now))
    }

    fn demand(&mut self, number: usize, requests: i64) {
        for _ in 0..requests {
            let costs = self.costs();
            let (generation, process) = &mut self.processes[number];
            let generation = *generation;
            let (admitted, request) = process.decide(&mut self.world, self.now, &costs);
            if admitted {
                self.done.by_lease += 1;
                self.refund_some();
            } else if self.rng.one_in(3) {
                let delay = self.delay();
                self.after(delay, Event::Ask(number, generation, self.now, costs));
            }
            // Also when none is due: while little is left, or what is left is not known.
            let is_forced = request.is_none() && self.rng.one_in(20);
            let units = 1 + self.rng.below(3) as u64;
            let process = &mut self.processes[number].1;
            let force = || process.request(&self.world, self.now, units);
            if let Some(request) = request.or_else(|| is_forced.then(force)) {
                let delay = self.delay();
                self.after(delay, Event::Charge(number, generation, request));
            }
        }
        let pause = match self.rng.below(40) {
            0 => self.rng.below(3 * self.ttl),
            1 => {
                let pause = self.rng.below(2 * self.ttl);
                // The monotonic clock stands still.
                self.awake_at[number] = self.now + pause;
                self.processes[number].1.clocks.slept += pause;
                pause
            }
            2 => {
                self.after(0, Event::Crash(number));
                1
            }
            _ => self.rng.below(4 * MS),
        };
        let requests = self.rng.one_of(&[1, 1, 1, 8]);
        self.after(pause, Event::Demand(number, requests));
    }

    /// What a request costs.
    fn costs(&mut self) -> Vec<u64> {
        let costs = self.costs.iter();
        costs.map(|costs| self.rng.one_of(costs)).collect()
    }

    fn refund_some(&mut self) {
        if self.rng.one_in(8) {
            let admission = self.world.admissions() - 1;
            let delay = self.delay();
            self.after(delay, Event::RefundAdmission(admission));
        }
    }

    fn respond(
        &mut self,
        number: usize,
        generation: u64,
        request: &LeaseRequest,
        result: &OpResult,
    ) {
        let at = self.now;
        let Some((process, _)) = self.process(number, generation, at) else {
            return;
        };
        let clocks = process.clocks;
        match process.grant(at, request, result) {
            Granted::Held { refund_after } => {
                let refund_after = clocks.true_time(refund_after.as_micros() as i64);
                // The task may be late.
                let late = self.rng.one_of(&[0, 0, MS, self.ttl]);
                let event = Event::Reclaim(number, generation, request.number);
                self.after(refund_after + late, event);
                // What is hoarded is spent in the last microseconds of the lease.
                let sent = request.requested_at.monotonic;
                let age = clocks.at(at).monotonic.since(sent).as_micros() as i64;
                let life = match refund_after {
                    0 => self.ttl,
                    refund_after => (refund_after + age) * 4 / 3,
                };
                let last = clocks.true_time((life - age).max(0));
                for offset in [-2, -1, 0, 1] {
                    let requests = self
                        .rng
                        .one_of(&[0, 3, 1_000])
                        .min(4 * i64::from(self.greed));
                    self.after((last + offset).max(0), Event::Spend(number, requests));
                }
            }
            Granted::Late(unspent) => {
                self.done.late += 1;
                self.send_refund(unspent.counters);
            }
            Granted::Discarded | Granted::Rejected => {}
        }
    }

    /// A refund is sent once, and may be lost.
    fn send_refund(&mut self, counters: CounterOps) {
        let delay = self.delay();
        if !self.rng.one_in(10) {
            self.after(delay, Event::Refund(counters));
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
    let mut all = Done::default();
    for seed in 0..seeds {
        let mut run = Run::new(seed, settings);
        run.run();
        let (worst, done) = (run.world.worst(), &run.done);
        assert!(
            worst <= 0.0,
            "{worst} units too many by seed {seed}: {done:?} of {settings:?}"
        );
        all.by_lease += done.by_lease;
        all.by_store += done.by_store;
        all.refunds += done.refunds;
        all.late += done.late;
    }
    let least = [all.by_lease, all.by_store, all.refunds, all.late]
        .into_iter()
        .min();
    assert!(
        least >= Some(20),
        "it tried little: {all:?} of {settings:?}"
    );
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
