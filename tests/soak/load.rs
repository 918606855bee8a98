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
    permits::{PermitCount, hold_permits},
    rng::Rng,
};

/// Tasks that send requests, for each process.
const TASKS: u64 = 5;
/// Tasks that take permits in flight, for each process: together more than there are permits.
const HOLDERS: u64 = 3;
/// How long each of them rests between two requests.
const REST: Duration = Duration::from_millis(2);
/// Callers of each process's own.
const CALLERS: u64 = 3_000;

pub(crate) struct Load {
    tasks: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    pub(crate) totals: Arc<RequestCounts>,
    pub(crate) permits: Arc<PermitCount>,
}

/// Requests, in all.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    pub(crate) sent: AtomicU64,
    pub(crate) completed: AtomicU64,
    /// Those that were cancelled before they had a decision.
    pub(crate) cancelled: AtomicU64,
}

impl Load {
    pub(crate) fn start(processes: &[Process], now: &Now, rng: &mut Rng) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (totals, permits) = (
            Arc::new(RequestCounts::default()),
            Arc::new(PermitCount::default()),
        );
        let mut tasks = Vec::new();
        for (process, limiters) in processes.iter().enumerate() {
            let debt = charge_debts(process, limiters.debt.clone(), now.clone(), is_over.clone());
            tasks.push(tokio::spawn(debt));
            for _ in 0..HOLDERS {
                let (rng, permits) = (Rng::new(rng.next()), permits.clone());
                let holder =
                    hold_permits(limiters.in_flight.clone(), permits, rng, is_over.clone());
                tasks.push(tokio::spawn(holder));
            }
            for _ in 0..TASKS {
                let task = Task {
                    process,
                    limiter: limiters.gate.clone(),
                    now: now.clone(),
                    rng: Rng::new(rng.next()),
                    totals: totals.clone(),
                };
                tasks.push(tokio::spawn(task.run(is_over.clone())));
            }
        }
        tasks.push(tokio::spawn(measure_lag(now.clone(), is_over.clone())));
        Self {
            tasks,
            is_over,
            totals,
            permits,
        }
    }

    pub(crate) async fn stop(self) -> Arc<RequestCounts> {
        self.is_over.store(true, Relaxed);
        for task in self.tasks {
            task.await.expect("no request panics");
        }
        self.totals
    }
}

struct Task {
    process: usize,
    limiter: Limiter,
    now: Now,
    rng: Rng,
    totals: Arc<RequestCounts>,
}

impl Task {
    async fn run(mut self, is_over: Arc<AtomicBool>) {
        let mut shared = false;
        while !is_over.load(Relaxed) {
            shared = !shared;
            let interval = self.now.get();
            let key = match shared {
                true => interval.key,
                false => Key::new(format!("{}-{}", self.process, self.rng.below(CALLERS))),
            };
            self.totals.sent.fetch_add(1, Relaxed);
            let sent = Instant::now();
            let check = self.limiter.check(key).into_future();
            if !shared && self.rng.below(20) == 0 {
                // A client without patience. Its charge is refunded.
                let patience = Duration::from_micros(self.rng.below(3_000));
                if tokio::time::timeout(patience, check).await.is_err() {
                    self.totals.cancelled.fetch_add(1, Relaxed);
                } else {
                    self.totals.completed.fetch_add(1, Relaxed);
                }
            } else {
                let decision = check.await;
                interval.note(self.process, shared, sent, &decision);
                self.totals.completed.fetch_add(1, Relaxed);
            }
            drop(interval);
            tokio::time::sleep(REST).await;
        }
    }
}

/// Sends requests whose units are charged in the store afterwards if it fails now.
async fn charge_debts(process: usize, limiter: Limiter, now: Now, is_over: Arc<AtomicBool>) {
    while !is_over.load(Relaxed) {
        let interval = now.get();
        let mut check = Box::pin(limiter.check(interval.key).into_future());
        // A request that is decided at once was not sent.
        let at_once = (&mut check).now_or_never();
        let sent = at_once.is_none();
        let decision = match at_once {
            Some(decision) => decision,
            None => check.await,
        };
        interval.note_debt(process, &decision, sent);
        drop(interval);
        tokio::time::sleep(REST).await;
    }
}

/// How late tasks are woken, independently of the limiter.
async fn measure_lag(now: Now, is_over: Arc<AtomicBool>) {
    let nap = Duration::from_millis(1);
    while !is_over.load(Relaxed) {
        let interval = now.get();
        let start = Instant::now();
        tokio::time::sleep(nap).await;
        interval.note_lag(start.elapsed().saturating_sub(nap));
    }
}
