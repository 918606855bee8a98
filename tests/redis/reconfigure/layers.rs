//! A layer's own settings, replaced together with the policies.

use tollgate::layer::Rejections;
use tollgate_tests::prelude::*;

use crate::reconfigure::support::*;

fn settings(policies: impl IntoIterator<Item = Policy>) -> LimiterBuilder<RateLimitLayer> {
    let builder = RateLimitLayer::builder().on_store_error(OnStoreError::Reject);
    policies.into_iter().fold(builder, LimiterBuilder::policy)
}

fn app(layer: &RateLimitLayer) -> Router {
    Router::new()
        .route("/", get(async || "hello"))
        .layer(layer.clone())
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn field(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str());
        value.transpose().expect("text").unwrap_or("")
    }
}

async fn get_from(app: &Router) -> Answer {
    let request = Request::new(Body::empty());
    let response = app.clone().oneshot(request).await.expect("no error");
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    }
}

#[tokio::test]
async fn headers_and_rejections_are_replaced_with_the_policies_for_services_made_before() {
    let layer = layer([window("p", "1/h")]).headers(RateLimitHeaders::x_ratelimit());
    let (app, clone) = (app(&layer), layer.clone());
    assert_eq!(get_from(&app).await.field("x-ratelimit-limit"), "1");
    assert_eq!(get_from(&app).await.status, StatusCode::TOO_MANY_REQUESTS);
    let changes = clone
        .reconfigure(settings([window("p", "2/h")]), |layer| {
            let layer = layer.rejections(Rejections::OpenAi);
            layer.on_rejection(|rejected: &Rejected, _| {
                (rejected.status(), "slower").into_response()
            })
        })
        .expect("valid");
    let changed: Vec<_> = changes.settings().collect();
    for setting in ["headers", "rejections", "on_rejection"] {
        assert!(changed.contains(&setting), "{changes}");
    }
    let answer = get_from(&app).await;
    let limit = answer.field("x-ratelimit-limit");
    assert_eq!((answer.status, limit), (StatusCode::OK, ""));
    assert_eq!(answer.field("ratelimit-policy"), r#""p";q=2;w=3600"#);
    let answer = get_from(&app).await;
    let retry = answer.field("x-should-retry");
    assert_eq!((&*answer.body, retry), ("slower", "false"));
    // What is not set has its default.
    let changes = clone.reconfigure(settings([window("p", "2/h")]), |layer| layer);
    changes.expect("valid");
    let answer = get_from(&app).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.field("content-type"), "application/problem+json");
}

