//! A cost may be any number, wherever it comes from: it is admitted no more than the quota, refunds nothing, and does
//! not affect other requests.

use futures_util::future::poll_immediate;
use tollgate_tests::prelude::*;

use super::support::*;

/// Where numbers change their form, or their sign if they are read as signed ones.
pub(crate) fn edges() -> Vec<u64> {
    const MAX_UNITS: u64 = 999_999_999_999_999;
    let edges = [
        1,
        1 << 31,
        1 << 32,
        MAX_UNITS,
        2 * MAX_UNITS + 2,
        1 << 52,
        1 << 53,
        1 << 63,
    ];
    let around = edges
        .into_iter()
        .flat_map(|edge| [edge - 1, edge, edge + 1]);
    let more = [
        2 * MAX_UNITS,
        (1 << 63) + 1_000,
        u64::MAX / 3,
        u64::MAX - 7,
        u64::MAX - 1,
    ];
    around.chain(more).chain([u64::MAX]).collect()
}

/// The edges past any quota.
fn huge() -> impl Iterator<Item = u64> {
    edges().into_iter().filter(|cost| *cost >= 1 << 52)
}

/// A layer with one policy, by which a request costs its length.
fn layer(world: &World, policy: Policy) -> RateLimitLayer {
    let length = |parts: &Parts| {
        let length = parts.headers.get("content-length");
        let length = length.and_then(|length| length.to_str().ok());
        length.and_then(|length| length.parse().ok()).unwrap_or(1)
    };
    world.layer([policy.key(extract::global()).cost_with(length)])
}

/// Sends a request of this cost through a layer; returns the response.
async fn send_through(layer: &RateLimitLayer, cost: u64) -> Response<impl Sized> {
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let request = Request::get("/").header("content-length", cost.to_string());
    let response = service.oneshot(request.body(()).expect("a request")).await;
    response.expect("a response")
}

#[tokio::test]
async fn a_free_request_passes_even_when_all_is_used_up() {
    // Into debt, too.
    let used_up = "10/min, send 10: 10, charge 3, cost 0: true, cost 1: false";
    play("all", &format!("{used_up}, reset, left: 10")).await;
    each("10/min", async |scene| {
        scene.charge(13).await;
        let check = || scene.limiter.check(scene.key).cost(0);
        assert_eq!(check().times(50).await.admitted(), 50);
        // Alone, and merged.
        let merged = (0..8).map(|_| check().into_future());
        for free in join_all(merged.chain([check().into_future()])).await {
            assert!(admitted_by_store(&free));
            let policy = free.policies().next().expect("a policy");
            assert_eq!(policy.retry_after(), RetryAfter::Now);
        }
        let seen = scene.limiter.peek(scene.key).cost(0).await;
        assert!(seen.expect("a response").would_admit());
        assert!(!scene.wait().await.is_zero());
    })
    .await;
}

