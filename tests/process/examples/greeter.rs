//! The gRPC example, called by tonic's client and by gRPC's own.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use hyper_util::rt::TokioIo;
use testkit::Server;
use tokio::net::TcpSocket;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Uri},
};
use tonic_types::StatusExt;
use tower::service_fn;

use crate::examples::process::Example;

#[allow(unreachable_pub)]
#[path = "../../../examples/helloworld/mod.rs"]
mod helloworld;

use helloworld::{HelloReply, HelloRequest, greeter_client::GreeterClient};

const PERIOD: Duration = Duration::from_secs(10);

type Client = GreeterClient<Channel>;

/// A client that connects from an address of its own.
async fn client_at(local: Ipv4Addr, example: &Example) -> Client {
    let server = example.address();
    let connect = service_fn(move |_: Uri| async move {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(IpAddr::V4(local), 0))?;
        socket.connect(server).await.map(TokioIo::new)
    });
    let endpoint = Endpoint::from_shared(format!("http://{server}")).expect("an address");
    let channel = endpoint.connect_with_connector(connect).await;
    GreeterClient::new(channel.expect("a server"))
}

async fn client(example: &Example) -> Client {
    client_at(Ipv4Addr::LOCALHOST, example).await
}

fn hello(name: impl Into<String>) -> HelloRequest {
    HelloRequest { name: name.into() }
}

/// What passed before the first rejection.
#[derive(Debug, Default)]
struct Passed {
    counted: usize,
    /// Because the store did not reply in time, on a machine that is busy; it may have counted nevertheless.
    uncounted: usize,
}

impl Passed {
    /// Asserts that five passed, and no more of those that were counted, unless it took more than ten seconds.
    fn assert_five(&self, start: Instant) {
        let elapsed = start.elapsed();
        let no_more = self.counted <= 5 || elapsed > PERIOD;
        let no_less = self.counted + self.uncounted >= 5;
        assert!(no_more && no_less, "{self:?} in {elapsed:?}");
    }
}

/// Calls one after the other, in turn, until one is rejected; returns the rejection too.
async fn until_rejected(clients: &mut [Client]) -> (Passed, Status) {
    let mut passed = Passed::default();
    for n in 0..1_000 {
        let turn = n % clients.len();
        match clients[turn].say_hello(hello("Ann")).await {
            Ok(reply) => {
                assert_eq!(reply.get_ref().message, "Hello Ann");
                match reply.metadata().contains_key("ratelimit") {
                    true => passed.counted += 1,
                    false => passed.uncounted += 1,
                }
            }
            Err(status) => return (passed, status),
        }
    }
    panic!("1000 calls, and none was rejected");
}

fn assert_rejected(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted);
    let failure = status.get_details_quota_failure().expect("violations");
    assert_eq!(failure.violations[0].quota_id, "greetings");
    assert_eq!(failure.violations[0].quota_value, 5);
    let delay = status
        .get_details_retry_info()
        .and_then(|info| info.retry_delay);
    assert!(delay.is_some_and(|delay| delay <= PERIOD), "{delay:?}");
    assert!(status.metadata().contains_key("grpc-retry-pushback-ms"));
}

#[tokio::test]
async fn each_peer_is_admitted_five_greetings() {
    let example = Example::start("tonic_greeter", &[]);
    for last in [1, 2] {
        let start = Instant::now();
        let mut client = client_at(Ipv4Addr::new(127, 0, 0, last), &example).await;
        let (passed, status) = until_rejected(std::slice::from_mut(&mut client)).await;
        passed.assert_five(start);
        assert_rejected(&status);
    }
    assert!(!example.output().contains("ERROR"), "{}", example.output());
}

#[tokio::test]
async fn two_greeters_on_one_redis_share_the_count() {
    let server = Server::start();
    let url = server.url();
    let examples = [(); 2].map(|()| Example::start("tonic_greeter", &[("REDIS_URL", &url)]));
    let start = Instant::now();
    let mut clients = [client(&examples[0]).await, client(&examples[1]).await];
    let (passed, status) = until_rejected(&mut clients).await;
    passed.assert_five(start);
    assert_rejected(&status);
    assert_eq!(server.immortal_keys(), [""; 0]);
}

#[tokio::test]
async fn messages_of_a_stream_count_like_calls_and_a_rejected_one_ends_it() {
    let example = Example::start("tonic_greeter", &[]);
    let start = Instant::now();
    let mut client = client(&example).await;
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
    let mut counted = 1;
    let status = loop {
        match replies.message().await {
            Ok(reply) => {
                let HelloReply { message } = reply.expect("a reply or a rejection");
                assert_eq!(message, format!("Hello {}", counted - 1));
                counted += 1;
            }
            Err(status) => break status,
        }
    };
    assert_rejected(&status);
    assert!(replies.message().await.is_ok_and(|reply| reply.is_none()));
    let (mut passed, status) = until_rejected(std::slice::from_mut(&mut client)).await;
    assert_rejected(&status);
    passed.counted += counted;
    passed.assert_five(start);
}

#[tokio::test]
async fn the_printed_shell_loop_names_files_that_exist() {
    let example = Example::start("tonic_greeter", &[]);
    let output = example.output_until("done");
    assert!(output.contains(&example.address().to_string()), "{output}");
    let proto = output.split(' ').find(|word| word.ends_with(".proto"));
    assert!(std::path::Path::new(proto.expect("a file")).is_file());
    assert!(output.contains("helloworld.Greeter/SayHello"), "{output}");
}

/// Runs gRPC's own client. Its stubs are made of the example's `.proto`, and not of what tonic made of it.
fn grpcio(scenario: &str, variables: &[(&str, &str)]) {
    let example = Example::start("tonic_greeter", variables);
    let address = example.address().to_string();
    let said = testkit::python("greeter.py", &[scenario, &address], "");
    assert_eq!(said, "ok\n");
}

#[test]
fn grpcs_own_client_reads_googles_details_in_a_rejection() {
    grpcio("details", &[]);
    let server = Server::start();
    grpcio("details", &[("REDIS_URL", &server.url())]);
}

#[test]
fn grpcs_own_client_retries_after_the_pushback_if_it_may_retry() {
    grpcio("retry", &[]);
}

#[test]
fn grpcs_own_client_reads_the_rejection_of_a_message() {
    grpcio("stream", &[]);
}
