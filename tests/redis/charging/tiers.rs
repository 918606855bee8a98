//! Quotas by request.

use tollgate_tests::prelude::*;

use crate::charging::support::*;

#[derive(Clone)]
struct Paid;

fn paying() -> Request<()> {
    let mut request = request();
    request.extensions_mut().insert(Paid);
    request
}

/// A policy of 3 a minute, and of 6 for clients that pay.
fn two_tiers(name: &str) -> Policy {
    window(name, "3/min").quota_with(|parts| {
        let paid = parts.extensions.get::<Paid>().is_some();
        paid.then(|| quota("6/min"))
    })
}

/// The status, and the header field with the quota.
async fn send(layer: &RateLimitLayer, request: Request<()>) -> (u16, String) {
    let handler = |_| async { Ok::<_, Infallible>(text(200)) };
    let Ok(response) = call(layer, request, handler).await;
    let shown = response.headers()["ratelimit-policy"].to_str();
    let shown = shown.expect("ASCII").to_owned();
    (read(response).await.expect("a body"), shown)
}

/// How many of `n` requests pass.
async fn passes(layer: &RateLimitLayer, n: usize, request: fn() -> Request<()>) -> usize {
    let mut passed = 0;
    for _ in 0..n {
        passed += usize::from(send(layer, request()).await.0 == 200);
    }
    passed
}

#[tokio::test]
async fn an_extension_selects_the_quota() {
    for world in World::both() {
        let layer = world.layer([two_tiers("p")]);
        assert_eq!(passes(&layer, 9, request).await, 3);
        world.advance(secs(61));
        assert_eq!(passes(&layer, 9, paying).await, 6);
        assert_eq!(send(&layer, paying()).await.1, r#""p";q=6;w=60"#);
        assert_eq!(send(&layer, request()).await.1, r#""p";q=3;w=60"#);
    }
}

#[tokio::test]
async fn a_change_of_tier_in_the_middle_of_a_window_keeps_what_was_used() {
    for world in World::both() {
        let layer = world.layer([two_tiers("p")]);
        assert_eq!(passes(&layer, 5, request).await, 3);
        world.advance(secs(30));
        assert_eq!(passes(&layer, 5, paying).await, 3);
        assert_eq!(passes(&layer, 5, request).await, 0);
        // The window is the one that the first opened.
        world.advance(secs(31));
        assert_eq!(passes(&layer, 5, request).await, 3);
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn a_change_of_tier_keeps_the_share_that_was_used_of_an_even_rate() {
    for world in World::both() {
        let limiter = world.limiter([even("p", "10/min")]);
        assert_eq!(limiter.check(KEY).times(6).await.admitted(), 6);
        let paid = limiter.check(KEY).quota_for("p", quota("20/min"));
        assert_eq!(paid.times(20).await.admitted(), 8);
        assert!(!admitted_by_store(&limiter.check(KEY).await));
    }
}

#[tokio::test]
async fn concurrent_requests_of_two_tiers_each_have_their_own_quota() {
    for world in World::both() {
        for strategy in [StrategyKind::Fixed, StrategyKind::Gcra] {
            let _case = Case(format!("{strategy:?}"));
            let limiter = world.limiter([together(strategy, "p", "3/min")]);
            for _ in 0..10 {
                let _ = limiter.reset(KEY).await.expect("a response");
                let sent = (0..40).map(|n| match n % 2 {
                    0 => limiter.check(KEY).into_future(),
                    _ => limiter
                        .check(KEY)
                        .quota_for("p", quota("6/min"))
                        .into_future(),
                });
                let mut admitted = [0, 0];
                for (n, decision) in join_all(sent).await.iter().enumerate() {
                    let (tier, limit) = [(0, 3), (1, 6)][n % 2];
                    let count = decision.count("p");
                    assert_eq!((count.limit(), count.quota().amount()), (limit, limit));
                    admitted[tier] += u64::from(admitted_by_store(decision));
                }
                let [free, paid] = admitted;
                assert!(free <= 3, "{free}");
                match strategy {
                    StrategyKind::Fixed => assert_eq!(free + paid, 6),
                    // A free one uses a third of a minute, one that is paid for a sixth.
                    _ => assert_eq!(2 * free + paid, 6, "{free} {paid}"),
                }
            }
        }
    }
}

#[tokio::test]
async fn a_quota_that_the_strategy_cannot_count_falls_back_to_the_policys() {
    for world in World::both() {
        for unfit in ["6/min burst 12", "6/1500us"] {
            let policy = window("p", "3/min").quota_with(move |_| Some(quota(unfit)));
            let layer = world.layer([policy]);
            forget(&layer).await;
            assert_eq!(passes(&layer, 9, request).await, 3, "{unfit}");
            assert_eq!(send(&layer, request()).await.1, r#""p";q=3;w=60"#);
            let decision = layer
                .limiter()
                .check(KEY)
                .quota_for("p", quota(unfit))
                .await;
            assert!(!admitted_by_store(&decision), "{unfit}");
            assert_eq!(decision.count("p").limit(), 3);
        }
    }
}

#[tokio::test]
async fn a_tiers_charge_is_settled_by_its_own_quota() {
    for world in World::both() {
        let layer = world.layer([even("p", "3/min").quota_with(|_| Some(quota("6/min")))]);
        let settles = async |admission: Admission| settle(&admission, 500).await;
        let response = serve(&layer, 200, settles).await;
        read(response).await.expect("a body");
        // Two capacities of six, ten seconds each.
        let limiter = world.limiter([even("p", "6/min")]);
        assert_eq!(waits(&limiter, "p").await, (secs(70), secs(120)));
    }
}

#[tokio::test]
async fn a_tiers_reserved_charge_is_refunded_by_its_own_quota() {
    for world in World::both() {
        for paid in [quota("6/min"), quota("600/min")] {
            let policy = even("p", "3/min").quota_with(move |_| Some(paid));
            let layer = world.layer([policy.refund_unless(outcome::success)]);
            let response = respond(&layer, text(500)).await;
            assert!(waits(layer.limiter(), "p").await.1 > Duration::ZERO);
            read(response).await.expect("a body");
            let (_, full) = waits(layer.limiter(), "p").await;
            assert_eq!(full, Duration::ZERO, "{paid}");
        }
    }
}

#[tokio::test]
async fn tiers_beyond_the_cache_bound_share_one_count() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "1/min")]);
        for n in 2..1_500 {
            let tier = Quota::requests(n).per_minute();
            let decision = limiter.check(KEY).quota_for("p", tier).await;
            assert!(admitted_by_store(&decision), "{n}");
            assert_eq!(decision.left("p"), 1, "{n}");
            if n == 2 {
                assert!(!admitted_by_store(&limiter.check(KEY).await));
            }
        }
    }
}
