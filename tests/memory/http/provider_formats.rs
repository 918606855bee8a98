//! Fields and rejections as the APIs of OpenAI and Anthropic have them.

use axum::response::Html;
use tollgate::layer::Rejections;

use crate::http::{support, support::*};

const BOTH: [Rejections; 2] = [Rejections::OpenAi, Rejections::Anthropic];

/// All fields that a provider's format or rejection adds, as `name: value`, without what their names begin with.
fn provider_fields(response: &TestResponse) -> String {
    let names = response.headers.keys().map(|name| name.as_str());
    let mut fields: Vec<_> = names
        .filter_map(|name| {
            let prefixes = ["x-ratelimit-", "anthropic-ratelimit-"];
            let short = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
            let short = short.or(name.contains("retry").then_some(name))?;
            Some(format!("{short}: {}", response.field(name)))
        })
        .collect();
    fields.sort_unstable();
    fields.join(", ")
}

#[tokio::test]
async fn openais_fields_are_those_of_the_policies_that_are_named_on_every_response() {
    // Three requests a minute, and 1,000 tokens of which each request takes 300.
    let (layer, clock) = support::layer([
        shared("rpm", "3/min"),
        shared("tpm", "1000/min").cost(300),
        shared("other", "9/day").strategy(FixedWindow),
    ]);
    let headers = Headers::openai().requests("rpm").tokens("tpm");
    let app = hello(&layer.headers(headers));
    let expected = "limit-requests: 3, limit-tokens: 1000, remaining-requests: 2, remaining-tokens: 700, reset-requests: 20s, reset-tokens: 18s";
    let first = send(&app, to("/")).await;
    assert_eq!(provider_fields(&first), expected);
    assert_eq!(first.field("x-ratelimit-limit-requests"), "3");
    for _ in 0..2 {
        status(&app, "/").await;
    }
    clock.advance(Duration::from_micros(500_500));
    let rejected = send(&app, to("/")).await;
    assert_eq!(rejected.status, 429);
    // Rounded up to milliseconds.
    let expected = "limit-requests: 3, limit-tokens: 1000, remaining-requests: 0, remaining-tokens: 108, reset-requests: 59.5s, \
        reset-tokens: 53.5s, retry-after: 20";
    assert_eq!(provider_fields(&rejected), expected);
    assert_eq!(rejected.field("ratelimit"), "");
}

#[tokio::test]
async fn anthropics_fields_have_dates_and_are_left_out_for_policies_that_are_not_named() {
    let (layer, _) = support::layer([
        shared("rpm", "3/min"),
        shared("all", "1000/min").cost(300),
        shared("in", "500/90s").cost(100),
        shared("out", "60/min").cost(7),
    ]);
    let requests = Headers::anthropic().requests("rpm");
    let app = hello(&layer.clone().headers(requests.clone()));
    let expected = "requests-limit: 3, requests-remaining: 2, requests-reset: 2027-01-15T08:00:20Z";
    let first = send(&app, to("/")).await;
    assert_eq!(provider_fields(&first), expected);
    assert_eq!(first.field("anthropic-ratelimit-requests-limit"), "3");
    let all = requests.tokens("all").input_tokens("in");
    let all = all.output_tokens("out");
    let fields = provider_fields(&send(&hello(&layer.headers(all)), to("/")).await);
    let expected = "\
        input-tokens-limit: 500, input-tokens-remaining: 300, input-tokens-reset: 2027-01-15T08:00:36Z, \
        output-tokens-limit: 60, output-tokens-remaining: 46, output-tokens-reset: 2027-01-15T08:00:14Z, \
        requests-limit: 3, requests-remaining: 1, requests-reset: 2027-01-15T08:00:40Z, \
        tokens-limit: 1000, tokens-remaining: 400, tokens-reset: 2027-01-15T08:00:36Z";
    assert_eq!(fields, expected);
}

