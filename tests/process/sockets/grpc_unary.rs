//! Unary calls: their outcome is in their trailers, or in their head if that is all there is.

use tollgate::outcome;
use tonic::Code;

use crate::sockets::{
    grpc::{Client, Host, SERVER_STREAMING, UNARY, is_rejection},
    grpc_served::Served,
    support::*,
};

#[tokio::test]
async fn a_calls_outcome_is_in_its_trailers_or_in_a_head_that_is_all_there_is() {
    for mut served in Served::everywhere().await {
        for (path, word, code) in [
            (UNARY, "word", 0),
            (UNARY, "fail:7", 7),
            (UNARY, "fail:16", 16),
            (UNARY, "fail:1", 1),
            ("/test.Calls/Nothing", "word", 12),
            // After its head.
            (UNARY, "mumble", 13),
            // After its message: on the wire a unary call is a stream of one message.
            (SERVER_STREAMING, "word fail:14", 14),
        ] {
            let request = tonic::Request::new(word.to_owned());
            match served.client.unary_at(path, request).await {
                Ok(response) => assert_eq!((&*response, code), (word, 0)),
                Err(status) => assert_eq!(status.code(), Code::from(code), "{word}"),
            }
            served.assert_completed(code).await;
        }
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
        served.client.unary("word").await.expect("a response");
    }
}

#[tokio::test]
async fn a_call_whose_deadline_passes_is_charged() {
    let deadline = secs(60);
    for served in Served::everywhere().await {
        let mut client = served.client.clone();
        let call = tokio::spawn(async move { client.unary_within("wait", deadline).await });
        served.assert_in_flight().await;
        // The deadline is over, on a machine of any speed.
        tokio::time::pause();
        tokio::time::advance(deadline).await;
        tokio::time::resume();
        call.await.expect("no panic").expect_err("a deadline");
        served.assert_settled(DROPPED, None).await;
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
    for mut served in Served::each(|world| ChargedLayer::when_dropped(world, false)).await {
        let mut client = served.client.clone();
        let call = tokio::spawn(async move { client.unary("wait").await });
        served.assert_in_flight().await;
        call.abort();
        served.assert_settled(NOTHING, None).await;
        // A call whose outcome is known is still charged by it.
        served.client.unary("fail:2").await.expect_err("an error");
        served.assert_completed(2).await;
    }
}

#[tokio::test]
async fn failed_calls_are_refunded_for_the_next_and_a_successful_one_stays_charged() {
    for (host, world) in Host::on_both_stores() {
        let limiter = world.limiter([hourly("calls", 1).refund_unless(outcome::success)]);
        let address = host.serve(RateLimitLayer::new(limiter.clone())).await;
        let mut client = Client::connect(address).await;
        for word in ["fail:7", "mumble", "fail:14", "mumble"] {
            let status = client.unary(word).await.expect_err("an error");
            assert!(!is_rejection(&status), "{status}");
            let refunded = async || used(&limiter, "calls").await == 0;
            until("its permit is back", refunded).await;
        }
        assert_eq!(client.unary("word").await.expect("a response"), "word");
        for _ in 0..3 {
            let status = client.unary("word").await.expect_err("a rejection");
            assert!(is_rejection(&status), "{host:?} {}: {status}", world.name());
        }
        assert_eq!(used(&limiter, "calls").await, 1);
    }
}

#[tokio::test]
async fn a_limit_on_failures_rejects_after_them_and_successes_are_free() {
    for (host, world) in Host::on_both_stores() {
        let limiter = world.limiter([hourly("failures", 2).charge_after(outcome::failure)]);
        let address = host.serve(RateLimitLayer::new(limiter.clone())).await;
        let mut client = Client::connect(address).await;
        for (word, failures) in [("word", 0), ("mumble", 1), ("word", 1), ("fail:7", 2)] {
            let response = client.unary(word).await;
            assert_eq!(response.is_ok(), word == "word", "{response:?}");
            let charged = async || used(&limiter, "failures").await == failures;
            until("it is charged", charged).await;
        }
        let status = client.unary("word").await.expect_err("a rejection");
        assert!(is_rejection(&status), "{host:?} {}: {status}", world.name());
    }
}
