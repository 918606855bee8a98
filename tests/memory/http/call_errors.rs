//! Errors of calls by hand, and the responses that handlers make of them.

use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::http::{calls::two, calls_with_request::by_request, support::*};

/// The next probe is no time for clients, which would come back within milliseconds.
#[tokio::test]
async fn a_failed_store_reports_no_wait_whatever_its_error() {
    let open = StoreError::circuit_open(ms(4), None);
    for error in [StoreError::Timeout, open] {
        let store = StubStore::failing(error.clone());
        let layer = rejecting(store, Policy::new("p", quota("1/h")));
        let limiter = layer.limiter();
        let rejected = limiter.admit("alice").await.expect_err("a rejection");
        assert_eq!(rejected.retry_after(), RetryAfter::Unknown, "{error}");
        let response = rejected.into_response();
        assert_eq!(response.headers()["retry-after"], "1", "{error}");
    }
}

#[tokio::test]
async fn errors_of_calls_are_responses_and_never_500() {
    let store = || StoreError::Unsupported("anything");
    let unknown = || two().policy("acount").expect_err("an error");
    let lacking = limiter([by_request()]).peek("alice").await;
    let responses = [
        (store().into_response(), Some("1")),
        (CallError::from(store()).into_response(), Some("1")),
        (unknown().into_response(), None),
        (CallError::from(unknown()).into_response(), None),
        (lacking.expect_err("an error").into_response(), None),
    ];
    for (response, retry_after) in responses {
        assert_eq!(response.status(), 503);
        let media_type = &response.headers()["content-type"];
        assert_eq!(media_type, "application/problem+json");
        assert_eq!(response.headers()["cache-control"], "no-store");
        let shown = response.headers().get("retry-after");
        assert_eq!(shown.and_then(|value| value.to_str().ok()), retry_after);
    }
}

/// A handler's call and a layer's check meet the same store.
#[tokio::test]
async fn layers_and_handlers_report_the_same_retry_after_for_a_failed_store() {
    for (pause, seconds) in [(50, 1), (2_500, 3)] {
        let error = StoreError::circuit_open(ms(pause), None);
        let store = StubStore::failing(error.clone());
        let layer = rejecting(store, Policy::new("p", quota("1/h")));
        let by_layer = send(&hello(&layer), to("/")).await.retry_after();
        assert_eq!(by_layer, Some(seconds));
        let by_handler = error.clone().into_response();
        assert_eq!(by_handler.headers()["retry-after"], seconds.to_string());
        let rejected = layer.limiter().admit("alice").await.expect_err("rejected");
        let delay = |status: Status| {
            let retry = status.get_details_retry_info().expect("details");
            retry.retry_delay.expect("a delay")
        };
        assert_eq!(delay(rejected.into()), delay(error.into()));
    }
}

#[test]
fn errors_of_calls_are_grpc_statuses_of_unavailable() {
    let store = || StoreError::Unsupported("anything");
    let unknown = || two().policy("acount").expect_err("an error");
    for (status, retries) in [
        (Status::from(store()), true),
        (Status::from(CallError::from(store())), true),
        (Status::from(unknown()), false),
    ] {
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.get_details_retry_info().is_some(), retries);
    }
}

#[tokio::test]
async fn a_peek_that_fails_is_logged_as_an_error_that_it_returned() {
    let (log, _guard) = Log::of_warnings();
    let limiter = Limiter::builder().store(StubStore::unreachable());
    let limiter = limiter.policy(Policy::new("p", quota("5/min")));
    let limiter = limiter.on_store_error(LocalFallback::shared_by(2));
    assert!(limiter.built().peek("alice").await.is_err());
    assert_contains(log.text(), ["action=Error"]);
}
