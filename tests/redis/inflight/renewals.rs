//! How renewals reach the store: a few at a time, and again when they fail.

use std::mem;

use tokio::time::{Instant, sleep, sleep_until};
use tollgate_tests::prelude::*;

use crate::inflight::support::*;

const PERMIT_TTL: Duration = secs(12);

/// How long the store takes to renew a permit.
const DELAY: Duration = ms(1);

/// A store in process that takes a while to renew permits, and does not renew any while it fails.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    inner: MemoryStore,
    pub(crate) renewals: Arc<Renewals>,
}

#[derive(Debug, Default)]
pub(crate) struct Renewals {
    fails: AtomicBool,
    pub(crate) done: AtomicUsize,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

impl Slow {
    pub(crate) fn new() -> Self {
        // The runtime's clock, which tests do not wait for.
        Self {
            inner: MemoryStore::builder().clock(TokioClock::new()).build(),
            renewals: Arc::default(),
        }
    }

    /// A limiter of one permit for each key.
    fn limiter(&self) -> Limiter {
        let policy = Policy::new("permits", Quota::concurrent(1));
        let policy = policy.strategy(Concurrency::with_ttl(PERMIT_TTL));
        build(Limiter::builder().store(self.clone()), [policy])
    }
}

impl Store for Slow {
    fn register(&self, policy: &str, rule: Arc<dyn Rule>) -> Result<LimitHandle, InvalidValue> {
        self.inner.register(policy, rule)
    }

    fn execute(&self, op: Op, counters: &[CounterOp<'_>]) -> StoreResponse {
        if op != Op::Renew {
            return self.inner.execute(op, counters);
        }
        let renewals = self.renewals.clone();
        let under_way = renewals.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        let most = &renewals.most_under_way;
        most.fetch_max(under_way, Ordering::SeqCst);
        let fails = renewals.fails.load(Ordering::SeqCst);
        let response = match fails {
            true => Err(StoreError::Timeout),
            false => match self.inner.execute(op, counters) {
                StoreResponse::Ready(response) => response,
                StoreResponse::Pending(_) => unreachable!("it is in process"),
            },
        };
        StoreResponse::pending(async move {
            sleep(DELAY).await;
            renewals.under_way.fetch_sub(1, Ordering::SeqCst);
            let done = usize::from(!fails);
            renewals.done.fetch_add(done, Ordering::SeqCst);
            response
        })
    }

    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture {
        self.inner.callers(limit, key)
    }

    fn execute_detached(&self, op: Op, counters: &[CounterOp<'_>]) {
        if let StoreResponse::Pending(response) = self.execute(op, counters) {
            drop(tokio::spawn(response));
        }
    }
}

async fn hold(limiter: &Limiter, n: usize) -> Vec<Decision> {
    let mut held = Vec::new();
    for key in 0..n {
        held.push(limiter.check(Key::new(format!("{key}"))).await);
    }
    assert!(held.iter().all(admitted_by_store));
    held
}

/// All of them at once would pass the timeout, and so would the requests behind them.
#[tokio::test(start_paused = true)]
async fn permits_are_renewed_a_few_at_a_time() {
    let store = Slow::new();
    let held = hold(&store.limiter(), 1_000).await;
    sleep(PERMIT_TTL / 2).await;
    let most = store.renewals.most_under_way.load(Ordering::SeqCst);
    assert!((1..=128).contains(&most), "{most} renewals at once");
    assert_eq!(store.renewals.done.load(Ordering::SeqCst), held.len());
}

#[tokio::test(start_paused = true)]
async fn permits_survive_outages_of_half_their_ttl() {
    for begins in 0..24 {
        let store = Slow::new();
        let limiter = store.limiter();
        let held = hold(&limiter, 5).await;
        let begins = Instant::now() + PERMIT_TTL * begins / 24;
        sleep_until(begins).await;
        store.renewals.fails.store(true, Ordering::SeqCst);
        sleep_until(begins + PERMIT_TTL / 2).await;
        store.renewals.fails.store(false, Ordering::SeqCst);
        sleep(PERMIT_TTL).await;
        for key in 0..held.len() {
            let other = limiter.check(Key::new(format!("{key}"))).await;
            assert!(!admitted_by_store(&other), "its permit is held");
        }
        drop(held);
    }
}

/// A renewal that failed is not sent again for a released permit.
#[tokio::test(start_paused = true)]
async fn released_permits_are_not_renewed_again() {
    let store = Slow::new();
    let limiter = store.limiter();
    let mut held = hold(&limiter, 5).await;
    store.renewals.fails.store(true, Ordering::SeqCst);
    sleep(PERMIT_TTL / 3 + PERMIT_TTL / 48).await;
    drop(mem::take(&mut held));
    store.renewals.fails.store(false, Ordering::SeqCst);
    sleep(PERMIT_TTL).await;
    assert_eq!(store.renewals.done.load(Ordering::SeqCst), 0);
    assert_eq!(hold(&limiter, 5).await.len(), 5);
}
