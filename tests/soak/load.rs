//! A steady load from several processes' tasks.

use std::sync::atomic::Ordering::Relaxed;

use tokio::task::JoinHandle;
use tollgate_tests::{lateness::Lateness, prelude::*};

use crate::{
    interval::Now,
    limiters::Process,
    permits::{PermitCount, hold_permit, hold_permits},
    rng::Rng,
    sums::CountedLimiter,
};

/// Tasks that send requests, for each process.
const TASKS: u64 = 5;
/// Tasks that take permits in flight, for each process: together more than there are permits.
const HOLDERS: u64 = 3;
/// How long each of them rests between two requests.
const REST: Duration = ms(2);
/// Callers of each process's own.
const CALLERS: u64 = 3_000;

pub(crate) struct Load {
    tasks: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    pub(crate) permits: Arc<PermitCount>,
}

impl Load {
    pub(crate) fn start(processes: &[Process], now: &Now, rng: &mut Rng) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let permits = Arc::new(PermitCount::default());
        let mut tasks = Vec::new();
        for (process, limiters) in processes.iter().enumerate() {
            let runtime = crate::runtime_of(process);
            let _entered = runtime.enter();
            let lateness = Lateness::measure();
            for _ in 0..HOLDERS {
                let (rng, permits) = (Rng::new(rng.any()), permits.clone());
                let holder =
                    hold_permits(limiters.in_flight.clone(), permits, rng, is_over.clone());
                tasks.push(tokio::spawn(holder));
            }
            for _ in 0..TASKS {
                let task = Task {
                    process,
                    gate: limiters.gate.clone(),
                    now: now.clone(),
                    rng: Rng::new(rng.any()),
                    lateness: lateness.clone(),
                };
                tasks.push(tokio::spawn(task.run(is_over.clone())));
            }
            let stalling = Stalling {
                task: Task {
                    process,
                    gate: limiters.gate.clone(),
                    now: now.clone(),
                    rng: Rng::new(rng.any()),
                    lateness,
                },
                in_flight: limiters.in_flight.clone(),
                permits: permits.clone(),
            };
            let is_over = is_over.clone();
            tasks.push(tokio::task::spawn_blocking(|| stalling.run(is_over)));
        }
        Self {
            tasks,
            is_over,
            permits,
        }
    }

    /// Ends the load, once all requests have ended.
    pub(crate) async fn stop(self) {
        self.is_over.store(true, Relaxed);
        for task in self.tasks {
            task.await.expect("no request panics");
        }
    }
}

struct Task {
    process: usize,
    gate: CountedLimiter,
    now: Now,
    rng: Rng,
    lateness: Arc<Lateness>,
}

impl Task {
    async fn run(mut self, is_over: Arc<AtomicBool>) {
        let mut shared = false;
        while !is_over.load(Relaxed) {
            shared = !shared;
            self.send(shared).await;
            tokio::time::sleep(REST).await;
        }
    }

    /// Sends a request for the key of all processes, or for a caller's own.
    async fn send(&mut self, shared: bool) {
        let interval = self.now.get();
        let key = match shared {
            true => interval.key,
            false => Key::new(format!("{}-{}", self.process, self.rng.below(CALLERS))),
        };
        let CountedLimiter { limiter, seen, .. } = &self.gate;
        seen.ask();
        let sent = Instant::now();
        let check = limiter.check(key).into_future();
        if !shared && self.rng.below(20) == 0 {
            // A client without patience. Its charge is refunded.
            let patience = Duration::from_micros(self.rng.below(3_000));
            match tokio::time::timeout(patience, check).await {
                Ok(decision) => seen.decided(&decision),
                Err(_) => seen.left(),
            }
        } else {
            let timed = self.lateness.timed(crate::TIMEOUT, check).await;
            let (decision, took, overdue) = timed;
            seen.decided(&decision);
            interval.note_time(took, overdue);
            interval.note(self.process, shared, sent, &decision);
        }
    }
}

/// The load on a second runtime of a process, which stands still at random. What it has dropped before, the IO thread
/// sends.
struct Stalling {
    task: Task,
    in_flight: CountedLimiter,
    permits: Arc<PermitCount>,
}

impl Stalling {
    fn run(mut self, is_over: Arc<AtomicBool>) {
        let runtime = current_thread();
        self.task.lateness = runtime.block_on(async { Lateness::measure() });
        while !is_over.load(Relaxed) {
            runtime.block_on(async {
                for _ in 0..self.task.rng.below(20) {
                    let shared = self.task.rng.below(2) == 0;
                    self.task.send(shared).await;
                }
                hold_permit(&self.in_flight, &self.permits, Duration::ZERO).await;
            });
            std::thread::sleep(self.task.rng.ms(0, 600));
        }
    }
}
