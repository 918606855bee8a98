//! Puts a contender under load, and counts.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Something that decides whether a request may pass.
pub trait Contender: Send + Sync + 'static {
    /// Decides about one request: whether it is admitted.
    fn decide(&self, rng: &mut Rng) -> impl Future<Output = bool> + Send;
}

impl<C: Contender> Contender for Arc<C> {
    fn decide(&self, rng: &mut Rng) -> impl Future<Output = bool> + Send {
        C::decide(self, rng)
    }
}

/// The load on a contender.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests in flight at any moment.
    pub tasks: usize,
    /// For how long.
    pub time: Duration,
    /// How many decisions a task makes before it lets others run: a contender that never waits would keep its thread.
    pub stint: u32,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Decisions per second.
    pub rate: f64,
    /// Half of the decisions took no longer.
    pub p50: Duration,
    /// Of a hundred decisions, 99 took no longer.
    pub p99: Duration,
    /// How many requests were admitted.
    pub admitted: u64,
    /// How many decisions were made.
    pub decisions: u64,
    /// Processor time of this process for each decision.
    pub cpu: Duration,
}

/// Random numbers, the same ones in every run: xorshift64*.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Rng for one task.
    pub fn new(task: usize) -> Self {
        Self((task as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize) % end
    }
}

/// One in so many decisions is timed where they are too many to time them all.
const TIMED: u64 = 16;

/// Drives `contender` under `load`.
pub async fn run_load<C: Contender>(contender: Arc<C>, load: Load) -> Sample {
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let cpu = cpu_time();
    let tasks: Vec<_> = (0..load.tasks)
        .map(|task| {
            let (contender, stop) = (contender.clone(), stop.clone());
            tokio::spawn(async move {
                let mut rng = Rng::new(task);
                let (mut decisions, mut admitted) = (0_u64, 0_u64);
                let mut waits = Vec::new();
                // Each task decides at least once, however late it begins.
                loop {
                    for _ in 0..load.stint {
                        let timed = load.stint == 1 || decisions % TIMED == 0;
                        let start = timed.then(Instant::now);
                        admitted += u64::from(contender.decide(&mut rng).await);
                        decisions += 1;
                        if let Some(start) = start {
                            waits.push(start.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
                        }
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    if load.stint > 1 {
                        tokio::task::yield_now().await;
                    }
                }
                (decisions, admitted, waits)
            })
        })
        .collect();
    tokio::time::sleep(load.time).await;
    stop.store(true, Ordering::Relaxed);
    let (mut decisions, mut admitted, mut waits) = (0, 0, Vec::new());
    for task in tasks {
        let (made, passed, took) = task.await.expect("a contender must not panic");
        decisions += made;
        admitted += passed;
        waits.extend(took);
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu = cpu_time() - cpu;
    waits.sort_unstable();
    let at = |part: f64| {
        let place = ((waits.len() as f64 * part) as usize).min(waits.len().saturating_sub(1));
        Duration::from_nanos(waits.get(place).copied().unwrap_or(0).into())
    };
    Sample {
        rate: decisions as f64 / seconds,
        p50: at(0.5),
        p99: at(0.99),
        admitted,
        decisions,
        cpu: cpu / u32::try_from(decisions.max(1)).unwrap_or(u32::MAX),
    }
}

/// Processor time that this process has used, where the system reports it.
pub(crate) fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name in brackets, which may hold anything: user and system time are the 12th and 13th field, in ticks.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |place: usize| {
        fields
            .get(place)
            .and_then(|field| field.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}
