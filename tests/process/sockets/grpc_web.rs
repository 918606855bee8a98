//! gRPC-Web rejections: the trailers are a frame of the body, since browsers see no others. Over HTTP/1.1, byte by byte.

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::transport::Server;

use crate::sockets::{
    grpc::{UNARY, router, serve, serve_tonic},
    support::*,
};

/// A layer that rejects every request, with a message that contains a `%`.
fn closed() -> RateLimitLayer {
    let limiter = Limiter::builder().policy(hourly("100% full", 1).cost_with(|_| 2));
    RateLimitLayer::new(limiter.built())
}

/// A response's status line, headers and body.
async fn post(server: SocketAddr, fields: &str) -> (String, HeaderMap, Vec<u8>) {
    let mut socket = TcpStream::connect(server).await.expect("a server");
    let request = format!(
        "POST {UNARY} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 5\r\n{fields}\r\n\0\0\0\0\0"
    );
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut response = Vec::new();
    socket.read_to_end(&mut response).await.expect("a response");
    let end = response.windows(4).position(|four| four == b"\r\n\r\n");
    let body = response.split_off(end.expect("a head") + 4);
    let head = String::from_utf8(response).expect("text");
    let mut lines = head.lines();
    let status = lines.next().expect("a status").to_owned();
    let fields = lines.filter_map(|line| line.split_once(": "));
    let headers = fields.map(|(name, value)| {
        let name = name.parse::<http::HeaderName>().expect("a name");
        (name, value.parse().expect("a value"))
    });
    (status, headers.collect(), body)
}

/// The trailers of a body that has nothing else.
fn trailers(body: &[u8]) -> Vec<(String, String)> {
    let (flag, rest) = body.split_first().expect("a frame");
    assert_eq!(*flag, 0x80, "a frame of trailers, not compressed");
    let (length, lines) = rest.split_first_chunk().expect("a length");
    assert_eq!(u32::from_be_bytes(*length) as usize, lines.len());
    let lines = std::str::from_utf8(lines).expect("text");
    assert!(lines.ends_with("\r\n"));
    let pairs = lines
        .lines()
        .map(|line| line.split_once(':').expect("a pair"));
    pairs
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

fn of<'a>(trailers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let mut values = trailers.iter().filter(|(key, _)| key == name);
    let (_, value) = values.next()?;
    assert!(values.next().is_none(), "{name} twice");
    Some(value)
}

fn assert_rejected(trailers: &[(String, String)]) {
    assert_eq!(of(trailers, "grpc-status"), Some("8"));
    assert_eq!(of(trailers, "grpc-retry-pushback-ms"), Some("-1"));
    let message = of(trailers, "grpc-message").expect("a message");
    assert!(message.contains("100%25 full"), "{message}");
    let details = of(trailers, "grpc-status-details-bin");
    assert!(details.is_some());
}

#[tokio::test]
async fn each_content_type_gets_a_response_of_its_own_kind() {
    let server = serve(router().layer(closed())).await;
    let tonics = serve_tonic(Server::builder().accept_http1(true), closed()).await;
    for (sent, accepted, completed) in [
        ("", "", ""),
        ("+proto; charset=x", "", "+proto"),
        ("-text", "", "-text"),
        ("-text+proto", "", "-text+proto"),
        // The kind that is accepted may be another.
        ("+proto", "application/grpc-web-text", "-text+proto"),
        ("-text+proto", "application/grpc-web+proto", "+proto"),
        ("-text", "*/*", "-text"),
        // Only what can be nothing but a name is repeated.
        ("+a,text/html", "", ""),
    ] {
        for (server, kind) in [
            (server, "application/grpc-web"),
            (tonics, "Application/GRPC-Web"),
        ] {
            let mut fields = format!("content-type: {kind}{sent}\r\n");
            if !accepted.is_empty() {
                fields.push_str(&format!("accept: {accepted}\r\n"));
            }
            let (status, headers, body) = post(server, &fields).await;
            assert_eq!(status, "HTTP/1.1 200 OK", "{sent}");
            let completed_type = format!("application/grpc-web{completed}");
            assert_eq!(
                headers["content-type"], *completed_type,
                "{sent} {accepted}"
            );
            assert_eq!(headers["content-length"], *body.len().to_string());
            // In the body, and there alone: a client that found two would report two.
            assert!(!headers.contains_key("grpc-status"), "{headers:?}");
            assert!(headers.contains_key("ratelimit"), "{headers:?}");
            let body = match completed.starts_with("-text") {
                true => BASE64_STANDARD.decode(&body).expect("base64"),
                false => body,
            };
            assert_rejected(&trailers(&body));
        }
    }
}

#[tokio::test]
async fn a_request_that_only_resembles_grpc_gets_an_http_response() {
    let server = serve(router().layer(closed())).await;
    for (sent, is_grpc) in [
        ("application/grpc+proto", true),
        ("APPLICATION/GRPC; a=b", true),
        ("application/grpcweb", false),
        ("application/grpc-web-texture", false),
        ("text/grpc", false),
        ("application/json; of=application/grpc", false),
        // No text.
        ("application/grpc; \u{e9}", false),
        ("", false),
    ] {
        let (status, headers, body) = post(server, &format!("content-type: {sent}\r\n")).await;
        if is_grpc {
            assert_eq!(status, "HTTP/1.1 200 OK", "{sent}");
            assert_eq!(headers["content-type"], "application/grpc", "{sent}");
            assert_eq!(headers["grpc-status"], "8", "{sent}");
            assert!(body.is_empty());
        } else {
            assert_eq!(status, "HTTP/1.1 429 Too Many Requests", "{sent}");
            assert_eq!(headers["content-type"], "application/problem+json");
        }
    }
}
