//! What a response reports of a limit on requests in flight. That its permits are released is tested in
//! `tests/redis/inflight`.

use crate::http::support::*;
use http_body_util::BodyExt;

/// `n` permits for all clients together.
fn permit_policy(n: u64) -> Policy {
    Policy::new("permits", Quota::concurrent(n)).key(extract::global())
}

#[tokio::test]
async fn with_all_permits_taken_the_retry_after_is_a_second() {
    let app = app([permit_policy(1)]);
    let first = app.clone().oneshot(to("/")).await.expect("a response");
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.retry_after(), Some(1));
    assert_eq!(rejected.json()["violated-policies"], json!(["permits"]));

    let body = first.into_body().collect().await.expect("a body");
    assert_eq!(body.to_bytes(), "hello");
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn a_request_that_another_policy_rejects_takes_no_permit() {
    let (layer, _) = layer([permit_policy(5), shared("once", "1/h")]);
    let app = hello(&layer);
    let held = app.clone().oneshot(to("/")).await.expect("a response");
    for _ in 0..3 {
        let rejected = send(&app, to("/")).await;
        assert_eq!(rejected.json()["violated-policies"], json!(["once"]));
        assert_eq!(charged(&layer, "permits").await, 1);
    }
    drop(held);
}

#[tokio::test]
async fn a_response_names_the_unit_of_an_in_flight_limit() {
    let (layer, _) = layer([permit_policy(5)]);
    let response = send(&hello(&layer), to("/")).await;
    let policy = response.field("ratelimit-policy");
    // The draft's quota unit; there is no window.
    assert_eq!(policy, r#""permits";q=5;qu="concurrent-requests""#);
}
