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
    for quota in [
        "1/s",
        "3/s",
        "1/1500ms",
        "7/min",
        "3/7s burst 5",
        "1000/h",
        "2/day",
        "1/month",
    ] {
        for window in [false, true] {
            let policy = shared("burst", quota);
            let (layer, clock) = match window {
                true if quota.contains("burst") => continue,
                true => layer([policy.strategy(FixedWindow)]),
                false => layer([policy]),
            };
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
                assert!(wait >= 1, "{quota}: {wait}");
                assert!(rejected.resets().iter().all(|t| *t <= wait), "{rejected:?}");
                // Rounded up by less than a second: a whole one earlier, it is rejected.
                clock.advance(secs(wait - 1));
                assert!(
                    wait == 1 || status(&app, "/").await == 429,
                    "{quota}: {wait}"
                );
                clock.advance(secs(1));
                assert_eq!(status(&app, "/").await, 200, "{quota}: {wait}");
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
    assert_eq!(rejected.json()["violated-policies"], json!(["second"]));
    for _ in 0..2 {
        clock.advance(secs(1));
        assert_eq!(status(&app, "/").await, 200);
    }
    // Now both reject, and the longer wait is the one that helps.
    let rejected = send(&app, to("/")).await;
    assert_eq!(
        rejected.json()["violated-policies"],
        json!(["second", "hour"])
    );
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
    assert_eq!(rejected.json()["violated-policies"], json!(["burst"]));
    assert_eq!(rejected.retry_after(), Some(1));
    clock.advance(secs(1));
    assert_eq!(status(&app, "/").await, 200);
}
