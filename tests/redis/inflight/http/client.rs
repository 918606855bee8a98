//! A client that ends its request as the kind of the request says, and what it receives.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};
use tollgate_tests::prelude::*;

use super::service::{Kind, Work};

/// What a client received.
#[derive(Debug)]
pub(super) enum Saw {
    Status(u16, Vec<u8>),
    /// The server closed the connection without a word.
    Nothing,
    /// It hung up itself, while it had been admitted.
    HungUp,
}

pub(super) async fn send(address: SocketAddr, kind: Kind, request: usize, work: &Work) -> Saw {
    let mut connection = TcpStream::connect(address).await.expect("a connection");
    let head = format!(
        "GET {}/{request} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n",
        kind.path()
    );
    connection
        .write_all(head.as_bytes())
        .await
        .expect("a request");
    let mut response = Vec::new();
    let mut piece = [0; 4096];
    loop {
        tokio::select! {
            read = connection.read(&mut piece) => match read {
                Ok(0) | Err(_) => break,
                Ok(n) => response.extend_from_slice(&piece[..n]),
            },
            // It hangs up when the handler is at work for it.
            () = at_work(work, request), if kind == Kind::HangUp => {
                return Saw::HungUp;
            }
        }
        if kind == Kind::HangUpInStream && response.ends_with(b"\r\n1\r\n.\r\n") {
            return Saw::HungUp;
        }
    }
    let status = response
        .get(9..12)
        .and_then(|status| std::str::from_utf8(status).ok());
    match status.and_then(|status| status.parse().ok()) {
        Some(status) => Saw::Status(status, response),
        None => Saw::Nothing,
    }
}

async fn at_work(work: &Work, request: usize) {
    while !work.ran.lock().expect("no panic").contains(&request) {
        sleep(ms(1)).await;
    }
}

/// Whether it ended as its kind does; false if it was rejected.
#[track_caller]
pub(super) fn admitted(kind: Kind, saw: &Saw) -> bool {
    match (kind, saw) {
        (_, Saw::Status(429, _)) => return false,
        (Kind::Plain, Saw::Status(200, _))
        | (Kind::Panic, Saw::Nothing)
        | (Kind::HangUp | Kind::HangUpInStream, Saw::HungUp)
        | (Kind::Error, Saw::Status(502, _))
        | (Kind::Timeout, Saw::Status(504, _)) => {}
        (Kind::Stream, Saw::Status(200, response)) if response.ends_with(b"0\r\n\r\n") => {}
        _ => panic!("{kind:?} ended in {saw:?}"),
    }
    true
}
