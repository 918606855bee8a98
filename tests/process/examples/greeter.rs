//! The gRPC example, called by tonic's client and by gRPC's own.

use std::net::Ipv4Addr;

use futures_util::{StreamExt, stream};
use tollgate_tests::{
    example::{Example, Stage},
    prelude::*,
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;

use crate::sockets::grpc_peers::from;

#[allow(unreachable_pub)]
#[path = "../../../examples/helloworld/mod.rs"]
mod helloworld;

use helloworld::{HelloReply, HelloRequest, greeter_client::GreeterClient};

type Client = GreeterClient<Channel>;

/// A client that connects from an address of its own.
async fn client_at(local: Ipv4Addr, example: &Example) -> Client {
    let server = example.address();
    let endpoint = Endpoint::from_shared(format!("http://{server}")).expect("an address");
    GreeterClient::new(from(local, server, endpoint).await)
}

fn hello(name: impl Into<String>) -> HelloRequest {
    HelloRequest { name: name.into() }
}

/// Calls one after the other, in turn: so many are greeted, and the next is rejected.
async fn assert_greets(n: usize, clients: &mut [Client]) {
    for turn in (0..clients.len()).cycle().take(n) {
        let reply = clients[turn].say_hello(hello("Ann")).await;
        assert_eq!(reply.expect("admitted").get_ref().message, "Hello Ann");
    }
    let rejected = clients[0].say_hello(hello("Ann")).await;
    assert_rejected(&rejected.expect_err("rejected"));
}

fn assert_rejected(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted);
    let failure = status.get_details_quota_failure().expect("violations");
    assert_eq!(failure.violations[0].quota_id, "greetings");
    assert_eq!(failure.violations[0].quota_value, 5);
    let delay = status
        .get_details_retry_info()
        .and_then(|info| info.retry_delay);
    assert_eq!(delay, Some(secs(10)));
    assert!(status.metadata().contains_key("grpc-retry-pushback-ms"));
}

#[tokio::test]
async fn each_peer_is_admitted_five_greetings_of_two_greeters_on_one_redis() {
    let stage = Stage::on_redis();
    let examples = [(); 2].map(|()| stage.start("tonic_greeter", &[]));
    for last in [1, 2] {
        let local = Ipv4Addr::new(127, 0, 0, last);
        let [one, other] = &examples;
        let mut clients = [client_at(local, one).await, client_at(local, other).await];
        assert_greets(5, &mut clients).await;
    }
    assert_eq!(stage.server().immortal_keys(), [""; 0]);
    for example in examples {
        assert!(!example.output().contains("ERROR"), "{}", example.output());
    }
}

#[tokio::test]
async fn messages_of_a_stream_count_like_calls_and_a_rejected_one_ends_it() {
    let example = Stage::in_process().start("tonic_greeter", &[]);
    let mut client = client_at(Ipv4Addr::LOCALHOST, &example).await;
    // To open a stream without a message is free.
    for _ in 0..10 {
        let silent = client.say_hello_bidi_stream(stream::empty()).await;
        let mut replies = silent.expect("a stream").into_inner();
        assert!(replies.message().await.expect("no rejection").is_none());
    }
    client.say_hello(hello("Ann")).await.expect("admitted");
    let names = stream::iter(0..1_000).map(|n| hello(n.to_string()));
    let replies = client.say_hello_bidi_stream(names).await;
    let mut replies = replies.expect("a stream").into_inner();
    for n in 0..4 {
        let reply = replies.message().await.expect("admitted");
        let HelloReply { message } = reply.expect("a reply");
        assert_eq!(message, format!("Hello {n}"));
    }
    assert_rejected(&replies.message().await.expect_err("rejected"));
    assert!(replies.message().await.is_ok_and(|reply| reply.is_none()));
    assert_greets(0, &mut [client]).await;
}

/// Runs gRPC's own client. Its stubs are made of the example's `.proto`, and not of what tonic made of it.
fn grpcio(scenario: &str, example: &Example) {
    let address = example.address().to_string();
    let said = testkit::python("greeter.py", &[scenario, &address], "");
    assert_eq!(said, "ok\n");
}

/// The last in real time, which the client measures.
#[test]
fn grpcs_own_client_reads_rejections_of_calls_and_messages_and_retries_after_the_pushback() {
    grpcio("details", &Stage::on_redis().start("tonic_greeter", &[]));
    grpcio("stream", &Stage::in_process().start("tonic_greeter", &[]));
    grpcio("retry", &Example::start("tonic_greeter", &[]));
}
