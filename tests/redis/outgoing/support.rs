//! What these tests have in common.

use tokio::time::Instant;
pub(crate) use tollgate::limiter::Wait;
use tollgate_tests::prelude::*;

/// Longer than any test waits.
pub(crate) const TEST_TIMEOUT: Duration = secs(3_600);

/// The runtime's own time, which is frozen while there is anything to do and then leaps, and the calls of a store in process that
/// goes by it.
#[derive(Clone, Debug)]
pub(crate) struct Time {
    start: Instant,
    calls: Arc<AtomicU64>,
}

impl Time {
    pub(crate) fn start() -> (StubStore, Self) {
        let calls = Arc::<AtomicU64>::default();
        let (start, counted) = (Instant::now(), calls.clone());
        let store = StubStore::responding(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            None
        });
        let counts = MemoryStore::builder().clock(TokioClock::new()).build();
        (store.on(counts), Self { start, calls })
    }

    /// How long the test has run.
    pub(crate) fn passed(&self) -> Duration {
        self.start.elapsed()
    }

    /// How often the store was called.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
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
    let (store, time) = Time::start();
    (limiter_on(store, policies), time)
}

/// A limiter that reports store failures.
pub(crate) fn limiter_on(store: impl Store, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let builder = Limiter::builder().store(store);
    stores::limiter(builder.on_store_error(OnStoreError::Reject), policies)
}

pub(crate) fn wait(limiter: &Limiter) -> Wait {
    limiter.wait(KEY, TEST_TIMEOUT)
}

/// Units left under the policy of that name.
pub(crate) async fn left(limiter: &Limiter, policy: &str) -> u64 {
    let seen = limiter.peek(KEY).await.expect("a response");
    seen.left(policy)
}

pub(crate) async fn advance(millis: u64) {
    tokio::time::advance(ms(millis)).await;
}

/// A waiter, polled by the test.
pub(crate) type Waiter = Pin<Box<dyn Future<Output = Result<Admission, Rejected>> + Send>>;

/// Joins the queue.
#[track_caller]
pub(crate) fn queued(wait: Wait) -> Waiter {
    let mut waiter: Waiter = Box::pin(wait.into_future());
    still_waits(&mut waiter);
    waiter
}

/// Polls it once.
pub(crate) fn poll_once(waiter: &mut Waiter) -> Option<Result<Admission, Rejected>> {
    waiter.now_or_never()
}

/// Polls it once, and finds that it goes on waiting.
#[track_caller]
pub(crate) fn still_waits(waiter: &mut Waiter) {
    let ended = poll_once(waiter);
    assert!(ended.is_none(), "no need to wait: {ended:?}");
}

/// Polls it once, and finds it admitted.
#[track_caller]
pub(crate) fn admitted(mut waiter: Waiter) -> Admission {
    let ended = poll_once(&mut waiter).expect("its turn");
    ended.expect("admitted")
}

/// Sends a call that is admitted at once.
#[track_caller]
pub(crate) fn at_once(wait: Wait) -> Admission {
    admitted(Box::pin(wait.into_future()))
}

/// Sends a call that is rejected at once; returns its wait.
#[track_caller]
pub(crate) fn rejected_at_once(wait: Wait) -> RetryAfter {
    let ended = wait.into_future().now_or_never().expect("a result");
    ended.expect_err("a rejection").retry_after()
}
