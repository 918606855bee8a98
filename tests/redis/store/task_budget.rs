//! Decisions that need no call leave other tasks their turns.

use tokio::task::yield_now;
use tollgate_tests::{load, prelude::*};

/// Makes decisions in a loop, beside a task that does nothing but count them: tokio gives a task 128 before it has to yield.
async fn assert_yields(what: &str, mut decide: impl AsyncFnMut()) {
    let (made, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let other = tokio::spawn({
        let (made, most) = (made.clone(), most.clone());
        async move {
            loop {
                let before = made.load(Ordering::Relaxed);
                yield_now().await;
                most.fetch_max(made.load(Ordering::Relaxed) - before, Ordering::Relaxed);
            }
        }
    });
    yield_now().await;
    for _ in 0..10_000 {
        decide().await;
        made.fetch_add(1, Ordering::Relaxed);
    }
    yield_now().await;
    other.abort();
    let most = most.load(Ordering::Relaxed);
    assert!(
        (1..=128).contains(&most),
        "{what}: {most} between two turns"
    );
}

#[tokio::test]
async fn decisions_that_are_made_without_a_call_leave_the_other_tasks_of_a_thread_their_turns() {
    let policy = |units| [Policy::new("p", Quota::requests(units).per_month())];
    let in_process = |units| stores::limiter(Limiter::builder(), policy(units));
    let [open, closed] = [1_000_000, 1].map(in_process);
    assert!(closed.check(KEY).await.is_admitted());
    let server = Server::start();
    let cached = RedisStore::builder().rejection_cache_staleness(secs(3_600));
    let cached = load::limiter(cached.url(server.url()).built(), policy(1));
    let failed = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let failed = load::limiter(failed, policy(1));
    until("a rejection is cached", async || {
        cached.check(KEY).await.source() == DecisionSource::RejectionCache
    })
    .await;
    // From then on no decision waits for a call: one that did would add to those of the turn in which it ends.
    until("the breaker is open", async || {
        store_error(&failed.check(KEY).await);
        let check = failed.check(KEY).into_future();
        check.now_or_never().is_some()
    })
    .await;
    for (what, limiter) in [
        ("admitted", &open),
        ("rejected", &closed),
        ("cached", &cached),
        ("failed", &failed),
    ] {
        assert_yields(what, async || drop(limiter.check(KEY).await)).await;
    }
    let late = async || drop(closed.wait(KEY, Duration::ZERO).await.expect_err("no room"));
    assert_yields("late", late).await;
    let admission = open.admit(KEY).cost(10_000).await.expect("room");
    let refund = async || drop(admission.refund(1).await.expect("a response"));
    assert_yields("refunded", refund).await;
}
