//! Decisions made in process take part in tokio's cooperative scheduling: a loop of them leaves the other tasks of its
//! thread their turns.

use tokio::task::yield_now;
use tollgate_tests::prelude::*;

use crate::store::support::*;

const DECISIONS: u64 = 10_000;

/// What tokio gives a task before it has to yield.
const TURN: u64 = 128;

/// Makes decisions in a loop, beside a task that does nothing but count them; checks that it had its turns.
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
    for _ in 0..DECISIONS {
        decide().await;
        made.fetch_add(1, Ordering::Relaxed);
    }
    yield_now().await;
    other.abort();
    let most = most.load(Ordering::Relaxed);
    assert!(most <= TURN, "{what}: {most} decisions between two turns");
    assert!(most > 0, "{what}: the other task saw none of them");
}

/// A limiter in process.
fn limiter(units: u64) -> Limiter {
    let policy = Policy::new("p", Quota::requests(units).per_month());
    stores::limiter(Limiter::builder(), [policy])
}

#[tokio::test]
async fn calls_in_process_yield() {
    let (open, closed) = (limiter(1_000_000), limiter(1));
    assert!(closed.check(KEY).await.is_admitted());
    for call in "admitted rejected peeked charged waited late listed reset".split(' ') {
        assert_yields(call, async || match call {
            "admitted" => assert!(open.check(KEY).await.is_admitted()),
            "rejected" => assert!(!closed.check(KEY).await.is_admitted()),
            "peeked" => assert!(!closed.peek(KEY).await.expect("a response").would_admit()),
            "charged" => drop(closed.charge(KEY, 1).await.expect("a response")),
            // Waits that are over at once.
            "waited" => drop(open.wait(KEY, Duration::ZERO).await.expect("room")),
            "late" => drop(closed.wait(KEY, Duration::ZERO).await.expect_err("no room")),
            "listed" => {
                let policy = open.policy("p").expect("a policy");
                policy.callers(KEY).await.expect("a response");
            }
            _ => drop(closed.reset(KEY).await.expect("a response")),
        })
        .await;
    }
}

#[tokio::test]
async fn refunds_in_process_yield() {
    let mut decision = limiter(1_000_000).check(KEY).cost(DECISIONS).await;
    let refund = async || drop(decision.refund(1).await.expect("a response"));
    assert_yields("refunded", refund).await;
}

/// A client that tries again at once would keep its thread otherwise.
#[tokio::test]
async fn rejections_by_a_layer_yield() {
    let policy = Policy::new("p", Quota::requests(1).per_month()).key(extract::global());
    let layer = RateLimitLayer::builder().policy(policy).build();
    let service = layer.expect("a layer").layer(service_fn(hello));
    let ask = async || {
        let Ok(response) = service.clone().oneshot(Request::new(())).await;
        response.status()
    };
    assert_eq!(ask().await, StatusCode::OK);
    assert_yields("rejected by a layer", async || {
        assert_eq!(ask().await, StatusCode::TOO_MANY_REQUESTS);
    })
    .await;
}

#[tokio::test]
async fn cached_rejections_yield() {
    let server = Server::start();
    let store = RedisStore::builder().rejection_cache_staleness(secs(3_600));
    let builder = Limiter::builder().store(store.url(server.url()).built());
    let policy = Policy::new("p", Quota::requests(1).per_month());
    let limiter = stores::limiter(builder, [policy]);
    until("it is rejected from memory", async || {
        limiter.check(KEY).await.source() == DecisionSource::RejectionCache
    })
    .await;
    assert_yields("remembered", async || {
        assert!(!limiter.check(KEY).await.is_admitted());
    })
    .await;
}

#[tokio::test]
async fn decisions_in_place_of_a_failed_store_yield() {
    let fallback = LocalFallback::shared_by(1).into();
    for response in [OnStoreError::Admit, OnStoreError::Reject, fallback] {
        let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
        let builder = Limiter::builder().store(store).on_store_error(response);
        let policy = Policy::new("p", Quota::requests(1).per_month());
        let limiter = stores::limiter(builder, [policy]);
        // From then on no decision waits for a call: one that did would add to those of the turn in which it ends. Calls that
        // time out before they are sent, where the machine is busy, don't open the breaker.
        let check = || limiter.check(KEY).into_future();
        until("they are decided without a call", async || {
            assert_eq!(check().await.source(), DecisionSource::Fallback);
            check().now_or_never().is_some()
        })
        .await;
        if response == OnStoreError::Reject {
            store_error(&limiter.check(KEY).await);
        }
        assert_yields(&format!("{response:?}"), async || {
            assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Fallback);
        })
        .await;
    }
}
