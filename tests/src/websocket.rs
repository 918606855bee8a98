//! A client of WebSockets.

use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Error};

pub use tokio_tungstenite::tungstenite::Message;

use crate::until::TEST_TIMEOUT;

pub struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Opens a socket; or returns the status of the response that rejects it.
    pub async fn open(address: SocketAddr, path: &str) -> Result<Self, u16> {
        let stream = TcpStream::connect(address).await.expect("a server");
        match client_async(format!("ws://{address}{path}"), stream).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn send(&mut self, message: impl Into<Message>) {
        self.0.send(message.into()).await.expect("a socket");
    }

    /// Sends a message, and returns the response.
    pub async fn say(&mut self, message: impl Into<Message>) -> Message {
        self.send(message).await;
        self.next().await.expect("a response")
    }

    /// The next message; `None` once it has ended.
    pub async fn next(&mut self) -> Option<Message> {
        let message = timeout(TEST_TIMEOUT, self.0.next()).await;
        message.expect("in time")?.ok()
    }

    /// Asserts that the other side is there, which costs nothing.
    pub async fn assert_open(&mut self) {
        let ping = Message::Ping(vec![7].into());
        assert_eq!(self.say(ping).await, Message::Pong(vec![7].into()));
    }

    /// Closes it as the protocol wants, and waits for the server to do the same.
    pub async fn close(mut self) {
        self.0.close(None).await.expect("a socket");
        while self.next().await.is_some() {}
    }

    /// The connection, without a close frame.
    pub fn into_stream(self) -> TcpStream {
        self.0.into_inner()
    }
}
