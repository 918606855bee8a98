//! WebSockets that hold the permit of the request they began with, and WebSockets that don't.

use std::net::SocketAddr;

use axum::{
    Router,
    extract::ws::{Message, WebSocket, WebSocketUpgrade},
    response::Response,
    routing::any,
};
use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite};
use tollgate::{Admission, Limiter, RateLimitLayer, outcome::RequestEnd};
use tollgate_tests::until::until;

use crate::sockets::{
    grpc::serve,
    support::{
        ChargedLayer, FAILURE, PERMIT_TTL, SUCCESS, World, permit_policy, until_taken, used,
    },
};

/// Echoes each text, until the client has closed; at `panic` it panics, at `leave` it returns.
async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        match &message {
            Message::Text(text) if text.as_str() == "panic" => {
                std::panic::resume_unwind(Box::new("as asked"))
            }
            Message::Text(text) if text.as_str() == "leave" => return,
            Message::Text(_) => {}
            _ => continue,
        }
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

/// Holds the request's permit until the socket is closed.
async fn hold(upgrade: WebSocketUpgrade, admission: Admission) -> Response {
    let held = admission.hold_permits();
    upgrade.on_upgrade(async move |socket| {
        echo(socket).await;
        drop(held);
    })
}

/// Holds nothing.
async fn loose(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(echo)
}

/// Keeps the admission, which is no hold.
async fn kept(upgrade: WebSocketUpgrade, admission: Admission) -> Response {
    upgrade.on_upgrade(async move |socket| {
        echo(socket).await;
        drop(admission);
    })
}

/// Holds the request's permit for a socket that is never opened.
async fn never(upgrade: WebSocketUpgrade, admission: Admission) -> Response {
    let _response = hold(upgrade, admission).await;
    std::future::pending().await
}

async fn serve_sockets(layer: RateLimitLayer) -> SocketAddr {
    let router = Router::new()
        .route("/hold", any(hold))
        .route("/loose", any(loose))
        .route("/kept", any(kept))
        .route("/never", any(never));
    serve(router.layer(layer)).await
}

/// A server with one permit.
async fn one_permit(world: &World) -> (Limiter, SocketAddr) {
    let limiter = world.limiter([permit_policy(1, PERMIT_TTL)]);
    let address = serve_sockets(RateLimitLayer::new(limiter.clone())).await;
    (limiter, address)
}

struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Opens a socket; or returns the status of the error.
    async fn open(address: SocketAddr, path: &str) -> Result<Self, u16> {
        let stream = TcpStream::connect(address).await.expect("a server");
        match client_async(format!("ws://{address}{path}"), stream).await {
            Ok((socket, response)) => {
                assert_eq!(response.status(), 101);
                Ok(Self(socket))
            }
            Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn opened(address: SocketAddr, path: &str) -> Self {
        let mut socket = Self::open(address, path).await.expect("a permit");
        socket.assert_running().await;
        socket
    }

    async fn say(&mut self, word: &str) {
        let message = tungstenite::Message::text(word);
        self.0.send(message).await.expect("a socket");
    }

    /// The handler is running, and responds.
    async fn assert_running(&mut self) {
        self.say("word").await;
        let response = self.0.next().await.expect("a socket").expect("a response");
        assert_eq!(response.into_text().expect("a text").as_str(), "word");
    }

    /// Closes it as the protocol wants, and waits for the server to do the same.
    async fn close(mut self) {
        self.0.close(None).await.expect("a socket");
        while let Some(Ok(_)) = self.0.next().await {}
    }

    /// Closes the connection without a close frame.
    fn vanish(self) {
        drop(self.0.into_inner());
    }

    /// Resets the connection.
    fn reset(self) {
        let stream = self.0.into_inner();
        stream.set_zero_linger().expect("a socket");
        drop(stream);
    }
}

#[tokio::test]
async fn a_socket_with_a_permit_guard_keeps_its_permit_until_it_is_closed() {
    for world in World::both() {
        let (limiter, address) = one_permit(&world).await;
        for _ in 0..3 {
            let mut socket = Socket::opened(address, "/hold").await;
            for _ in 0..5 {
                let rejected = Socket::open(address, "/hold").await.err();
                assert_eq!(rejected, Some(429), "{}", world.name());
                socket.assert_running().await;
            }
            assert_eq!(used(&limiter, "permits").await, 1);
            socket.close().await;
            until_taken(&limiter, 0).await;
        }
    }
}

#[tokio::test]
async fn a_socket_that_ends_in_another_way_releases_its_permit() {
    for world in World::both() {
        let (limiter, address) = one_permit(&world).await;
        for end in ["vanish", "reset", "panic", "leave"] {
            let mut socket = Socket::opened(address, "/hold").await;
            let rejected = Socket::open(address, "/hold").await.err();
            assert_eq!(rejected, Some(429), "{end} {}", world.name());
            match end {
                "vanish" => socket.vanish(),
                "reset" => socket.reset(),
                word => {
                    socket.say(word).await;
                    while let Some(Ok(_)) = socket.0.next().await {}
                }
            }
            until_taken(&limiter, 0).await;
        }
    }
}

#[tokio::test]
async fn a_socket_that_outlasts_its_permits_ttl_keeps_its_permit() {
    for world in World::both() {
        let (limiter, address) = one_permit(&world).await;
        let mut socket = Socket::opened(address, "/hold").await;
        for _ in 0..4 {
            // Almost all of its TTL, after which a heartbeat renews it.
            world.advance(PERMIT_TTL * 9 / 10);
            world.until_heartbeats(1).await;
            let rejected = Socket::open(address, "/hold").await.err();
            assert_eq!(rejected, Some(429), "{}", world.name());
            socket.assert_running().await;
        }
        socket.vanish();
        until_taken(&limiter, 0).await;
        Socket::opened(address, "/hold").await.close().await;
    }
}

#[tokio::test]
async fn a_socket_without_a_permit_guard_releases_its_permit_when_it_is_opened() {
    for world in World::both() {
        let (limiter, address) = one_permit(&world).await;
        for path in ["/loose", "/kept"] {
            let mut sockets = Vec::new();
            for _ in 0..3 {
                let socket = Socket::opened(address, path).await;
                until_taken(&limiter, 0).await;
                sockets.push(socket);
            }
            for mut socket in sockets {
                socket.assert_running().await;
                socket.close().await;
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_before_its_socket_is_open_holds_no_permit() {
    for world in World::both() {
        let (limiter, address) = one_permit(&world).await;
        for _ in 0..3 {
            let opening = tokio::spawn(Socket::open(address, "/never"));
            until_taken(&limiter, 1).await;
            opening.abort();
            until_taken(&limiter, 0).await;
        }
    }
}

#[tokio::test]
async fn a_socket_is_charged_by_its_handshake_with_and_without_a_permit_guard() {
    for world in World::both() {
        let charged_layer = ChargedLayer::new(&world);
        let address = serve_sockets(charged_layer.layer.clone()).await;
        let ended = Some((RequestEnd::Completed, Some(101), None));

        let mut loose = Socket::opened(address, "/loose").await;
        assert_eq!(
            charged_layer.settled().await,
            (SUCCESS, ended),
            "{}",
            world.name()
        );
        loose.assert_running().await;
        loose.close().await;

        let mut held = Socket::opened(address, "/hold").await;
        until("the handshake is sent", async || {
            charged_layer.in_flight().await == SUCCESS
        })
        .await;
        held.assert_running().await;
        held.close().await;
        assert_eq!(
            charged_layer.settled().await,
            (SUCCESS, ended),
            "{}",
            world.name()
        );

        assert_eq!(Socket::open(address, "/nothing").await.err(), Some(404));
        let ended = Some((RequestEnd::Completed, Some(404), None));
        assert_eq!(
            charged_layer.settled().await,
            (FAILURE, ended),
            "{}",
            world.name()
        );
    }
}
