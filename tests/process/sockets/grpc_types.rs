//! The layers fit wherever tonic takes one, on the way in and on the way out, and no caller has to name a type parameter of theirs.

use std::error::Error;

use http::uri::PathAndQuery;
use tollgate::{OutgoingLayer, outgoing::Outgoing};
use tonic::{
    Code, Request, Response, Status,
    client::Grpc,
    service::{InterceptorLayer, LayerExt, interceptor::InterceptedService},
    transport::{Channel, Server, server::TcpIncoming},
};
use tower_http::{cors::CorsLayer, timeout::TimeoutLayer, trace::TraceLayer};

use crate::sockets::{
    grpc::{Calls, Client, Text, UNARY, channel, is_rejection, listen, router, serve},
    support::*,
};

/// Two calls an hour.
fn limiter() -> Limiter {
    Limiter::builder().policy(hourly("calls", 2)).built()
}

fn layer() -> RateLimitLayer {
    RateLimitLayer::new(limiter())
}

/// Asserts that the server lets two calls in, and no third.
async fn assert_two(address: SocketAddr) {
    let mut client = Client::connect(address).await;
    for _ in 0..2 {
        assert_eq!(client.unary("word").await.expect("admitted"), "word");
    }
    let status = client.unary("word").await.expect_err("rejected");
    assert!(is_rejection(&status), "{status}");
}

#[tokio::test]
async fn the_layer_fits_among_layers_of_tonics_server() {
    let (listener, address) = listen().await;
    let server = Server::builder()
        .timeout(TEST_TIMEOUT)
        .concurrency_limit_per_connection(16)
        .layer(TraceLayer::new_for_grpc())
        .layer(layer())
        .layer(CorsLayer::permissive())
        .add_optional_service(Some(Calls));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    assert_two(address).await;

    let (listener, address) = listen().await;
    let stack = ServiceBuilder::new()
        .layer(TraceLayer::new_for_grpc())
        .layer(layer())
        .layer(InterceptorLayer::new(Ok::<Request<()>, Status>))
        .into_inner();
    let server = Server::builder().layer(stack).add_service(Calls);
    let incoming = TcpIncoming::from(listener);
    tokio::spawn(server.serve_with_incoming_shutdown(incoming, std::future::pending()));
    assert_two(address).await;
}

#[tokio::test]
async fn the_layer_fits_one_of_tonics_services() {
    let (listener, address) = listen().await;
    let server = Server::builder().add_service(layer().named_layer(Calls));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    assert_two(address).await;
}

#[tokio::test]
async fn the_layer_fits_axum_routers_that_serve_tonic() {
    let web = || Router::new().route("/", get(async || "hello"));
    // Around everything, among others,
    let timed_out = http::StatusCode::GATEWAY_TIMEOUT;
    let stack = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(layer())
        .layer(TimeoutLayer::with_status_code(timed_out, TEST_TIMEOUT));
    assert_two(serve(router().merge(web()).layer(stack)).await).await;
    // around the calls alone,
    assert_two(serve(router().layer(layer()).merge(web())).await).await;
    // and around one service of a router.
    let calls = Calls.map_request(|request: http::Request<axum::body::Body>| {
        request.map(tonic::body::Body::new)
    });
    let one = Router::new().route_service("/test.Calls/{method}", layer().layer(calls));
    assert_two(serve(web().merge(one)).await).await;
}

/// A client whose calls wait their turn, as an application keeps it.
struct Calling {
    plain: Grpc<Outgoing<Channel>>,
    intercepted: Grpc<Outgoing<InterceptedService<Channel, Signs>>>,
}

type Signs = fn(Request<()>) -> Result<Request<()>, Status>;

fn sign(mut request: Request<()>) -> Result<Request<()>, Status> {
    let name = "us".parse().map_err(|_| Status::internal("no name"))?;
    request.metadata_mut().insert("x-caller", name);
    Ok(request)
}

async fn call<S>(client: &mut Grpc<S>) -> Result<String, Status>
where
    S: tonic::client::GrpcService<tonic::body::Body, Error: Into<tower::BoxError>>,
    S::ResponseBody:
        http_body::Body<Data = bytes::Bytes, Error: Into<tower::BoxError>> + Send + 'static,
{
    let ready = client.ready().await;
    ready.map_err(|error| Status::from_error(error.into()))?;
    let path = PathAndQuery::from_static(UNARY);
    let response = client.unary(Request::new("word".to_owned()), path, Text);
    response.await.map(Response::into_inner)
}

#[tokio::test]
async fn a_grpc_client_waits_its_turn_and_gets_a_status_if_that_takes_too_long() {
    let channel = channel(serve(router()).await).await;
    let limiter = limiter();
    let layer = OutgoingLayer::new(limiter.clone()).key(Key::global());
    let mut calling = Calling {
        plain: Grpc::new(layer.layer(channel.clone())),
        intercepted: Grpc::new(layer.layer(InterceptedService::new(channel, sign as Signs))),
    };
    assert_eq!(call(&mut calling.plain).await.expect("let out"), "word");
    let other = call(&mut calling.intercepted).await;
    assert_eq!(other.expect("let out"), "word");
    assert_eq!(used(&limiter, "calls").await, 2);

    let status = call(&mut calling.plain).await.expect_err("too late");
    assert_eq!(status.code(), Code::Unknown);
    let source = status.source().expect("a source");
    let rejected = source.downcast_ref::<Rejected>().expect("a rejection");
    let wait = rejected.retry_after().duration();
    assert!(wait > Some(secs(3_000)), "{wait:?}");
}
