//! The example whose sockets and messages are limited.

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use testkit::Server;
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{self, Message, http::Response, protocol::frame::coding::CloseCode},
};

use crate::examples::process::Example;

/// The machine may be busy.
const LONG: Duration = Duration::from_secs(30);

/// One message comes back so often.
const REGAINED: Duration = Duration::from_secs(2);

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
                Err(rejected) => assert!(start.elapsed() < LONG, "no place: {rejected:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Sends a text, and returns the response.
    async fn say(&mut self, message: Message) -> Message {
        self.0.send(message).await.expect("a socket");
        let response = tokio::time::timeout(LONG, self.0.next()).await;
        let response = response.expect("in time").expect("a socket");
        response.expect("a response")
    }

    /// Asserts that it was shown out, and that it's over then.
    async fn assert_closed(&mut self) {
        let more = tokio::time::timeout(LONG, self.0.next()).await;
        let more = more.expect("in time").and_then(Result::ok);
        assert_eq!(more, None, "after the end");
    }
}

/// How long to wait, in seconds, by a response such as `quota exceeded: "messages"; retry after 1.8s`.
fn retry_after(response: &str) -> f64 {
    let wait = response.strip_prefix(r#"quota exceeded: "messages"; retry after "#);
    let wait = wait.unwrap_or_else(|| panic!("no rejection: {response}"));
    let digits = wait.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == 'µ');
    let unit = match &wait[digits.len()..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        unit => panic!("no unit of time: {unit}"),
    };
    digits.parse::<f64>().expect("a number") * unit
}

/// Sends this many texts, each over the next socket in turn; returns how many were echoed, and the other responses.
async fn chatter(sockets: &mut [Socket], n: usize) -> (u64, Vec<Message>) {
    let (mut echoed, mut others) = (0, Vec::new());
    let count = sockets.len();
    for i in 0..n {
        let message = match i % 2 {
            0 => Message::text(format!("word {i}")),
            _ => Message::binary(vec![i as u8; 9]),
        };
        match sockets[i % count].say(message.clone()).await {
            response if response == message => echoed += 1,
            other => others.push(other),
        }
    }
    (echoed, others)
}

/// Asserts that five messages were echoed, and those that were regained meanwhile.
fn assert_five(echoed: u64, within: Duration) {
    let regained = (within.as_micros() / REGAINED.as_micros()) as u64;
    assert!(
        (5..=5 + regained).contains(&echoed),
        "{echoed} in {within:?}"
    );
}

#[tokio::test]
async fn websocket_echoes_five_messages_and_rejects_the_others_with_a_retry_after() {
    let example = Example::start("websocket", &[]);
    let start = Instant::now();
    let mut sockets = [
        Socket::opened(&example).await,
        Socket::opened(&example).await,
    ];
    // All of a client's sockets together.
    let (echoed, others) = chatter(&mut sockets, 8).await;
    assert_five(echoed, start.elapsed());
    let last = others.last().expect("one too many");
    let wait = retry_after(last.to_text().expect("a text"));
    assert!(wait <= 2.0, "{last}");
    // And it is true.
    tokio::time::sleep(Duration::from_secs_f64(wait)).await;
    let hello = Message::text("hello");
    assert_eq!(sockets[0].say(hello.clone()).await, hello);
    // A ping is no message.
    let ping = Message::Ping(vec![7].into());
    assert_eq!(sockets[0].say(ping).await, Message::Pong(vec![7].into()));
}

#[tokio::test]
async fn websocket_closes_a_connection_that_keeps_sending() {
    let example = Example::start("websocket", &[]);
    let mut socket = Socket::opened(&example).await;
    let mut notices = 0;
    let close = loop {
        let word = Message::text("word");
        match socket.say(word.clone()).await {
            Message::Close(close) => break close.expect("a reason"),
            response if response == word => notices = 0,
            response => {
                retry_after(response.to_text().expect("a text"));
                notices += 1;
                assert!(notices < 9, "{notices} notices");
            }
        }
    };
    assert_eq!((notices, close.code), (5, CloseCode::Policy));
    retry_after(&close.reason);
    socket.assert_closed().await;
}

#[tokio::test]
async fn websocket_has_three_permits_that_sockets_hold_until_they_close() {
    let example = Example::start("websocket", &[]);
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(Socket::opened(&example).await);
    }
    for _ in 0..2 {
        // Each socket is open, and so there is no permit.
        for socket in &mut sockets {
            let ping = Message::Ping(vec![1].into());
            assert_eq!(socket.say(ping).await, Message::Pong(vec![1].into()));
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
    let server = Server::start();
    let url = server.url();
    let examples = [(); 2].map(|()| Example::start("websocket", &[("REDIS_URL", &url)]));
    let start = Instant::now();
    let mut sockets = [
        Socket::opened(&examples[0]).await,
        Socket::opened(&examples[1]).await,
        Socket::opened(&examples[0]).await,
    ];
    let rejected = Socket::open(&examples[1]).await.err().expect("no permit");
    assert_eq!(rejected.status(), 429);
    let (echoed, others) = chatter(&mut sockets, 9).await;
    assert_five(echoed, start.elapsed());
    for other in others {
        retry_after(other.to_text().expect("a text"));
    }
    assert_eq!(server.immortal_keys(), [""; 0]);
    let mut keys = server.keys();
    keys.retain(|key| key.contains("messages"));
    assert_eq!(keys, ["tg:g3:messages:127.0.0.1"]);
}
