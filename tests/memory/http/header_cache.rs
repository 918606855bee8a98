//! Fields that are rendered once are on the responses to which they apply, and on no others.

use crate::http::support::*;

fn request(fields: &[(&str, &str)]) -> Request<Body> {
    let request = Request::get("/");
    let with = |request: http::request::Builder, (name, value): &(&str, &str)| {
        request.header(*name, *value)
    };
    let request = fields.iter().fold(request, with);
    request.body(Body::empty()).expect("a request")
}

#[tokio::test]
async fn each_response_lists_the_policies_that_applied_to_its_request() {
    let own = |parts: &http::request::Parts| {
        let large = parts.headers.contains_key("x-large");
        large.then(|| quota("500/min"))
    };
    let app = app([
        shared("first", "100/min").quota_with(own),
        shared("second", "200/min").skip_with(|parts| parts.headers.contains_key("x-skip")),
    ]);
    for _ in 0..2 {
        for (fields, policies) in [
            (&[][..], r#""first";q=100;w=60, "second";q=200;w=60"#),
            (&[("x-skip", "1")], r#""first";q=100;w=60"#),
            (
                &[("x-large", "1")],
                r#""first";q=500;w=60, "second";q=200;w=60"#,
            ),
        ] {
            let response = send(&app, request(fields)).await;
            assert_eq!(response.status, 200);
            assert_eq!(response.field("ratelimit-policy"), policies);
        }
    }
}

#[tokio::test]
async fn each_rejection_names_the_policies_that_rejected_it() {
    let by = |name: &str| {
        let policy = Policy::new(name, quota("1/h"));
        policy.key(extract::header(name))
    };
    let app = app([by("x-first"), by("x-second")]);
    let from = |first, second| request(&[("x-first", first), ("x-second", second)]);
    assert_eq!(send(&app, from("a", "b")).await.status, 200);
    for _ in 0..2 {
        for (first, second, rejected) in [
            ("a", "other", json!(["x-first"])),
            ("other", "b", json!(["x-second"])),
            ("a", "b", json!(["x-first", "x-second"])),
        ] {
            let response = send(&app, from(first, second)).await;
            assert_eq!(response.status, 429);
            assert_eq!(response.json()["violated-policies"], rejected);
            let length = response.body.len().to_string();
            assert_eq!(response.field("content-length"), length);
        }
    }
}

#[tokio::test]
async fn a_rejection_has_the_detail_of_its_own_request() {
    let cost = |parts: &http::request::Parts| match parts.headers.contains_key("x-large") {
        true => 5,
        false => 1,
    };
    let app = app([shared("p", "1/h").cost_with(cost)]);
    assert_eq!(send(&app, request(&[])).await.status, 200);
    for _ in 0..2 {
        let large = send(&app, request(&[("x-large", "1")])).await.json();
        let detail = "The request costs 5, of which policy p allows at most 1.";
        assert_eq!(large["detail"], detail);
        assert!(send(&app, request(&[])).await.json()["detail"].is_null());
    }
}
