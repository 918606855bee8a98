//! The layers fit wherever tonic takes one, on the way in and on the way out.

use std::error::Error;

use http::uri::PathAndQuery;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    service::{InterceptorLayer, LayerExt, interceptor::InterceptedService},
    transport::{Server, server::TcpIncoming},
};
use tower_http::{cors::CorsLayer, timeout::TimeoutLayer, trace::TraceLayer};

use crate::sockets::{
    grpc::{
        Calls, Client, SERVER_STREAMING, Text, UNARY, channel, is_rejection, listen, router, serve,
    },
    support::*,
};

/// Two calls an hour.
fn limiter() -> Limiter {
    Limiter::builder().policy(hourly("calls", 2)).built()
}

fn layer() -> RateLimitLayer {
    RateLimitLayer::new(limiter())
}

#[tokio::test]
async fn the_layer_fits_servers_services_and_routers_and_lets_two_calls_in() {
    // Among layers of tonic's server,
    let (listener, among) = listen().await;
    let stack = ServiceBuilder::new()
        .layer(TraceLayer::new_for_grpc())
        .layer(layer())
        .layer(InterceptorLayer::new(Ok::<Request<()>, Status>))
        .into_inner();
    let server = Server::builder()
        .concurrency_limit_per_connection(16)
        .layer(stack)
        .layer(CorsLayer::permissive())
        .add_optional_service(Some(Calls));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    // around one of its services,
    let (listener, around_one) = listen().await;
    let server = Server::builder().add_service(layer().named_layer(Calls));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    // around a router,
    let timed_out = http::StatusCode::GATEWAY_TIMEOUT;
    let stack = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(layer())
        .layer(TimeoutLayer::with_status_code(timed_out, TEST_TIMEOUT));
    let around_all = serve(router().layer(stack)).await;
    // and around one service of a router.
    let calls = Calls.map_request(|request: http::Request<axum::body::Body>| {
        request.map(tonic::body::Body::new)
    });
    let one = Router::new().route_service("/test.Calls/{method}", layer().layer(calls));
    for address in [among, around_one, around_all, serve(one).await] {
        let mut client = Client::connect(address).await;
        for _ in 0..2 {
            assert_eq!(client.unary("word").await.expect("admitted"), "word");
        }
        let status = client.unary("word").await.expect_err("rejected");
        assert!(is_rejection(&status), "{status}");
    }
}

#[tokio::test]
async fn a_grpc_client_waits_its_turn_and_gets_a_status_if_that_takes_too_long() {
    let channel = channel(serve(router()).await).await;
    let signed = InterceptedService::new(channel, Ok::<Request<()>, Status>);
    let layer = OutgoingLayer::new(limiter()).key(Key::global());
    let mut client = Grpc::new(layer.layer(signed));
    let mut call = async || {
        client.ready().await.expect("a connection");
        let path = PathAndQuery::from_static(UNARY);
        client
            .unary(Request::new("word".to_owned()), path, Text)
            .await
    };
    for _ in 0..2 {
        assert_eq!(call().await.expect("let out").into_inner(), "word");
    }
    let status = call().await.expect_err("too late");
    assert_eq!(status.code(), Code::Unknown);
    let source = status.source().expect("a source");
    let rejected = source.downcast_ref::<Rejected>().expect("a rejection");
    let wait = rejected.retry_after().duration();
    assert!(wait > Some(secs(3_000)), "{wait:?}");
}

#[tokio::test]
async fn a_stream_of_a_grpc_client_is_in_flight_until_its_trailers_which_are_its_outcome() {
    for (last, code) in [("word", 0), ("fail:8", 8)] {
        let failures = hourly("failures", 9).charge_after(outcome::failure);
        let limiter = Limiter::builder().policy(permit_policy(1)).policy(failures);
        let limiter = limiter.built();
        let channel = channel(serve(router()).await).await;
        let mut client = Grpc::new(OutgoingLayer::new(limiter.clone()).layer(channel));
        client.ready().await.expect("a connection");
        let path = PathAndQuery::from_static(SERVER_STREAMING);
        let words = Request::new(format!("word {last}"));
        let response = client.server_streaming(words, path, Text).await;
        let response = response.expect("a stream");
        assert!(response.extensions().get::<Admission>().is_some());
        let mut stream = response.into_inner();
        let word = stream.message().await.expect("a message");
        assert_eq!(word.as_deref(), Some("word"));
        assert_eq!(used(&limiter, "permits").await, 1);
        let ended = loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => break Code::Ok,
                Err(status) => break status.code(),
            }
        };
        assert_eq!(ended, Code::from(code));
        // The stream is not dropped yet.
        until_taken(&limiter, 0).await;
        let is_charged = async || used(&limiter, "failures").await == u64::from(code != 0);
        until("the outcome is charged", is_charged).await;
    }
}
