//! A cost may be any number, wherever it comes from: it is admitted no more than the quota, refunds nothing, and does
//! not affect other requests.

use std::convert::Infallible;

use axum::{Router, routing::post};
use futures_util::future::join_all;
use http::{Request, Response, request::Parts};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tollgate::{
    Ban, Concurrency, DecisionSource, Gcra, Key, Limiter, LocalFallback, OnStoreError, Policy,
    Quota, RateLimitLayer, RedisStore, RetryAfter, extract,
};
use tower::{Layer, ServiceExt};

use crate::strategies::charges::charge;
use crate::strategies::support::{KEY, StrategyKind, World, admitted_by_store, left, secs, send};

/// Where numbers change their form, or their sign if they are read as signed ones.
pub(crate) const EDGES: [u64; 22] = [
    0,
    1,
    2,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    999_999_999_999_999,
    1_000_000_000_000_000,
    1_999_999_999_999_998,
    2_000_000_000_000_001,
    1 << 52,
    (1 << 53) - 1,
    1 << 53,
    (1 << 53) + 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 63) + 1_000,
    u64::MAX - 7,
    u64::MAX - 1,
    u64::MAX,
    u64::MAX / 3,
];

/// The edges past any quota.
fn huge() -> impl Iterator<Item = u64> {
    EDGES.into_iter().filter(|cost| *cost >= 1 << 52)
}

/// The value of the request's `cost` header.
pub(crate) fn cost_field(parts: &Parts) -> u64 {
    let cost = parts
        .headers
        .get("cost")
        .and_then(|cost| cost.to_str().ok());
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(1)
}

/// Sends a request of this cost through a layer; returns its status.
pub(crate) async fn send_through(layer: &RateLimitLayer, cost: u64) -> u16 {
    let service = layer.layer(tower::service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let request = Request::get("/").header("cost", cost.to_string());
    let response = service.oneshot(request.body(()).expect("a request")).await;
    response.expect("a response").status().as_u16()
}

#[tokio::test]
async fn a_huge_cost_is_never_admitted_and_charges_nothing() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            for used in [0, 9, 10] {
                let _ = limiter.reset(KEY).await.expect("a response");
                assert_eq!(send(&limiter, KEY, used).await, used);
                for cost in huge() {
                    let text = format!("{cost} under {strategy:?} on {}", world.name());
                    let rejected = limiter.check(KEY).cost(cost).await;
                    assert!(!admitted_by_store(&rejected), "{text}");
                    assert_eq!(rejected.retry_after(), RetryAfter::Never, "{text}");
                    let policy = rejected.policies().next().expect("a policy");
                    assert_eq!(policy.cost(), cost, "{text}");
                    assert!(
                        !limiter
                            .peek(KEY)
                            .cost(cost)
                            .await
                            .expect("a response")
                            .would_admit(),
                        "{text}"
                    );
                    let many = limiter.check(KEY).cost(cost).times(cost).await;
                    assert_eq!(many.admitted(), 0, "{text}");
                    assert_eq!(left(&limiter, KEY).await, 10 - used, "{text}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_huge_cost_through_a_layer_refunds_no_units() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let policy = strategy.policy(&format!("{strategy:?}"), "10/min");
            let policy = policy.key(extract::global()).cost_with(cost_field);
            let layer = RateLimitLayer::new(world.limiter([policy]));
            let mut passed = 0;
            for cost in [1, 1, 1, 1, 1, 1, 1, 1, u64::MAX - 7].repeat(20) {
                passed += u32::from(send_through(&layer, cost).await == 200);
            }
            assert_eq!(passed, 10, "{strategy:?} on {}", world.name());
        }
    }
}

/// A server's response to a request of which the head alone is sent.
async fn post_head(address: std::net::SocketAddr, length: u64) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("a write");
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.push(stream.read_u8().await.expect("the head of a response"));
    }
    String::from_utf8(response).expect("text")
}

#[tokio::test]
async fn a_huge_content_length_as_the_cost_refunds_no_units() {
    for world in World::both() {
        let length = |parts: &Parts| {
            let length = parts.headers.get("content-length");
            let length = length.and_then(|length| length.to_str().ok());
            length.and_then(|length| length.parse().ok()).unwrap_or(0)
        };
        let policy = Policy::new("bytes", Quota::requests(1_000).per_minute());
        let policy = policy.key(extract::global()).cost_with(length);
        let layer = RateLimitLayer::new(world.limiter([policy]));
        let limiter = layer.limiter().clone();
        let app: Router = Router::new()
            .route("/", post(async || "hello"))
            .layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        for (length, status, remaining) in [
            (900, "200", 100),
            (18_446_744_073_709_550_700, "429", 100),
            (1 << 63, "429", 100),
            (100, "200", 0),
        ] {
            let response = post_head(address, length).await;
            let text = format!("{length} on {}: {response}", world.name());
            assert!(
                response.starts_with(&format!("HTTP/1.1 {status} ")),
                "{text}"
            );
            assert_eq!(left(&limiter, KEY).await, remaining, "{text}");
        }
        server.abort();
    }
}

