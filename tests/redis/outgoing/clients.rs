//! Clients as they are in use, over real sockets, and the types that they make.

use axum::body::Bytes;
use http_body_util::Empty;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::net::TcpListener;
use tollgate::outgoing::{AnyResponse, StaticKeys};
use tollgate_tests::{plain_http, prelude::*};
use tonic::transport::{Channel, Endpoint};
use tower::{BoxError, util::BoxCloneService};

use crate::outgoing::support::*;

/// A server that counts its requests.
async fn upstream() -> (SocketAddr, Arc<AtomicUsize>) {
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    let hello = get(async move || format!("hello {}", count.fetch_add(1, Ordering::SeqCst)));
    let app = Router::new().route("/", hello);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, served)
}

fn to(address: SocketAddr) -> Request<Empty<Bytes>> {
    let request = Request::get(format!("http://{address}/"));
    request.body(Empty::new()).expect("a request")
}

#[tokio::test]
async fn an_http_client_waits_its_turn_and_is_rejected_if_that_takes_too_long() {
    let (address, served) = upstream().await;
    let daily = policy("daily", "3/day burst 3");
    let (limiter, time) = limiter([policy("burst", "1/20ms burst 1"), daily]);
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let client = ServiceBuilder::new()
        .layer(OutgoingLayer::new(limiter.clone()))
        .service(client);
    for n in 0..3 {
        let response = client.clone().oneshot(to(address)).await;
        let response = response.expect("a response");
        assert!(response.extensions().get::<Admission>().is_some());
        let body = response.into_body().collect().await.expect("a body");
        assert_eq!(body.to_bytes(), format!("hello {n}"));
    }
    assert!(time.passed() >= ms(40));
    let error = client.oneshot(to(address)).await.expect_err("rejected");
    let rejected: &Rejected = error.downcast_ref().expect("a rejection");
    assert!(rejected.retry_after().duration() > Some(secs(3_600)));
    assert_eq!(served.load(Ordering::SeqCst), 3);
    assert_eq!(left(&limiter, "daily").await, 0);
}

/// Types are as a user would write them: no parameter is named.
#[tokio::test]
async fn layers_and_clients_fit_struct_fields_and_are_send() {
    struct Clients {
        layer: OutgoingLayer,
        any: OutgoingLayer<StaticKeys, AnyResponse>,
        boxed: BoxCloneService<u32, u32, BoxError>,
    }
    fn is_service<Req, S>(service: S) -> S
    where
        S: Service<Req, Future: Send> + Clone + Send + Sync + 'static,
    {
        service
    }
    let (limiter, _) = limiter([policy("p", "100/s")]);
    let any = OutgoingLayer::for_any_response(limiter.clone());
    let layer = OutgoingLayer::new(limiter).key(Key::new("a"));
    let echo = service_fn(async |n: u32| Ok::<_, Infallible>(n));
    let mut clients = Clients {
        boxed: BoxCloneService::new(any.layer(echo)),
        layer,
        any,
    };
    let boxed = clients.boxed.ready().await.expect("ready");
    assert_eq!(boxed.call(7).await.expect("a response"), 7);

    let channel: Channel = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
    let _ = is_service::<Request<tonic::body::Body>, _>(clients.layer.layer(channel));
    let http = plain_http::client();
    let host = |request: &reqwest::Request| Key::new(request.url().host_str().unwrap_or_default());
    let _ = is_service::<reqwest::Request, _>(clients.any.key_with(host).layer(http.clone()));
    let http = ServiceBuilder::new()
        .map_response(|response: Response<_>| {
            reqwest::Response::from(response.map(reqwest::Body::wrap))
        })
        .layer(clients.layer.key_with(host))
        .map_response(Response::<reqwest::Body>::from)
        .service(http);
    let (address, _) = upstream().await;
    let url = format!("http://{address}/").parse().expect("a URL");
    let request = reqwest::Request::new(Method::GET, url);
    let response = is_service(http).oneshot(request).await;
    let response: reqwest::Response = response.expect("a response");
    assert_eq!(response.text().await.expect("a body"), "hello 0");
}
