//! A layer around everything, and another around one route; and fields about limits that an upstream or an inner layer has put on a
//! response.

use axum::response::AppendHeaders;

use crate::http::{support, support::*};

struct Stack {
    app: Router,
    outer: RateLimitLayer,
    inner: RateLimitLayer,
}

/// `/` is behind both layers, `/open` behind the outer one. `/` responds with the policies that admitted it.
fn stack(outer: &str, inner: &str) -> Stack {
    let (outer, _) = layer([shared("everything", outer)]);
    let (inner, _) = layer([shared("search", inner)]);
    let search = async |admission: Admission| {
        let decisions = admission.decisions();
        let policies = decisions.iter().flat_map(Decision::policies);
        let names: Vec<_> = policies.map(|own| own.policy()).collect();
        names.join(" ")
    };
    let app = Router::new()
        .route("/", get(search).layer(inner.clone()))
        .route("/open", get(async || "open"))
        .layer(outer.clone());
    Stack { app, outer, inner }
}

#[tokio::test]
async fn both_layers_charge_and_a_response_and_an_admission_list_the_policies_of_both() {
    let stack = stack("10/h", "5/h");
    let response = send(&stack.app, to("/")).await;
    // The outermost decision is first.
    assert_eq!(response.text(), "everything search");
    let policies = [r#""everything";q=10;w=3600"#, r#""search";q=5;w=3600"#];
    let limits = [r#""everything";r=9;t=3240"#, r#""search";r=4;t=2880"#];
    for (name, expected) in [("ratelimit-policy", policies), ("ratelimit", limits)] {
        let list = response.field(name);
        let mut members: Vec<_> = list.split(", ").collect();
        members.sort_unstable();
        assert_eq!(members, expected);
    }
    assert_eq!(charged(&stack.outer, "everything").await, 1);
    assert_eq!(charged(&stack.inner, "search").await, 1);
}

#[tokio::test]
async fn a_rejection_by_an_inner_layer_costs_nothing_in_an_outer_one_and_lists_both() {
    let stack = stack("10/day", "2/s");
    assert_eq!(statuses(&stack.app, 3).await, [200, 200, 429]);
    let rejected = send(&stack.app, to("/")).await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.violated(), ["search"]);
    assert_eq!(rejected.retry_after(), Some(1));
    // The outer layer shows what is left after its refund. No client waits longer than for `Retry-After`.
    let limits = rejected.field("ratelimit");
    assert_contains(&limits, ["search", r#""everything";r=8"#]);
    assert!(rejected.resets().iter().all(|t| *t <= 1), "{limits}");
    assert_eq!(charged(&stack.outer, "everything").await, 2);
    for open in [[200; 8].as_slice(), &[429]].concat() {
        assert_eq!(status(&stack.app, "/open").await, open);
    }
    // A rejection by the outer layer never reaches the inner one.
    stack.inner.limiter().reset(KEY).await.expect("a reset");
    assert_eq!(status(&stack.app, "/").await, 429);
    assert_eq!(charged(&stack.inner, "search").await, 0);
}

#[tokio::test]
async fn with_several_layers_each_outer_charge_is_refunded_once_also_for_a_missing_key() {
    let tenants = shared("last", "1/h").key(extract::header("x-tenant"));
    for (last, request, rejection) in [
        (shared("last", "1/h"), to("/"), 429),
        (tenants, to("/"), 400),
    ] {
        let layers = ["a", "b", "c"].map(|name| layer([shared(name, "10/h")]).0);
        let app = layers.iter().fold(hello(&layer([last]).0), |app, layer| {
            app.layer(layer.clone())
        });
        assert_eq!(send(&app, with("x-tenant", "a")).await.status, 200);
        assert_eq!(send(&app, request).await.status, rejection);
        for (layer, name) in layers.iter().zip(["a", "b", "c"]) {
            assert_eq!(charged(layer, name).await, 1, "{name}");
        }
    }
}

fn formatted(headers: &Headers, policy: Policy) -> RateLimitLayer {
    support::layer([policy]).0.headers(headers.clone())
}

fn lines_of(response: &TestResponse, name: &str) -> Vec<String> {
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
        app = app.layer(formatted(headers, shared("inner", "2/h")));
    }
    let app = app.layer(formatted(headers, shared("outer", "1/h")));
    send(&app, to("/")).await
}

#[tokio::test]
async fn an_upstreams_lists_are_kept_and_ours_appended() {
    const UPSTREAM: &[(&str, &str)] = &[
        ("ratelimit", r#""theirs";r=1;t=2"#),
        ("ratelimit-policy", r#""theirs";q=3;w=4"#),
        ("x-rate-limit-limit", "60"),
        ("retry-after", "120"),
    ];
    for (twice, count) in [(false, 2), (true, 3)] {
        let response = through(&Headers::draft(), twice, UPSTREAM).await;
        for (name, theirs) in &UPSTREAM[..2] {
            let lines = lines_of(&response, name);
            assert_eq!(lines[0], *theirs);
            assert_eq!(lines.len(), count, "{lines:?}");
            assert!(lines.last().expect("ours").contains("outer"), "{lines:?}");
        }
        for (name, theirs) in &UPSTREAM[2..] {
            assert_eq!(lines_of(&response, name), [*theirs]);
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
async fn of_all_layers_a_rejection_or_the_policy_with_the_least_left_is_reported() {
    let headers = &Headers::x_ratelimit();
    let app = |inner, outer| {
        let inner = hello(&formatted(headers, shared("inner", inner)));
        // A layer of another format in between duplicates nothing.
        let between = formatted(&Headers::draft(), shared("between", "9/h"));
        inner
            .layer(between)
            .layer(formatted(headers, shared("outer", outer)))
    };
    for (outer, inner) in [("5/h", "9/h"), ("9/h", "5/h"), ("5/h", "5/h")] {
        let response = send(&app(inner, outer), to("/")).await;
        assert_eq!(lines_of(&response, "x-ratelimit-remaining"), ["4"]);
        assert_eq!(lines_of(&response, "ratelimit").len(), 1);
    }
    let app = app("1/min", "2/day");
    send(&app, to("/")).await;
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.retry_after(), Some(60));
    assert_eq!(lines_of(&rejected, "x-ratelimit-reset"), ["60"]);
}
