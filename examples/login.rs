//! A login of which only failures count: 20 a minute for each address, in the layer, and 5 a minute for each account, in the
//! handler, which alone knows the account. The right password is `correct horse`.
//!
//! ```text
//! PORT=3000 cargo run --example login
//! curl -d user=alice --data-urlencode 'password=correct horse' http://127.0.0.1:3000/login
//! ```

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Form, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use tokio::net::TcpListener;
use tollgate::{Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, outcome, store::Store};

#[derive(serde::Deserialize)]
struct Login {
    user: String,
    password: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    #[cfg(feature = "redis")]
    let app = match env::var("REDIS_URL") {
        Ok(url) => app(tollgate::RedisStore::open(url)?)?,
        Err(_) => app(MemoryStore::new())?,
    };
    #[cfg(not(feature = "redis"))]
    let app = app(MemoryStore::new())?;

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("Listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

fn app(store: impl Store + Clone) -> Result<Router, Box<dyn Error>> {
    // Every failure counts for its address. Whoever hangs up before the answer has failed too.
    let by_address =
        Policy::new("address", Quota::requests(20).per_minute()).charge_after(outcome::failure);
    let layer = RateLimitLayer::builder()
        .store(store.clone())
        .policy(by_address)
        .build()?;
    // Charged before the password is looked at, and given back if it is right: guesses that are made at once count too.
    let by_account = Policy::new("account", Quota::requests(5).per_minute());
    let accounts = Limiter::builder().store(store).policy(by_account).build()?;
    Ok(Router::new()
        .route("/login", post(login))
        .layer(layer)
        .with_state(accounts))
}

async fn login(
    State(accounts): State<Limiter>,
    Form(login): Form<Login>,
) -> Result<&'static str, Response> {
    let account = Key::new(&login.user);
    let attempt = accounts
        .admit(account)
        .await
        .map_err(IntoResponse::into_response)?;
    if login.password != "correct horse" {
        return Err((StatusCode::UNAUTHORIZED, "wrong user or password\n").into_response());
    }
    let account = attempt.policy("account");
    let account = account
        .map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response())?;
    if let Err(error) = account.refund(1).await {
        tracing::warn!(%error, "a successful login stays counted as a failure");
    }
    Ok("welcome\n")
}
