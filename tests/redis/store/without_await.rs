//! Calls without await, on Redis: what is decided at once, and calls that block a thread.

use std::{
    sync::mpsc,
    task::{Context, Wake, Waker},
};

use tollgate::error::NotNow;
use tollgate_tests::{bare_thread::on_bare_thread, prelude::*};

use crate::store::support::*;

fn builder(server: &Server) -> LimiterBuilder {
    // A rejection stays cached, however busy the machine is.
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let store = store.rejection_cache_staleness(secs(3_600)).built();
    let builder = Limiter::builder().store(store);
    let builder = builder.policy(StrategyKind::Gcra.policy("p", "20/month"));
    let builder = builder.policy(StrategyKind::Fixed.policy("q", "30/month"));
    builder.on_store_error(OnStoreError::Reject)
}

fn limiter(server: &Server) -> Limiter {
    builder(server).built()
}

#[tokio::test]
async fn a_call_that_needs_the_store_is_not_decided_and_charges_nothing() {
    let server = Server::start();
    let limiter = limiter(&server);
    let undecided = move |limiter: &Limiter| {
        for _ in 0..50 {
            assert_eq!(limiter.check(KEY).now().err(), Some(NotNow::Store));
            let several = limiter.check(KEY).times(3).now();
            assert_eq!(several.err(), Some(NotNow::Store));
            let charged = limiter.charge(KEY, 1).now();
            assert_eq!(charged.err(), Some(NotNow::Store));
        }
    };
    undecided(&limiter);
    let on_thread = limiter.clone();
    on_bare_thread(move || undecided(&on_thread));
    assert_eq!(used(&limiter, KEY).await, [0, 0]);
}

#[test]
fn a_cached_rejection_is_returned_at_once_on_a_thread_without_a_runtime() {
    let server = Server::start();
    on_bare_thread(move || {
        let limiter = limiter(&server);
        let check = || limiter.check(KEY);
        assert_eq!(check().times(25).blocking().admitted(), 20);
        let rejected = check().blocking();
        assert!(!admitted_by_store(&rejected), "{rejected:?}");
        let cached = check().now().expect("a cached rejection");
        assert_eq!(cached.source(), DecisionSource::RejectionCache);
        assert!(matches!(cached.kind(), DecisionKind::Rejected));
        // It costs more than the requests whose rejection is cached, and less than none.
        assert!(check().cost(2).now().is_ok());
        assert_eq!(check().cost(0).now().err(), Some(NotNow::Store));
    });
}

/// On a thread for blocking code, and by mistake in async code, whose runtime stands still meanwhile and may have no timers.
#[test]
fn a_call_may_block_within_any_runtime() {
    let server = Server::start();
    let limiter = limiter(&server);
    let on_thread = limiter.clone();
    let one_thread = Builder::new_multi_thread().worker_threads(1).build();
    let without_timers = [Builder::new_current_thread().build(), one_thread];
    let [first, second] = without_timers.map(|runtime| runtime.expect("a runtime"));
    for runtime in [first, second, current_thread()] {
        let limiter = on_thread.clone();
        on_bare_thread(move || {
            runtime.block_on(async {
                let by_mistake = limiter.check(KEY).blocking();
                assert!(admitted_by_store(&by_mistake), "{by_mistake:?}");
                let limiter = limiter.clone();
                let blocking = tokio::task::spawn_blocking(move || limiter.check(KEY).blocking());
                let blocking = blocking.await.expect("no panic");
                assert!(admitted_by_store(&blocking), "{blocking:?}");
            });
        });
    }
    on_bare_thread(move || {
        let left = || limiter.peek(KEY).blocking().expect("a status").left("p");
        assert_eq!(left(), 14);
        assert!(limiter.charge(KEY, 5).blocking().is_ok());
        let admission = limiter.admit(KEY).blocking().expect("admitted");
        assert_eq!((left(), admission.remaining("p")), (8, Some(8)));
        assert!(limiter.reset(KEY).blocking().is_ok());
        assert_eq!(left(), 20);
    });
}

/// Makes a blocking call where it is woken.
struct Blocks {
    limiter: Limiter,
    sender: mpsc::Sender<Decision>,
}

impl Wake for Blocks {
    fn wake(self: Arc<Self>) {
        let _ = self.sender.send(self.limiter.check(KEY).blocking());
    }
}

#[test]
fn the_io_thread_does_not_wait_for_itself() {
    let server = Server::start();
    let (sender, decisions) = mpsc::channel();
    let limiter = limiter(&server);
    let mut check = limiter.check(KEY).into_future();
    let waker = Waker::from(Arc::new(Blocks { limiter, sender }));
    server.pause();
    let polled = check.poll_unpin(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    server.resume();
    let decision = decisions.recv_timeout(TEST_TIMEOUT).expect("a decision");
    let error = store_error(&decision);
    assert!(matches!(error, StoreError::NoRuntime(_)), "{error:?}");
}
