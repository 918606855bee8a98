//! A gateway to a language model that limits tokens, whose number is known only when the answer has been streamed: it
//! reserves an estimate, streams, and settles the truth. 1,000 tokens a minute for each API key.
//!
//! ```text
//! PORT=3000 cargo run --example llm_tokens
//! curl -N -H 'x-api-key: k' 'http://127.0.0.1:3000/chat?estimate=200&tokens=120'
//! ```

use std::{convert::Infallible, env, error::Error};

use axum::{
    Router,
    extract::Query,
    http::request::Parts,
    response::sse::{Event, Sse},
    routing::get,
};
use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;
use tollgate::{Admission, Policy, Quota, RateLimitLayer, extract};

/// How many tokens the caller expects, and how many the model (which this stands for) will make of it.
#[derive(serde::Deserialize)]
struct Chat {
    estimate: u64,
    tokens: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let app = Router::new().route("/chat", get(chat)).layer(layer()?);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("Listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

fn layer() -> Result<RateLimitLayer, Box<dyn Error>> {
    let tokens = Policy::new("tokens", Quota::requests(1_000).per_minute())
        .key(extract::header("x-api-key"))
        .cost_with(estimate);
    let layer = RateLimitLayer::builder().policy(tokens);
    #[cfg(feature = "redis")]
    if let Ok(url) = env::var("REDIS_URL") {
        println!("Counting on Redis.");
        return Ok(layer.store(tollgate::RedisStore::open(url)?).build()?);
    }
    Ok(layer.build()?)
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
