//! What a client sees: the fields on every response, and the rejection by a layer or a handler.

use axum::response::AppendHeaders;
use tollgate::layer::Rejections;

use crate::http::support::*;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Both headers of a response.
pub(crate) fn fields(response: &TestResponse) -> [String; 2] {
    ["ratelimit-policy", "ratelimit"].map(|name| response.field(name))
}

/// A request with these fields.
fn request(fields: &[(&str, &str)]) -> Request<Body> {
    let fields = fields.iter();
    empty(fields.fold(Request::get("/"), |all, (name, value)| {
        all.header(*name, *value)
    }))
}

#[tokio::test]
async fn ratelimit_policy_has_the_rate_and_ratelimit_what_remains_of_the_burst() {
    let (layer, _) = layer([shared("burst", "10/s burst 30")]);
    let response = send(&hello(&layer), to("/")).await;
    let expected = [r#""burst";q=10;w=1"#, r#""burst";r=29;t=3"#];
    assert_eq!(fields(&response), expected);
}

#[tokio::test]
async fn a_rejection_is_problem_details_that_no_cache_may_store() {
    let narrow = ["narrow (per hour)", "narrow too"].map(|name| shared(name, "1/h"));
    let app = app([shared("wide", "100/h")].into_iter().chain(narrow));
    assert_eq!(status(&app, "/").await, 200);
    let response = send(&app, to("/")).await;
    assert_eq!(response.status, 429);
    response.is_problem_that_no_cache_stores();
    assert_eq!(response.retry_after(), Some(3_600));
    assert_eq!(
        response.json(),
        json!({
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": ["narrow (per hour)", "narrow too"],
        })
    );
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_rejected_without_a_retry_after() {
    let small = shared("small", "5/s").cost_with(|_| 6);
    let (layer, _) = layer([small, shared("other", "100/s")]);
    let response = send(&hello(&layer), to("/")).await;
    assert_eq!(response.status, 429);
    assert_eq!(response.retry_after(), None);
    assert_eq!(response.violated(), ["small"]);
    let detail = "The request costs 6, of which policy small allows at most 5.";
    assert_eq!(response.detail(), detail);
    assert_eq!(charged(&layer, "other").await, 0);
    // A page for people contains it too.
    let page = send(&hello(&layer), with("accept", "text/html")).await;
    assert!(page.text().contains(detail), "{}", page.text());
    let response = send(&hello(&layer), grpc_call()).await;
    let message = format!("{detail} Exceeded: small.");
    assert_eq!(response.field("grpc-message"), message);
}

#[tokio::test]
async fn browsers_are_rejected_with_a_page_and_other_clients_with_json() {
    let firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let app = app([shared("once", "1/h")]);
    status(&app, "/").await;
    for (accept, is_page) in [
        (&[firefox.as_bytes()][..], true),
        (&[b"text/plain"], true),
        (&[b"TEXT/*;q=0.5"], true),
        (&[b"*/*"], false),
        (&[b""], false),
        (&[b"application/json"], false),
        (&[b"text/html, application/json;q=0.1"], false),
        (&[b"text/html, application/problem+json"], false),
        (&[b"text/html, application/json;q=0"], true),
        (&[b"text/html;q=0.000, */*"], false),
        (&[b"image/avif,image/webp"], false),
        (&[b";;,,q="], false),
        // Several lines are one list; what is no text is nothing.
        (&[b"text/html", b"application/json"], false),
        (&[b"text/\xff"], false),
    ] {
        let response = send(&app, lines("accept", accept)).await;
        assert_eq!(response.status, 429);
        assert_eq!(response.retry_after(), Some(3_600));
        if is_page {
            let media_type = response.field("content-type");
            assert_eq!(media_type, "text/plain; charset=utf-8", "{accept:?}");
            let length = response.body.len().to_string();
            assert_eq!(response.field("content-length"), length);
            assert_eq!(response.field("cache-control"), "no-store");
            let words = response.text();
            assert!(words.starts_with("429 Too Many Requests\n"), "{words}");
            assert_contains(words, ["Exceeded: once. Try again in 3600 seconds."]);
        } else {
            response.is_problem_that_no_cache_stores();
        }
    }
}

/// Fields and problems that are rendered once are on the responses to which they apply, and on no others.
#[tokio::test]
async fn each_response_is_about_the_policies_that_applied_to_its_request() {
    let own = |parts: &Parts| {
        let large = parts.headers.contains_key("x-large");
        large.then(|| quota("500/min"))
    };
    let by_query = app([
        shared("first", "100/min").quota_with(own),
        shared("second", "200/min").skip_with(|parts| parts.headers.contains_key("x-skip")),
    ]);
    let first = r#""first";q=100;w=60"#;
    let both = r#""first";q=100;w=60, "second";q=200;w=60"#;
    let large = r#""first";q=500;w=60, "second";q=200;w=60"#;
    let by = |name: &str| Policy::new(name, quota("1/h")).key(extract::header(name));
    let cost = |parts: &Parts| {
        if parts.headers.contains_key("x-large") {
            5
        } else {
            1
        }
    };
    let rejecting = app([by("x-first").cost_with(cost), by("x-second")]);
    let from = |first, second| request(&[("x-first", first), ("x-second", second)]);
    assert_eq!(send(&rejecting, from("a", "b")).await.status, 200);
    let too_large = "The request costs 5, of which policy x-first allows at most 1.";
    let costly = [("x-first", "a"), ("x-second", "c"), ("x-large", "1")];
    for _ in 0..2 {
        let (skips, raises) = ([("x-skip", "1")], [("x-large", "1")]);
        for (fields, policies) in [(&[][..], both), (&skips, first), (&raises, large)] {
            let response = send(&by_query, request(fields)).await;
            assert_eq!(response.field("ratelimit-policy"), policies);
        }
        for (request, rejected, detail) in [
            (from("a", "c"), &["x-first"][..], ""),
            (from("c", "b"), &["x-second"], ""),
            (from("a", "b"), &["x-first", "x-second"], ""),
            (request(&costly), &["x-first"], too_large),
        ] {
            let response = send(&rejecting, request).await;
            assert_eq!(response.violated(), rejected);
            assert_eq!(response.detail(), detail);
            response.is_problem_that_no_cache_stores();
        }
    }
}

#[tokio::test]
async fn a_failed_store_admits_by_default_and_rejects_with_503_if_configured() {
    let builder = RateLimitLayer::builder().store(StubStore::unreachable());
    let app = hello(&builder.policy(shared("burst", "10/s")).built());
    for _ in 0..12 {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, 200);
        assert_eq!(fields(&response), ["", ""]);
    }
    for headers in [Headers::draft(), Headers::x_ratelimit(), Headers::none()] {
        let _case = Case(format!("{headers:?}"));
        let layer = rejecting(StubStore::unreachable(), shared("burst", "10/s"));
        let layer = layer.headers(headers);
        let response = send(&hello(&layer), to("/")).await;
        assert_eq!(response.status, 503);
        assert_eq!(response.retry_after(), Some(1));
        response.is_problem_that_no_cache_stores();
        let problem = response.json();
        assert_eq!(
            (&problem["type"], &problem["status"]),
            (&json!(REDUCED_CAPACITY), &json!(503))
        );
        assert!(problem["title"].is_string());
        // Nothing is known of any quota, so none is reported; least of all the store's address.
        let mut fields = response.headers.keys();
        assert!(!fields.any(|name| name.as_str().contains("ratelimit")));
        assert!(!response.text().contains("127.0.0.1"));
        // The rejection of a handler is the same.
        let by_handler = send(&handler(layer.limiter().clone()), to("/")).await;
        assert_eq!(by_handler, response);
    }
}

/// An application whose handler calls a limiter of its own.
fn handler(limiter: Limiter) -> Router {
    let handler = async move || -> Result<&'static str, Rejected> {
        let _admission = limiter.admit(Key::global()).await?;
        Ok("hello")
    };
    Router::new().route("/", get(handler))
}

