//! Requests from many limiters at once, and a record of those that are admitted.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinHandle;
use tollgate::{DecisionSource, Key, Limiter};

use crate::leases::{
    checker::{Admission, Rejection, now},
    support::{leases, ms, until},
};

/// What was admitted.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) admissions: Vec<Admission>,
    /// How many of them by leases.
    pub(crate) by_lease: u64,
    /// What the store rejected.
    pub(crate) rejections: Vec<Rejection>,
}

/// Tasks that send requests to limiters until they are stopped.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    record: Arc<Mutex<Record>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// A task for each limiter, which pauses after a rejection.
    pub(crate) fn start(limiters: &[Limiter], key: Key, costs: &'static [u64]) -> Self {
        Self::start_pausing(limiters, key, costs, ms(1), |_| false)
    }

    /// A task for each limiter, which pauses for so long after a rejection, and while `is_paused` says so of its number.
    pub(crate) fn start_pausing(
        limiters: &[Limiter],
        key: Key,
        costs: &'static [u64],
        pause: Duration,
        is_paused: fn(usize) -> bool,
    ) -> Self {
        let (stop, record) = (Arc::default(), Arc::default());
        let tasks = limiters.iter().cloned().enumerate();
        let tasks = tasks.map(|(number, limiter)| {
            let (stop, record): (Arc<AtomicBool>, Arc<Mutex<Record>>) =
                (Arc::clone(&stop), Arc::clone(&record));
            tokio::spawn(async move {
                let mut costs = costs.iter().cycle();
                while !stop.load(Ordering::Relaxed) {
                    if is_paused(number) {
                        tokio::time::sleep(pause).await;
                        continue;
                    }
                    let units = *costs.next().unwrap_or(&1);
                    let before = now();
                    let decision = limiter.check(key).cost(units).await;
                    let after = now();
                    if decision.is_admitted() {
                        let mut record = record.lock().expect("no panic");
                        record.admissions.push(Admission {
                            before,
                            after,
                            units,
                        });
                        let by_lease = decision.source() == DecisionSource::Lease;
                        record.by_lease += u64::from(by_lease);
                    } else {
                        let rejection = Rejection { before, after };
                        record.lock().expect("no panic").rejections.push(rejection);
                        tokio::time::sleep(pause).await;
                    }
                    tokio::task::consume_budget().await;
                }
            })
        });
        Self {
            tasks: tasks.collect(),
            stop,
            record,
        }
    }

    /// The units that were admitted so far.
    pub(crate) fn units(&self) -> u64 {
        let record = self.record.lock().expect("no panic");
        record.admissions.iter().map(|one| one.units).sum()
    }

    pub(crate) fn by_lease(&self) -> u64 {
        self.record.lock().expect("no panic").by_lease
    }

    /// Looks at what was recorded so far.
    pub(crate) fn seen<T>(&self, look: impl FnOnce(&Record) -> T) -> T {
        look(&self.record.lock().expect("no panic"))
    }

    /// Runs for so long, and until a lease has admitted requests.
    pub(crate) async fn run_for(self, time: Duration) -> Record {
        tokio::time::sleep(time).await;
        until("a lease admits", async || self.by_lease() > 0).await;
        self.stop().await
    }

    pub(crate) async fn stop(self) -> Record {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a task ends well");
        }
        std::mem::take(&mut *self.record.lock().expect("no panic"))
    }
}

/// Waits until no limiter holds units; checks what became of those that were granted.
pub(crate) async fn until_nothing_is_held(limiters: &[Limiter], policy: &str) {
    until("all units are spent, refunded or lapsed", async || {
        limiters.iter().all(|limiter| {
            leases(limiter, policy)
                .is_none_or(|it| it.held == 0 && it.granted == it.spent + it.refunded + it.lapsed)
        })
    })
    .await;
}
