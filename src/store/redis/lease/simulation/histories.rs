//! Random histories of tiers that share a key, which is reset, or blocked.

use std::time::Duration;

use super::{
    super::{held_lease::LeaseRequest, leased_key::Granted},
    Rng,
    fleet::{Agenda, Clocks, MS, Process, World},
    settings::Setting,
};
use crate::{
    Ban, Quota,
    key::Key,
    store::{CounterOp, LimitHandle, Op, OpResult, redis::request::op::CounterOps},
    strategy::{Strategy as _, Terms},
};

/// What happens at an instant, in a process and under a tier.
#[derive(Debug)]
enum Event {
    /// Some requests at once.
    Demand(usize),
    Charge(usize, usize, LeaseRequest),
    Response(usize, usize, LeaseRequest, OpResult),
    Reclaim(usize, usize, u64),
    Refund(usize, CounterOps),
    /// A request of a process, without a lease, reaches the store.
    Ask(usize, usize, i64),
    /// The response to one that was sent at this instant.
    Answer(usize, usize, i64, OpResult),
    /// Whatever a process holds under a tier is spent.
    Spend(usize, usize),
    /// A process resets the key, and the store does it.
    Reset(usize),
    ResetInStore,
    /// A process blocks the key, or ends the block, and the store does it.
    Block(usize),
    BlockInStore(usize),
    Unblock,
}

/// A block by a process, from the moment at which it is asked for.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) process: usize,
    pub(super) from: i64,
    pub(super) in_store: Option<i64>,
    pub(super) until: i64,
}

/// What becomes of the key, beside requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Nothing,
    Resets,
    Blocks,
}

pub(super) struct History {
    rng: Rng,
    pub(super) ends: Ends,
    /// Of each tier.
    pub(super) worlds: Vec<World>,
    /// The limit by which keys are blocked, and that of its end.
    block: Option<[LimitHandle; 2]>,
    /// Of each process, those of each tier.
    processes: Vec<Vec<Process>>,
    agenda: Agenda<Event>,
    pub(super) ttl: i64,
    greed: u32,
    now: i64,
    pub(super) end: i64,
    pub(super) resets: Vec<i64>,
    pub(super) blocks: Vec<Block>,
    /// When a process admitted a request by a lease.
    pub(super) by_lease: Vec<(i64, usize)>,
    pub(super) by_store: Vec<i64>,
}

impl History {
    pub(super) fn new(seed: u64, tiers: &[Setting], ends: Ends) -> Self {
        let mut rng = Rng(seed);
        let mut worlds = World::tiers(tiers);
        let block = (ends == Ends::Blocks).then(|| {
            let quota = Quota::requests(1_000_000).per_hour();
            let rule = Ban::for_duration(Duration::from_secs(60)).bind(&quota, &Terms::default());
            let rule = rule.expect("a ban");
            let by_hand = rule.manual_ban(Duration::from_secs(60));
            let by_hand = by_hand.expect("a ban").expect("a ban");
            let ban = worlds[0].register("ban", rule);
            for world in &mut worlds {
                world.limits.push(ban.clone());
            }
            [worlds[0].register("ban", by_hand), ban]
        });
        let processes = (0..2 + rng.below(3)).map(|_| {
            let clocks = Clocks::any(&mut rng);
            let tiers = worlds.iter().map(|world| Process::new(world, 0, clocks));
            tiers.collect()
        });
        let processes: Vec<Vec<_>> = processes.collect();
        let length = tiers.iter().map(Setting::length).max().unwrap_or(0);
        // After a reset or a block a process leases nothing for a second.
        let least = if ends == Ends::Nothing { 500 } else { 4_000 };
        let mut history = Self {
            ttl: tiers[0].ttl,
            greed: rng.one_of(&[1, 4, 50]),
            end: (3 * length).max(least * MS),
            rng,
            ends,
            worlds,
            block,
            processes,
            agenda: Agenda::default(),
            now: 0,
            resets: Vec::new(),
            blocks: Vec::new(),
            by_lease: Vec::new(),
            by_store: Vec::new(),
        };
        for process in 0..history.processes.len() {
            history.after(0, Event::Demand(process));
        }
        history.end_leases_later();
        history
    }

    fn after(&mut self, time: i64, event: Event) {
        self.agenda.add(self.now + time, event);
    }

    /// A reset or a block, at some moment.
    fn end_leases_later(&mut self) {
        let process = self.rng.below(self.processes.len() as i64) as usize;
        let time = self.rng.below(1_500 * MS);
        match self.ends {
            Ends::Nothing => {}
            Ends::Resets => self.after(time, Event::Reset(process)),
            Ends::Blocks => self.after(time, Event::Block(process)),
        }
    }

    /// A delay of up to a TTL, most often a short one.
    fn delay(&mut self) -> i64 {
        let most = self.rng.one_of(&[1, MS, MS, 5 * MS, self.ttl]);
        self.rng.below(most)
    }

    pub(super) fn run(&mut self) {
        while let Some((at, event)) = self.agenda.next() {
            self.now = at;
            if at < self.end {
                self.handle(event);
            }
        }
    }

