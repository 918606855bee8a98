//! A page of another origin, in a browser: what it may read of rejections, and what the browser's preflights cost.

use axum::{extract::Request, middleware, response::Html, routing::post};
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

/// What a page in a browser reports that requests an API four times.
async fn responses_in_a_browser(api: SocketAddr) -> Vec<PageResponse> {
    let (sender, mut responses) = mpsc::unbounded_channel();
    let tell = async move |text: String| {
        // The receiver is gone once the test is over.
        let _ = sender.send(text);
    };
    let page = get(async || Html(include_str!("browser.html")));
    let page = serve(Router::new().route("/", page).route("/told", post(tell))).await;
    let browser = chromium::start(&format!("http://{page}/?api=http://{api}/"), &[]);
    let responses = tokio::time::timeout(TEST_TIMEOUT, responses.recv()).await;
    drop(browser);
    let responses = responses.expect("a report in time").expect("a page");
    let mut responses: HashMap<String, _> = serde_json::from_str(&responses).expect("responses");
    responses.remove("api").expect("responses")
}

/// As documented: the CORS layer outside, which responds to preflights by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_reads_rejections_and_preflights_cost_nothing() {
    let policy = hourly("pages", 2);
    let layer = RateLimitLayer::builder().policy(policy).built();
    let cors = CorsLayer::new().allow_origin(Any).allow_headers(Any);
    let cors = cors
        .expose_headers(exposed_headers())
        .max_age(Duration::ZERO);
    let received = Arc::new(Mutex::new(Vec::new()));
    let log = received.clone();
    let record = middleware::map_request(move |request: Request| {
        let method = request.method().clone();
        log.lock().expect("no panic").push(method);
        std::future::ready(request)
    });
    let app = Router::new().route("/", get(async || "hello"));
    let app = app.layer(layer).layer(cors).layer(record);
    let seen = responses_in_a_browser(serve(app).await).await;

    let [first, second, rejected @ ..] = &seen[..] else {
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
    for response in rejected {
        assert_eq!((response.status, &response.error), (429, &None));
        let wait = response.retry_after.as_deref().expect("a wait");
        let wait: u64 = wait.parse().expect("seconds");
        assert!((3_000..=3_600).contains(&wait), "{response:?}");
        let ratelimit = response.ratelimit.as_deref().expect("how it stands");
        assert!(ratelimit.starts_with(r#""pages";r=0;t="#), "{response:?}");
        assert_eq!(response.policy.as_deref(), Some(r#""pages";q=2;w=3600"#));
        assert_eq!(response.kind.as_deref(), Some("application/problem+json"));
        assert_contains(&response.text, [r#""violated-policies":["pages"]"#]);
    }
    let received = received.lock().expect("no panic");
    let [gets, preflights] = [Method::GET, Method::OPTIONS]
        .map(|method| received.iter().filter(|it| **it == method).count());
    assert_eq!((gets, preflights, rejected.len()), (4, 4, 2));
}
