//! Headers that others have put on a response: those of an upstream behind a proxy are left alone, and those of inner
//! layers are compared.

use axum::response::AppendHeaders;

use crate::http::{support, support::*};

const DIALECTS: [Headers; 6] = [
    Headers::draft(),
    Headers::draft().closest(),
    Headers::draft_06(),
    Headers::draft_06().closest(),
    Headers::x_ratelimit(),
    Headers::x_ratelimit_epoch(),
];

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
    for headers in [Headers::draft(), Headers::draft().closest()] {
        for twice in [false, true] {
            let response = through(&headers, twice, UPSTREAM).await;
            for (name, theirs) in UPSTREAM {
                let lines = lines(&response, name);
                assert_eq!(lines[0], *theirs, "{headers:?}");
                let both = twice && headers == Headers::draft();
                assert_eq!(lines.len(), if both { 3 } else { 2 }, "{lines:?}");
                assert!(lines.last().expect("ours").contains("outer"), "{lines:?}");
            }
        }
    }
}

#[tokio::test]
async fn an_upstreams_triple_is_kept_and_ours_not_added() {
    #[rustfmt::skip]
    const DRAFT_06: &[(&str, &str)] =
        &[("ratelimit-limit", "100, 100;w=60"), ("ratelimit-remaining", "7"), ("ratelimit-reset", "8")];
    #[rustfmt::skip]
    const X_RATELIMIT: &[(&str, &str)] =
        &[("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "59"), ("x-ratelimit-reset", "1372700873")];
    let draft = [Headers::draft_06(), Headers::draft_06().closest()];
    let x = [Headers::x_ratelimit(), Headers::x_ratelimit_epoch()];
    // One of three is enough: ours beside it would be read together.
    for (upstream, ours) in [(DRAFT_06, &draft), (X_RATELIMIT, &x)]
        .into_iter()
        .chain([(&DRAFT_06[1..2], &draft), (&X_RATELIMIT[2..], &x)])
    {
        for headers in ours {
            for twice in [false, true] {
                let response = through(headers, twice, upstream).await;
                let fields = response.headers.iter();
                let fields =
                    fields.map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")));
                let fields = fields.filter(|(name, _)| name.contains("ratelimit"));
                let fields: BTreeSet<_> = fields.collect();
                assert!(fields.iter().eq(upstream), "{headers:?}: {fields:?}");
            }
        }
    }
}

#[tokio::test]
async fn an_upstreams_headers_of_another_format_change_nothing() {
    const THEIRS: &[(&str, &str)] = &[("x-rate-limit-limit", "60"), ("retry-after", "120")];
    for headers in DIALECTS {
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
    for headers in &DIALECTS[1..] {
        for (outer, inner) in [("5/h", "9/h"), ("9/h", "5/h"), ("5/h", "5/h")] {
            let [inner, outer] = [shared("inner", inner), shared("outer", outer)];
            let response = stacked([(headers, inner), (headers, outer)]).await;
            for name in ["ratelimit", "ratelimit-remaining", "x-ratelimit-remaining"] {
                let lines = lines(&response, name);
                assert!(lines.len() <= 1, "{headers:?} {lines:?}");
                if let Some(line) = lines.first() {
                    assert!(line == "4" || line.contains(";r=4;"), "{headers:?} {line}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_rejection_of_an_inner_layer_is_reported() {
    for headers in [&DIALECTS[1], &DIALECTS[2], &DIALECTS[4]] {
        let app = stack([
            (headers, shared("inner", "1/min")),
            (headers, shared("outer", "2/day")),
        ]);
        send(&app, to("/")).await;
        let rejected = send(&app, to("/")).await;
        assert_eq!(rejected.retry_after(), Some(60));
        for (name, value) in [
            ("ratelimit", r#""inner";r=0;t=60"#),
            ("ratelimit-remaining", "0"),
            ("ratelimit-reset", "60"),
            ("x-ratelimit-reset", "60"),
        ] {
            let lines = lines(&rejected, name);
            let is_ours = lines.is_empty() || lines == [value];
            assert!(is_ours, "{headers:?} {lines:?}");
        }
    }
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
async fn outer_layers_append_to_the_lists_of_quotas_and_formats_in_between_duplicate_nothing() {
    let (x, draft) = (&Headers::x_ratelimit(), &Headers::draft_06());
    let inner = || shared("inner", "9/h");
    let response = stacked([(draft, inner()), (draft, shared("outer", "5/min"))]).await;
    assert_eq!(lines(&response, "ratelimit-policy"), ["9;w=3600", "5;w=60"]);
    assert_eq!(lines(&response, "ratelimit-limit"), ["5"]);

    let between = (draft, shared("between", "9/h"));
    let response = stacked([(x, inner()), between, (x, shared("outer", "5/h"))]).await;
    for name in ["x-ratelimit-remaining", "ratelimit-remaining"] {
        assert_eq!(lines(&response, name).len(), 1, "{name}");
    }
}
