//! `Retry-After` is exact, and is sent where it helps.

use crate::http::{responses::fields, support::*};

#[tokio::test]
async fn a_window_of_less_than_a_second_is_omitted_and_retry_after_is_one() {
    let (layer, clock) = layer([shared("burst", "3/500ms").strategy(FixedWindow)]);
    let app = hello(&layer);
    let first = send(&app, to("/")).await;
    assert_eq!(fields(&first), [r#""burst";q=3"#, r#""burst";r=2;t=1"#]);
    assert_eq!(statuses(&app, 2).await, [200, 200]);
    clock.advance(Duration::from_micros(499_999));
    let rejected = send(&app, to("/")).await;
    assert_eq!(fields(&rejected), [r#""burst";q=3"#, r#""burst";r=0;t=1"#]);
    // One microsecond is left, and "Retry-After: 0" would be an invitation to come back at once.
    assert_eq!(rejected.retry_after(), Some(1));
    clock.advance(Duration::from_micros(1));
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn a_retry_after_exactly_that_many_seconds_is_admitted() {
    let quotas = "1/s, 3/s, 1/1500ms, 7/min, 3/7s burst 5, 1000/h, 2/day, 1/month";
    for quota in quotas.split(", ") {
        for window in [false, true] {
            let policy = shared("burst", quota);
            let (layer, clock) = layer(match window {
                true if quota.contains("burst") => continue,
                true => [policy.strategy(FixedWindow)],
                false => [policy],
            });
            let app = hello(&layer);
            for round in 0..4 {
                // Somewhere within a second.
                clock.advance(Duration::from_micros(1_234_567 * round));
                let rejected = loop {
                    let response = send(&app, to("/")).await;
                    if response.status == StatusCode::TOO_MANY_REQUESTS {
                        break response;
                    }
                };
                let wait = rejected.retry_after().expect("a Retry-After");
                let case = format!("{quota}: {wait}");
                assert!(wait >= 1, "{case}");
                assert!(rejected.resets().iter().all(|t| *t <= wait), "{rejected:?}");
                // Rounded up by less than a second: a whole one earlier, it is rejected.
                clock.advance(secs(wait - 1));
                let is_early = wait > 1;
                assert!(!is_early || status(&app, "/").await == 429, "{case}");
                clock.advance(secs(1));
                assert_eq!(status(&app, "/").await, 200, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn retry_after_is_that_of_the_rejecting_policies() {
    let (layer, clock) = layer([shared("second", "1/s"), shared("hour", "3/h")]);
    let app = hello(&layer);
    assert_eq!(status(&app, "/").await, 200);
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.retry_after(), Some(1));
    assert_eq!(rejected.violated(), ["second"]);
    for _ in 0..2 {
        clock.advance(secs(1));
        assert_eq!(status(&app, "/").await, 200);
    }
    // Now both reject, and the longer wait is the one that helps.
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.violated(), ["second", "hour"]);
    assert_eq!(rejected.retry_after(), Some(1_198));
    clock.advance(secs(1_198));
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn retry_after_ignores_a_policy_that_costs_nothing_and_is_in_debt() {
    let burst = shared("burst", "1/s").missing_key(MissingKey::Skip);
    let (layer, clock) = layer([burst, shared("exports", "1/day").cost(0)]);
    let limiter = layer.limiter();
    let charge = limiter.charge([("exports", Key::global())], 2).await;
    let debt = charge.expect("a response").count("exports").reset_after();
    assert_eq!(debt, 2 * secs(86_400));
    let peeked = limiter.peek(Key::global()).await.expect("a response");
    assert!(peeked.would_admit(), "{peeked:?}");
    let app = hello(&layer);
    assert_eq!(status(&app, "/").await, 200);
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.violated(), ["burst"]);
    assert_eq!(rejected.retry_after(), Some(1));
    clock.advance(secs(1));
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn with_all_permits_taken_the_retry_after_is_a_second() {
    let app = app([Policy::new("permits", Quota::concurrent(1)).key(extract::global())]);
    let first = app.clone().oneshot(to("/")).await.expect("a response");
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.retry_after(), Some(1));
    assert_eq!(rejected.violated(), ["permits"]);

    let body = first.into_body().collect().await.expect("a body");
    assert_eq!(body.to_bytes(), "hello");
    assert_eq!(status(&app, "/").await, 200);
}
