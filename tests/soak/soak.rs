//! Calm stretches and faults in turn.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::{task::block_in_place, time::sleep};

use crate::{
    faults::{Change, Fault},
    interval::{Epoch, Now},
    ledger::{self, Said},
    limiters::House,
    load::Load,
    permits::Flights,
    report::{Report, resident},
    rng::Dice,
    topology::Ground,
};

/// How soon all is well again once the store is back.
const SOON: Duration = Duration::from_secs(2);
/// All is well once there has been no fault for so long.
const WELL: Duration = Duration::from_millis(300);

struct Soak<'a> {
    house: House,
    now: Now,
    flights: Arc<Flights>,
    dice: Dice,
    epochs: u64,
    report: &'a mut Report,
}

/// Loads limiters on a ground for so long. The report goes on.
pub(crate) async fn soak(ground: Ground, time: Duration, seed: u64, report: &mut Report) {
    let start = Instant::now();
    println!("on {}, for {} s", ground.name(), time.as_secs());
    let (house, now, mut dice) = (House::open(ground), Now::new(), Dice::new(seed));
    let load = Load::start(&house.processes, &now, &mut dice);
    let mut soak = Soak {
        house,
        now,
        flights: load.flights.clone(),
        dice,
        epochs: 0,
        report,
    };
    let (name, mut warm) = (soak.house.ground.name(), 0);
    while start.elapsed() < time {
        soak.calm().await;
        soak.fault().await;
        if warm == 0 && start.elapsed() >= time / 4 {
            warm = resident();
        }
    }
    soak.calm().await;
    let (tally, flights) = (load.stop().await, soak.flights);
    let (house, report) = (soak.house, soak.report);
    report.memory.push((name, [warm, resident()]));
    let [asked, answered, left] =
        [&tally.asked, &tally.answered, &tally.left].map(|sum| sum.load(Relaxed));
    report.requests += asked;
    report.left += left;
    report.places += flights.taken.load(Relaxed);
    if answered + left != asked {
        let wrong = format!("{answered} answers to {asked} requests, {left} left");
        report.wrong.push(wrong);
    }
    match house.all_free().await {
        Some(after) => report.freed = report.freed.max(after),
        None => report.wrong.push("places that are never free again".into()),
    }
    if !report.is_well() {
        // They say so if something else stood in their way, such as a disk that is full.
        for server in house.ground.servers() {
            println!("a server's log:\n{}", server.log());
        }
    }
    report.wrong.extend(house.close().await);
}

impl Soak<'_> {
    /// A stretch without a fault.
    async fn calm(&mut self) {
        self.turn().await;
        sleep(self.dice.ms(200, 900)).await;
        let (over, flying) = self.turn().await;
        let said = self.ask(&over, 0, flying).await;
        ledger::nothing_happened(&over, &said, &mut self.report.wrong);
        self.report.calm += 1;
        self.report.busy += u64::from(!ledger::had_time(&over));
    }

    /// A fault of the servers, of the network, or of both, until all is well again.
    async fn fault(&mut self) {
        self.turn().await;
        let fault = Fault::choose(&self.house.ground, &mut self.dice);
        for name in fault.names() {
            *self.report.faults.entry(name).or_default() += 1;
        }
        sleep(self.dice.ms(0, 400)).await;
        // Sentinels and nodes replace a server that is silent for longer.
        let longest = match self.house.ground {
            Ground::One(..) => 2_500,
            Ground::Cluster(..) => 1_500,
            Ground::Watched(_) => 300,
        };
        let long = self.dice.ms(50, longest);
        let [first, second] = [(); 2].map(|()| self.dice.ms(0, 600));
        let ground = &self.house.ground;
        let masters = block_in_place(|| ground.masters());
        let master = masters[self.dice.below(masters.len() as u64) as usize];
        match fault.change {
            Some(Change::FailOver) => block_in_place(|| ground.fail_over(master)),
            Some(Change::Move) => block_in_place(|| ground.move_slot()),
            None => {}
        }
        if let Some(strike) = fault.strike {
            block_in_place(|| strike.strike(master));
        }
        let proxy = ground.proxy().zip(fault.weather);
        if let Some((proxy, weather)) = proxy {
            sleep(first).await;
            weather.set(proxy);
        }
        if fault.change.is_none() {
            sleep(long).await;
        }
        if let Some(strike) = fault.strike {
            block_in_place(|| strike.mend(master));
        }
        if let Some((proxy, _)) = proxy {
            sleep(second).await;
            proxy.pass();
        }
        let back = Instant::now();
        let epoch = self.now.get();
        let recovered = self.recovered(&epoch, back).await;
        drop(epoch);
        if fault.change == Some(Change::FailOver) {
            block_in_place(|| self.house.ground.repair());
        }
        let (over, flying) = self.turn().await;
        let said = self.ask(&over, fault.forgets(), flying).await;
        self.report.enter_debts(&over, said.owed);
        let wrong = &mut self.report.wrong;
        let before = wrong.len();
        ledger::whatever_happened(&over, &said, wrong);
        if recovered > SOON + ledger::slack(over.lag()) {
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

    /// What the store says of an epoch.
    async fn ask(&self, epoch: &Epoch, forgot: u64, flying: u64) -> Said {
        Said {
            forgot,
            used: self.house.used(epoch.key).await,
            owed: self.house.owed(epoch.key).await,
            flying,
        }
    }

    /// How long after the store's return the last request began that it did not answer.
    async fn recovered(&self, epoch: &Epoch, back: Instant) -> Duration {
        let before = answers(epoch);
        loop {
            sleep(Duration::from_millis(10)).await;
            let last = epoch.last_fault().filter(|last| *last > back);
            let since = last.map_or(Duration::ZERO, |last| last - back);
            let mut answered = answers(epoch).into_iter().zip(&before);
            let is_well = answered.all(|(now, before)| now > before + 20)
                && last.unwrap_or(back).elapsed() > WELL;
            if is_well || back.elapsed() > 5 * SOON {
                return if is_well { since } else { back.elapsed() };
            }
        }
    }

    /// Begins a new epoch, and returns the one that is over, and the most permits that were held at once in it.
    async fn turn(&mut self) -> (Arc<Epoch>, u64) {
        self.epochs += 1;
        let over = self.now.turn(self.epochs).await;
        let flying = self.flights.most();
        self.report.enter(&over, flying);
        (over, flying)
    }
}

/// How many answers each process has had from its store.
fn answers(epoch: &Epoch) -> Vec<u64> {
    let counts = epoch.counts.iter();
    counts.map(|counts| counts.by_store.load(Relaxed)).collect()
}