#[tokio::test]
async fn a_policy_that_did_not_apply_or_does_not_exist_or_is_a_shadow_has_no_fields() {
    let (layer, _) = support::layer([
        shared("rpm", "3/min").only_path("/other"),
        shared("live", "9/min"),
        shared("tpm", "9/min").shadow(),
    ]);
    for headers in [
        Headers::openai().requests("rpm").tokens("none"),
        Headers::openai().tokens("tpm"),
        Headers::openai().input_tokens("live"),
        Headers::anthropic(),
    ] {
        let response = send(&hello(&layer.clone().headers(headers)), to("/")).await;
        assert_eq!(response.status, 200);
        assert_eq!(provider_fields(&response), "", "{response:?}");
    }
}

#[tokio::test]
async fn fields_of_an_upstream_or_an_inner_layer_stay_group_by_group() {
    let upstream = [
        ("x-ratelimit-limit-tokens", "30000"),
        ("x-ratelimit-remaining-tokens", "29999"),
    ];
    let of = |name, headers: Headers| {
        let layer = support::layer([shared(name, "5/min")]).0;
        layer.headers(headers)
    };
    let both = |name| Headers::openai().requests(name).tokens(name);
    let app = Router::new()
        .route("/", get(async move || (upstream, "hello")))
        .layer(of("inner", Headers::openai().requests("inner")))
        .layer(of("outer", both("outer")));
    status(&app, "/").await;
    let expected = "limit-requests: 5, limit-tokens: 30000, remaining-requests: 3, remaining-tokens: 29999, reset-requests: 24s";
    assert_eq!(provider_fields(&send(&app, to("/")).await), expected);
}

/// The rejection of the second request of a layer with this form, which has used up a quota.
async fn rejection(policy: Policy, headers: Headers, form: Rejections) -> TestResponse {
    let layer = support::layer([policy]).0;
    let app = hello(&layer.headers(headers).rejections(form));
    status(&app, "/").await;
    send(&app, to("/")).await
}

#[tokio::test]
async fn a_rejection_by_a_quota_is_an_error_of_the_provider() {
    let named = Headers::openai().requests("rpm").tokens("tpm");
    let of = |name, form| rejection(shared(name, "1/20s"), named.clone(), form);
    let message = |name| {
        let title = "Request cannot be satisfied as assigned quota has been exceeded.";
        format!("{title} Exceeded: {name}. Try again in 20 seconds.")
    };
    let kinds = ["requests", "tokens", "requests"];
    for (name, kind) in ["rpm", "tpm", "other"].into_iter().zip(kinds) {
        let response = of(name, Rejections::OpenAi).await;
        assert_eq!(response.status, 429);
        assert_eq!(response.field("content-type"), "application/json");
        assert_eq!(response.field("cache-control"), "no-store");
        let length = response.body.len().to_string();
        assert_eq!(response.field("content-length"), length);
        let error = json!({
            "message": message(name), "type": kind, "param": null, "code": "rate_limit_exceeded",
        });
        assert_eq!(response.json(), json!({ "error": error }));
    }
    let response = of("tpm", Rejections::Anthropic).await;
    assert_eq!(response.field("content-type"), "application/json");
    let error = json!({ "type": "rate_limit_error", "message": message("tpm") });
    assert_eq!(response.json(), json!({ "type": "error", "error": error }));

    let response = of("rpm", Rejections::Default).await;
    response.is_problem_that_no_cache_stores();
    assert_eq!(response.field("retry-after-ms"), "");
}

