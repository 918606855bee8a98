//! Unary calls: their outcome is in their trailers, or in their head if that is all there is.

use std::time::Duration;

use tollgate::{RateLimitLayer, outcome, outcome::RequestEnd};
use tonic::Code;

use crate::sockets::{
    grpc::{Client, Host, SERVER_STREAMING, is_rejection},
    grpc_served::Served,
    support::{ChargedLayer, DROPPED, FAILURE, NOTHING, SUCCESS, World, hourly, until, used},
};

#[tokio::test]
async fn a_call_that_succeeds_is_a_success() {
    for mut served in Served::everywhere().await {
        assert_eq!(
            served.client.unary("word").await.expect("a response"),
            "word"
        );
        let ended = Some((RequestEnd::Completed, Some(200), Some(0)));
        served.assert_settled(SUCCESS, ended).await;
    }
}

#[tokio::test]
async fn a_call_that_fails_at_once_has_failed_by_its_head() {
    for mut served in Served::everywhere().await {
        for (word, code) in [("fail:7", 7), ("fail:16", 16), ("fail:1", 1)] {
            let status = served.client.unary(word).await.expect_err("an error");
            assert_eq!(status.code(), Code::from(code));
            let ended = Some((RequestEnd::Completed, Some(200), Some(code)));
            served.assert_settled(FAILURE, ended).await;
        }
    }
}

#[tokio::test]
async fn a_call_to_an_unknown_method_has_failed() {
    for mut served in Served::everywhere().await {
        let request = tonic::Request::new("word".to_owned());
        let response = served.client.unary_at("/test.Calls/Nothing", request).await;
        assert_eq!(response.expect_err("an error").code(), Code::Unimplemented);
        let ended = Some((RequestEnd::Completed, Some(200), Some(12)));
        served.assert_settled(FAILURE, ended).await;
    }
}

#[tokio::test]
async fn a_call_that_fails_after_its_head_has_failed_by_its_trailers() {
    for mut served in Served::everywhere().await {
        let status = served.client.unary("mumble").await;
        assert_eq!(status.expect_err("an error").code(), Code::Internal);
        let ended = Some((RequestEnd::Completed, Some(200), Some(13)));
        served.assert_settled(FAILURE, ended).await;
    }
}

#[tokio::test]
async fn a_call_that_fails_after_its_message_has_failed_by_its_trailers() {
    for mut served in Served::everywhere().await {
        // On the wire a unary call is a stream of one message.
        let request = tonic::Request::new("word fail:14".to_owned());
        let response = served.client.unary_at(SERVER_STREAMING, request).await;
        assert_eq!(response.expect_err("an error").code(), Code::Unavailable);
        let ended = Some((RequestEnd::Completed, Some(200), Some(14)));
        served.assert_settled(FAILURE, ended).await;
    }
}

#[tokio::test]
async fn a_call_that_its_client_cancels_is_charged() {
    for mut served in Served::everywhere().await {
        let mut client = served.client.clone();
        let call = tokio::spawn(async move { client.unary("wait").await });
        served.assert_in_flight().await;
        call.abort();
        served.assert_settled(DROPPED, None).await;
        // The connection stays open.
        assert_eq!(
            served.client.unary("word").await.expect("a response"),
            "word"
        );
    }
}

#[tokio::test]
async fn a_call_whose_deadline_passes_is_charged() {
    for mut served in Served::everywhere().await {
        let mut deadline = Duration::from_millis(50);
        let settled = loop {
            let call = served.client.unary_within("wait", deadline);
            call.await.expect_err("a deadline");
            let settled = served.charged_layer.settled().await;
            // On a busy machine it may pass before the call is admitted.
            if settled.0 != NOTHING || deadline > Duration::from_secs(5) {
                break settled;
            }
            deadline *= 4;
        };
        assert_eq!(settled, (DROPPED, None), "{}", served.name);
    }
}

#[tokio::test]
async fn a_call_whose_handler_panics_is_charged() {
    for mut served in Served::everywhere().await {
        served.client.unary("panic").await.expect_err("a panic");
        served.assert_settled(DROPPED, None).await;
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_is_free_where_configured() {
    for host in [Host::Tonic, Host::Axum] {
        for world in World::both() {
            let charged_layer = ChargedLayer::when_dropped(&world, false);
            let mut served = Served::new(world, host, charged_layer).await;
            let mut client = served.client.clone();
            let call = tokio::spawn(async move { client.unary("wait").await });
            served.assert_in_flight().await;
            call.abort();
            served.assert_settled(NOTHING, None).await;
            // A call whose outcome is known is still charged by it.
            served.client.unary("fail:2").await.expect_err("an error");
            assert_eq!(
                served.charged_layer.settled().await.0,
                FAILURE,
                "{}",
                served.name
            );
        }
    }
}

#[tokio::test]
async fn failed_calls_are_refunded_for_the_next_and_a_successful_one_stays_charged() {
    for host in [Host::Tonic, Host::Axum] {
        for world in World::both() {
            let limiter = world.limiter([hourly("calls", 1).refund_unless(outcome::success)]);
            let address = host.serve(RateLimitLayer::new(limiter.clone())).await;
            let mut client = Client::connect(address).await;
            for word in ["fail:7", "mumble", "fail:14", "mumble"] {
                let status = client.unary(word).await.expect_err("an error");
                assert!(!is_rejection(&status), "{status}");
                until("its permit is back", async || {
                    used(&limiter, "calls").await == 0
                })
                .await;
            }
            assert_eq!(client.unary("word").await.expect("a response"), "word");
            for _ in 0..3 {
                let status = client.unary("word").await.expect_err("a rejection");
                assert!(is_rejection(&status), "{host:?} {}: {status}", world.name());
            }
            assert_eq!(used(&limiter, "calls").await, 1);
        }
    }
}

#[tokio::test]
async fn a_limit_on_failures_rejects_after_them_and_successes_are_free() {
    for host in [Host::Tonic, Host::Axum] {
        for world in World::both() {
            let limiter = world.limiter([hourly("failures", 2).charge_after(outcome::failure)]);
            let address = host.serve(RateLimitLayer::new(limiter.clone())).await;
            let mut client = Client::connect(address).await;
            for (word, failures) in [("word", 0), ("mumble", 1), ("word", 1), ("fail:7", 2)] {
                let response = client.unary(word).await;
                assert_eq!(response.is_ok(), word == "word", "{response:?}");
                until("it is charged", async || {
                    used(&limiter, "failures").await == failures
                })
                .await;
            }
            let status = client.unary("word").await.expect_err("a rejection");
            assert!(is_rejection(&status), "{host:?} {}: {status}", world.name());
        }
    }
}
