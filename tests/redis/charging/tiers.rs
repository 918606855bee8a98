//! Quotas by request.

use std::future::{pending, ready};

use tokio::sync::{Notify, mpsc};
use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// Longer than any machine is busy.
const LONG: Duration = TEST_TIMEOUT;

fn quota(quota: &str) -> Quota {
    quota.parse().expect(quota)
}

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
async fn a_header_selects_the_quota() {
    let by_header = |parts: &Parts| {
        let tier = parts.headers.get("x-tier")?;
        (tier == "paid").then(|| quota("6/min"))
    };
    let with = |tier: &'static str| {
        let request = Request::get("/").header("x-tier", tier);
        request.body(()).expect("a request")
    };
    for world in World::both() {
        let layer = world.layer([window("p", "3/min").quota_with(by_header)]);
        for _ in 0..3 {
            assert_eq!(send(&layer, with("free")).await.0, 200);
        }
        assert_eq!(send(&layer, with("free")).await.0, 429);
        assert_eq!(send(&layer, with("paid")).await.0, 200);
        assert_eq!(send(&layer, request()).await.0, 429);
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
        let paid = |times| {
            limiter
                .check(KEY)
                .quota_for("p", quota("20/min"))
                .times(times)
        };
        assert_eq!(paid(20).await.admitted(), 8);
        assert!(!admitted_by_store(&limiter.check(KEY).await));
    }
}