/// On Redis they share a script call.
#[tokio::test]
async fn a_huge_cost_does_not_affect_other_requests_of_its_batch() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "5/min")]);
            let (victim, attacker) = (Key::new("victim"), Key::new("attacker"));
            let mut admitted = 0;
            // More often than the breaker's threshold.
            for round in 0..10 {
                let others = huge().chain([1 << 63; 5]);
                let others = join_all(others.map(|cost| {
                    let check = limiter.check(attacker).cost(cost);
                    async move { admitted_by_store(&check.await) }
                }));
                let own = async { admitted_by_store(&limiter.check(victim).await) };
                let (others, own) = tokio::join!(others, own);
                let text = format!("{strategy:?} on {}, round {round}", world.name());
                assert!(!others.contains(&true), "{text}: {others:?}");
                admitted += u32::from(own);
            }
            assert_eq!(admitted, 5, "{strategy:?} on {}", world.name());
            assert_eq!(left(&limiter, attacker).await, 5);
        }
    }
}

#[tokio::test]
async fn a_huge_charge_is_a_debt_of_one_capacity() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            for units in huge() {
                let text = format!("{units} under {strategy:?} on {}", world.name());
                let _ = limiter.reset(KEY).await.expect("a response");
                let mut charged = charge(&limiter, KEY, units).await;
                assert_eq!(left(&limiter, KEY).await, 0, "{text}");
                // Twice the capacity was charged, and not a unit more is refunded.
                for expected in [20, 0] {
                    let refunds = charged.refund(units).await.expect("a refund");
                    assert_eq!(refunds[0].units(), expected, "{text}");
                }
                assert_eq!(left(&limiter, KEY).await, 10, "{text}");

                let admission = limiter.check(KEY).await.into_result().expect("room");
                let policy = admission.policy(format!("{strategy:?}")).expect("a policy");
                policy.settle(units).await.expect("a charge");
                assert_eq!(
                    admission.remaining(&format!("{strategy:?}")),
                    Some(0),
                    "{text}"
                );
                assert!(!admitted_by_store(&limiter.check(KEY).await), "{text}");
                policy.settle(3).await.expect("a refund");
                assert_eq!(left(&limiter, KEY).await, 7, "{text}");
                policy.refund(units).await.expect("a refund");
                assert_eq!(left(&limiter, KEY).await, 10, "{text}");
            }
        }
    }
}

/// Twice, as a client that hangs up does it.
#[tokio::test]
async fn huge_charges_dropped_before_their_result_do_not_overflow() {
    for world in World::both() {
        let limiter = world.limiter([Policy::new("p", Quota::requests(10).per_minute())]);
        let admission = limiter.check(KEY).await.into_result().expect("room");
        let policy = admission.policy("p").expect("a policy");
        for _ in 0..2 {
            let charge = Box::pin(policy.charge(u64::MAX));
            drop(futures_util::future::select(charge, std::future::ready(())).await);
        }
        admission
            .policy("p")
            .expect("a policy")
            .charge(u64::MAX)
            .await
            .expect("a charge");
        admission
            .policy("p")
            .expect("a policy")
            .settle(u64::MAX)
            .await
            .expect("a charge");
        assert_eq!(left(&limiter, KEY).await, 0, "{}", world.name());
    }
}