/// A limiter that rejects its second request.
fn inner() -> Limiter {
    limiter([shared("exports", "1/h")])
}

/// The response of an application to its second request.
async fn second_of(app: Router, request: impl Fn() -> Request<Body>) -> TestResponse {
    assert_eq!(send(&app, request()).await.status, 200);
    send(&app, request()).await
}

/// A layer that has room for all requests of a test.
fn burst() -> RateLimitLayer {
    layer([shared("burst", "10/10s")]).0
}

#[tokio::test]
async fn a_handlers_rejection_equals_the_layers() {
    let (layer, _) = layer([shared("few", "2/min"), shared("many", "50/h")]);
    assert_eq!(statuses(&hello(&layer), 2).await, [200, 200]);
    let own = handler(layer.limiter().clone());
    assert_eq!(
        send(&own, to("/")).await,
        send(&hello(&layer), to("/")).await
    );
    // A browser gets a page for both.
    let around = own.layer(burst().headers(Headers::none()));
    let page = || with("accept", "text/html, */*;q=0.8");
    let [by_handler, by_layer] = [
        send(&around, page()).await,
        send(&hello(&layer), page()).await,
    ];
    assert_eq!(by_handler.status, 429);
    assert_eq!(by_handler.body, by_layer.body);
    let media_type = by_handler.field("content-type");
    assert_eq!(media_type, "text/plain; charset=utf-8");
    // The form is that of the layer around the handler.
    let openai = handler(layer.limiter().clone()).layer(burst().rejections(Rejections::OpenAi));
    let error = &send(&openai, to("/")).await.json()["error"];
    assert_eq!(error["code"], "rate_limit_exceeded");
}

