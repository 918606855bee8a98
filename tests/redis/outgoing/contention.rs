//! Many waiters at once, on several threads, that come and are dropped at random.

use tollgate_tests::prelude::*;

use crate::outgoing::support::{TEST_TIMEOUT, *};

/// Whatever comes next to `n`.
fn mix(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

/// A permit in use.
struct Held(Arc<AtomicU64>);

impl Held {
    fn new(all: Arc<AtomicU64>) -> Self {
        assert!(all.fetch_add(1, Ordering::SeqCst) < 3);
        Self(all)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn permits_never_exceed_the_limit_and_all_are_released() {
    let limiter = limiter_on(MemoryStore::new(), [permits(3)]);
    let (holding, turns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut crowd = JoinSet::new();
    for n in 0..400 {
        let (limiter, holding, turns) = (limiter.clone(), holding.clone(), turns.clone());
        crowd.spawn(async move {
            let turn = async {
                let _permit = wait(&limiter).await.expect("a permit");
                let _held = Held::new(holding);
                tokio::task::yield_now().await;
                turns.fetch_add(1, Ordering::SeqCst);
            };
            // Every third one is dropped after a few polls.
            match n % 3 {
                0 => {
                    let mut turn = Box::pin(turn);
                    for _ in 0..mix(n) % 4 {
                        if futures_util::poll!(&mut turn).is_ready() {
                            return;
                        }
                        tokio::task::yield_now().await;
                    }
                }
                _ => turn.await,
            }
        });
    }
    let ended = tokio::time::timeout(TEST_TIMEOUT, crowd.join_all()).await;
    ended.expect("no waiter is forgotten");
    assert_eq!(left(&limiter, "permits").await, 3);
    assert!(turns.load(Ordering::SeqCst) >= 266);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_waiter_is_stranded_when_others_are_dropped() {
    let quota = policy("p", "20/5ms").strategy(SlidingLog);
    let limiter = limiter_on(MemoryStore::new(), [quota]);
    let mut crowd = JoinSet::new();
    for n in 0..2_000 {
        let limiter = limiter.clone();
        crowd.spawn(async move {
            let turn = wait(&limiter).queue(10_000).cost(1 + n % 2);
            match n % 3 {
                0 => {
                    let leaves = Duration::from_micros(mix(n) % 50_000);
                    let _ = tokio::time::timeout(leaves, turn.into_future()).await;
                }
                _ => drop(turn.await.expect("a turn")),
            }
        });
    }
    let ended = tokio::time::timeout(TEST_TIMEOUT, crowd.join_all()).await;
    ended.expect("no waiter is forgotten");
    // Nor is anything left of the queue.
    let _ = wait(&limiter).await.expect("a turn");
}
