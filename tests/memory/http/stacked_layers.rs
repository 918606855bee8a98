//! A layer around everything, and another around one route.

use crate::http::support::*;

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
async fn a_response_lists_the_inner_layers_policies_where_the_outer_one_writes_no_fields() {
    let (outer, _) = layer([shared("everything", "10/h")]);
    let (inner, _) = layer([shared("search", "5/h")]);
    let app = hello(&inner).layer(outer.headers(Headers::none()));
    let response = send(&app, to("/")).await;
    let policies = response.field("ratelimit-policy");
    assert_eq!(policies, r#""search";q=5;w=3600"#);
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
async fn a_rejection_by_an_inner_layer_costs_nothing_in_an_outer_one() {
    let stack = stack("10/h", "2/h");
    assert_eq!(statuses(&stack.app, 4).await, [200, 200, 429, 429]);
    assert_eq!(charged(&stack.outer, "everything").await, 2);
    for open in [[200; 8].as_slice(), &[429]].concat() {
        assert_eq!(status(&stack.app, "/open").await, open);
    }
}

#[tokio::test]
async fn a_rejection_by_an_inner_layer_names_its_policy_and_lists_both_layers() {
    let stack = stack("10/day", "2/s");
    assert_eq!(statuses(&stack.app, 2).await, [200, 200]);
    let rejected = send(&stack.app, to("/")).await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.violated(), ["search"]);
    assert_eq!(rejected.retry_after(), Some(1));
    // The outer layer shows what is left after its refund. No client waits longer than for `Retry-After`.
    let limits = rejected.field("ratelimit");
    assert_contains(&limits, ["search", r#""everything";r=8"#]);
    assert!(rejected.resets().iter().all(|t| *t <= 1), "{limits}");
}

#[tokio::test]
async fn a_rejection_by_an_outer_layer_skips_the_inner_one() {
    let stack = stack("1/h", "5/h");
    assert_eq!(statuses(&stack.app, 2).await, [200, 429]);
    assert_eq!(charged(&stack.inner, "search").await, 1);
}

#[tokio::test]
async fn a_missing_key_in_an_inner_layer_costs_nothing_in_an_outer_one() {
    let (outer, _) = layer([shared("everything", "10/h")]);
    let (inner, _) = layer([shared("tenants", "1/h").key(extract::header("x-tenant"))]);
    let app = Router::new()
        .route("/", get(async || "").layer(inner))
        .layer(outer.clone());
    assert_eq!(status(&app, "/").await, 400);
    assert_eq!(charged(&outer, "everything").await, 0);
    assert_eq!(send(&app, with("x-tenant", "a")).await.status, 200);
    assert_eq!(charged(&outer, "everything").await, 1);
}

#[tokio::test]
async fn with_three_layers_each_outer_charge_is_refunded_once() {
    let layers = ["a", "b", "c"].map(|name| layer([shared(name, "10/h")]).0);
    let (last, _) = layer([shared("last", "1/h")]);
    let [a, b, c] = &layers;
    let app = Router::new()
        .route("/", get(async || "").layer(last))
        .layer(c.clone())
        .layer(b.clone())
        .layer(a.clone());
    assert_eq!(statuses(&app, 3).await, [200, 429, 429]);
    for (layer, name) in layers.iter().zip(["a", "b", "c"]) {
        assert_eq!(charged(layer, name).await, 1, "{name}");
    }
}

#[tokio::test]
async fn a_disabled_layer_changes_nothing_for_the_others() {
    let (on, _) = layer([shared("on", "1/h")]);
    let (off, _) = layer([shared("off", "1/h")]);
    for [outer, inner] in [
        [on.clone(), off.clone().enabled(false)],
        [off.enabled(false), on],
    ] {
        for layer in [&inner, &outer] {
            let reset = layer.limiter().reset(Key::global()).await;
            reset.expect("a response");
        }
        let names = async |admission: Admission| format!("{:?}", admission.remaining("on"));
        let app = Router::new().route("/", get(names));
        let app = app.layer(inner).layer(outer);
        assert_eq!(send(&app, to("/")).await.body, b"Some(0)");
        assert_eq!(status(&app, "/").await, 429);
    }
}
