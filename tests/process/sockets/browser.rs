//! A page of another origin, in a browser: what it may read of rejections, and what the browser's preflights cost.

use std::collections::HashMap;

use axum::{
    extract::{Request, State},
    http::Method,
    middleware::{Next, from_fn_with_state},
    response::{Html, Response},
    routing::post,
};
use serde::Deserialize;
use tokio::sync::mpsc;
use tollgate::layer::exposed_headers;
use tollgate_tests::chromium;
use tower_http::cors::{Any, CorsLayer};

use crate::sockets::{grpc::serve, support::*};

/// What a page could read of a response; only an error, if it may not read it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PageResponse {
    status: u16,
    retry_after: Option<String>,
    ratelimit: Option<String>,
    policy: Option<String>,
    kind: Option<String>,
    text: String,
    error: Option<String>,
}

/// A server that counts its requests.
struct Api {
    address: SocketAddr,
    layer: RateLimitLayer,
    received: Received,
}

type Received = Arc<Mutex<Vec<Method>>>;

/// Two requests an hour.
fn limit() -> tollgate::limiter::LimiterBuilder<RateLimitLayer> {
    RateLimitLayer::builder().policy(hourly("pages", 2))
}

/// Any origin may send requests, with a preflight each time.
fn cors() -> CorsLayer {
    let cors = CorsLayer::new().allow_origin(Any).allow_headers(Any);
    cors.expose_headers(exposed_headers())
        .max_age(Duration::ZERO)
}

async fn record(State(received): State<Received>, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    received.lock().expect("no panic").push(method);
    next.run(request).await
}

impl Api {
    /// Serves what `stack` makes of a handler.
    async fn serve(layer: RateLimitLayer, stack: impl FnOnce(Router) -> Router) -> Self {
        let received = Received::default();
        let app = Router::new().route("/", get(async || "hello"));
        let app = stack(app).layer(from_fn_with_state(received.clone(), record));
        Self {
            address: serve(app).await,
            layer,
            received,
        }
    }

    /// How many requests it got, and how many preflights.
    fn received(&self) -> (usize, usize) {
        let received = self.received.lock().expect("no panic");
        let count = |method| received.iter().filter(|it| **it == method).count();
        (count(Method::GET), count(Method::OPTIONS))
    }

    async fn left(&self) -> u64 {
        let seen = self.layer.limiter().peek(Key::global()).await;
        seen.expect("a response").left("pages")
    }
}

/// What a page in a browser reports that requests each API four times.
async fn responses_in_a_browser(apis: &[(&str, &Api)]) -> HashMap<String, Vec<PageResponse>> {
    let (sender, mut responses) = mpsc::unbounded_channel();
    let tell = async move |text: String| {
        // The receiver is gone once the test is over.
        let _ = sender.send(text);
    };
    let page = get(async || Html(include_str!("browser.html")));
    let page = serve(Router::new().route("/", page).route("/told", post(tell))).await;
    let asks = apis.iter();
    let asks = asks.map(|(name, api)| format!("{name}=http://{}/", api.address));
    let url = format!("http://{page}/?{}", asks.collect::<Vec<_>>().join("&"));
    let browser = chromium::start(&url, &[]);
    let responses = tokio::time::timeout(TEST_TIMEOUT, responses.recv()).await;
    let responses =
        responses.unwrap_or_else(|_| panic!("the page reported nothing in {TEST_TIMEOUT:?}"));
    drop(browser);
    serde_json::from_str(&responses.expect("a page")).expect("what the page tells")
}

/// A rejection that the page could read all of.
fn assert_reads_rejection(response: &PageResponse) {
    assert_eq!(response.status, 429, "{response:?}");
    assert_eq!(response.error, None);
    let wait = response.retry_after.as_deref().expect("a wait");
    let wait: u64 = wait.parse().expect("seconds");
    assert!((3_000..=3_600).contains(&wait), "{response:?}");
    let ratelimit = response.ratelimit.as_deref().expect("how it stands");
    assert!(ratelimit.starts_with(r#""pages";r=0;t="#), "{response:?}");
    assert_eq!(response.policy.as_deref(), Some(r#""pages";q=2;w=3600"#));
    assert_eq!(response.kind.as_deref(), Some("application/problem+json"));
    assert_contains(&response.text, [r#""violated-policies":["pages"]"#]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_reads_rejections_and_preflights_cost_nothing() {
    // As documented: the CORS layer outside, which responds to preflights by itself.
    let layer = limit().built();
    let inside = layer.clone();
    let inside = Api::serve(layer, |app| app.layer(inside).layer(cors())).await;

    // The other way round preflights pass the limit, and rejections have only the fields that they were given.
    let allow = [
        ("access-control-allow-origin", "*"),
        ("access-control-expose-headers", "*"),
    ];
    let layer = limit()
        .built()
        .on_rejection(move |_, _| (http::StatusCode::TOO_MANY_REQUESTS, allow).into_response());
    let outside = layer.clone();
    let outside = Api::serve(layer, |app| app.layer(cors()).layer(outside)).await;

    let apis = [("inside", &inside), ("outside", &outside)];
    let seen = responses_in_a_browser(&apis).await;

    let [first, second, third, fourth] = &seen["inside"][..] else {
        panic!("four answers: {seen:?}");
    };
    for (response, left) in [(first, 1), (second, 0)] {
        assert_eq!(response.status, 200, "{seen:?}");
        assert_eq!(response.text, "hello");
        let ratelimit = response.ratelimit.as_deref().expect("how it stands");
        let start = format!(r#""pages";r={left};t="#);
        assert!(ratelimit.starts_with(&start), "{seen:?}");
        assert_eq!(response.retry_after, None);
    }
    assert_reads_rejection(third);
    assert_reads_rejection(fourth);
    assert_eq!(inside.received(), (4, 4));
    assert_eq!(inside.left().await, 0);

    let statuses: Vec<_> = seen["outside"].iter().map(|it| it.status).collect();
    assert_eq!(statuses, [200, 200, 429, 429], "{seen:?}");
    assert!(seen["outside"][2].retry_after.is_some(), "{seen:?}");
    assert_eq!(outside.received(), (4, 4));
}
