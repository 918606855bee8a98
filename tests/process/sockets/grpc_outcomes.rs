//! Calls that come to their end: their outcome is in their trailers, or in their head if that is all there is. They hold their permit
//! until then.

use futures_util::stream;
use tonic::{Code, Request};

use crate::sockets::{
    grpc::{
        BIDI, CLIENT_STREAMING, Host, SERVER_STREAMING, UNARY, client_of, is_rejection,
        word_channel,
    },
    grpc_served::Served,
    support::*,
};

/// A method, what its client says, what it hears, and the code of the call.
const CALLS: [(&str, &str, &str, i32); 11] = [
    (UNARY, "word", "word", 0),
    (UNARY, "fail:7", "", 7),
    // After its head.
    (UNARY, "mumble", "", 13),
    ("/test.Calls/Nothing", "word", "", 12),
    (SERVER_STREAMING, "one two three", "one two three", 0),
    (SERVER_STREAMING, "one two fail:14", "one two", 14),
    (SERVER_STREAMING, "mumble", "", 13),
    (SERVER_STREAMING, "at once fail:7", "", 7),
    (CLIENT_STREAMING, "", "", 0),
    (CLIENT_STREAMING, "one two three", "one two three", 0),
    (CLIENT_STREAMING, "one two fail:9", "", 9),
];

#[tokio::test]
async fn a_calls_outcome_is_in_its_trailers_or_in_a_head_that_is_all_there_is() {
    for mut served in Served::everywhere().await {
        for (path, said, heard, code) in CALLS {
            let _case = Case(format!("{path} {said}, {}", served.name));
            let words: Vec<_> = match path {
                CLIENT_STREAMING => said.split_whitespace().map(str::to_owned).collect(),
                _ => vec![said.to_owned()],
            };
            let request = Request::new(stream::iter(words));
            let (responses, ended) = match served.client.open(path, request).await {
                Ok(responses) => responses.rest().await,
                Err(status) => (Vec::new(), status.code()),
            };
            let responses = responses.join(" ");
            assert_eq!((&*responses, ended), (heard, Code::from(code)));
            served.assert_completed(code).await;
        }
    }
}

#[tokio::test]
async fn the_outcome_of_a_stream_in_both_directions_is_in_its_trailers() {
    for mut served in Served::everywhere().await {
        for (last, code) in [("", 0), ("fail:10", 10), ("mumble", 13)] {
            let (say, words) = word_channel();
            let responses = served.client.open(BIDI, Request::new(words)).await;
            let mut responses = responses.expect("a head");
            for word in ["one", "two"] {
                say.send(word.to_owned()).expect("a call");
                responses.expect_next(word).await;
                served.assert_in_flight().await;
            }
            if !last.is_empty() {
                say.send(last.to_owned()).expect("a call");
            }
            drop(say);
            assert_eq!(responses.rest().await, (Vec::new(), Code::from(code)));
            served.assert_completed(code).await;
        }
    }
}

#[tokio::test]
async fn a_stream_holds_its_permit_until_its_trailers() {
    for (host, world) in Host::on_both_stores() {
        let limiter = world.limiter([permit_policy(2)]);
        let mut client = client_of(host, &limiter).await;
        for last in [None, Some("fail:10")] {
            let (say_one, said_one) = word_channel();
            let (say_two, said_two) = word_channel();
            let one = client.open(BIDI, Request::new(said_one)).await;
            let two = client.open(BIDI, Request::new(said_two)).await;
            let (mut one, two) = (one.expect("a permit"), two.expect("a permit"));
            say_one.send("word".to_owned()).expect("a call");
            one.expect_next("word").await;
            let rejected = client.unary("word").await.expect_err("a rejection");
            assert!(is_rejection(&rejected), "{host:?}");
            if let Some(last) = last {
                say_one.send(last.to_owned()).expect("a call");
            }
            drop(say_one);
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
