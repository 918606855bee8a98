//! The proxy, before a real server.

#![allow(missing_docs)]

use std::io;
use std::time::{Duration, Instant};

use tollgate_testkit::{Connection, Proxy, Reply, Server, TIMEOUT, until};

fn connect(proxy: &Proxy, patience: Duration) -> Connection {
    Connection::open(proxy.addr(), patience).expect("a connection")
}

fn ping(connection: &mut Connection) -> io::Result<Reply> {
    connection.call(&["PING"])
}

#[test]
fn a_proxy_passes_everything_on_and_later_with_a_delay() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let mut connection = connect(&proxy, TIMEOUT);
    assert_eq!(ping(&mut connection).expect("a reply").text(), "PONG");
    assert_eq!(proxy.connections(), 1);
    let (start, late) = (Instant::now(), Duration::from_millis(200));
    proxy.delay(late);
    assert_eq!(ping(&mut connection).expect("a reply").text(), "PONG");
    assert!(start.elapsed() >= late);
}

#[test]
fn a_proxy_that_held_bytes_passes_them_on() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    proxy.hold();
    let mut connection = connect(&proxy, Duration::from_millis(200));
    let error = connection
        .call(&["SET", "held", "1"])
        .expect_err("no response");
    assert!(
        matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ),
        "{error}"
    );
    assert!(server.keys().is_empty());
    assert_eq!(proxy.forwarded(), 0);
    proxy.pass();
    let sent = b"*3\r\n$3\r\nSET\r\n$4\r\nheld\r\n$1\r\n1\r\n".len() as u64;
    until("what was held is passed on", || {
        (proxy.forwarded() == sent && !server.keys().is_empty()).then_some(())
    });
}

#[test]
fn a_cut_proxy_closes_open_and_new_connections() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let mut connection = connect(&proxy, TIMEOUT);
    ping(&mut connection).expect("a reply");
    proxy.cut();
    ping(&mut connection).expect_err("it is closed");
    ping(&mut connect(&proxy, TIMEOUT)).expect_err("so is this");
    proxy.pass();
    ping(&mut connect(&proxy, TIMEOUT)).expect("a reply");
}

#[test]
fn a_halving_proxy_truncates_replies() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let mut connection = connect(&proxy, TIMEOUT);
    proxy.halve();
    ping(&mut connection).expect("a reply to a check");
    let error = connection.call(&["TIME"]).expect_err("half a reply");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    proxy.pass();
    ping(&mut connect(&proxy, TIMEOUT)).expect("a reply");
}
