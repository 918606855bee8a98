//! What a real server makes of a response decides its outcome.

use tollgate::outcome::RequestEnd;
use tollgate_tests::prelude::*;

use crate::charging::support::*;

/// Sends a request for `path` to a real server, and reads the response; returns how the outcome closure saw it end.
async fn over_a_socket(method: &str, path: &str) -> RequestEnd {
    use axum::{Router, http::StatusCode, routing::get};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (saw, mut sees) = tokio::sync::mpsc::unbounded_channel();
    let layer = World::memory()
        .layer([window("p", "5/min").charge_after(move |outcome| saw.send(outcome.end()).is_ok())]);
    let pieces = || axum::body::Body::new(streamed(vec![data(), data()]).into_body());
    let app = Router::new()
        .route("/text", get(async || "text"))
        .route("/stream", get(async move || pieces()))
        .route(
            "/length",
            get(async move || ([("content-length", "8")], pieces())),
        )
        .route("/status", get(async || StatusCode::ACCEPTED))
        .route("/none", get(async || StatusCode::NO_CONTENT))
        .layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(axum::serve(listener, app).into_future());
    let mut client = tokio::net::TcpStream::connect(address)
        .await
        .expect("a server");
    let request = format!("{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.expect("a link");
    let mut said = Vec::new();
    client.read_to_end(&mut said).await.expect("a response");
    let end = sees.recv().await.expect("an outcome");
    server.abort();
    end
}

#[tokio::test]
async fn a_response_that_the_server_sent_in_full_is_completed() {
    for method in ["GET", "HEAD"] {
        for path in ["/text", "/stream", "/status", "/none"] {
            let end = over_a_socket(method, path).await;
            assert_eq!(end, RequestEnd::Completed, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_stream_with_a_content_length_is_completed_when_that_was_sent() {
    for method in ["GET", "HEAD"] {
        let end = over_a_socket(method, "/length").await;
        assert_eq!(end, RequestEnd::Completed, "{method}");
    }
}
