//! Headers that others have put on a response: those of an upstream behind a proxy are left alone, and those of inner
//! layers are compared.

use axum::response::AppendHeaders;

use crate::http::{support, support::*};

fn layer(headers: &Headers, policy: Policy) -> RateLimitLayer {
    support::layer([policy]).0.headers(headers.clone())
}

fn lines(response: &TestResponse, name: &str) -> Vec<String> {
    let lines = response.headers.get_all(name).iter();
    let lines = lines.map(|line| line.to_str().expect("ASCII").to_owned());
    lines.collect()
}

/// An upstream's response with these headers, through a layer, or through two of the same format.
async fn through(
    headers: &Headers,
    twice: bool,
    upstream: &[(&'static str, &'static str)],
) -> TestResponse {
    let upstream = upstream.to_vec();
    let proxied = async move || (AppendHeaders(upstream.clone()), "proxied");
    let mut app = Router::new().route("/", get(proxied));
    if twice {
        app = app.layer(layer(headers, shared("inner", "2/h")));
    }
    let app = app.layer(layer(headers, shared("outer", "1/h")));
    send(&app, to("/")).await
}

#[tokio::test]
async fn an_upstreams_lists_are_kept_and_ours_appended() {
    const UPSTREAM: &[(&str, &str)] = &[
        ("ratelimit", r#""theirs";r=1;t=2"#),
        ("ratelimit-policy", r#""theirs";q=3;w=4"#),
    ];
    for (twice, count) in [(false, 2), (true, 3)] {
        let response = through(&Headers::draft(), twice, UPSTREAM).await;
        for (name, theirs) in UPSTREAM {
            let lines = lines(&response, name);
            assert_eq!(lines[0], *theirs);
            assert_eq!(lines.len(), count, "{lines:?}");
            assert!(lines.last().expect("ours").contains("outer"), "{lines:?}");
        }
    }
}

#[tokio::test]
async fn an_upstreams_triple_is_kept_and_ours_not_added() {
    #[rustfmt::skip]
    const UPSTREAM: &[(&str, &str)] =
        &[("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "59"), ("x-ratelimit-reset", "1372700873")];
    // One of three is enough: ours beside it would be read together.
    for upstream in [UPSTREAM, &UPSTREAM[2..]] {
        for twice in [false, true] {
            let response = through(&Headers::x_ratelimit(), twice, upstream).await;
            let fields = response.headers.iter();
            let fields =
                fields.map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")));
            let fields = fields.filter(|(name, _)| name.contains("ratelimit"));
            let fields: BTreeSet<_> = fields.collect();
            assert!(fields.iter().eq(upstream), "{fields:?}");
        }
    }
}

#[tokio::test]
async fn an_upstreams_headers_of_another_format_change_nothing() {
    const THEIRS: &[(&str, &str)] = &[("x-rate-limit-limit", "60"), ("retry-after", "120")];
    for headers in [Headers::draft(), Headers::x_ratelimit()] {
        let response = through(&headers, false, THEIRS).await;
        let plain = through(&headers, false, &[]).await;
        for (name, value) in THEIRS {
            assert_eq!(lines(&response, name), [*value]);
        }
        let ours = |response: &TestResponse| {
            let mut names: Vec<_> = response.headers.keys().cloned().collect();
            names.retain(|name| name.as_str().contains("ratelimit"));
            names.len()
        };
        assert_eq!(ours(&response), ours(&plain));
        assert!(ours(&plain) > 0);
    }
}

#[tokio::test]
async fn the_policy_with_the_least_left_of_all_layers_is_reported() {
    let headers = &Headers::x_ratelimit();
    for (outer, inner) in [("5/h", "9/h"), ("9/h", "5/h"), ("5/h", "5/h")] {
        let [inner, outer] = [shared("inner", inner), shared("outer", outer)];
        let response = stacked([(headers, inner), (headers, outer)]).await;
        assert_eq!(lines(&response, "x-ratelimit-remaining"), ["4"]);
    }
}

#[tokio::test]
async fn the_rejection_of_an_inner_layer_is_reported() {
    let headers = &Headers::x_ratelimit();
    let app = stack([
        (headers, shared("inner", "1/min")),
        (headers, shared("outer", "2/day")),
    ]);
    send(&app, to("/")).await;
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.retry_after(), Some(60));
    assert_eq!(lines(&rejected, "x-ratelimit-reset"), ["60"]);
}

/// `GET /` behind layers of these formats and policies, the innermost first.
fn stack<const N: usize>(layers: [(&Headers, Policy); N]) -> Router {
    let app = Router::new().route("/", get(async || "hello"));
    let layers = layers.map(|(headers, policy)| layer(headers, policy));
    layers.into_iter().fold(app, |app, layer| app.layer(layer))
}

async fn stacked<const N: usize>(layers: [(&Headers, Policy); N]) -> TestResponse {
    send(&stack(layers), to("/")).await
}

#[tokio::test]
async fn a_layer_of_another_format_in_between_duplicates_nothing() {
    let (x, draft) = (&Headers::x_ratelimit(), &Headers::draft());
    let between = (draft, shared("between", "9/h"));
    let response = stacked([
        (x, shared("inner", "9/h")),
        between,
        (x, shared("outer", "5/h")),
    ])
    .await;
    for name in ["x-ratelimit-remaining", "ratelimit"] {
        assert_eq!(lines(&response, name).len(), 1, "{name}");
    }
}