#[tokio::test]
async fn a_layer_that_is_not_enabled_can_be_and_the_other_way_round() {
    let layer = layer([window("p", "1/h")]).enabled(false);
    let app = app(&layer);
    for _ in 0..3 {
        assert_eq!(get_from(&app).await.status, StatusCode::OK);
    }
    let set = |enabled: bool| {
        let settings = settings([window("p", "1/h")]);
        let changes = layer.reconfigure(settings, |layer| layer.enabled(enabled));
        changes.expect("valid")
    };
    assert_eq!(set(true).to_string(), "enabled: altered\np: kept");
    assert_eq!(get_from(&app).await.status, StatusCode::OK);
    assert_eq!(get_from(&app).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(set(true).is_empty());
    assert!(!set(false).is_empty());
    assert_eq!(get_from(&app).await.status, StatusCode::OK);
    assert_eq!(used(layer.limiter(), "p").await, 1);
}

#[tokio::test]
async fn whether_a_handlers_rejection_is_refunded_is_replaced() {
    let inner = World::memory().limiter([window("inner", "1/h")]);
    drop(inner.admit(KEY).await.expect("admitted"));
    let layer = layer([window("p", "10/h")]);
    let handler = get(async move || inner.admit(KEY).await.map(|_| "hello"));
    let app = Router::new().route("/", handler).layer(layer.clone());
    for (refunds, charged) in [(false, 1), (true, 1), (false, 2)] {
        let builder = settings([window("p", "10/h")]);
        let changes = layer.reconfigure(builder, |layer| layer.refund_handler_rejections(refunds));
        changes.expect("valid");
        assert_eq!(get_from(&app).await.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(used(layer.limiter(), "p").await, charged);
    }
}

#[tokio::test]
async fn each_of_two_layers_over_one_limiter_keeps_its_settings_and_has_the_new_policies() {
    let limiter = World::memory().limiter([window("p", "100/h")]);
    let first = RateLimitLayer::new(limiter.clone()).headers(RateLimitHeaders::x_ratelimit());
    let second = RateLimitLayer::from(limiter.clone()).headers(RateLimitHeaders::draft());
    let apps = [app(&first), app(&second)];
    let has = async |limit: &str| {
        let [one, other] = [get_from(&apps[0]).await, get_from(&apps[1]).await];
        assert_eq!(one.field("x-ratelimit-limit"), limit);
        assert!(other.field("ratelimit-policy").contains(limit), "{limit}");
        assert_eq!(other.field("x-ratelimit-limit"), "");
    };
    has("100").await;
    replace(&limiter, [window("p", "200/h")]);
    has("200").await;
    let changes = first.reconfigure(settings([window("p", "300/h")]), |layer| {
        layer.headers(RateLimitHeaders::x_ratelimit())
    });
    changes.expect("valid");
    has("300").await;
    replace(&limiter, [window("p", "400/h")]);
    has("400").await;
    assert_eq!(used(&limiter, "p").await, 8);
}

#[tokio::test]
async fn a_layer_within_another_charges_by_its_own_policies_after_both_were_replaced() {
    let [outer, inner] = [layer([window("o", "10/h")]), layer([window("i", "10/h")])];
    let handler = get(async |admission: Admission| {
        for (policy, units) in [("o", 1), ("i", 2)] {
            let policy = admission.policy(policy).expect("of one of the layers");
            policy.charge(units).await.expect("a response");
        }
        "hello"
    });
    let app = Router::new()
        .route("/", handler)
        .layer(inner.clone())
        .layer(outer.clone());
    assert_eq!(get_from(&app).await.status, StatusCode::OK);
    for (layer, set) in [
        (&outer, vec![window("x", "9/h"), window("o", "20/h")]),
        (&inner, vec![window("i", "20/h"), window("y", "9/h")]),
    ] {
        let changes = layer.reconfigure(settings(set), |layer| layer);
        changes.expect("valid");
    }
    assert_eq!(get_from(&app).await.status, StatusCode::OK);
    assert_eq!(used(outer.limiter(), "o").await, 4);
    assert_eq!(used(inner.limiter(), "i").await, 6);
    assert_eq!(used(outer.limiter(), "x").await, 1);
    assert_eq!(used(inner.limiter(), "y").await, 1);
}

/// Two sets whose responses differ in each of their parts.
fn set(n: u64) -> (LimiterBuilder<RateLimitLayer>, RateLimitHeaders) {
    let (policy, headers) = match n % 2 {
        0 => (window("even", "1000000/h"), RateLimitHeaders::x_ratelimit()),
        _ => (window("odd", "1/8000h"), RateLimitHeaders::draft()),
    };
    (settings([policy]), headers)
}

fn apply(layer: &RateLimitLayer, n: u64) {
    let (builder, headers) = set(n);
    let text = ["even", "odd"][(n % 2) as usize];
    layer
        .reconfigure(builder, move |layer| {
            let layer = layer.headers(headers);
            layer.on_rejection(move |rejected: &Rejected, _| {
                let policies = rejected.decision().policies();
                let names: Vec<_> = policies.map(|policy| policy.policy().to_owned()).collect();
                (rejected.status(), format!("{text} {}", names.join(" "))).into_response()
            })
        })
        .expect("valid");
}

#[test]
fn each_response_is_of_one_set_while_the_sets_are_replaced() {
    let layer = layer([window("even", "1000000/h")]);
    apply(&layer, 1);
    let done = Arc::new(AtomicBool::new(false));
    let requests = (0..3).map(|_| {
        let (app, done) = (app(&layer), done.clone());
        thread::spawn(move || {
            current_thread().block_on(async move {
                let mut seen = [0_u64; 2];
                while !done.load(Ordering::Relaxed) || seen.contains(&0) {
                    let answer = get_from(&app).await;
                    let (x, draft) = (
                        answer.field("x-ratelimit-limit"),
                        answer.field("ratelimit-policy"),
                    );
                    match answer.status {
                        StatusCode::OK if x == "1000000" => {
                            assert_eq!(draft, "");
                            seen[0] += 1;
                        }
                        status => {
                            assert!(draft.starts_with(r#""odd""#) && x.is_empty(), "{draft} {x}");
                            let rejected = status == StatusCode::TOO_MANY_REQUESTS;
                            assert_eq!(answer.body, if rejected { "odd odd" } else { "hello" });
                            seen[1] += 1;
                        }
                    }
                }
                seen
            })
        })
    });
    let requests: Vec<_> = requests.collect();
    for n in 0..2_000 {
        apply(&layer, n);
        // The thread's own next request is under the new set.
        let policies = layer.limiter().policies();
        assert_eq!(policies[0].name(), ["even", "odd"][(n % 2) as usize]);
    }
    done.store(true, Ordering::Relaxed);
    // So that each thread sees both.
    let mut n = 0;
    while requests.iter().any(|thread| !thread.is_finished()) {
        apply(&layer, n);
        thread::yield_now();
        n += 1;
    }
    for request in requests {
        assert!(!request.join().expect("no panic").contains(&0));
    }
}

#[tokio::test]
async fn settings_that_a_closure_replaces_within_configure_are_replaced_again() {
    let layer = layer([window("p", "1/h")]);
    let within = layer.clone();
    layer
        .reconfigure(settings([window("outer", "3/h")]), move |next| {
            within
                .reconfigure(settings([window("within", "2/h")]), |layer| {
                    layer.enabled(false)
                })
                .expect("no deadlock");
            next
        })
        .expect("valid");
    assert_eq!(layer.limiter().policies()[0].name(), "outer");
    let answer = get_from(&app(&layer)).await;
    assert_eq!(answer.field("ratelimit-policy"), r#""outer";q=3;w=3600"#);
}
