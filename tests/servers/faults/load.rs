//! A steady load from several processes, and what became of its requests.

use crate::faults::support::*;
use tokio::runtime::Handle;
use tollgate_tests::lateness::Lateness;

/// Tasks that send requests, for each process.
const TASKS: u64 = 8;
/// How long each of them rests between two requests.
const REST: Duration = ms(2);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sent {
    /// Whether it was for the shared key.
    pub(crate) is_shared: bool,
    pub(crate) source: DecisionSource,
    pub(crate) is_admitted: bool,
}

/// How many requests have become what.
#[derive(Debug, Default)]
pub(crate) struct Counts(HashMap<Sent, u64>);

impl Counts {
    pub(crate) fn of(&self, is_counted: impl Fn(&Sent) -> bool) -> u64 {
        let counted = self.0.iter().filter(|(sent, _)| is_counted(sent));
        counted.map(|(_, many)| many).sum()
    }

    /// How many requests for the shared key were admitted, by the store or otherwise.
    pub(crate) fn admitted(&self, by_store: bool) -> u64 {
        self.of(|it| it.is_shared && it.is_admitted && it.is_by_store() == by_store)
    }
}

impl Sent {
    pub(crate) fn is_by_store(&self) -> bool {
        self.source == DecisionSource::Store
    }
}

/// Processes that send requests for a shared key and for keys of their own in turn. Each is a thread with a runtime of its own.
pub(crate) struct Load {
    processes: Vec<(thread::JoinHandle<()>, Arc<Mutex<Counts>>)>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    /// Sends requests through these limiters, whose stores have this timeout: no request ends later.
    pub(crate) fn start(limiters: impl IntoIterator<Item = Limiter>, timeout: Duration) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let process = |limiter| {
            let (counts, is_over) = (Arc::<Mutex<Counts>>::default(), is_over.clone());
            let load = run(limiter, timeout, counts.clone(), is_over);
            let runtime = current_thread();
            (thread::spawn(move || runtime.block_on(load)), counts)
        };
        Self {
            processes: limiters.into_iter().map(process).collect(),
            is_over,
        }
    }

    /// Waits until each process has sent so many more requests that have become this.
    pub(crate) async fn wait_for(&self, many: u64, is_counted: impl Fn(&Sent) -> bool) {
        let counts = || {
            let each = self.processes.iter();
            each.map(|(_, counts)| counts.lock().expect("the counts").of(&is_counted))
        };
        let before: Vec<_> = counts().collect();
        let are_sent = async || counts().zip(&before).all(|(now, then)| now >= then + many);
        until("so many requests", are_sent).await;
    }

    /// Ends the load, once each request has been decided in time and nothing is left of the limiters; returns the counts of all.
    pub(crate) fn stop(self) -> Counts {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Counts::default();
        for (thread, counts) in self.processes {
            thread.join().expect("each request is decided in time");
            for (sent, many) in &counts.lock().expect("the counts").0 {
                *all.0.entry(*sent).or_default() += many;
            }
        }
        all
    }
}

async fn run(
    limiter: Limiter,
    timeout: Duration,
    counts: Arc<Mutex<Counts>>,
    is_over: Arc<AtomicBool>,
) {
    let lateness = Lateness::measure();
    let tasks = (0..TASKS).map(|task| {
        let (limiter, lateness) = (limiter.clone(), lateness.clone());
        let (counts, is_over) = (counts.clone(), is_over.clone());
        tokio::spawn(async move {
            let own = Key::new(format!("{:?} {task}", thread::current().id()));
            let mut keys = [KEY, own].into_iter().cycle();
            while !is_over.load(Ordering::Relaxed) {
                let key = keys.next().expect("one of two");
                let check = limiter.check(key).into_future();
                let decision = lateness.within(timeout, check).await;
                let sent = Sent {
                    is_shared: key == KEY,
                    source: decision.source(),
                    is_admitted: decision.is_admitted(),
                };
                *counts
                    .lock()
                    .expect("the counts")
                    .0
                    .entry(sent)
                    .or_default() += 1;
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
