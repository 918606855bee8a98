//! Streams that come to their end: their outcome is in their trailers, and they hold their permit until then.

use futures_util::stream;
use tonic::Code;

use crate::sockets::{
    grpc::{Client, Host, is_rejection, word_channel},
    grpc_served::Served,
    support::*,
};

fn words(words: &str) -> Vec<String> {
    words.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_server_streams_outcome_is_in_its_trailers_or_in_a_head_that_is_all_there_is() {
    for mut served in Served::everywhere().await {
        for (request, heard, code) in [
            ("one two three", "one two three", 0),
            ("one two fail:14", "one two", 14),
            ("fail:5", "", 5),
            ("mumble", "", 13),
            ("at once fail:7", "", 7),
        ] {
            let rest = match served.client.server_streaming(request).await {
                Ok(responses) => responses.rest().await,
                Err(status) => (Vec::new(), status.code()),
            };
            let expected = (words(heard), Code::from(code));
            assert_eq!(rest, expected, "{request} {}", served.name);
            served.assert_completed(code).await;
        }
    }
}

#[tokio::test]
async fn a_client_streams_outcome_is_that_of_its_response() {
    for mut served in Served::everywhere().await {
        for (request, code) in [
            ("", 0),
            ("one two three", 0),
            ("one two fail:9", 9),
            ("fail:9 one two", 9),
        ] {
            let word_channel = stream::iter(words(request));
            let response = served.client.client_streaming(word_channel).await;
            match response {
                Ok(response) => assert_eq!((response.as_str(), 0), (request, code)),
                Err(status) => assert_eq!(status.code(), Code::from(code), "{request}"),
            }
            served.assert_completed(code).await;
        }
    }
}

#[tokio::test]
async fn a_client_stream_is_in_flight_until_its_response() {
    for served in Served::everywhere().await {
        let (say, word_channel) = word_channel();
        let mut client = served.client.clone();
        let call = tokio::spawn(async move { client.client_streaming(word_channel).await });
        for word in ["one", "two"] {
            say.send(word.to_owned()).expect("a call");
            served.assert_in_flight().await;
        }
        drop(say);
        let response = call.await.expect("no panic").expect("a response");
        assert_eq!(response, "one two");
        served.assert_completed(0).await;
    }
}

#[tokio::test]
async fn a_bidirectional_streams_outcome_is_in_its_trailers() {
    for mut served in Served::everywhere().await {
        for (last, code) in [(None, 0), (Some("fail:10"), 10), (Some("mumble"), 13)] {
            let (say, word_channel) = word_channel();
            let mut responses = served.client.bidi(word_channel).await.expect("a head");
            for word in ["one", "two", "three"] {
                say.send(word.to_owned()).expect("a call");
                let response = responses.next().await.expect("a response");
                assert_eq!(response.as_deref(), Some(word));
                served.assert_in_flight().await;
            }
            if let Some(last) = last {
                say.send(last.to_owned()).expect("a call");
            } else {
                drop(say);
            }
            assert_eq!(responses.rest().await, (Vec::new(), Code::from(code)));
            served.assert_completed(code).await;
        }
    }
}

/// A server with two permits and nothing else to count, and a client of it.
async fn two_permits(world: &World, host: Host) -> (tollgate::Limiter, Client) {
    let limiter = world.limiter([permit_policy(2, PERMIT_TTL)]);
    let address = host.serve(RateLimitLayer::new(limiter.clone())).await;
    (limiter, Client::connect(address).await)
}

#[tokio::test]
async fn a_stream_holds_its_permit_until_its_trailers() {
    for (host, world) in Host::on_both_stores() {
        let (limiter, mut client) = two_permits(&world, host).await;
        for last in [None, Some("fail:10")] {
            let (say_one, said_one) = word_channel();
            let (say_two, said_two) = word_channel();
            let mut one = client.bidi(said_one).await.expect("a permit");
            let two = client.bidi(said_two).await.expect("a permit");
            // Almost all of their TTL, after which heartbeats renew them.
            for _ in 0..3 {
                world.advance(PERMIT_TTL * 9 / 10);
                world.until_heartbeats(2).await;
                say_one.send("word".to_owned()).expect("a call");
                assert_eq!(
                    one.next().await.expect("a response").as_deref(),
                    Some("word")
                );
                let rejected = client.unary("word").await.expect_err("a rejection");
                assert!(
                    is_rejection(&rejected),
                    "{host:?} {}: {rejected}",
                    world.name()
                );
            }
            if let Some(last) = last {
                say_one.send(last.to_owned()).expect("a call");
            } else {
                drop(say_one);
            }
            let (_, code) = one.rest().await;
            assert_eq!(code == Code::Ok, last.is_none());
            until_taken(&limiter, 1).await;
            assert_eq!(client.unary("word").await.expect("a permit"), "word");
            drop(say_two);
            assert_eq!(two.rest().await.1, Code::Ok);
            until_taken(&limiter, 0).await;
        }
    }
}

#[tokio::test]
async fn a_call_that_fails_releases_its_permit() {
    for (host, world) in Host::on_both_stores() {
        let (limiter, mut client) = two_permits(&world, host).await;
        for _ in 0..3 {
            client.unary("fail:7").await.expect_err("an error");
            client.unary("mumble").await.expect_err("an error");
            client.unary("panic").await.expect_err("a panic");
            until_taken(&limiter, 0).await;
        }
        let held = client.server_streaming("word wait").await.expect("a head");
        until_taken(&limiter, 1).await;
        drop(held);
        until_taken(&limiter, 0).await;
    }
}