#[tokio::test]
async fn concurrent_requests_of_two_tiers_each_have_their_own_quota() {
    for world in World::both() {
        for name in ["window", "even"] {
            let policy = match name {
                "window" => window(name, "3/min"),
                _ => even(name, "3/min"),
            };
            let limiter = world.limiter([policy]);
            for _ in 0..10 {
                let _ = limiter.reset(KEY).await.expect("a response");
                let sent = (0..40).map(|n| {
                    let check = limiter.check(KEY);
                    match n % 2 {
                        0 => check.into_future(),
                        _ => check.quota_for(name, quota("6/min")).into_future(),
                    }
                });
                let decisions = join_all(sent).await;
                let (mut free, mut paid) = (0, 0);
                for (n, decision) in decisions.iter().enumerate() {
                    let admitted = u64::from(admitted_by_store(decision));
                    let verdict = decision.policy(name).expect("a policy");
                    if n % 2 == 0 {
                        assert_eq!((verdict.limit(), verdict.quota().amount()), (3, 3));
                        free += admitted;
                    } else {
                        assert_eq!((verdict.limit(), verdict.quota().amount()), (6, 6));
                        paid += admitted;
                    }
                }
                assert!(free <= 3, "{free} of {name}");
                match name {
                    "window" => assert_eq!(free + paid, 6),
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
            let _ = layer.limiter().reset(KEY).await.expect("a response");
            assert_eq!(passes(&layer, 9, request).await, 3, "{unfit}");
            assert_eq!(send(&layer, request()).await.1, r#""p";q=3;w=60"#);
            let check = layer.limiter().check(KEY).quota_for("p", quota(unfit));
            let decision = check.await;
            assert!(!admitted_by_store(&decision), "{unfit}");
            assert_eq!(decision.policy("p").expect("a policy").limit(), 3);
        }
    }
}

#[tokio::test]
async fn a_look_up_selects_the_quota() {
    for world in World::both() {
        let policy = window("p", "3/min").quota_lookup(LONG, |parts: &Parts| {
            let paid = parts.extensions.get::<Paid>().is_some();
            async move {
                tokio::task::yield_now().await;
                paid.then(|| quota("6/min"))
            }
        });
        let layer = world.layer([policy]);
        assert_eq!(passes(&layer, 5, request).await, 3);
        assert_eq!(passes(&layer, 5, paying).await, 3);
        assert_eq!(send(&layer, paying()).await.1, r#""p";q=6;w=60"#);
    }
}

#[tokio::test]
async fn a_look_up_that_finds_none_keeps_the_policys_quota() {
    for world in World::both() {
        let policy = window("p", "3/min").quota_lookup(LONG, |_| ready(None));
        let layer = world.layer([policy]);
        assert_eq!(passes(&layer, 5, paying).await, 3);
        assert_eq!(send(&layer, paying()).await.1, r#""p";q=3;w=60"#);
    }
}

/// An instant past all time would end the request.
#[tokio::test]
async fn a_look_up_timeout_past_all_time_is_accepted() {
    for world in World::both() {
        let policy = window("p", "3/min").quota_lookup(Duration::MAX, |_| ready(None));
        let layer = world.layer([policy]);
        assert_eq!(passes(&layer, 5, paying).await, 3);
    }
}

#[tokio::test]
async fn a_look_up_past_its_deadline_keeps_the_policys_quota() {
    for world in World::both() {
        let deadline = ms(20);
        let policy = window("p", "3/min").quota_lookup(deadline, |_| pending());
        let layer = world.layer([policy]);
        let sent = passes(&layer, 5, paying);
        let passed = tokio::time::timeout(LONG, sent).await;
        assert_eq!(passed, Ok(3));
    }
}

#[tokio::test]
async fn a_failed_look_up_affects_only_its_own_policy() {
    for world in World::both() {
        let deadline = ms(20);
        let layer = world.layer([
            window("slow", "5/min").quota_lookup(deadline, |_| pending()),
            window("quick", "2/min").quota_lookup(LONG, |_| ready(Some(quota("4/min")))),
            two_tiers("found").cost(1),
        ]);
        assert_eq!(passes(&layer, 6, paying).await, 4);
        let (_, shown) = send(&layer, paying()).await;
        let expected = r#""slow";q=5;w=60, "quick";q=4;w=60, "found";q=6;w=60"#;
        assert_eq!(shown, expected);
    }
}

#[tokio::test]
async fn look_ups_of_several_policies_run_concurrently() {
    for world in World::both() {
        // The first finds nothing before the second has begun.
        let begun = Arc::new(Notify::new());
        let begins = begun.clone();
        let layer = world.layer([
            window("first", "3/min").quota_lookup(LONG, move |_| {
                let begun = begun.clone();
                async move {
                    begun.notified().await;
                    Some(quota("6/min"))
                }
            }),
            window("second", "3/min").quota_lookup(LONG, move |_| {
                let begins = begins.clone();
                async move {
                    begins.notify_one();
                    Some(quota("6/min"))
                }
            }),
        ]);
        let (_, shown) = send(&layer, request()).await;
        let expected = r#""first";q=6;w=60, "second";q=6;w=60"#;
        assert_eq!(shown, expected);
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_during_its_look_up_costs_nothing() {
    for world in World::both() {
        let (started, mut starts) = mpsc::channel::<()>(1);
        let policy = window("p", "3/min").quota_lookup(LONG, move |_| {
            let started = started.clone();
            async move {
                started.send(()).await.expect("a test");
                pending().await
            }
        });
        let layer = world.layer([policy]);
        let handler = |_| async { unreachable!("a request whose quota is not known is handled") };
        let mut sent = Box::pin(call::<_, _, Infallible>(&layer, request(), handler));
        tokio::select! {
            _ = &mut sent => panic!("a response"),
            started = starts.recv() => started.expect("a look-up"),
        }
        drop(sent);
        let seen = layer
            .limiter()
            .peek(KEY)
            .quota_for("p", quota("3/min"))
            .await
            .expect("a response");
        let left = seen.policy("p").expect("a policy").remaining();
        assert_eq!(left, 3);
    }
}

#[tokio::test]
async fn a_tiers_charge_is_settled_by_its_own_quota() {
    for world in World::both() {
        let layer = world.layer([even("p", "3/min").quota_with(|_| Some(quota("6/min")))]);
        let handler = |request: Request<()>| async move {
            let admission = request.extensions().get::<Admission>().cloned();
            let admission = admission.expect("an admission");
            settle(&admission, 500).await;
            Ok::<_, Infallible>(text(200))
        };
        let Ok(response) = call(&layer, request(), handler).await;
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
            let limiter: &Limiter = layer.limiter();
            let handler = |_| async { Ok::<_, Infallible>(text(500)) };
            let Ok(response) = call(&layer, request(), handler).await;
            assert!(waits(limiter, "p").await.1 > Duration::ZERO);
            read(response).await.expect("a body");
            let (_, full) = waits(limiter, "p").await;
            assert_eq!(full, Duration::ZERO, "{paid}");
        }
    }
}

#[tokio::test]
async fn tiers_beyond_the_cache_bound_share_one_count() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "1/min")]);
        for n in 2..1_500 {
            let check = limiter
                .check(KEY)
                .quota_for("p", Quota::requests(n).per_minute());
            let decision = check.await;
            assert!(admitted_by_store(&decision), "{n}");
            let left = decision.policy("p").expect("a policy").remaining();
            assert_eq!(left, 1, "{n}");
            if n == 2 {
                assert!(!admitted_by_store(&limiter.check(KEY).await));
            }
        }
    }
}
