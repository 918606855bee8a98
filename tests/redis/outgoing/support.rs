//! What these tests have in common.

use tokio::time::Instant;
use tollgate::clock::Clock;
pub(crate) use tollgate::limiter::Wait;
use tollgate_tests::prelude::*;

/// Longer than any test waits.
pub(crate) const TEST_TIMEOUT: Duration = secs(3_600);

/// Neither on a second nor on a millisecond.
pub(crate) const START: i64 = 1_750_000_000_123_457;

/// The runtime's own time, which is frozen while there is anything to do and then leaps. A store reads it once for each
/// call.
#[derive(Clone, Debug)]
pub(crate) struct Time {
    start: Instant,
    reads: Arc<AtomicU64>,
}

impl Clock for Time {
    fn now(&self) -> Timestamp {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Timestamp::from_micros(START) + self.start.elapsed()
    }
}

impl Time {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            reads: Arc::default(),
        }
    }

    /// How long the test has run.
    pub(crate) fn passed(&self) -> Duration {
        self.start.elapsed()
    }

    /// How often the store was called.
    pub(crate) fn calls(&self) -> u64 {
        // It reads it once more when it meets a key for the first time.
        self.reads.load(Ordering::SeqCst).saturating_sub(1)
    }
}

/// A policy that counts all clients together.
pub(crate) fn policy(name: &str, quota: &str) -> Policy {
    Policy::new(name, stores::quota(quota)).key(extract::global())
}

/// The same, in windows of a fixed length.
pub(crate) fn window(name: &str, quota: &str) -> Policy {
    policy(name, quota).strategy(FixedWindow)
}

/// A limit `permits` of all calls in flight.
pub(crate) fn permits(n: u64) -> Policy {
    Policy::new("permits", Quota::concurrent(n)).key(extract::global())
}

/// A limiter in process, by the runtime's time.
pub(crate) fn limiter(policies: impl IntoIterator<Item = Policy>) -> (Limiter, Time) {
    let time = Time::start();
    let store = MemoryStore::builder().clock(time.clone()).build();
    (limiter_on(store, policies), time)
}

/// A limiter that reports store failures.
pub(crate) fn limiter_on(
    store: impl tollgate::store::Store,
    policies: impl IntoIterator<Item = Policy>,
) -> Limiter {
    let builder = Limiter::builder().store(store);
    stores::limiter(builder.on_store_error(OnStoreError::Reject), policies)
}

pub(crate) fn wait(limiter: &Limiter) -> Wait {
    limiter.wait(KEY, TEST_TIMEOUT)
}

/// Units left under the policy of that name.
pub(crate) async fn left(limiter: &Limiter, policy: &str) -> u64 {
    let seen = limiter.peek(KEY).await.expect("a response");
    seen.policy(policy).expect("its policy").remaining()
}

/// A waiter, polled by the test.
pub(crate) type Waiter = Pin<Box<dyn Future<Output = Result<Admission, Rejected>> + Send>>;

/// Joins the queue.
#[track_caller]
pub(crate) fn queued(wait: Wait) -> Waiter {
    let mut waiter: Waiter = Box::pin(wait.into_future());
    let ended = poll_once(&mut waiter);
    assert!(ended.is_none(), "no need to wait: {ended:?}");
    waiter
}

/// Polls it once.
pub(crate) fn poll_once(waiter: &mut Waiter) -> Option<Result<Admission, Rejected>> {
    waiter.now_or_never()
}
