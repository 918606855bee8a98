//! The bounds on connections.

use std::process::Command;

use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};
use tollgate_server::{rules::Unit, serve::Server};

use crate::{
    client::{Client, descriptor},
    program::{Program, RULES},
    scene::{limit, options, redis, rules, until},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_too_many_open_files_pauses_and_goes_on_when_some_are_closed() {
    let (_clock, redis) = redis();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""]);
    limited.arg(env!("CARGO_BIN_EXE_tollgate-server"));
    let flags = ["--redis-timeout", "300000"];
    let program = Program::start_as(limited, RULES, &redis, &flags);
    assert!(program.client().passes(descriptor([("user", "a")])).await);
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
    let rules = rules([limit("user", "", 99, Unit::Year)]);
    let server = Server::start(&options(&["--max-connections", "1"]), &rules).await;
    let server = server.expect("a server");
    let first = Client::of(&server);
    assert!(first.passes(descriptor([("user", "a")])).await);
    let second = Client::of(&server);
    let waiting = tokio::spawn(async move { second.passes(descriptor([("user", "a")])).await });
    for _ in 0..20 {
        assert!(first.passes(descriptor([("user", "a")])).await);
    }
    assert!(!waiting.is_finished());
    drop(first);
    assert!(waiting.await.expect("an answer"));
}

/// The HTTP/2 preface, and settings without any.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// On a clock that jumps to the next timer while nothing else is to be done.
#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed() {
    let server = Server::start(&options(&[]), &rules([])).await;
    let server = server.expect("a server");
    let health = b"GET /healthcheck HTTP/1.1\r\nhost: a\r\n\r\n";
    for (address, sent, seconds) in [
        (server.grpc(), &b""[..], 30),
        (server.http(), &b""[..], 30),
        (server.http(), &health[..], 75),
        // A client that does not answer the PING after a minute.
        (server.grpc(), HTTP2, 80),
    ] {
        let mut connection = TcpStream::connect(address).await.expect("a connection");
        let start = Instant::now();
        connection.write_all(sent).await.expect("a connection");
        // Whatever is answered, or a reset.
        let _ = connection.read_to_end(&mut Vec::new()).await;
        let open = start.elapsed();
        assert_eq!(open.as_secs(), seconds, "{sent:?} {open:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_grpc_is_closed_when_it_has_its_age() {
    // Not beside a PING, which is sent each minute.
    let flags = ["--max-connection-age", "3630"];
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
        let [_, high, low, kind, is_ack, ..] = head;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        let read = connection.read_exact(&mut payload).await;
        read.expect("the whole frame");
        // GOAWAY: the client sends its next requests on another connection.
        if kind == 7 {
            break;
        }
        // A PING is answered.
        if kind == 6 && is_ack == 0 {
            head[4] = 1;
            let pong = [&head[..], &payload].concat();
            connection.write_all(&pong).await.expect("a connection");
        }
    }
    let open = start.elapsed();
    assert_eq!(open.as_secs(), 3630, "{open:?}");
}
