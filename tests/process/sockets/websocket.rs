//! WebSockets that hold the permit of the request they began with, and WebSockets that don't.

use axum::{
    extract::ws::{self, WebSocket, WebSocketUpgrade},
    response::Response,
    routing::any,
};
use tollgate::outcome::RequestEnd;
use tollgate_tests::websocket::{Message, Socket};

use crate::sockets::{grpc::serve, support::*};

/// Echoes each text, until the client has closed; at `panic` it panics, at `leave` it returns.
async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        match &message {
            ws::Message::Text(text) if text.as_str() == "panic" => {
                std::panic::resume_unwind(Box::new("as asked"))
            }
            ws::Message::Text(text) if text.as_str() == "leave" => return,
            ws::Message::Text(_) => {}
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

async fn serve_sockets(layer: RateLimitLayer) -> SocketAddr {
    let router = Router::new()
        .route("/hold", any(hold))
        .route("/loose", any(loose));
    serve(router.layer(layer)).await
}

/// Opens a socket whose handler is running.
async fn opened(address: SocketAddr, path: &str) -> Socket {
    let mut socket = Socket::open(address, path).await.expect("a permit");
    assert_running(&mut socket).await;
    socket
}

async fn assert_running(socket: &mut Socket) {
    assert_eq!(socket.say("word").await, Message::text("word"));
}

#[tokio::test]
async fn a_socket_with_a_permit_guard_keeps_its_permit_until_it_ends_however_that_is() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(1)]);
        let address = serve_sockets(RateLimitLayer::new(limiter.clone())).await;
        for end in ["close", "vanish", "reset", "panic", "leave"] {
            let _case = Case(format!("{end} {}", world.name()));
            let mut socket = opened(address, "/hold").await;
            let rejected = Socket::open(address, "/hold").await.err();
            assert_eq!(rejected, Some(429));
            assert_running(&mut socket).await;
            assert_eq!(used(&limiter, "permits").await, 1);
            match end {
                "close" => socket.close().await,
                "vanish" => drop(socket.into_stream()),
                "reset" => socket.into_stream().set_zero_linger().expect("a stream"),
                word => {
                    socket.send(word).await;
                    while socket.next().await.is_some() {}
                }
            }
            until_taken(&limiter, 0).await;
        }
    }
}

#[tokio::test]
async fn a_socket_is_charged_by_its_handshake_with_and_without_a_permit_guard() {
    for world in World::both() {
        let charged_layer = ChargedLayer::new(&world);
        let address = serve_sockets(charged_layer.layer.clone()).await;
        let ended = |status| Some((RequestEnd::Completed, Some(status), None));
        let mut loose = opened(address, "/loose").await;
        // It has released its permit.
        assert_eq!(charged_layer.settled().await, (SUCCESS, ended(101)));
        assert_running(&mut loose).await;
        loose.close().await;

        let mut held = opened(address, "/hold").await;
        let is_sent = async || charged_layer.in_flight().await == SUCCESS;
        until("the handshake is sent", is_sent).await;
        assert_running(&mut held).await;
        held.close().await;
        assert_eq!(charged_layer.settled().await, (SUCCESS, ended(101)));

        assert_eq!(Socket::open(address, "/nothing").await.err(), Some(404));
        assert_eq!(charged_layer.settled().await, (FAILURE, ended(404)));
    }
}
