//! A handler's rejection becomes the same response as its layer's.

use crate::http::support::*;
use axum::response::AppendHeaders;

/// A limiter that rejects its second request.
fn inner() -> Limiter {
    limiter([shared("exports", "1/h")])
}

/// An application whose handler calls a limiter of its own.
fn app(layer: &RateLimitLayer, limiter: Limiter) -> Router {
    let handler = async move || -> Result<&'static str, Rejected> {
        let _admission = limiter.admit(Key::global()).await?;
        Ok("done")
    };
    Router::new().route("/", get(handler)).layer(layer.clone())
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
        let app = app(&burst().headers(headers), inner());
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
}

#[tokio::test]
async fn a_handlers_rejection_is_built_by_the_layers_on_rejection_closure() {
    let layer = burst().on_rejection(|rejected, parts| {
        let name = parts.headers["x-name"].to_str().unwrap_or_default();
        (rejected.status(), format!("not now, {name}: {rejected}")).into_response()
    });
    let response = second_of(app(&layer, inner()), || with("x-name", "alice")).await;
    assert_eq!(response.status, 429);
    let text = response.text();
    let expected = r#"not now, alice: quota exceeded: "exports""#;
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(response.retry_after(), Some(3600));
}

#[tokio::test]
async fn a_browser_gets_a_page_for_both_kinds_of_rejection() {
    let page = || with("accept", "text/html, */*;q=0.8");
    let (one, _) = layer([shared("exports", "1/h")]);
    let by_layer = second_of(app(&one, inner()), page).await;
    let wide = burst().headers(Headers::none());
    let by_handler = second_of(app(&wide, inner()), page).await;
    assert_eq!(by_handler.body, by_layer.body);
    let media_type = by_handler.field("content-type");
    assert_eq!(media_type, "text/plain; charset=utf-8");
}

#[tokio::test]
async fn headers_that_a_handler_adds_to_a_rejection_are_kept() {
    let limiter = inner();
    let handler = async move || match limiter.check(Key::global()).await.into_result() {
        Ok(_) => "done".into_response(),
        Err(rejected) => {
            let cookies = [("set-cookie", "a=1"), ("set-cookie", "b=2")];
            (AppendHeaders(cookies), rejected).into_response()
        }
    };
    let app = Router::new().route("/", get(handler)).layer(burst());
    let response = second_of(app, || to("/")).await;
    assert_eq!(response.status, 429);
    assert_eq!(response.field("set-cookie"), "a=1, b=2");
    response.is_problem_that_no_cache_stores();
}

#[tokio::test]
async fn a_policy_checked_by_layer_and_handler_is_listed_once() {
    let (layer, _) = layer([shared("burst", "3/10s")]);
    // The third of its units is the layer's, and there is none for the handler.
    let response = second_of(app(&layer, layer.limiter().clone()), || to("/")).await;
    assert_eq!(response.status, 429);
    let shown = response.field("ratelimit");
    assert_eq!(shown.matches("burst").count(), 1, "{shown}");
}

#[tokio::test]
async fn layers_charges_stay_charged_unless_they_refund_failures() {
    for refunds in [[false, false], [true, false], [false, true], [true, true]] {
        let (outer, _) = layer([shared("outer", "10/h")]);
        let (closest, _) = layer([shared("closest", "10/h")]);
        let outer = outer.refund_handler_rejections(refunds[0]);
        let closest = closest.refund_handler_rejections(refunds[1]);
        let app = app(&closest, inner()).layer(outer.clone());
        assert_eq!(statuses(&app, 4).await, [200, 429, 429, 429]);
        let charged = [
            charged(&outer, "outer").await,
            charged(&closest, "closest").await,
        ];
        assert_eq!(charged, refunds.map(|refund| if refund { 1 } else { 4 }));
    }
}

#[tokio::test]
async fn a_handler_reports_its_own_admission() {
    #[rustfmt::skip]
    let rows = [
        (Headers::draft(), "ratelimit", r#""exports";r=4;t=2880, "burst";r=9;t=9"#),
        (Headers::draft(), "ratelimit-policy", r#""exports";q=5;w=3600, "burst";q=10;w=10"#),
        (Headers::x_ratelimit(), "x-ratelimit-limit", "5"),
        (Headers::x_ratelimit(), "x-ratelimit-remaining", "4"),
    ];
    for (headers, name, value) in rows {
        let layer = burst().headers(headers.clone());
        let limiter = limiter([shared("exports", "5/h")]);
        let handler = async move || -> Result<_, Rejected> {
            let admission = limiter.admit(Key::global()).await?;
            let mut response = "done".into_response();
            headers.add_to(&mut response, &admission);
            Ok(response)
        };
        let app = Router::new().route("/", get(handler));
        let answer = send(&app.layer(layer), to("/")).await;
        assert_eq!(answer.body, b"done");
        assert_eq!(answer.field(name), value, "{name}");
        assert_eq!(answer.field("retry-after"), "");
    }
}

#[tokio::test]
async fn the_innermost_layer_formats_a_handlers_rejection() {
    let (outer, _) = layer([shared("outer", "10/h")]);
    let (closest, _) = layer([shared("closest", "10/h")]);
    let outer = outer.on_rejection(|_, _| (StatusCode::IM_A_TEAPOT, "outer").into_response());
    let closest =
        closest.on_rejection(|rejected, _| (rejected.status(), "closest").into_response());
    let app = app(&closest, inner()).layer(outer);
    let response = second_of(app, || to("/")).await;
    assert_eq!(response.status, 429);
    assert_eq!(response.body, b"closest");
}
