//! Calm stretches and faults in turn.

use std::sync::atomic::Ordering::Relaxed;

use tokio::{task::block_in_place, time::sleep};

use crate::{
    faults::{Change, Fault},
    interval::{Interval, Now},
    ledger::{self, StoreCounts},
    limiters::Limiters,
    load::Load,
    permits::PermitCount,
    report::{Report, resident},
    rng::Rng,
    topology::Topology,
};
use tollgate_tests::prelude::*;

/// The service is stable once there has been no failure for this long.
const STABLE: Duration = ms(300);

struct Soak<'a> {
    limiters: Limiters,
    now: Now,
    permits: Arc<PermitCount>,
    rng: Rng,
    intervals: u64,
    report: &'a mut Report,
}

/// Loads limiters on a topology for `time`, and adds to the report.
pub(crate) async fn soak(topology: Topology, time: Duration, seed: u64, report: &mut Report) {
    let start = Instant::now();
    println!("on {}, for {} s", topology.name(), time.as_secs());
    let (limiters, now, mut rng) = (Limiters::open(topology), Now::new(), Rng::new(seed));
    let load = Load::start(&limiters.processes, &now, &mut rng);
    let mut soak = Soak {
        limiters,
        now,
        permits: load.permits.clone(),
        rng,
        intervals: 0,
        report,
    };
    let (name, mut warm) = (soak.limiters.topology.name(), 0);
    // Once at least, however long the servers took to start.
    loop {
        soak.calm().await;
        soak.fault().await;
        if warm == 0 && start.elapsed() >= time / 4 {
            warm = resident();
        }
        if start.elapsed() >= time {
            break;
        }
    }
    soak.calm().await;
    load.stop().await;
    let (limiters, permits, report) = (soak.limiters, soak.permits, soak.report);
    report.memory.push((name, [warm, resident()]));
    report.permits += permits.taken.load(Relaxed);
    report.sums.add(limiters.reconcile(&mut report.wrong));
    match limiters.all_free().await {
        Some(after) => report.freed = report.freed.max(after),
        None => report.wrong.push("places that are never free again".into()),
    }
    if !report.is_ok() {
        // They show whether something else was in the way, such as a full disk.
        for server in limiters.topology.servers() {
            println!("a server's log:\n{}", server.log());
        }
    }
    report.wrong.extend(limiters.close().await);
}

impl Soak<'_> {
    /// A stretch without a fault.
    async fn calm(&mut self) {
        self.next_interval().await;
        let masters = self.masters();
        sleep(self.rng.ms(200, 900)).await;
        let (over, held) = self.next_interval().await;
        let losses = self.losses(&masters);
        let stored = self.ask(&over, losses, held).await;
        ledger::check_calm(&over, &stored, &mut self.report.wrong);
        self.report.calm += 1;
        self.report.inexact += u64::from(!ledger::is_exact(&over));
    }

    /// A fault of the servers, of the network, or of both, until the service is stable again.
    async fn fault(&mut self) {
        self.next_interval().await;
        let before = self.masters();
        let fault = Fault::choose(&self.limiters.topology, &mut self.rng);
        for name in fault.names() {
            *self.report.faults.entry(name).or_default() += 1;
        }
        sleep(self.rng.ms(0, 400)).await;
        // Sentinels and nodes replace a server that is silent for longer.
        let longest = match self.limiters.topology {
            Topology::One(..) => 2_500,
            Topology::Cluster(..) => 1_500,
            Topology::Watched(_) => 300,
        };
        let long = self.rng.ms(50, longest);
        let [first, second] = [(); 2].map(|()| self.rng.ms(0, 600));
        let topology = &self.limiters.topology;
        let masters = block_in_place(|| topology.masters());
        let master = masters[self.rng.below(masters.len() as u64) as usize];
        match fault.change {
            Some(Change::FailOver) => block_in_place(|| topology.fail_over(master)),
            Some(Change::Move) => block_in_place(|| topology.move_slot()),
            None => {}
        }
        if let Some(server) = fault.server {
            block_in_place(|| server.inject(master));
        }
        let proxy = topology.proxy().zip(fault.network);
        if let Some((proxy, network)) = proxy {
            sleep(first).await;
            network.set(proxy);
        }
        if fault.change.is_none() {
            sleep(long).await;
        }
        if let Some(server) = fault.server {
            block_in_place(|| server.repair(master));
        }
        if let Some((proxy, _)) = proxy {
            sleep(second).await;
            proxy.pass();
        }
        let back = Instant::now();
        let interval = self.now.get();
        let recovered = self.recovered(&interval, back).await;
        drop(interval);
        if fault.change == Some(Change::FailOver) {
            block_in_place(|| self.limiters.topology.repair());
        }
        let (over, held) = self.next_interval().await;
        let losses = match fault.max_losses() {
            0 => self.losses(&before),
            losses => losses,
        };
        let stored = self.ask(&over, losses, held).await;
        let wrong = &mut self.report.wrong;
        let before = wrong.len();
        ledger::check_always(&over, &stored, wrong);
        if recovered > TEST_TIMEOUT {
            wrong.push(format!(
                "{}: no full service {recovered:?} after the store's return",
                over.key
            ));
        }
        for wrong in &mut wrong[before..] {
            *wrong += &format!(" ({:?}, for {long:?})", fault.names().collect::<Vec<_>>());
        }
        self.report.recovery = self.report.recovery.max(recovered);
    }

    fn masters(&self) -> Vec<u16> {
        block_in_place(|| self.limiters.topology.master_ports())
    }

    /// How often the store may have lost its counts since these were its masters, and no failure was to have them replaced. All is
    /// then as it was.
    fn losses(&self, before: &[u16]) -> u64 {
        if self.masters() == before {
            return 0;
        }
        block_in_place(|| self.limiters.topology.repair());
        1
    }

    /// What the store holds of an interval.
    async fn ask(&self, interval: &Interval, losses: u64, held: u64) -> StoreCounts {
        StoreCounts {
            losses,
            used: self.limiters.used(interval.key).await,
            held,
        }
    }

    /// How long after the store's return the last request began whose call of the store failed.
    async fn recovered(&self, interval: &Interval, back: Instant) -> Duration {
        let before = completed_by_store(interval);
        loop {
            sleep(ms(10)).await;
            let last = interval.last_fault().filter(|last| *last > back);
            let since = last.map_or(Duration::ZERO, |last| last - back);
            let mut completed = completed_by_store(interval).into_iter().zip(&before);
            let is_ok = completed.all(|(now, before)| now > before + 20)
                && last.unwrap_or(back).elapsed() > STABLE;
            if is_ok || back.elapsed() > TEST_TIMEOUT {
                return if is_ok { since } else { back.elapsed() };
            }
        }
    }

    /// Begins a new epoch, and returns the one that is over, and the most permits that were held at once in it.
    async fn next_interval(&mut self) -> (Arc<Interval>, u64) {
        self.intervals += 1;
        let over = self.now.next_interval(self.intervals).await;
        self.limiters.scrape();
        let held = self.permits.take_max();
        self.report.add(&over, held);
        (over, held)
    }
}

/// How many decisions each process has had from its store.
fn completed_by_store(interval: &Interval) -> Vec<u64> {
    let counts = interval.counts.iter();
    counts.map(|counts| counts.by_store.load(Relaxed)).collect()
}
