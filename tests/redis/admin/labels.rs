//! Names of callers beside hashed keys.

use tollgate_tests::{prelude::*, service::send};
use tracing::Level;

use crate::admin::support::*;

/// Policies of two requests an hour, whose callers are named by a header, and how often they were.
fn named() -> ([Policy; 3], Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let by = |name: &str, header, requests| {
        let policy = Policy::new(name, Quota::requests(requests).per_hour());
        policy.key(extract::header(header))
    };
    let api = by("api", "x-api-key", 2).label_with(move |parts| {
        counted.fetch_add(1, Ordering::Relaxed);
        let name = parts.headers.get("x-name")?;
        Some(name.to_str().ok()?.to_owned())
    });
    let abuse = by("abuse", "x-api-key", 1).strategy(Ban::for_duration(secs(3_600)));
    let abuse = abuse.label_with(|_| Some("banned".to_owned()));
    let user = by("user", "x-name", 9).label_with(|_| Some("unused".to_owned()));
    ([api, abuse, user], calls)
}

fn request(key: &str, name: &str) -> http::request::Builder {
    let request = Request::get("/").header("x-api-key", key);
    request.header("x-name", name)
}

#[tokio::test]
async fn a_rejected_caller_is_named_wherever_its_key_is_shown() {
    let (policies, calls) = named();
    let (api, limiter) = Api::observing(Limiter::builder(), policies);
    let layer = RateLimitLayer::new(limiter);
    let log = Log::default();
    let _guard = log.at(Level::DEBUG);
    for _ in 0..2 {
        assert_eq!(send(&layer, request("sk_1", "acme")).await, 200);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0, "of admitted requests");
    assert_eq!(send(&layer, request("sk_1", "acme")).await, 429);
    assert_logged(&log, "a request was rejected", ["label=\"acme\""]);

    let top = api.get("/top").await.json;
    let named = json!({"key": shown("sk_1"), "label": "acme"});
    assert_has(&under(&top["policies"], "api")["keys"][0], named);
    let blocks = api.get("/blocks").await.json;
    assert_eq!(under(&blocks["blocks"], "abuse")["label"], "banned");

    // Of a request as given, also one that was never made. A readable key needs no name.
    let mut head = json!({"method": "GET", "uri": "/", "headers": [["x-api-key", "sk_2"], ["x-name", "other"]]});
    let explained = api.done("/explain", head.clone()).await;
    assert_eq!(under(&explained["policies"], "api")["label"], "other");
    assert_eq!(under(&explained["policies"], "user").get("label"), None);
    // The request is not that of the key that is given.
    head["keys"] = json!({"api": "sk_1"});
    let explained = api.done("/explain", head).await;
    assert_eq!(under(&explained["policies"], "api")["label"], "acme");

    api.done("/reset", about("api", "sk_1")).await;
    assert_logged(&log, "change=\"reset\"", ["label=\"acme\""]);
    api.done("/reset", about("api", shown("sk_3"))).await;
    let lines = log.lines("change=\"reset\"");
    assert!(!lines[1].contains("label"), "{lines:?}");
}

#[tokio::test]
async fn names_stay_when_policies_are_replaced_and_a_call_by_hand_has_none() {
    let limiter = stores::limiter(Limiter::builder(), named().0);
    let layer = RateLimitLayer::new(limiter.clone());
    let log = Log::default();
    let _guard = log.at(Level::DEBUG);
    for _ in 0..3 {
        send(&layer, request("sk_1", "acme")).await;
    }
    let policies = named().0.into_iter();
    let builder = policies.fold(Limiter::builder(), LimiterBuilder::policy);
    limiter.reconfigure(builder).expect("valid");
    let key = Key::secret("sk_1");
    assert!(!limiter.check([("api", key)]).await.is_admitted());
    let lines = log.lines("a request was rejected");
    assert_eq!(lines.len(), 2);
    assert!(lines[1].contains("label=\"acme\""), "{lines:?}");
}
