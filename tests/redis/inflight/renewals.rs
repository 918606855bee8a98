//! How renewals reach the store: a few at a time, and again when they fail.

use tokio::time::{Instant, sleep, sleep_until};
use tollgate_tests::prelude::*;

use crate::inflight::support::*;

const PERMIT_TTL: Duration = secs(12);

/// The renewals of a store in process that takes a millisecond for each, and renews nothing while it fails.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    fails: AtomicBool,
    pub(crate) done: AtomicUsize,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

impl Renewals {
    /// By the runtime's clock, which tests do not wait for.
    pub(crate) fn store() -> (StubStore, Arc<Self>) {
        let renewals = Arc::new(Self::default());
        let (own, passed) = (renewals.clone(), renewals.clone());
        let later = async |renewals: Arc<Self>, done: usize| {
            sleep(ms(1)).await;
            renewals.under_way.fetch_sub(1, Ordering::SeqCst);
            renewals.done.fetch_add(done, Ordering::SeqCst);
        };
        let store = StubStore::responding(move |op| {
            if op == Op::Renew {
                let under_way = own.under_way.fetch_add(1, Ordering::SeqCst) + 1;
                own.most_under_way.fetch_max(under_way, Ordering::SeqCst);
            }
            let fails = op == Op::Renew && own.fails.load(Ordering::SeqCst);
            let own = own.clone();
            fails.then(|| {
                StoreResponse::pending(async move {
                    later(own, 0).await;
                    Err(StoreError::timeout())
                })
            })
        });
        let store = store.passing(move |op, result| match op {
            Op::Renew => {
                let passed = passed.clone();
                StoreResponse::pending(async move {
                    later(passed, 1).await;
                    result
                })
            }
            _ => StoreResponse::Ready(result),
        });
        let counts = MemoryStore::builder().clock(TokioClock::new()).build();
        (store.on(counts), renewals)
    }

    /// A limiter of one permit for each key.
    fn limiter() -> (Limiter, Arc<Self>) {
        let (store, renewals) = Self::store();
        let policy = Policy::new("permits", Quota::concurrent(1));
        let policy = policy.strategy(Concurrency::with_ttl(PERMIT_TTL));
        (build(Limiter::builder().store(store), [policy]), renewals)
    }
}

/// Takes the permit of each of the first `n` keys.
async fn hold(limiter: &Limiter, n: usize) -> Vec<Decision> {
    let held = (0..n).map(|key| limiter.check(Key::new(format!("{key}"))).into_future());
    let held = join_all(held).await;
    assert!(held.iter().all(admitted_by_store));
    held
}

/// All of them at once would pass the timeout, and so would the requests behind them.
#[tokio::test(start_paused = true)]
async fn permits_are_renewed_a_few_at_a_time() {
    let (limiter, renewals) = Renewals::limiter();
    let held = hold(&limiter, 1_000).await;
    sleep(PERMIT_TTL / 2).await;
    let most = renewals.most_under_way.load(Ordering::SeqCst);
    assert!((1..=128).contains(&most), "{most} renewals at once");
    assert_eq!(renewals.done.load(Ordering::SeqCst), held.len());
}

#[tokio::test(start_paused = true)]
async fn permits_survive_outages_of_half_their_ttl() {
    for begins in 0..24 {
        let (limiter, renewals) = Renewals::limiter();
        let held = hold(&limiter, 5).await;
        let begins = Instant::now() + PERMIT_TTL * begins / 24;
        sleep_until(begins).await;
        renewals.fails.store(true, Ordering::SeqCst);
        sleep_until(begins + PERMIT_TTL / 2).await;
        renewals.fails.store(false, Ordering::SeqCst);
        sleep(PERMIT_TTL).await;
        for key in 0..held.len() {
            let other = limiter.check(Key::new(format!("{key}"))).await;
            assert!(!admitted_by_store(&other), "its permit is held");
        }
    }
}

/// A renewal that failed is not sent again for a released permit.
#[tokio::test(start_paused = true)]
async fn released_permits_are_not_renewed_again() {
    let (limiter, renewals) = Renewals::limiter();
    let held = hold(&limiter, 5).await;
    renewals.fails.store(true, Ordering::SeqCst);
    sleep(PERMIT_TTL / 3 + PERMIT_TTL / 48).await;
    drop(held);
    renewals.fails.store(false, Ordering::SeqCst);
    sleep(PERMIT_TTL).await;
    assert_eq!(renewals.done.load(Ordering::SeqCst), 0);
    assert_eq!(hold(&limiter, 5).await.len(), 5);
}
