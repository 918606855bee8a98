//! A request's cost is what it states: nothing, more than there can be, or what a closure computes.

use tollgate::{Policy, RateLimitLayer, RetryAfter, extract};
use tower::{Layer, ServiceExt};

use crate::strategies::support::{KEY, StrategyKind, World, admitted_by_store, left, send};

#[tokio::test]
async fn a_free_request_passes_even_when_all_is_used_up() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            assert_eq!(send(&limiter, KEY, 10).await, 10);
            // Into debt, too.
            assert!(admitted_by_store(
                &limiter.charge(KEY, 3).await.expect("a response")
            ));
            for _ in 0..20 {
                let free = limiter.check(KEY).cost(0).await;
                assert!(admitted_by_store(&free), "{strategy:?} on {}", world.name());
                assert_eq!(free.retry_after(), RetryAfter::Now);
            }
            assert_eq!(limiter.check(KEY).cost(0).times(50).await.admitted(), 50);
            assert!(!admitted_by_store(&limiter.check(KEY).await));
            let seen = limiter.reset(KEY).await.expect("a response");
            assert_eq!(seen.policies().next().expect("a policy").limit(), 10);
            assert_eq!(left(&limiter, KEY).await, 10);
        }
    }
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_never_admitted_and_charges_nothing() {
    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            for cost in [11, 1_000, u64::from(u32::MAX)] {
                let rejected = limiter.check(KEY).cost(cost).await;
                assert!(!admitted_by_store(&rejected));
                assert_eq!(rejected.retry_after(), RetryAfter::Never, "{strategy:?}");
                let rejected = rejected.into_result().expect_err("a rejection");
                assert_eq!(rejected.retry_after(), RetryAfter::Never);
            }
            assert_eq!(
                left(&limiter, KEY).await,
                10,
                "{strategy:?} on {}",
                world.name()
            );
            assert!(admitted_by_store(&limiter.check(KEY).cost(10).await));
            // Used up, it is still never, and not after some time.
            assert_eq!(
                limiter.check(KEY).cost(11).await.retry_after(),
                RetryAfter::Never,
                "{strategy:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_closure_over_the_request_computes_its_cost() {
    use http::{Request, Response, StatusCode};

    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let policy: Policy = strategy
                .policy(&format!("{strategy:?}"), "10/min")
                .key(extract::global());
            let policy = policy.cost_with(|parts| match parts.uri.path() {
                "/free" => 0,
                "/video" => 4,
                "/library" => 11,
                _ => 1,
            });
            let layer = RateLimitLayer::new(world.limiter([policy]));
            let service = layer.layer(tower::service_fn(async |_: Request<()>| {
                Ok::<_, std::convert::Infallible>(Response::new(String::new()))
            }));
            let status = async |path: &str| {
                let request = Request::get(path).body(()).expect("a request");
                service.clone().oneshot(request).await.expect("a response")
            };
            let mut codes = Vec::new();
            for path in [
                "/video", "/video", "/video", "/free", "/", "/", "/", "/free",
            ] {
                codes.push(status(path).await.status().as_u16());
            }
            let expected = [200, 200, 429, 200, 200, 200, 429, 200];
            assert_eq!(codes, expected, "{strategy:?} on {}", world.name());
            let never = status("/library").await;
            assert_eq!(never.status(), StatusCode::TOO_MANY_REQUESTS);
            assert!(
                !never.headers().contains_key("retry-after"),
                "it can't come true"
            );
        }
    }
}
