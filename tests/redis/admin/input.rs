//! Bodies and queries that no client should send: each is answered by a problem.

use std::sync::LazyLock;

use proptest::prelude::*;
use tollgate::admin::api::OPENAPI;
use tollgate_tests::prelude::*;

use crate::admin::support::{self, *};

/// The routes that have a body, by the document.
static POSTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let document: Value = serde_json::from_str(OPENAPI).expect("JSON");
    let routes = document["paths"].as_object().expect("paths").iter();
    let posts = routes.filter(|(_, methods)| methods["post"].is_object());
    posts.map(|(path, _)| path.clone()).collect()
});

#[tokio::test]
async fn mistakes_in_a_body_change_nothing_and_say_what_is_expected() {
    let (limiter, _) = support::in_process();
    let api = Api::of(&limiter);
    let key = ("api", Key::secret("sk_1"));
    assert!(limiter.admit(key).cost(10).await.is_ok());
    // A misspelled field, so that a reset is not about more than was meant.
    for path in POSTS.iter() {
        let mut body = good_body(path);
        body["polcy"] = json!("api");
        assert_contains(api.mistake(path, body).await, ["unknown field"]);
    }
    for (path, body, expected) in [
        (
            "/block",
            json!(["ban", "192.0.2.1", 60]),
            "the body has to be a JSON object",
        ),
        (
            "/peek",
            about("api", 7),
            "the key is neither a text nor a list of texts",
        ),
        ("/peek", about("address", "alice"), ""),
        ("/peek", about("address", ""), ""),
        ("/peek", about("address", [""; 0]), ""),
        ("/peek", about("address", ["192.0.2.1", "GET"]), ""),
        ("/peek", about("shared", "alice"), ""),
        ("/peek", about("exports", "hash:short"), ""),
    ] {
        assert_contains(api.mistake(path, body).await, [expected]);
    }
    // Quotas that are none, or that the strategy cannot count.
    for quota in [
        "ten",
        "0/min",
        "8 concurrent",
        "1/ns",
        "18446744073709551615/s",
    ] {
        let mut body = json!({"policy": "api", "key": "sk_1", "quota": quota});
        api.mistake("/peek", body.clone()).await;
        body["units"] = json!(5);
        api.mistake("/credit", body).await;
    }
    let unknown = api.post("/peek", &about("ap", "x")).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let detail = unknown.json["detail"].as_str().expect("a detail");
    assert_contains(detail, ["\"api\""]);
    let nested = api.call(Method::POST, "/reset", "[".repeat(60_000)).await;
    assert_eq!(nested.status, StatusCode::BAD_REQUEST);
    let status = limiter.peek(key).await.expect("a response");
    assert_eq!(status.left("api"), 0);
}

#[tokio::test]
async fn a_body_of_another_type_than_json_is_rejected_as_pages_of_other_sites_send_it() {
    let api = support::api();
    for (content_type, status) in [
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
        ("text/plain; application/json", 415),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
    ] {
        let request = http::Request::post("/reset")
            .header("authorization", format!("Bearer {TOKEN}"))
            .header("content-type", content_type)
            .body(good_body("/reset").to_string().into());
        let answer = api.send(request.expect("a request")).await;
        assert_eq!(answer.status, status, "{content_type}");
    }
}

/// Any JSON, with the fields that routes have.
fn any_json() -> impl Strategy<Value = String> {
    let texts = ["api", "address", "*", "hash:AAAAAAAAAAAAAAAAAAAA"].map(str::to_owned);
    let value = prop_oneof![
        prop::sample::select(texts.to_vec()).prop_map(|text| json!(text)),
        "\\PC{0,40}".prop_map(|text| json!(text)),
        any::<i64>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        Just(json!(null)),
        Just(json!({})),
        prop::collection::vec("\\PC{0,9}", 0..4).prop_map(|texts| json!(texts)),
    ];
    let field = prop::sample::select(vec!["policy", "key", "units", "seconds", "quota", "other"]);
    let fields = prop::collection::vec((field, value), 0..5);
    fields.prop_map(|fields| {
        let fields: HashMap<_, _> = fields.into_iter().collect();
        json!(fields).to_string()
    })
}

/// Sends a body to each route that takes one, and a query to each of those that take one.
async fn no_route_fails(api: &Api, body: &[u8], query: &str) {
    let is_answered = |status: StatusCode| status == 200 || status.is_client_error();
    for path in POSTS.iter() {
        let status = api.call(Method::POST, path, body.to_vec()).await.status;
        assert!(is_answered(status), "{path}: {status}");
    }
    let is_kept = |c: &char| c.is_ascii_alphanumeric() || "=&%+".contains(*c);
    let query: String = query.chars().filter(is_kept).collect();
    for path in ["/policies", "/shadows", "/config", "/activity", "/top"] {
        let status = api.get(&format!("{path}?{query}")).await.status;
        assert!(is_answered(status), "{path}: {status}");
    }
}

proptest! {
    #[test]
    fn no_body_and_no_query_makes_a_route_panic_or_fail(
        bytes in prop_oneof![
            any_json().prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..200),
        ],
        query in "[ -~]{0,40}",
    ) {
        static API: LazyLock<Api> = LazyLock::new(|| support::observed().0);
        current_thread().block_on(no_route_fails(&API, &bytes, &query));
    }
}
