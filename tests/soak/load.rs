//! A steady load from several processes' tasks.

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tollgate::{Key, Limiter};

use crate::{
    interval::Now,
    limiters::Process,
    permits::{Flights, fly},
    rng::Dice,
};

/// Tasks that ask, for each process.
const TASKS: u64 = 5;
/// Tasks that take permits in flight, for each process: together more than there are permits.
const FLIERS: u64 = 3;
/// How long each of them rests between two requests.
const REST: Duration = Duration::from_millis(2);
/// Callers of each process's own.
const CALLERS: u64 = 3_000;

pub(crate) struct Load {
    tasks: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) flights: Arc<Flights>,
}

/// Requests, in all.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) asked: AtomicU64,
    pub(crate) answered: AtomicU64,
    /// Those whose callers left before they had an answer.
    pub(crate) left: AtomicU64,
}

impl Load {
    pub(crate) fn start(processes: &[Process], now: &Now, dice: &mut Dice) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (tally, flights) = (Arc::new(Tally::default()), Arc::new(Flights::default()));
        let mut tasks = Vec::new();
        for (process, limiters) in processes.iter().enumerate() {
            let debt = owe(process, limiters.debt.clone(), now.clone(), is_over.clone());
            tasks.push(tokio::spawn(debt));
            for _ in 0..FLIERS {
                let (dice, flights) = (Dice::new(dice.next()), flights.clone());
                let flier = fly(limiters.flight.clone(), flights, dice, is_over.clone());
                tasks.push(tokio::spawn(flier));
            }
            for _ in 0..TASKS {
                let task = Task {
                    process,
                    limiter: limiters.gate.clone(),
                    now: now.clone(),
                    dice: Dice::new(dice.next()),
                    tally: tally.clone(),
                };
                tasks.push(tokio::spawn(task.run(is_over.clone())));
            }
        }
        tasks.push(tokio::spawn(measure_lag(now.clone(), is_over.clone())));
        Self {
            tasks,
            is_over,
            tally,
            flights,
        }
    }

    pub(crate) async fn stop(self) -> Arc<Tally> {
        self.is_over.store(true, Relaxed);
        for task in self.tasks {
            task.await.expect("no request panics");
        }
        self.tally
    }
}

struct Task {
    process: usize,
    limiter: Limiter,
    now: Now,
    dice: Dice,
    tally: Arc<Tally>,
}

impl Task {
    async fn run(mut self, is_over: Arc<AtomicBool>) {
        let mut shared = false;
        while !is_over.load(Relaxed) {
            shared = !shared;
            let epoch = self.now.get();
            let key = match shared {
                true => epoch.key,
                false => Key::new(format!("{}-{}", self.process, self.dice.below(CALLERS))),
            };
            self.tally.asked.fetch_add(1, Relaxed);
            let asked = Instant::now();
            let check = self.limiter.check(key).into_future();
            if !shared && self.dice.below(20) == 0 {
                // A client without patience. Its charge is refunded.
                let patience = Duration::from_micros(self.dice.below(3_000));
                if tokio::time::timeout(patience, check).await.is_err() {
                    self.tally.left.fetch_add(1, Relaxed);
                } else {
                    self.tally.answered.fetch_add(1, Relaxed);
                }
            } else {
                let decision = check.await;
                epoch.note(self.process, shared, asked, &decision);
                self.tally.answered.fetch_add(1, Relaxed);
            }
            drop(epoch);
            tokio::time::sleep(REST).await;
        }
    }
}

/// Asks for units that are charged in the store afterwards, should it not answer now.
async fn owe(process: usize, limiter: Limiter, now: Now, is_over: Arc<AtomicBool>) {
    while !is_over.load(Relaxed) {
        let epoch = now.get();
        let mut check = Box::pin(limiter.check(epoch.key).into_future());
        // A request that is answered at once was not sent.
        let at_once = (&mut check).now_or_never();
        let asked = at_once.is_none();
        let decision = match at_once {
            Some(decision) => decision,
            None => check.await,
        };
        epoch.note_debt(process, &decision, asked);
        drop(epoch);
        tokio::time::sleep(REST).await;
    }
}

/// How late tasks are woken, for no fault of the limiter's.
async fn measure_lag(now: Now, is_over: Arc<AtomicBool>) {
    let nap = Duration::from_millis(1);
    while !is_over.load(Relaxed) {
        let epoch = now.get();
        let start = Instant::now();
        tokio::time::sleep(nap).await;
        epoch.note_lag(start.elapsed().saturating_sub(nap));
    }
}