    fn costs(&self) -> Vec<u64> {
        vec![1; self.worlds[0].limits.len()]
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Demand(process) => self.demand(process),
            Event::Charge(process, tier, request) => {
                let op = Op::Acquire(self.greed);
                let result = self.worlds[tier].execute_owned(self.now, op, &request.counters);
                let delay = self.delay();
                self.after(delay, Event::Response(process, tier, request, result));
            }
            Event::Response(process, tier, request, result) => {
                self.respond(process, tier, &request, &result);
            }
            Event::Reclaim(process, tier, number) => {
                let unspent = self.processes[process][tier].key.reclaim(number);
                if let Some(unspent) = unspent {
                    let delay = self.delay();
                    self.after(delay, Event::Refund(tier, unspent.counters));
                }
            }
            Event::Refund(tier, counters) => {
                let _ = self.worlds[tier].execute_owned(self.now, Op::Refund, &counters);
            }
            Event::Ask(process, tier, sent) => {
                let costs = self.costs();
                let result = self.worlds[tier].response(self.now, &costs);
                if result.admitted == 1 {
                    self.by_store.push(self.now);
                }
                let delay = self.delay();
                self.after(delay, Event::Answer(process, tier, sent, result));
            }
            Event::Answer(process, tier, sent, result) => {
                self.processes[process][tier].record_response((sent, self.now), &result);
            }
            Event::Spend(process, tier) => while self.decide(process, tier).0 {},
            Event::Reset(process) => {
                self.end_leases(process, true);
                let delay = self.delay();
                self.after(delay, Event::ResetInStore);
            }
            Event::ResetInStore => {
                let limit = self.worlds[0].limits[0].clone();
                let counter = CounterOp::new(&limit, Key::new("hot"));
                self.worlds[0].execute(self.now, Op::Reset, &[counter]);
                self.resets.push(self.now);
                self.end_leases_later();
            }
            Event::Block(process) => {
                self.end_leases(process, false);
                self.blocks.push(Block {
                    process,
                    from: self.now,
                    in_store: None,
                    until: self.end,
                });
                let delay = self.delay();
                self.after(delay, Event::BlockInStore(self.blocks.len() - 1));
            }
            Event::BlockInStore(number) => {
                self.blocks[number].in_store = Some(self.now);
                self.change_block(Op::ForceAcquire);
                let time = self.rng.below(6 * self.ttl);
                self.after(time, Event::Unblock);
            }
            Event::Unblock => {
                self.change_block(Op::Reset);
                if let Some(block) = self.blocks.last_mut() {
                    block.until = self.now;
                }
                self.end_leases_later();
            }
        }
    }

    fn change_block(&mut self, op: Op) {
        let Some([by_hand, ban]) = self.block.clone() else {
            return;
        };
        let limit = if op == Op::Reset { ban } else { by_hand };
        let counter = CounterOp::new(&limit, Key::new("hot"));
        self.worlds[0].execute(self.now, op, &[counter]);
    }

    /// Ends the leases of the process that resets or blocks the key.
    fn end_leases(&mut self, process: usize, is_reset: bool) {
        for tier in 0..self.worlds.len() {
            let own = &mut self.processes[process][tier];
            own.key.pause(own.clocks.at(self.now).monotonic);
            if is_reset {
                drop(own.key.discard_for_reset());
                continue;
            }
            for unspent in own.key.release() {
                let delay = self.delay();
                self.after(delay, Event::Refund(tier, unspent.counters));
            }
        }
    }

    fn decide(&mut self, process: usize, tier: usize) -> (bool, Option<LeaseRequest>) {
        let costs = self.costs();
        let own = &mut self.processes[process][tier];
        let (admitted, request) = own.decide(&mut self.worlds[tier], self.now, &costs);
        if admitted {
            self.by_lease.push((self.now, process));
        }
        (admitted, request)
    }

    fn demand(&mut self, process: usize) {
        for _ in 0..self.rng.one_of(&[1, 1, 1, 8]) {
            let tier = self.rng.below(self.worlds.len() as i64) as usize;
            let (admitted, request) = self.decide(process, tier);
            if !admitted && self.rng.one_in(3) {
                let delay = self.delay();
                self.after(delay, Event::Ask(process, tier, self.now));
            }
            if let Some(request) = request {
                let delay = self.delay();
                self.after(delay, Event::Charge(process, tier, request));
            }
        }
        let pause = if self.rng.one_in(40) {
            self.rng.below(3 * self.ttl)
        } else {
            self.rng.below(4 * MS)
        };
        self.after(pause, Event::Demand(process));
    }

    fn respond(&mut self, process: usize, tier: usize, request: &LeaseRequest, result: &OpResult) {
        let own = &mut self.processes[process][tier];
        let clocks = own.clocks;
        match own.grant(self.now, request, result) {
            Granted::Held { refund_after } => {
                let refund_after = clocks.true_time(refund_after.as_micros() as i64);
                let late = self.rng.one_of(&[0, 0, MS, self.ttl]);
                let reclaim = Event::Reclaim(process, tier, request.number);
                self.after(refund_after + late, reclaim);
                // What is hoarded is spent in the last microseconds of the lease.
                let now = clocks.at(self.now).monotonic;
                let age = now.since(request.requested_at.monotonic).as_micros() as i64;
                let last = clocks.true_time((self.ttl - age).max(0));
                for offset in [-2, 0, 1] {
                    if self.rng.one_in(2) {
                        self.after((last + offset).max(0), Event::Spend(process, tier));
                    }
                }
            }
            Granted::Late(unspent) => {
                let delay = self.delay();
                self.after(delay, Event::Refund(tier, unspent.counters));
            }
            Granted::Discarded | Granted::Rejected => {}
        }
    }
}