#[tokio::test]
async fn huge_costs_under_tiers_shadows_and_charges_on_response_are_rejected_too() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let name = |role: &str| format!("{role}-{strategy:?}");
            let own = strategy.policy(&name("tier"), "10/min");
            let later = strategy
                .policy(&name("later"), "10/min")
                .key(extract::global());
            let later = later.cost_with(cost_field);
            let shadow = strategy.policy(&name("shadow"), "10/min").shadow();
            let tiers = world.limiter([own]);
            let layer = RateLimitLayer::new(world.limiter([later.charge_after(|_| true)]));
            let free = Policy::new(name("free"), Quota::requests(10).per_minute());
            let shadowed = world.limiter([free.cost(0), shadow]);
            for cost in huge() {
                let text = format!("{cost} under {strategy:?} on {}", world.name());
                let tier: Quota = "20/min".parse().expect("a quota");
                let rejected = tiers.check(KEY).cost(cost).quota_for(name("tier"), tier);
                assert!(!admitted_by_store(&rejected.await), "{text}");
                assert_eq!(left(&tiers, KEY).await, 10, "{text}");

                assert_eq!(send_through(&layer, cost).await, 429, "{text}");
                assert_eq!(left(layer.limiter(), KEY).await, 10, "{text}");

                let seen = shadowed.check(KEY).cost_for(name("shadow"), cost).await;
                assert!(admitted_by_store(&seen), "{text}");
                let shadow = seen.shadows().next().expect("a shadow");
                assert!(shadow.would_reject(), "{text}");
                assert_eq!(shadow.remaining(), 10, "{text}");
            }
        }
    }
}

#[tokio::test]
async fn huge_costs_acquire_no_permit() {
    for world in World::both() {
        let limiter =
            world
                .limiter([Policy::new("p", Quota::concurrent(4))
                    .strategy(Concurrency::with_ttl(secs(60)))]);
        let held = limiter.check(KEY).cost(3).await;
        assert!(admitted_by_store(&held));
        for cost in huge() {
            assert!(
                !admitted_by_store(&limiter.check(KEY).cost(cost).await),
                "{cost}"
            );
            let many = limiter.check(KEY).cost(cost).times(cost).await;
            assert!(!admitted_by_store(&many), "{cost}");
            assert_eq!(left(&limiter, KEY).await, 1, "{cost} on {}", world.name());
        }
        drop(held);
    }
}

#[tokio::test]
async fn a_huge_number_of_manual_rejections_bans_once() {
    for world in World::both() {
        let limiter = world.limiter([
            Policy::new("p", Quota::requests(10).per_minute()),
            Policy::new("ban", Quota::requests(5).per_minute())
                .strategy(Ban::for_duration(secs(60))),
        ]);
        for units in huge() {
            let _ = limiter.reset(KEY).await.expect("a response");
            assert!(admitted_by_store(&limiter.check(KEY).await));
            assert!(admitted_by_store(
                &limiter
                    .charge([("ban", KEY)], units)
                    .await
                    .expect("a response")
            ));
            let rejected = limiter.check(KEY).await;
            assert!(!admitted_by_store(&rejected), "{units} on {}", world.name());
            assert_eq!(rejected.retry_after(), RetryAfter::In(secs(60)));
        }
    }
}

#[tokio::test]
async fn huge_costs_are_rejected_in_process_while_the_store_fails() {
    let store = RedisStore::open(format!("redis://127.0.0.1:{}", testkit::free_port()));
    let limiter = Limiter::builder()
        .store(store.expect("a store"))
        .policy(Policy::new("p", Quota::requests(10).per_minute()).strategy(Gcra))
        .on_store_error(OnStoreError::LocalFallback(LocalFallback::shared_by(1)))
        .build()
        .expect("a limiter");
    for cost in huge() {
        let rejected = limiter.check(KEY).cost(cost).await;
        assert_eq!(rejected.source(), DecisionSource::Fallback);
        assert!(!rejected.is_admitted(), "{cost}");
        assert_eq!(rejected.retry_after(), RetryAfter::Never, "{cost}");
    }
}

#[tokio::test]
async fn a_huge_cost_is_not_waited_for() {
    for world in World::both() {
        let limiter = world.limiter([Policy::new("p", Quota::requests(10).per_minute())]);
        for cost in huge() {
            let text = format!("{cost} on {}", world.name());
            let rejected = limiter
                .wait(KEY, secs(5))
                .cost(cost)
                .await
                .expect_err(&text);
            assert_eq!(rejected.retry_after(), RetryAfter::Never, "{text}");
            assert_eq!(left(&limiter, KEY).await, 10, "{text}");
        }
    }
}

/// On Redis they share a script call, and are one entry of it.
#[tokio::test]
async fn a_huge_number_of_free_requests_does_not_affect_other_requests_of_its_batch() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            let check = || limiter.check(KEY).cost(0);
            let (many, one, more) =
                tokio::join!(check().times(u64::MAX), check(), check().times(1 << 40),);
            for (decision, admitted) in [(many, u32::MAX), (one, 1), (more, u32::MAX)] {
                assert!(
                    admitted_by_store(&decision),
                    "{strategy:?} on {}",
                    world.name()
                );
                assert_eq!(decision.admitted(), u64::from(admitted), "{strategy:?}");
            }
        }
    }
}
