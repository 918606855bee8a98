//! WebSockets, limited twice: three of them at once for each client address, in the layer, and five messages per ten seconds
//! for each address on all of its sockets together, in the handler. What passes is echoed.
//!
//! A message beyond the quota is answered with the time of a retry. After five such answers the connection is closed with code 1008,
//! policy violation. Counts in process, or on Redis, for any number of processes, if `REDIS_URL` is set.
//!
//! ```text
//! cargo run --example websocket --features websocket
//! websocat ws://127.0.0.1:3000/
//! ```

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::{
        ConnectInfo, State,
        ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code},
    },
    response::Response,
    routing::any,
};
use tokio::net::TcpListener;
use tollgate::{Admission, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, store::Store};

/// Rejected messages in a row after which the connection is closed.
const MAX_REJECTIONS: u32 = 5;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let app = match env::var("REDIS_URL") {
        Ok(url) => {
            // A connection that lasts for hours can wait for a second.
            let store = tollgate::RedisStore::builder().url(url);
            app(store.timeout(Duration::from_secs(1)).build()?)?
        }
        Err(_) => app(MemoryStore::new())?,
    };

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("Listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(stop_signal())
        .await?;
    Ok(())
}

/// Completes at Ctrl-C, and at SIGTERM, by which containers are stopped.
async fn stop_signal() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut signals = signal(SignalKind::terminate()).expect("a handler of SIGTERM");
        signals.recv().await;
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

fn app(store: impl Store + Clone) -> Result<Router, Box<dyn Error>> {
    let layer = RateLimitLayer::builder()
        .store(store.clone())
        .policy(Policy::new("sockets", Quota::concurrent(3)))
        .build()?;
    let quota = Quota::requests(5).per(Duration::from_secs(10));
    let messages = Limiter::builder()
        .store(store)
        .policy(Policy::new("messages", quota))
        .build()?;
    Ok(Router::new()
        .route("/", any(upgrade))
        .layer(layer)
        .with_state(messages))
}

async fn upgrade(
    upgrade: WebSocketUpgrade,
    admission: Admission,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    State(messages): State<Limiter>,
) -> Response {
    // Else the place would be given back with the response, which is when the socket begins.
    let place = admission.hold_permits();
    upgrade.on_upgrade(async move |socket| {
        let _gone = echo(socket, messages, Key::ip(peer.ip())).await;
        drop(place);
    })
}

/// Echoes messages until the client has gone, or is shown out.
async fn echo(mut socket: WebSocket, messages: Limiter, client: Key) -> Result<(), axum::Error> {
    let mut too_many = 0;
    while let Some(message) = socket.recv().await {
        let message = message?;
        if !matches!(message, Message::Text(_) | Message::Binary(_)) {
            continue;
        }
        match messages.admit(client).await {
            Ok(_admission) => {
                too_many = 0;
                socket.send(message).await?;
            }
            Err(rejected) if too_many < MAX_REJECTIONS => {
                too_many += 1;
                // Such as `quota exceeded: "messages"; retry after 1.8s`.
                socket.send(rejected.to_string().into()).await?;
            }
            Err(rejected) => {
                let close = CloseFrame {
                    code: close_code::POLICY,
                    reason: rejected.to_string().into(),
                };
                return socket.send(Message::Close(Some(close))).await;
            }
        }
    }
    Ok(())
}
