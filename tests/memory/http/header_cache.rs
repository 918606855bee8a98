//! Fields that are rendered once are on the responses to which they apply, and on no others.

use crate::http::support::*;

fn request(fields: &[(&str, &str)]) -> Request<Body> {
    let fields = fields.iter();
    empty(fields.fold(Request::get("/"), |all, (name, value)| {
        all.header(*name, *value)
    }))
}

#[tokio::test]
async fn each_response_lists_the_policies_that_applied_to_its_request() {
    let own = |parts: &Parts| {
        let large = parts.headers.contains_key("x-large");
        large.then(|| quota("500/min"))
    };
    let app = app([
        shared("first", "100/min").quota_with(own),
        shared("second", "200/min").skip_with(|parts| parts.headers.contains_key("x-skip")),
    ]);
    let (all, first) = (
        r#""first";q=100;w=60, "second";q=200;w=60"#,
        r#""first";q=100;w=60"#,
    );
    let large = r#""first";q=500;w=60, "second";q=200;w=60"#;
    for _ in 0..2 {
        let (skips, raises) = ([("x-skip", "1")], [("x-large", "1")]);
        for (fields, policies) in [(&[][..], all), (&skips, first), (&raises, large)] {
            let response = send(&app, request(fields)).await;
            assert_eq!(response.status, 200);
            assert_eq!(response.field("ratelimit-policy"), policies);
        }
    }
}

#[tokio::test]
async fn each_rejection_names_the_policies_that_rejected_it() {
    let by = |name: &str| Policy::new(name, quota("1/h")).key(extract::header(name));
    let app = app([by("x-first"), by("x-second")]);
    let from = |first, second| request(&[("x-first", first), ("x-second", second)]);
    assert_eq!(send(&app, from("a", "b")).await.status, 200);
    for _ in 0..2 {
        for (first, second, rejected) in [
            ("a", "other", &["x-first"][..]),
            ("other", "b", &["x-second"]),
            ("a", "b", &["x-first", "x-second"]),
        ] {
            let response = send(&app, from(first, second)).await;
            assert_eq!(response.status, 429);
            assert_eq!(response.violated(), rejected);
            let length = response.body.len().to_string();
            assert_eq!(response.field("content-length"), length);
        }
    }
}

#[tokio::test]
async fn a_rejection_has_the_detail_of_its_own_request() {
    let cost = |parts: &Parts| {
        if parts.headers.contains_key("x-large") {
            5
        } else {
            1
        }
    };
    let app = app([shared("p", "1/h").cost_with(cost)]);
    assert_eq!(send(&app, request(&[])).await.status, 200);
    for _ in 0..2 {
        let large = send(&app, request(&[("x-large", "1")])).await;
        let detail = "The request costs 5, of which policy p allows at most 1.";
        assert_eq!(large.detail(), detail);
        assert_eq!(send(&app, request(&[])).await.detail(), "");
    }
}