/// A rejection for good, which charges nothing.
async fn never_admits(scene: &Scene<'_>, cost: u64) {
    let before = scene.left().await;
    let rejected = scene.check(cost).await;
    assert!(!admitted_by_store(&rejected), "{cost}");
    assert_eq!(rejected.retry_after(), RetryAfter::Never, "{cost}");
    let policy = rejected.policies().next().expect("a policy");
    assert_eq!(policy.cost(), cost);
    let rejected = rejected.into_result().expect_err("a rejection");
    assert_eq!(rejected.retry_after(), RetryAfter::Never, "{cost}");
    let peeked = scene.limiter.peek(scene.key).cost(cost).await;
    assert!(!peeked.expect("a response").would_admit(), "{cost}");
    let many = scene.limiter.check(scene.key).cost(cost).times(cost).await;
    assert_eq!(many.admitted(), 0, "{cost}");
    // Nor is it waited for.
    let waited = scene.limiter.wait(scene.key, secs(5)).cost(cost).await;
    let rejected = waited.expect_err("a cost above the capacity");
    assert_eq!(rejected.retry_after(), RetryAfter::Never, "{cost}");
    assert_eq!(scene.left().await, before, "{cost}");
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_never_admitted_and_charges_nothing() {
    each("10/min", async |scene| {
        for used in [0, 9, 10] {
            scene.reset().await;
            assert_eq!(scene.send(used).await, used);
            for cost in huge().chain([11, 1_000, u64::from(u32::MAX)]) {
                never_admits(scene, cost).await;
            }
        }
    })
    .await;
}

/// As a `Content-Length`, which a client sets.
#[tokio::test]
async fn a_closure_over_the_request_computes_its_cost_which_refunds_nothing_however_huge_it_is() {
    each("10/min", async |scene| {
        let name = format!("{:?}", scene.strategy);
        let layer = layer(scene.world, scene.strategy.policy(&name, "10/min"));
        for (cost, status, remaining) in [
            (4, 200, 6),
            (4, 200, 2),
            (4, 429, 2),
            (0, 200, 2),
            (1, 200, 1),
            (18_446_744_073_709_550_700, 429, 1),
            (1 << 63, 429, 1),
            (11, 429, 1),
            (1, 200, 0),
            (1, 429, 0),
            (0, 200, 0),
        ] {
            let response = send_through(&layer, cost).await;
            assert_eq!(response.status(), status, "{cost}");
            let has_retry_after = response.headers().contains_key("retry-after");
            assert_eq!(has_retry_after, status == 429 && cost <= 10, "{cost}");
            assert_eq!(left(layer.limiter(), KEY).await, remaining, "{cost}");
        }
    })
    .await;
}

/// On Redis they share a script call.
#[tokio::test]
async fn a_huge_cost_does_not_affect_other_requests_of_its_batch() {
    each("5/min", async |scene| {
        let (victim, attacker) = (scene.key, Key::new("attacker"));
        let mut admitted = 0;
        // More often than the breaker's threshold.
        for _ in 0..10 {
            let others = huge().chain([1 << 63; 5]);
            let others = others.map(|cost| scene.limiter.check(attacker).cost(cost).into_future());
            let own = scene.limiter.check(victim).into_future();
            let (others, own) = tokio::join!(join_all(others), own);
            assert!(!others.iter().any(admitted_by_store), "{others:?}");
            admitted += u32::from(admitted_by_store(&own));
        }
        assert_eq!(admitted, 5);
        assert_eq!(left(&scene.limiter, attacker).await, 5);
    })
    .await;
}

/// In whatever order they are decided.
#[tokio::test]
async fn requests_of_any_costs_at_once_exceed_no_quota_and_are_not_rejected_if_they_fit() {
    each("20/min", async |scene| {
        let edges = edges();
        for seed in 0..20 {
            scene.reset().await;
            let mut rng = Rng::new(seed);
            let costs: Vec<_> = (0..2 + rng.below(6))
                .map(|_| match rng.below(2) {
                    0 => rng.below(12),
                    _ => rng.one_of(&edges),
                })
                .collect();
            let checks = costs.iter().map(|cost| scene.check(*cost));
            let decisions = join_all(checks).await;
            let admitted: Vec<_> = decisions.iter().map(admitted_by_store).collect();
            let each = costs.iter().zip(&admitted);
            let fitted = each.clone().filter(|(_, admitted)| **admitted);
            let sum: u64 = fitted.map(|(cost, _)| cost).sum();
            let mut rejected = each.filter(|(_, admitted)| !**admitted);
            let fits = rejected.any(|(cost, _)| *cost <= 20 - sum);
            assert!(sum <= 20 && !fits, "{costs:?}: {admitted:?}");
            assert_eq!(scene.left().await, 20 - sum, "{costs:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_huge_charge_is_a_debt_of_one_capacity() {
    each("10/min", async |scene| {
        let (limiter, key) = (&scene.limiter, scene.key);
        for units in huge() {
            scene.reset().await;
            let mut charged = charge(limiter, key, units).await;
            assert_eq!(scene.left().await, 0, "{units}");
            // Twice the capacity was charged, and not a unit more is refunded.
            for expected in [20, 0] {
                assert_eq!(refund(&mut charged, units).await, expected, "{units}");
            }
            assert_eq!(scene.left().await, 10, "{units}");

            let admission = scene.check(1).await.into_result().expect("room");
            let policy = admission.policy("p").expect("a policy");
            policy.settle(units).await.expect("a charge");
            assert_eq!(admission.remaining("p"), Some(0), "{units}");
            assert!(!scene.admits(1).await, "{units}");
            policy.settle(3).await.expect("a refund");
            assert_eq!(scene.left().await, 7, "{units}");
            policy.refund(units).await.expect("a refund");
            assert_eq!(scene.left().await, 10, "{units}");
        }
    })
    .await;
}

/// Twice, as a client that hangs up does it.
#[tokio::test]
async fn huge_charges_dropped_before_their_result_do_not_overflow() {
    for world in World::both() {
        let scene = world.scene(StrategyKind::Gcra, "10/min");
        let admission = scene.check(1).await.into_result().expect("room");
        let policy = admission.policy("p").expect("a policy");
        for _ in 0..2 {
            drop(poll_immediate(Box::pin(policy.charge(u64::MAX))).await);
        }
        policy.charge(u64::MAX).await.expect("a charge");
        policy.settle(u64::MAX).await.expect("a charge");
        assert_eq!(scene.left().await, 0);
    }
}

#[tokio::test]
async fn huge_costs_under_tiers_shadows_and_charges_on_response_are_rejected_too() {
    each("10/min", async |scene| {
        let (world, strategy) = (scene.world, scene.strategy);
        let later = strategy.policy("later", "10/min").charge_after(|_| true);
        let layer = layer(world, later);
        let free = StrategyKind::Gcra.policy("free", "10/min").cost(0);
        let shadow = strategy.policy("shadow", "10/min").shadow();
        let shadowed = world.limiter([free, shadow]);
        let tier = quota("20/min");
        for cost in huge() {
            let under_tier = scene.limiter.check(scene.key).cost(cost);
            let rejected = under_tier.quota_for("p", tier).await;
            assert!(!admitted_by_store(&rejected), "{cost}");
            assert_eq!(scene.left().await, 10, "{cost}");

            assert_eq!(send_through(&layer, cost).await.status(), 429, "{cost}");
            assert_eq!(left(layer.limiter(), KEY).await, 10, "{cost}");

            let seen = shadowed.check(KEY).cost_for("shadow", cost).await;
            assert!(admitted_by_store(&seen), "{cost}");
            let shadow = seen.shadows().next().expect("a shadow");
            assert!(shadow.would_reject(), "{cost}");
            assert_eq!(shadow.remaining(), 10, "{cost}");
        }
    })
    .await;
}

#[tokio::test]
async fn huge_costs_acquire_no_permit() {
    for world in World::both() {
        let permits = Concurrency::with_ttl(secs(3_600));
        let limiter = world.limiter([Policy::new("p", Quota::concurrent(4)).strategy(permits)]);
        let held = limiter.check(KEY).cost(3).await;
        assert!(admitted_by_store(&held));
        for cost in huge() {
            let one = limiter.check(KEY).cost(cost);
            assert!(!admitted_by_store(&one.await), "{cost}");
            let many = limiter.check(KEY).cost(cost).times(cost);
            assert!(!admitted_by_store(&many.await), "{cost}");
            assert_eq!(left(&limiter, KEY).await, 1, "{cost}");
        }
        drop(held);
    }
}

#[tokio::test]
async fn a_huge_number_of_manual_rejections_bans_once() {
    for world in World::both() {
        let ban = Policy::new("ban", Quota::requests(5).per_minute());
        let ban = ban.strategy(Ban::for_duration(secs(60)));
        let limiter = world.limiter([StrategyKind::Gcra.policy("p", "10/min"), ban]);
        for units in huge() {
            let _ = limiter.reset(KEY).await.expect("a response");
            assert_eq!(send(&limiter, KEY, 1).await, 1);
            let charged = limiter.charge([("ban", KEY)], units).await;
            assert!(admitted_by_store(&charged));
            let rejected = limiter.check(KEY).await;
            assert!(!admitted_by_store(&rejected), "{units}");
            assert_eq!(rejected.retry_after(), RetryAfter::In(secs(60)));
        }
    }
}

#[tokio::test]
async fn huge_costs_are_rejected_in_process_while_the_store_fails() {
    // A port of the system, on which nothing listens.
    let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let fallback = LocalFallback::shared_by(1);
    let builder = Limiter::builder().store(store).on_store_error(fallback);
    let limiter = stores::limiter(builder, [StrategyKind::Gcra.policy("p", "10/min")]);
    for cost in huge() {
        let rejected = limiter.check(KEY).cost(cost).await;
        assert_eq!(rejected.source(), DecisionSource::Fallback);
        assert!(!rejected.is_admitted(), "{cost}");
        assert_eq!(rejected.retry_after(), RetryAfter::Never, "{cost}");
    }
}

/// On Redis they share a script call, and are one entry of it.
#[tokio::test]
async fn a_huge_number_of_free_requests_does_not_affect_other_requests_of_its_batch() {
    each("10/min", async |scene| {
        let check = || scene.limiter.check(scene.key).cost(0);
        let (many, one, more) =
            tokio::join!(check().times(u64::MAX), check(), check().times(1 << 40));
        for (decision, admitted) in [(many, u32::MAX), (one, 1), (more, u32::MAX)] {
            assert!(admitted_by_store(&decision));
            assert_eq!(decision.admitted(), u64::from(admitted));
        }
    })
    .await;
}
