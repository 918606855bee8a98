//! The example whose sockets and messages are limited.

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{self, Message, http::Response},
};
use tollgate_tests::{
    example::{Example, Stage},
    until::TEST_TIMEOUT,
};

struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Opens a socket; or returns the response if it is none.
    async fn open(example: &Example) -> Result<Self, Box<Response<Option<Vec<u8>>>>> {
        let address = example.address();
        let stream = TcpStream::connect(address).await.expect("a server");
        match client_async(format!("ws://{address}/"), stream).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(tungstenite::Error::Http(response)) => Err(response),
            Err(error) => panic!("{error}"),
        }
    }

    /// Opens one as soon as there is a permit, which another socket's end may make a moment later.
    async fn opened(example: &Example) -> Self {
        let start = Instant::now();
        loop {
            match Self::open(example).await {
                Ok(socket) => return socket,
                Err(rejected) => assert!(start.elapsed() < TEST_TIMEOUT, "no permit: {rejected:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Sends a text, and returns the response.
    async fn say(&mut self, message: Message) -> Message {
        self.0.send(message).await.expect("a socket");
        let response = timeout(TEST_TIMEOUT, self.0.next()).await;
        let response = response.expect("in time").expect("a socket");
        response.expect("a response")
    }

    /// Asserts that it is open, which costs nothing.
    async fn assert_open(&mut self) {
        let ping = Message::Ping(vec![7].into());
        assert_eq!(self.say(ping).await, Message::Pong(vec![7].into()));
    }
}

#[tokio::test]
async fn websocket_has_three_permits_that_sockets_hold_until_they_close() {
    let example = Stage::in_process().start("websocket", &[]);
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(Socket::opened(&example).await);
    }
    for _ in 0..2 {
        // Each socket is open, and so there is no permit.
        for socket in &mut sockets {
            socket.assert_open().await;
        }
        let rejected = Socket::open(&example).await.err().expect("no permit");
        assert_eq!(rejected.status(), 429);
        // One that vanishes makes way for the next.
        drop(sockets.remove(0));
        sockets.push(Socket::opened(&example).await);
    }
    // So does one that is shown out.
    let mut shown_out = sockets.remove(0);
    let mut words = 0;
    while !shown_out.say(Message::text("word")).await.is_close() {
        words += 1;
        assert!(words < 100, "it is let stay");
    }
    sockets.push(Socket::opened(&example).await);
}

#[tokio::test]
async fn two_websocket_servers_on_one_redis_share_messages_and_permits() {
    let stage = Stage::on_redis();
    let examples = [(); 2].map(|()| stage.start("websocket", &[]));
    let mut sockets = [
        Socket::opened(&examples[0]).await,
        Socket::opened(&examples[1]).await,
        Socket::opened(&examples[0]).await,
    ];
    let rejected = Socket::open(&examples[1]).await.err().expect("no permit");
    assert_eq!(rejected.status(), 429);
    for n in 0..9 {
        let message = match n % 2 {
            0 => Message::text(format!("word {n}")),
            _ => Message::binary(vec![n as u8; 9]),
        };
        let response = sockets[n % 3].say(message.clone()).await;
        if n < 5 {
            assert_eq!(response, message);
        } else {
            let text = response.to_text().expect("a text");
            assert_eq!(text, r#"quota exceeded: "messages"; retry after 2s"#);
        }
    }
    stage.clock.advance(Duration::from_secs(2));
    let hello = Message::text("hello");
    assert_eq!(sockets[0].say(hello.clone()).await, hello);
    assert_ne!(sockets[1].say(hello.clone()).await, hello);
    let mut keys = stage.server().keys();
    keys.retain(|key| key.contains("messages"));
    assert_eq!(keys, ["tg:g3:messages:127.0.0.1"]);
    assert_eq!(stage.server().immortal_keys(), [""; 0]);
}
