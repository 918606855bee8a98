//! The limiters that count on a store, each process's two.

use tokio::{runtime::Handle, task::block_in_place};

use crate::{
    PROCESSES, TIMEOUT,
    sums::{CountedLimiter, Sums},
    topology::Topology,
};
use tollgate_tests::prelude::*;

/// What each key is allowed.
pub(crate) const QUOTA: u64 = 200;
/// What one process admits while the store fails.
pub(crate) const SHARE: u64 = QUOTA.div_ceil(PROCESSES as u64);
/// How many may be in flight, by all processes together.
pub(crate) const MAX_PERMITS: u64 = 5;
/// A permit that is not released is free again after this. No outage is as long.
const PERMIT_TTL: Duration = secs(15);

/// A process: its limiters share its store.
#[derive(Clone)]
pub(crate) struct Process {
    /// Two policies, so that there are two counts that must agree: requests are charged under both or none.
    pub(crate) gate: CountedLimiter,
    /// Requests in flight.
    pub(crate) in_flight: CountedLimiter,
}

pub(crate) struct Limiters {
    pub(crate) topology: Topology,
    pub(crate) processes: Vec<Process>,
}

impl Limiters {
    pub(crate) fn open(topology: Topology) -> Self {
        let process = |process| Process::new(&topology, process);
        let processes = (0..PROCESSES).map(process).collect();
        Self {
            topology,
            processes,
        }
    }

    /// How many units of a key are used under both policies, which must agree.
    pub(crate) async fn used(&self, key: Key) -> [u64; 2] {
        let gate = &self.processes[0].gate.limiter;
        [
            used(gate, key, "narrow").await,
            used(gate, key, "wide").await,
        ]
    }

    /// How long it takes until all permits are free again once none is acquired; `None` if they aren't.
    pub(crate) async fn all_free(&self) -> Option<Duration> {
        let start = Instant::now();
        let in_flight = &self.processes[0].in_flight.limiter;
        while used(in_flight, Key::global(), "flight").await != 0 {
            if start.elapsed() > TEST_TIMEOUT {
                return None;
            }
            tokio::time::sleep(ms(20)).await;
        }
        Some(start.elapsed())
    }

    /// Reads the metrics of all limiters.
    pub(crate) fn scrape(&self) {
        let limiters = self.processes.iter().flat_map(Process::limiters);
        limiters.for_each(CountedLimiter::scrape);
    }

    /// The sums of what the callers saw, once all requests have ended; adds what the metrics
    /// say otherwise.
    pub(crate) fn reconcile(&self, wrong: &mut Vec<String>) -> Sums {
        let mut sums = Sums::default();
        for limiter in self.processes.iter().flat_map(Process::limiters) {
            sums.add(limiter.reconcile(wrong));
        }
        sums
    }

    /// What is wrong once it is not used any more.
    pub(crate) async fn close(self) -> Vec<String> {
        let Self {
            topology,
            processes,
        } = self;
        let mut wrong = Vec::new();
        let immortal = |server: &testkit::Server| server.immortal_keys();
        let immortal: Vec<_> =
            block_in_place(|| topology.masters().into_iter().flat_map(immortal).collect());
        if !immortal.is_empty() {
            wrong.push(format!("keys that never expire: {immortal:?}"));
        }
        drop(processes);
        let start = Instant::now();
        loop {
            let (clients, proxy_connections) =
                block_in_place(|| (topology.clients(), topology.proxy_connections()));
            let runtimes = (0..PROCESSES).map(|process| crate::runtime_of(process).metrics());
            let runtimes = runtimes.chain([Handle::current().metrics()]);
            let tasks: usize = runtimes.map(|runtime| runtime.num_alive_tasks()).sum();
            if (clients, tasks, proxy_connections) == (0, 0, 0) {
                return wrong;
            }
            if start.elapsed() > TEST_TIMEOUT {
                wrong.push(format!(
                    "left over: {clients} connections to servers, {proxy_connections} through the proxy, {tasks} tasks"
                ));
                return wrong;
            }
            tokio::time::sleep(ms(20)).await;
        }
    }
}

impl Process {
    fn new(topology: &Topology, process: usize) -> Self {
        let store = topology.store(process).timeout(TIMEOUT).built();
        let (processes, narrow) = (PROCESSES as u32, Quota::requests(QUOTA).per_month());
        let wide = Quota::requests(10 * QUOTA).per_month();
        let counted = |policies: Vec<Policy>, action: OnStoreError| {
            let limiter = Limiter::builder()
                .store(store.clone())
                .on_store_error(action);
            let policies = policies.into_iter();
            CountedLimiter::build(policies.fold(limiter, |all, one| all.policy(one)))
        };
        let narrow = Policy::new("narrow", narrow);
        let wide = Policy::new("wide", wide).strategy(FixedWindow);
        let share = LocalFallback::shared_by(processes);
        let in_flight = Policy::new("flight", Quota::concurrent(MAX_PERMITS));
        let in_flight = in_flight.strategy(Concurrency::with_ttl(PERMIT_TTL));
        Self {
            gate: counted(vec![narrow, wide], share.into()),
            in_flight: counted(vec![in_flight], OnStoreError::Reject),
        }
    }

    fn limiters(&self) -> [&CountedLimiter; 2] {
        [&self.gate, &self.in_flight]
    }
}

/// How many units of a key are used under a policy. The first call on a connection that was closed shortly before fails.
async fn used(limiter: &Limiter, key: Key, policy: &str) -> u64 {
    let start = Instant::now();
    let status = loop {
        match limiter.peek(key.clone()).await {
            Ok(status) => break status,
            Err(error) => assert!(start.elapsed() < TEST_TIMEOUT, "{error}"),
        }
        tokio::time::sleep(ms(20)).await;
    };
    status.used(policy)
}
