//! A gateway to a language model that limits tokens, whose number is known only when the answer has been streamed: it
//! reserves an estimate, streams, and settles the truth. 1,000 tokens a minute for each account, 20,000 for one that pays.
//!
//! A middleware in front of the limiter authenticates: it looks the API key up once a request, answers 401 to a stranger,
//! and leaves the account in the request's extensions, where the policy finds key and quota. An estimate from the
//! request's body takes the same way.
//!
//! ```text
//! PORT=3000 cargo run --example llm_tokens
//! curl -N -H 'x-api-key: k' 'http://127.0.0.1:3000/chat?estimate=200&tokens=120'
//! ```

use std::{convert::Infallible, env, error::Error};

use axum::{
    Router,
    extract::{Query, Request},
    http::{StatusCode, request::Parts},
    middleware::{self, Next},
    response::{
        Response,
        sse::{Event, Sse},
    },
    routing::get,
};
use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;
use tollgate::{Admission, Key, Policy, Quota, RateLimitLayer, extract};

/// How many tokens the caller expects, and how many the model (which this stands for) will make of it.
#[derive(serde::Deserialize)]
struct Chat {
    estimate: u64,
    tokens: u64,
}

/// Whose request it is.
#[derive(Clone)]
struct Account {
    name: String,
    quota: Quota,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let app = Router::new().route("/chat", get(chat));
    // The layer that is added last is the first that a request meets.
    let app = app.layer(layer()?).layer(middleware::from_fn(authenticate));

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("Listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(stop_signal())
        .await?;
    Ok(())
}

/// Completes at Ctrl-C, and at SIGTERM, by which containers are stopped.
async fn stop_signal() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut signals = signal(SignalKind::terminate()).expect("a handler of SIGTERM");
        signals.recv().await;
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}

fn layer() -> Result<RateLimitLayer, Box<dyn Error>> {
    let tokens = Policy::new("tokens", Quota::units(1_000).per_minute())
        .key(extract::extension::<Account>(|account| {
            Key::new(&account.name)
        }))
        .quota_with(|parts| Some(parts.extensions.get::<Account>()?.quota))
        .tier_quotas([Quota::units(20_000).per_minute()])
        .cost_with(estimate);
    let layer = RateLimitLayer::builder().policy(tokens);
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        return Ok(layer.store(tollgate::RedisStore::open(url)?).build()?);
    }
    Ok(layer.build()?)
}

/// Lets requests of known accounts pass.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let api_key = request.headers().get("x-api-key");
    let api_key = api_key.and_then(|key| key.to_str().ok());
    let account = account_of(api_key.unwrap_or_default()).await;
    let account = account.ok_or(StatusCode::UNAUTHORIZED)?;
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

/// Stands for a look-up in a database.
async fn account_of(api_key: &str) -> Option<Account> {
    let (name, tokens) = match api_key {
        "k" => ("alice", 1_000),
        "pro" => ("bob", 20_000),
        _ => return None,
    };
    Some(Account {
        name: name.to_owned(),
        quota: Quota::units(tokens).per_minute(),
    })
}

/// What a request costs on arrival.
fn estimate(parts: &Parts) -> u64 {
    Query::<Chat>::try_from_uri(&parts.uri).map_or(1, |Query(chat)| chat.estimate.max(1))
}

async fn chat(
    Query(chat): Query<Chat>,
    admission: Admission,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, String> {
    let tokens = admission.policy("tokens");
    // A client that hangs up half-way drops the stream and the meter with it, and pays for what it was sent.
    let mut meter = tokens.map_err(|error| error.to_string())?.meter();
    let tokens = stream::iter(0..chat.tokens).map(move |token| {
        meter.add(1);
        Ok(Event::default().data(format!("token {token}")))
    });
    Ok(Sse::new(tokens))
}