#[tokio::test]
async fn a_handlers_rejection_has_the_headers_of_the_layer_and_no_others() {
    #[rustfmt::skip]
    let rows = [
        (Headers::x_ratelimit(), ["x-ratelimit-limit: 1", "x-ratelimit-remaining: 0"], 3),
        (
            Headers::draft(),
            [r#"ratelimit: "exports";r=0;t=3600, "burst";r=8;t=8"#, r#"ratelimit-policy: "exports";q=1;w=3600, "burst";q=10;w=10"#],
            2,
        ),
        (Headers::none(), ["retry-after: 3600"; 2], 0),
    ];
    for (headers, expected, fields) in rows {
        let app = handler(inner()).layer(burst().headers(headers));
        let response = second_of(app, || to("/")).await;
        assert_eq!(response.status, 429);
        response.is_problem_that_no_cache_stores();
        assert_eq!(response.retry_after(), Some(3600));
        for field in expected {
            let (name, value) = field.split_once(": ").expect(field);
            assert_eq!(response.field(name), value, "{name}");
        }
        let names = response.headers.keys();
        let found = names.filter(|name| name.as_str().contains("ratelimit"));
        assert_eq!(found.count(), fields, "{response:?}");
    }
    // A policy checked by layer and handler is listed once: the third of its units is the layer's.
    let (layer, _) = layer([shared("burst", "3/10s")]);
    let app = handler(layer.limiter().clone()).layer(layer);
    let shown = second_of(app, || to("/")).await.field("ratelimit");
    assert_eq!(shown.matches("burst").count(), 1, "{shown}");
}

#[tokio::test]
async fn headers_that_a_handler_adds_to_a_rejection_are_kept() {
    let limiter = inner();
    let handler = async move || match limiter.admit(Key::global()).await {
        Ok(_) => "done".into_response(),
        Err(rejected) => {
            let fields = [("set-cookie", "a=1"), ("set-cookie", "b=2")];
            let cached = [("cdn-cache-control", "max-age=60")];
            (AppendHeaders(fields), cached, rejected).into_response()
        }
    };
    let app = Router::new().route("/", get(handler)).layer(burst());
    let response = second_of(app, || to("/")).await;
    assert_eq!(response.status, 429);
    assert_eq!(response.field("set-cookie"), "a=1, b=2");
    response.is_problem_that_no_cache_stores();
    assert_eq!(response.field("cdn-cache-control"), "");
}

#[tokio::test]
async fn layers_charges_stay_charged_unless_they_refund_failures() {
    for refunds in [[false, false], [true, false], [false, true], [true, true]] {
        let (outer, _) = layer([shared("outer", "10/h")]);
        let (closest, _) = layer([shared("closest", "10/h")]);
        let outer = outer.refund_handler_rejections(refunds[0]);
        let closest = closest.refund_handler_rejections(refunds[1]);
        let app = handler(inner()).layer(closest.clone()).layer(outer.clone());
        assert_eq!(statuses(&app, 4).await, [200, 429, 429, 429]);
        let charged = [
            charged(&outer, "outer").await,
            charged(&closest, "closest").await,
        ];
        assert_eq!(charged, refunds.map(|refund| if refund { 1 } else { 4 }));
    }
}

#[tokio::test]
async fn a_handlers_rejection_is_built_by_the_innermost_layers_closure() {
    let (outer, _) = layer([shared("outer", "10/h")]);
    let outer = outer.on_rejection(|_, _| (StatusCode::IM_A_TEAPOT, "outer").into_response());
    let closest = burst().on_rejection(|rejected, parts| {
        let name = parts.headers["x-name"].to_str().unwrap_or_default();
        (rejected.status(), format!("not now, {name}: {rejected}")).into_response()
    });
    let app = handler(inner()).layer(closest).layer(outer);
    let response = second_of(app, || with("x-name", "alice")).await;
    assert_eq!(response.status, 429);
    let expected = r#"not now, alice: quota exceeded: "exports""#;
    assert!(response.text().starts_with(expected), "{response:?}");
    assert_eq!(response.retry_after(), Some(3600));
}

#[tokio::test]
async fn a_response_for_many_callers_says_nothing_of_one_and_a_refunded_one_nothing_of_a_charge() {
    let respond = |status: u16, cache: &'static str| {
        let (layer, _) = layer([shared("pages", "10/h").refund_unless(|outcome| {
            let free = [StatusCode::NOT_MODIFIED, StatusCode::NOT_FOUND];
            !outcome
                .status()
                .is_some_and(|status| free.contains(&status))
                && !outcome
                    .headers()
                    .is_some_and(|all| all.contains_key("x-free"))
        })]);
        let handler = get(move || async move {
            let status = StatusCode::from_u16(status).expect("a status");
            let field = cache.split_once(": ").unwrap_or(("cache-control", cache));
            let mut response = (status, [field], Body::empty()).into_response();
            if cache == "free" {
                let headers = response.headers_mut();
                headers.insert("x-free", HeaderValue::from_static("1"));
                headers.insert("content-length", HeaderValue::from_static("0"));
            }
            response
        });
        Router::new().route("/", handler).layer(layer)
    };
    #[rustfmt::skip]
    let rows = [
        (200, "private, max-age=60", r#""pages";r=9"#),
        (200, "no-cache", r#""pages";r=9"#),
        (200, "max-age=5, Public", ""),
        (200, "s-maxage = 60", ""),
        (200, r#"no-cache="a, public, b", private"#, r#""pages";r=9"#),
        (200, "cdn-cache-control: max-age=60", ""),
        (200, "surrogate-control: content=\"ESI/1.0\"", r#""pages";r=9"#),
        // The head decides that nothing is charged: no body follows.
        (304, "private", r#""pages";r=10"#),
        (200, "free", r#""pages";r=10"#),
        (204, "private", r#""pages";r=9"#),
        (404, "private", r#""pages";r=10"#),
    ];
    for (status, cache, expected) in rows {
        let response = send(&respond(status, cache), to("/")).await;
        let field = response.field("ratelimit");
        assert!(
            field.starts_with(expected) && field.is_empty() == expected.is_empty(),
            "{status} {cache}: {field:?}"
        );
        assert_eq!(
            response.field("ratelimit-policy").is_empty(),
            expected.is_empty()
        );
    }
}

#[tokio::test]
async fn a_suspended_caller_and_one_whose_quota_cannot_be_counted_are_admitted_nothing() {
    let zero = Quota::requests(0).per_minute();
    let coarse = Quota::requests(999_999).per_second();
    for (own, warns) in [(zero, false), (coarse, true)] {
        let policy = shared("plans", "10/h")
            .quota_with(move |parts| parts.headers.contains_key("x-plan").then_some(own))
            .tier_quotas([zero]);
        let (layer, _) = layer([policy.clone()]);
        let app = hello(&layer);
        let rejected = send(&app, with("x-plan", "other")).await;
        assert_eq!(
            (rejected.status.as_u16(), rejected.retry_after()),
            (429, None),
            "{own}"
        );
        assert_eq!(rejected.violated(), ["plans"]);
        // Others are as they were, and nothing was charged.
        let admitted = send(&app, to("/")).await;
        assert_eq!(admitted.status, 200);
        assert!(admitted.field("ratelimit").starts_with(r#""plans";r=9"#));
        let limiter = layer.limiter();
        let by_hand = limiter.check(Key::global()).quota_for("plans", own).await;
        assert!(!by_hand.is_admitted(), "{own}");
        let seen = limiter.peek(Key::global()).quota_for("plans", own).await;
        assert!(!seen.expect("a response").would_admit());
        let health = limiter.health_check().await;
        assert!(health.is_healthy());
        assert_eq!(health.warnings().len(), usize::from(warns), "{health:?}");
    }
}
