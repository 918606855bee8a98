//! Calm stretches and faults in turn.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use tokio::{task::block_in_place, time::sleep};

use crate::{
    books,
    dice::Dice,
    epoch::{Epoch, Now},
    faults::{STRIKES, Strike, WEATHERS, Weather},
    house::House,
    load::Load,
    report::{Report, resident},
};

/// How soon all is well again once the store is back.
const SOON: Duration = Duration::from_secs(2);
/// All is well once there has been no fault for so long.
const WELL: Duration = Duration::from_millis(300);

struct Soak {
    house: House,
    now: Now,
    dice: Dice,
    epochs: u64,
    report: Report,
}

pub(crate) async fn soak(time: Duration, seed: u64) -> Report {
    let mut soak = Soak {
        house: House::open(),
        now: Now::new(),
        dice: Dice::new(seed),
        epochs: 0,
        report: Report::default(),
    };
    let load = Load::start(&soak.house.limiters, &soak.now, &mut soak.dice);
    let start = Instant::now();
    let mut warm = None;
    while start.elapsed() < time {
        soak.calm().await;
        soak.fault().await;
        if warm.is_none() && start.elapsed() >= time / 4 {
            warm = Some(resident());
        }
    }
    soak.calm().await;
    let tally = load.stop().await;
    let Soak {
        house, mut report, ..
    } = soak;
    report.memory = [warm.unwrap_or(0), resident()];
    report.check_memory();
    report.requests = tally.asked.load(Relaxed);
    report.left = tally.left.load(Relaxed);
    let answered = tally.answered.load(Relaxed);
    if answered + report.left != report.requests {
        let wrong = format!("{answered} answers to {} requests", report.requests);
        report.wrong.push(wrong);
    }
    if !report.is_well() {
        // It says so if something else stood in its way, such as a disk that is full.
        println!("the server's log:\n{}", house.server.log());
    }
    report.wrong.extend(house.close().await);
    report
}

impl Soak {
    /// A stretch without a fault.
    async fn calm(&mut self) {
        self.turn().await;
        sleep(self.dice.ms(200, 900)).await;
        let over = self.turn().await;
        let used = self.house.used(over.key).await;
        books::nothing_happened(&over, used, &mut self.report.wrong);
        self.report.calm += 1;
        self.report.busy += u64::from(!books::had_time(&over));
    }

    /// A fault of the server, of the network, or of both, until all is well again.
    async fn fault(&mut self) {
        self.turn().await;
        let (strike, weather) = self.choose();
        sleep(self.dice.ms(0, 400)).await;
        let server = &self.house.server;
        if let Some(strike) = strike {
            block_in_place(|| strike.strike(server));
        }
        if let Some(weather) = weather {
            sleep(self.dice.ms(0, 600)).await;
            weather.set(&self.house.proxy);
        }
        let long = self.dice.ms(50, 2_500);
        sleep(long).await;
        if let Some(strike) = strike {
            block_in_place(|| strike.mend(server));
        }
        if weather.is_some() {
            sleep(self.dice.ms(0, 600)).await;
            self.house.proxy.pass();
        }
        let back = Instant::now();
        let epoch = self.now.get();
        let recovered = self.recovered(&epoch, back).await;
        drop(epoch);
        let over = self.turn().await;
        let used = self.house.used(over.key).await;
        let emptied = u64::from(strike == Some(Strike::Emptied));
        let wrong = &mut self.report.wrong;
        let before = wrong.len();
        books::whatever_happened(&over, emptied, used, wrong);
        if recovered > SOON + books::slack(over.lag()) {
            wrong.push(format!(
                "{}: no full service {recovered:?} after the store's return",
                over.key
            ));
        }
        for wrong in &mut wrong[before..] {
            *wrong += &format!(" ({strike:?}, {weather:?}, for {long:?})");
        }
        self.report.recovery = self.report.recovery.max(recovered);
    }

    fn choose(&mut self) -> (Option<Strike>, Option<Weather>) {
        let what = self.dice.below(4);
        let strike = (what != 0).then(|| self.dice.one_of(&STRIKES));
        let weather = (what != 1 && what != 2).then(|| self.dice.one_of(&WEATHERS));
        let names = strike.map(Strike::name).into_iter();
        for name in names.chain(weather.map(Weather::name)) {
            *self.report.faults.entry(name).or_default() += 1;
        }
        (strike, weather)
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

    /// Begins a new epoch, and returns the one that is over.
    async fn turn(&mut self) -> std::sync::Arc<Epoch> {
        self.epochs += 1;
        let over = self.now.turn(self.epochs).await;
        self.enter(&over);
        over
    }

    /// Adds an epoch's sums to the report's.
    fn enter(&mut self, epoch: &Epoch) {
        let report = &mut self.report;
        report.admitted += epoch.sum(|counts| &counts.admitted);
        report.by_store += epoch.sum(|counts| &counts.by_store);
        report.in_process += epoch.sum(|counts| &counts.in_process);
        report.slowest = report.slowest.max(epoch.slowest());
        report.lag = report.lag.max(epoch.lag());
    }
}

/// How many answers each process has had from its store.
fn answers(epoch: &Epoch) -> Vec<u64> {
    let counts = epoch.counts.iter();
    counts.map(|counts| counts.by_store.load(Relaxed)).collect()
}
