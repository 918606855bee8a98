//! Waiting for a turn while the store is at fault.

use std::time::{Duration, Instant};

use testkit::Server;
use tollgate::{
    DecisionKind, DecisionSource, Key, Limiter, LocalFallback, OnStoreError, Policy, Quota,
};

use crate::support::{PATIENCE, nowhere, store};

const KEY: Key = Key::global();

fn limiter(store: tollgate::RedisStore, answer: impl Into<OnStoreError>) -> Limiter {
    let quota = Quota::requests(20).per_second().burst(2);
    let limiter = Limiter::builder()
        .store(store)
        .policy(Policy::new("p", quota));
    let limiter = limiter.on_store_error(answer);
    limiter.build().expect("a limiter")
}

#[tokio::test]
async fn turns_come_as_often_as_the_share_has_it() {
    let limiter = limiter(nowhere(), LocalFallback::shared_by(2));
    let start = Instant::now();
    for _ in 0..5 {
        let admission = limiter.wait(KEY, PATIENCE).await.expect("its turn");
        assert_eq!(admission.decisions()[0].source(), DecisionSource::Fallback);
    }
    // One at once, and four at ten a second.
    assert!(start.elapsed() >= Duration::from_millis(400));
}

#[tokio::test]
async fn nobody_waits_for_a_store_that_is_to_be_waited_for_by_nobody() {
    let limiter = limiter(nowhere(), OnStoreError::Reject);
    for _ in 0..10 {
        let refused = limiter.wait(KEY, Duration::MAX).await.expect_err("a fault");
        assert!(matches!(
            refused.decision().kind(),
            DecisionKind::StoreFailed(_)
        ));
    }
}

#[tokio::test]
async fn those_who_wait_when_the_store_dies_are_let_go_on_or_refused_as_told() {
    for (answer, admits) in [
        (OnStoreError::Admit, true),
        (OnStoreError::Reject, false),
        (LocalFallback::shared_by(1).into(), true),
    ] {
        let server = Server::start();
        let limiter = limiter(store(&server), answer);
        let charged = limiter.charge(KEY, 3).await;
        assert_eq!(charged.source(), DecisionSource::Store);
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.wait(KEY, PATIENCE).await })
            })
            .collect();
        tokio::task::yield_now().await;
        server.kill();
        for waiting in waiting {
            let admitted = waiting.await.expect("an answer");
            assert_eq!(admitted.is_ok(), admits, "{answer:?}: {admitted:?}");
        }
    }
}
