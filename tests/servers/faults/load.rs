//! A steady load from several processes, and what became of its requests.

use std::sync::atomic::Ordering::Relaxed;

use crate::faults::support::*;
use tokio::runtime::Handle;
use tollgate_tests::lateness::Lateness;

/// Tasks that send requests, for each process.
const TASKS: u64 = 8;
/// How long each of them rests between two requests.
const REST: Duration = ms(2);

/// Processes that send requests for a shared key and for keys of their own in turn. Each is a thread with a runtime of its own.
pub(crate) struct Load {
    processes: Vec<(thread::JoinHandle<()>, Arc<Counts>)>,
    is_over: Arc<AtomicBool>,
}

/// What became of the requests of a process: by the store, and otherwise.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    decisions: [AtomicU64; 2],
    /// Admitted requests for the shared key.
    shared: [AtomicU64; 2],
    /// Requests for the shared key that were decided by this process's share: not by the store, nor from its cached rejections.
    by_share: AtomicU64,
}

fn index(source: DecisionSource) -> usize {
    (source != DecisionSource::Store).into()
}

impl Load {
    /// Sends requests through these limiters, whose stores have this timeout: no request ends later.
    pub(crate) fn start(limiters: impl IntoIterator<Item = Limiter>, timeout: Duration) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let process = |limiter| {
            let (counts, is_over) = (Arc::<Counts>::default(), is_over.clone());
            let load = run(limiter, timeout, counts.clone(), is_over);
            let runtime = current_thread();
            (thread::spawn(move || runtime.block_on(load)), counts)
        };
        Self {
            processes: limiters.into_iter().map(process).collect(),
            is_over,
        }
    }

    /// Waits until each process has had `many` more decisions from its store, or otherwise.
    pub(crate) async fn wait_for_decisions(&self, source: DecisionSource, many: u64) {
        let decisions = || {
            let each = self.processes.iter();
            each.map(|(_, counts)| counts.decisions[index(source)].load(Relaxed))
        };
        let before: Vec<_> = decisions().collect();
        until("decisions", async || {
            decisions()
                .zip(&before)
                .all(|(now, before)| now >= before + many)
        })
        .await;
    }

    /// Waits until each process has decided so many requests for the shared key by its share.
    pub(crate) async fn wait_for_shares(&self, many: u64) {
        until("decisions by the shares", async || {
            let mut each = self.processes.iter();
            each.all(|(_, counts)| counts.by_share.load(Relaxed) >= many)
        })
        .await;
    }

    /// Ends the load, once each request has been decided in time and nothing is left of the limiters.
    pub(crate) fn stop(self) -> Vec<Arc<Counts>> {
        self.is_over.store(true, Relaxed);
        let processes = self.processes.into_iter();
        let counts = processes.map(|(thread, counts)| {
            thread.join().expect("each request is decided in time");
            counts
        });
        counts.collect()
    }
}

/// How many requests for the shared key were admitted, by the store or otherwise.
pub(crate) fn admitted(counts: &[Arc<Counts>], source: DecisionSource) -> u64 {
    let each = counts.iter();
    each.map(|counts| counts.shared[index(source)].load(Relaxed))
        .sum()
}

/// How many requests were not decided by the store.
pub(crate) fn faults(counts: &[Arc<Counts>]) -> u64 {
    let each = counts.iter();
    each.map(|counts| counts.decisions[1].load(Relaxed)).sum()
}

async fn run(limiter: Limiter, timeout: Duration, counts: Arc<Counts>, is_over: Arc<AtomicBool>) {
    let lateness = Lateness::measure();
    let tasks = (0..TASKS).map(|task| {
        let (limiter, lateness) = (limiter.clone(), lateness.clone());
        let (counts, is_over) = (counts.clone(), is_over.clone());
        tokio::spawn(async move {
            let own = Key::new(format!("{:?} {task}", thread::current().id()));
            let mut keys = [KEY, own].into_iter().cycle();
            while !is_over.load(Relaxed) {
                let key = keys.next().expect("one of two");
                let check = limiter.check(key).into_future();
                let decision = lateness.within(timeout, check).await;
                let source = index(decision.source());
                let admitted = u64::from(key == KEY && decision.is_admitted());
                counts.shared[source].fetch_add(admitted, Relaxed);
                counts.decisions[source].fetch_add(1, Relaxed);
                let is_by_share = key == KEY && decision.source() == DecisionSource::Fallback;
                counts.by_share.fetch_add(is_by_share.into(), Relaxed);
                tokio::time::sleep(REST).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("it is in time");
    }
    drop((limiter, lateness));
    let have_ended = async || Handle::current().metrics().num_alive_tasks() == 0;
    until("all tasks have ended", have_ended).await;
}
