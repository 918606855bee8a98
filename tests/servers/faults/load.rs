//! A steady load, and what became of each of its requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;
use tollgate::{DecisionSource, Key, Limiter};

use crate::faults::support::{TIMEOUT, until};

/// Tasks that send requests, for each limiter.
const TASKS: u64 = 8;
/// How long each of them rests between two requests.
const REST: Duration = Duration::from_millis(2);
/// What a request may take past its deadline, on a machine that has nothing else to do.
const SLACK: Duration = Duration::from_millis(50);
/// How soon all is well again once the store is back.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(2);

/// A request, and what became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRequest {
    pub(crate) limiter: usize,
    /// Whether it was for the shared key, and not for one of its task's own.
    pub(crate) shared: bool,
    pub(crate) start: Instant,
    pub(crate) took: Duration,
    pub(crate) source: DecisionSource,
    pub(crate) admitted: bool,
}

/// Tasks that send requests through each limiter for a shared key and for keys of their own in turn.
pub(crate) struct Load {
    tasks: Vec<JoinHandle<Vec<SentRequest>>>,
    lag: JoinHandle<Duration>,
    is_over: Arc<AtomicBool>,
    /// How many decisions each limiter has had from its store, and otherwise.
    decisions: Arc<Vec<[AtomicU64; 2]>>,
}

/// The results of a load.
pub(crate) struct Log {
    pub(crate) requests: Vec<SentRequest>,
    /// How late tasks were woken at worst, independently of the limiter.
    lag: Duration,
}

impl Load {
    pub(crate) fn start(limiters: &[Limiter]) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let decisions: Arc<Vec<[AtomicU64; 2]>> =
            Arc::new(limiters.iter().map(|_| Default::default()).collect());
        let mut tasks = Vec::new();
        for (number, limiter) in limiters.iter().enumerate() {
            for task in 0..TASKS {
                let (limiter, decisions) = (limiter.clone(), decisions.clone());
                let is_over = is_over.clone();
                tasks.push(tokio::spawn(async move {
                    let own = Key::new(format!("{number} {task}"));
                    let mut requests = Vec::new();
                    while !is_over.load(Ordering::Relaxed) {
                        let shared = requests.len() % 2 == 0;
                        let start = Instant::now();
                        let key = if shared { Key::new("shared") } else { own };
                        let decision = limiter.check(key).await;
                        let source = decision.source();
                        let place = usize::from(source != DecisionSource::Store);
                        decisions[number][place].fetch_add(1, Ordering::Relaxed);
                        requests.push(SentRequest {
                            limiter: number,
                            shared,
                            start,
                            took: start.elapsed(),
                            source,
                            admitted: decision.is_admitted(),
                        });
                        tokio::time::sleep(REST).await;
                    }
                    requests
                }));
            }
        }
        let over = is_over.clone();
        let lag = tokio::spawn(async move {
            let (nap, mut worst) = (Duration::from_millis(1), Duration::ZERO);
            while !over.load(Ordering::Relaxed) {
                let start = Instant::now();
                tokio::time::sleep(nap).await;
                worst = worst.max(start.elapsed().saturating_sub(nap));
            }
            worst
        });
        Self {
            tasks,
            lag,
            is_over,
            decisions,
        }
    }

    /// Waits until each limiter has had `many` more decisions from its store, or otherwise.
    pub(crate) async fn wait_for_decisions(&self, source: DecisionSource, many: u64) {
        let place = usize::from(source != DecisionSource::Store);
        let count = |decisions: &[AtomicU64; 2]| decisions[place].load(Ordering::Relaxed);
        let before: Vec<_> = self.decisions.iter().map(count).collect();
        until("decisions", async || {
            let now = self.decisions.iter().map(count);
            now.zip(&before).all(|(now, before)| now >= before + many)
        })
        .await;
    }

    pub(crate) async fn stop(self) -> Log {
        self.is_over.store(true, Ordering::Relaxed);
        let mut requests = Vec::new();
        for task in self.tasks {
            requests.extend(task.await.expect("each request has one answer"));
        }
        Log {
            requests,
            lag: self.lag.await.expect("it ends well"),
        }
    }
}

impl Log {
    /// Whether the machine delayed nothing for so long that a deadline could pass.
    pub(crate) fn is_calm(&self) -> bool {
        self.lag < TIMEOUT / 4
    }

    fn slack(&self) -> Duration {
        // A request is woken a few times: in its own task, in its worker's and in its connection's.
        SLACK + 4 * self.lag
    }

    /// What is promised, in figures.
    pub(crate) fn print(&self, what: &str, back: Instant) {
        let slowest = self.requests.iter().map(|request| request.took).max();
        let faults = self
            .requests
            .iter()
            .filter(|request| request.source != DecisionSource::Store);
        let resumed = faults.clone().map(|request| request.start).max();
        let resumed = resumed.map(|last| last.saturating_duration_since(back));
        let mut took: Vec<_> = faults.map(|request| request.took).collect();
        took.sort_unstable();
        println!(
            "{what}: {} requests, the slowest {:.0?}; {} without the store, half of them within {:.0?}, 99 of 100 within {:.0?}; \
             back after {:.0?}; tasks were late by {:.0?}",
            self.requests.len(),
            slowest.unwrap_or_default(),
            took.len(),
            took.get(took.len() / 2).copied().unwrap_or_default(),
            took.get(took.len() * 99 / 100).copied().unwrap_or_default(),
            resumed.unwrap_or_default(),
            self.lag,
        );
    }

    /// No request waited past its deadline.
    #[track_caller]
    pub(crate) fn assert_in_time(&self) {
        let slowest = self.requests.iter().max_by_key(|request| request.took);
        let slowest = slowest.expect("a request");
        assert!(
            slowest.took <= TIMEOUT + self.slack(),
            "{slowest:?}, where tasks were {:?} late",
            self.lag
        );
    }

    /// From soon after an instant on, no call of the store failed.
    #[track_caller]
    pub(crate) fn assert_resumed(&self, back: Instant) {
        let last = self
            .requests
            .iter()
            .filter(|request| request.source != DecisionSource::Store);
        if let Some(last) = last.max_by_key(|request| request.start) {
            let since = last.start.saturating_duration_since(back);
            assert!(
                since <= RECOVERY_TIMEOUT + self.slack(),
                "{since:?}: {last:?}"
            );
        }
    }

    /// How many were admitted, by the store or otherwise, under the shared key or in all.
    pub(crate) fn admitted(&self, source: DecisionSource, shared: bool) -> u64 {
        let admitted = self.requests.iter().filter(|request| {
            request.admitted && request.source == source && request.shared == shared
        });
        admitted.count() as u64
    }

    /// Requests whose call of the store failed.
    pub(crate) fn faults(&self) -> u64 {
        let faults = self
            .requests
            .iter()
            .filter(|request| request.source == DecisionSource::Fallback);
        faults.count() as u64
    }
}
