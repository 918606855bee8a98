//! A gateway in front of a language model, and the official SDKs of OpenAI and Anthropic as its clients.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::Request,
    middleware::{self, Next},
    routing::post,
};
use serde::Deserialize;
use tollgate::{clock::Timestamp, layer::Rejections};
use tollgate_tests::world::START;

use crate::sockets::{grpc::listen, support::*};

/// When requests arrived at a gateway, and the statuses of their responses.
type Arrivals = Arc<Mutex<Vec<(Instant, u16)>>>;

/// What an SDK made of a call.
#[derive(Debug, Deserialize, PartialEq)]
struct Outcome {
    /// Its class, type and code.
    error: Option<[Option<String>; 3]>,
    /// The fields about limits of the last response.
    fields: BTreeMap<String, String>,
    /// The seconds that the SDK waited before each retry.
    waits: Vec<f64>,
}

impl Outcome {
    fn error(&self) -> [&str; 3] {
        let error = self.error.as_ref().expect("an error");
        error.each_ref().map(|part| part.as_deref().unwrap_or(""))
    }

    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

#[derive(Clone, Copy)]
struct Provider {
    sdk: &'static str,
    headers: fn() -> RateLimitHeaders,
    rejections: Rejections,
    path: &'static str,
    answer: fn() -> Value,
}

const OPENAI: Provider = Provider {
    sdk: "openai",
    headers: || RateLimitHeaders::openai().requests("rpm"),
    rejections: Rejections::OpenAi,
    path: "/v1/chat/completions",
    answer: || {
        let message = json!({"role": "assistant", "content": "hello"});
        let choice = json!({"index": 0, "finish_reason": "stop", "message": message});
        json!({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
    },
};

const ANTHROPIC: Provider = Provider {
    sdk: "anthropic",
    headers: || RateLimitHeaders::anthropic().requests("rpm"),
    rejections: Rejections::Anthropic,
    path: "/v1/messages",
    answer: || {
        let usage = json!({"input_tokens": 1, "output_tokens": 1});
        let content = json!([{"type": "text", "text": "hello"}]);
        json!({"id": "1", "type": "message", "role": "assistant", "model": "m", "content": content,
               "stop_reason": "end_turn", "stop_sequence": null, "usage": usage})
    },
};

/// One request in each period, for all clients together.
fn one_per(period: Duration) -> Policy {
    Policy::new("rpm", Quota::requests(1).per(period)).key(extract::global())
}

/// The provider's API behind a layer over this limiter. The store's clock stands still until the first request has arrived,
/// and shows the real time that has passed since then: that the first request is rejected, and with which wait, does not
/// depend on how fast the machine is.
fn api(provider: Provider, limiter: Limiter, clock: ManualClock) -> (Router, Arrivals) {
    let arrivals = Arrivals::default();
    let log = arrivals.clone();
    let watch = move |request: Request, next: Next| {
        let (log, clock) = (log.clone(), clock.clone());
        async move {
            let now = Instant::now();
            let first = log.lock().expect("a log").first().map(|(first, _)| *first);
            let passed = first.map_or(Duration::ZERO, |first| now - first);
            let shown = START as i64 + passed.as_micros() as i64;
            clock.set(Timestamp::from_micros(shown));
            let response = next.run(request).await;
            let status = response.status().as_u16();
            log.lock().expect("a log").push((now, status));
            response
        }
    };
    let layer = RateLimitLayer::new(limiter)
        .headers((provider.headers)())
        .rejections(provider.rejections);
    let answer = (provider.answer)();
    let answer = post(async move || Json(answer));
    let router = Router::new().route(provider.path, answer).layer(layer);
    (router.layer(middleware::from_fn(watch)), arrivals)
}

/// The API behind a limit that is used up for all of `period`.
async fn used_up(provider: Provider, period: Duration) -> (Router, Arrivals) {
    let clock = ManualClock::at(Timestamp::from_micros(START as i64));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = Limiter::builder().store(store).policy(one_per(period));
    let limiter = limiter.built();
    drop(limiter.admit(Key::global()).await.expect("admitted"));
    api(provider, limiter, clock)
}

/// Calls the APIs below these paths by the SDK, each with so many retries.
async fn call(provider: Provider, apis: Vec<(&str, Router)>, retries: Value) -> Vec<Outcome> {
    let mut gateway = Router::new();
    let mut calls = Vec::new();
    for (path, api) in apis {
        gateway = gateway.nest(&format!("/{path}"), api);
        calls.push(json!([path, retries]));
    }
    let (listener, address) = listen().await;
    let server = tokio::spawn(axum::serve(listener, gateway).into_future());
    let sdk = move || {
        let arguments = [provider.sdk, &format!("http://{address}")];
        let calls = Value::from(calls).to_string();
        testkit::python("provider_sdks.py", &arguments, &calls)
    };
    let said = tokio::task::spawn_blocking(sdk).await.expect("a script");
    server.abort();
    serde_json::from_str(&said).expect("outcomes")
}

/// To the millisecond.
#[tokio::test]
async fn each_sdk_waits_as_told_and_gives_up_at_once_if_the_wait_is_too_long() {
    for provider in [OPENAI, ANTHROPIC] {
        let (soon, soon_arrivals) = used_up(provider, ms(1_200)).await;
        let (late, late_arrivals) = used_up(provider, secs(90)).await;
        let apis = vec![("soon", soon), ("late", late)];
        let outcomes = call(provider, apis, Value::Null).await;
        let [soon, late] = outcomes.try_into().expect("two outcomes");

        assert_eq!((&soon.error, &soon.waits), (&None, &vec![1.2]));
        let arrivals = soon_arrivals.lock().expect("a log");
        let [(first, 429), (second, 200)] = arrivals[..] else {
            panic!("{arrivals:?}");
        };
        assert!(second - first >= ms(1_200), "{arrivals:?}");

        let [class, ..] = late.error();
        assert_eq!((class, &late.waits), ("RateLimitError", &vec![]));
        assert_eq!(late_arrivals.lock().expect("a log").len(), 1);
        assert_eq!(late.field("retry-after"), "90");
    }
}

/// What each SDK makes of a rejection by a quota, by a deny list, for a missing key, and by a store that fails.
async fn errors(provider: Provider) -> Vec<Outcome> {
    let clock = ManualClock::at(Timestamp::from_micros(START as i64));
    let hourly = || one_per(secs(3_600));
    let build = |policy, list: &[Key], store| {
        let deny = KeyList::new("rpm", list.iter().copied());
        let builder = Limiter::builder().store(store).policy(policy).deny(deny);
        let limiter = builder.on_store_error(OnStoreError::Reject).built();
        api(provider, limiter, clock.clone()).0
    };
    let keyed = hourly().key(extract::header("x-tenant"));
    let (quota, _) = used_up(provider, secs(90)).await;
    let up = StubStore::default;
    let apis = vec![
        ("quota", quota),
        ("denied", build(hourly(), &[Key::global()], up())),
        ("keyless", build(keyed, &[], up())),
        ("down", build(hourly(), &[], StubStore::unreachable())),
    ];
    // With retries all but the last one would end as soon.
    call(provider, apis, json!(0)).await
}

#[tokio::test]
async fn each_sdk_knows_the_errors_of_its_provider() {
    let openais = [
        ["RateLimitError", "requests", "rate_limit_exceeded"],
        ["PermissionDeniedError", "invalid_request_error", ""],
        ["BadRequestError", "invalid_request_error", ""],
        ["InternalServerError", "server_error", ""],
    ];
    let anthropics = [
        ["RateLimitError", "rate_limit_error", ""],
        ["PermissionDeniedError", "permission_error", ""],
        ["BadRequestError", "invalid_request_error", ""],
        ["ServiceUnavailableError", "overloaded_error", ""],
    ];
    for (provider, expected) in [(OPENAI, openais), (ANTHROPIC, anthropics)] {
        let outcomes = errors(provider).await;
        let errors: Vec<_> = outcomes.iter().map(Outcome::error).collect();
        assert_eq!(errors, expected, "{}", provider.sdk);
        let retries = outcomes.iter();
        let retries = retries.map(|it| ["x-should-retry", "retry-after-ms"].map(|of| it.field(of)));
        let expected = [
            ["false", "90000"],
            ["false", ""],
            ["false", ""],
            ["", "1000"],
        ];
        assert_eq!(retries.collect::<Vec<_>>(), expected, "{}", provider.sdk);
    }
}