#[tokio::test]
async fn other_rejections_are_errors_of_the_provider_too() {
    let hourly = || shared("hourly", "1/h");
    let deny = KeyList::new("hourly", [Key::global()]);
    let denied = Limiter::builder().policy(hourly()).deny(deny).built();
    let keyed = limiter([hourly().key(extract::header("x-api"))]);
    let lacks_key = "The request lacks the header x-api.";
    let is_down = "Request cannot be satisfied due to temporary server capacity constraints. \
        Try again in a second.";
    let invalid = "invalid_request_error";
    let [denied, keyed] = [denied, keyed].map(RateLimitLayer::new);
    let down = rejecting(StubStore::unreachable(), hourly());
    for (layer, status, kinds, message) in [
        (denied, 403, [invalid, "permission_error"], "Forbidden."),
        (keyed, 400, [invalid; 2], lacks_key),
        (down, 503, ["server_error", "overloaded_error"], is_down),
    ] {
        for (form, kind) in BOTH.into_iter().zip(kinds) {
            let app = hello(&layer.clone().rejections(form));
            // A gRPC call gets the same in each form, a browser what other clients get.
            let call = send(&app, grpc_call()).await;
            assert_eq!(call, send(&hello(&layer), grpc_call()).await);
            let response = send(&app, with("accept", "text/html")).await;
            assert_eq!(response.status.as_u16(), status, "{form:?}: {message}");
            let error = &response.json()["error"];
            assert_eq!([&error["type"], &error["message"]], [kind, message]);
            let code = (form == Rejections::OpenAi).then_some(&Value::Null);
            assert_eq!(error.get("code"), code, "{form:?}: {message}");
            let told = ["retry-after-ms", "x-should-retry"].map(|name| response.field(name));
            let is_down = status == 503;
            assert_eq!(told, if is_down { ["1000", ""] } else { ["", "false"] });
        }
    }
}

#[tokio::test]
async fn a_wait_is_told_to_the_millisecond_and_one_of_more_than_a_minute_forbids_a_retry() {
    #[rustfmt::skip]
    let rows = [
        (1, "1", 1, ""), (1_001, "2", 1, ""), (60_000_000, "60000", 60, ""), (60_000_001, "60001", 61, "false"),
    ];
    for (micros, ms, seconds, retries) in rows {
        for form in BOTH {
            let quota = Quota::requests(1).per(Duration::from_micros(micros));
            let policy = Policy::new("p", quota).key(extract::global());
            let response = rejection(policy, Headers::none(), form).await;
            assert_eq!(response.field("retry-after-ms"), ms, "{micros}");
            assert_eq!(response.retry_after(), Some(seconds), "{micros}");
            assert_eq!(response.field("x-should-retry"), retries, "{micros}");
        }
    }
    // Jitter is part of it.
    let headers = Headers::none().jitter(secs(5));
    let response = rejection(shared("p", "1/20s"), headers, Rejections::OpenAi).await;
    let ms: u64 = response.field("retry-after-ms").parse().expect("a number");
    assert!((20_000..=25_000).contains(&ms), "{ms}");
    assert_eq!(response.retry_after(), Some(ms.div_ceil(1_000)));
    // More than the quota ever allows.
    let costly = shared("p", "5/min").cost_with(|_| 6);
    let response = rejection(costly, Headers::none(), Rejections::OpenAi).await;
    assert_eq!(provider_fields(&response), "x-should-retry: false");
    let message = "The request costs 6, of which policy p allows at most 5. Exceeded: p.";
    assert_eq!(response.json()["error"]["message"], message);
}

#[tokio::test]
async fn on_rejection_wins_over_the_form_and_gets_its_fields_unless_it_sets_a_wait() {
    let layer = || {
        let layer = support::layer([shared("p", "1/90s")]).0;
        layer.rejections(Rejections::OpenAi)
    };
    let page = layer()
        .on_rejection(|_, _| (StatusCode::SERVICE_UNAVAILABLE, Html("slow")).into_response());
    let own = second(&page).await;
    assert_eq!((own.status.as_u16(), own.text()), (503, "slow"));
    let expected = "retry-after-ms: 90000, retry-after: 90, x-should-retry: false";
    assert_eq!(provider_fields(&own), expected);

    // The default response of a clone has the layer's form.
    let forwarded = layer().on_rejection(|rejected, _| rejected.clone().into_response());
    let forwarded = second(&forwarded).await;
    assert_eq!(forwarded, second(&layer()).await);
    assert_eq!(forwarded.json()["error"]["code"], "rate_limit_exceeded");
}
