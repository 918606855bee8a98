//! The bounds on connections.

use std::{pin::pin, process::Command, time::Duration};

use futures_util::{FutureExt, future::join_all, stream};
use http::uri::PathAndQuery;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{self, Instant},
};
use tollgate_server::{
    proto::{RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT},
    serve::Server,
};
use tonic::{Code, Request, client::Grpc, transport::Endpoint};
use tonic_prost::ProstCodec;

use crate::{
    client::{Client, cost, descriptor, request},
    program::{Program, RULES},
    scene::{options, program, redis, rules, until},
    tls::Authority,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_too_many_open_files_pauses_and_goes_on_when_some_are_closed() {
    let (_clock, redis) = redis();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""]);
    limited.arg(program().get_program());
    let flags = ["--redis-timeout", "300000"];
    let program = Program::start_as(limited, RULES, &redis, &flags);
    assert!(program.client().passes(descriptor([("user", "a")])).await);
    let warning = "fewer open files are allowed than connections limit=64 connections=20000";
    assert!(program.log().contains(warning), "{}", program.log());
    let start = Instant::now();
    let held = (0..100).map(|_| TcpStream::connect(program.grpc));
    let held = join_all(held).await;
    let refusals = || program.log().matches("no connection accepted").count();
    until("a second attempt", || (refusals() >= 2).then_some(())).await;
    let (found, seconds) = (refusals() as u64, start.elapsed().as_secs());
    assert!(found <= seconds + 1, "{found} attempts in {seconds} s");
    drop(held);
    assert!(program.client().passes(descriptor([("user", "a")])).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_connections_than_are_allowed_wait_until_others_are_closed() {
    let (_clock, redis) = redis();
    let program = Program::start(&redis, &["--max-connections", "1"]);
    let first = program.client();
    let user = || cost(descriptor([("user", "a")]), 0);
    assert!(first.passes(user()).await);
    let second = program.client();
    let waiting = tokio::spawn(async move { second.passes(user()).await });
    let warning = "too many connections: others wait";
    until("it is reported", || {
        program.log().contains(warning).then_some(())
    })
    .await;
    for _ in 0..20 {
        assert!(first.passes(user()).await);
    }
    assert!(!waiting.is_finished());
    drop(first);
    assert!(waiting.await.expect("an answer"));
}

/// The HTTP/2 preface, and settings without any.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The length of the preface.
const PREFACE: usize = 24;

/// The head of the first frame that a server sends, its settings, without the length.
const SETTINGS: &str = "\x04\0\0\0\0\0";

/// The frame that says that a server has read the settings of its client.
const SETTINGS_READ: &str = "\0\0\0\x04\x01\0\0\0\0";

/// Longer than any bound here, and shorter than the age of connections. On a busy machine the clock jumps while bytes are on their way,
/// so a connection may be closed a little later than at its bound.
const LONG: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn idle_connections_are_closed() {
    let server = Server::start(&options(&[]), &rules([])).await;
    let server = server.expect("a server");
    let health = b"GET /healthcheck HTTP/1.1\r\nhost: a\r\n\r\n";
    let body =
        b"POST /json HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n{";
    for (address, sent, answer, seconds, last) in [
        (server.grpc(), &b""[..], SETTINGS, 30, ""),
        (server.grpc(), &HTTP2[..1], SETTINGS, 30, ""),
        (server.grpc(), &HTTP2[..PREFACE - 1], SETTINGS, 30, ""),
        // A client that does not answer the PING after a minute.
        (server.grpc(), HTTP2, SETTINGS_READ, 80, ""),
        (server.http(), &b""[..], "", 75, ""),
        (server.http(), &health[..], "200 OK", 75, ""),
        (
            server.http(),
            &body[..],
            "100 Continue",
            10,
            "408 Request Timeout",
        ),
    ] {
        let start = Instant::now();
        let connection = TcpStream::connect(address).await.expect("a connection");
        let received = until_closed(connection, sent, answer, start, seconds).await;
        assert!(received.contains(last), "{sent:?} {received}");
    }
}

#[tokio::test]
async fn an_encrypted_connection_without_a_preface_is_closed() {
    let authority = Authority::new();
    let files = authority.flags();
    let flags: Vec<&str> = files[..4].iter().map(String::as_str).collect();
    let server = Server::start(&options(&flags), &rules([])).await;
    let server = server.expect("a server");
    for sent in [&b""[..], &HTTP2[..PREFACE - 1]] {
        let start = Instant::now();
        let connection = TcpStream::connect(server.grpc()).await;
        let connection = authority.handshake(connection.expect("a connection")).await;
        until_closed(connection, sent, SETTINGS, start, 30).await;
    }
}

#[tokio::test]
async fn a_request_that_is_not_sent_to_its_end_is_ended() {
    let server = Server::start(&options(&[]), &rules([])).await;
    let server = server.expect("a server");
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).expect("a URL");
    let channel = endpoint.timeout(2 * LONG).connect_lazy();
    let mut client = Grpc::new(channel.clone());
    client.ready().await.expect("a connection");
    let start = Instant::now();
    let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let unsent = Request::new(stream::pending());
    let mut ended = pin!(client.client_streaming(unsent, path, codec));
    assert!(ended.as_mut().now_or_never().is_none());
    // A request after it on the connection is answered: its own head was read.
    let next = Client::on(channel).send(request([])).await;
    assert_eq!(next.expect_err("an error").code(), Code::InvalidArgument);
    time::pause();
    let ended = ended.await;
    assert_eq!(ended.expect_err("an error").code(), Code::Cancelled);
    let open = start.elapsed();
    assert!(open >= Duration::from_secs(10) && open < LONG, "{open:?}");
}

/// Sends something on a connection, and waits for an answer, so that the server has read it. From then on, on a clock that jumps to the next
/// timer while nothing else is to be done, the server closes the connection so many seconds after `start`, or soon after. Returns all that it
/// has sent.
async fn until_closed(
    mut connection: impl AsyncRead + AsyncWrite + Unpin,
    sent: &[u8],
    answer: &str,
    start: Instant,
    seconds: u64,
) -> String {
    connection.write_all(sent).await.expect("a connection");
    connection.flush().await.expect("a connection");
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains(answer) {
        let read = connection.read_buf(&mut received).await;
        assert!(read.expect("a connection") > 0, "{sent:?} {received:?}");
    }
    time::pause();
    // Or a reset.
    let _ = connection.read_to_end(&mut received).await;
    time::resume();
    let open = start.elapsed();
    let least = Duration::from_secs(seconds);
    assert!(open >= least && open < LONG, "{least:?} {open:?}");
    String::from_utf8_lossy(&received).into_owned()
}

#[tokio::test]
async fn a_connection_of_grpc_is_closed_when_it_has_its_age() {
    let flags = ["--max-connection-age", "1"];
    let server = Server::start(&options(&flags), &rules([])).await;
    let server = server.expect("a server");
    let mut connection = TcpStream::connect(server.grpc())
        .await
        .expect("a connection");
    let start = Instant::now();
    connection.write_all(HTTP2).await.expect("a connection");
    let mut head = [0; 9];
    loop {
        let read = connection.read_exact(&mut head).await;
        read.expect("a frame");
        let [_, high, low, kind, ..] = head;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        let read = connection.read_exact(&mut payload).await;
        read.expect("the whole frame");
        // GOAWAY: the client sends its next requests on another connection.
        if kind == 7 {
            break;
        }
    }
    let open = start.elapsed();
    assert!(open >= Duration::from_secs(1), "{open:?}");
}
