//! A login that counts failures alone, bans addresses that keep trying, and lets operators look and lift. The right password is
//! `correct horse`.
//!
//! - Each address may fail 20 times a minute, in the layer, and each account 5 times a minute, in the handler, which alone knows
//!   the account. Windows of a minute: GCRA would admit up to 9 failures in the first one.
//! - An address that is rejected 30 times within ten minutes is banned for an hour, by rejections of either.
//! - A right password is never rejected for the others that are being checked: five are at a time, and more wait for their turn.
//! - While Redis fails all logins are rejected (503), or an outage would allow any number of guesses.
//!
//! ```text
//! PORT=3000 cargo run --example login
//! curl -d user=alice --data-urlencode 'password=correct horse' http://127.0.0.1:3000/login
//! curl http://127.0.0.1:3001/accounts/alice          # on the port that it prints
//! curl -X POST http://127.0.0.1:3001/accounts/alice/block
//! ```

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{
    Form, Router,
    extract::{Path, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::{net::TcpListener, time::sleep};
use tollgate::{
    Ban, CallError, FixedWindow, Key, Limiter, MemoryStore, OnStoreError, Policy, PolicyHandle,
    Quota, RateLimitLayer,
    extract::{self, KeyExtractor, Peer},
    outcome,
    store::Store,
};

/// How long a login waits for its turn to have its password checked.
const TURN: Duration = Duration::from_secs(5);

#[derive(serde::Deserialize)]
struct Login {
    user: String,
    password: String,
}

#[derive(Clone)]
struct App {
    address: Peer,
    logins: Limiter,
    account: PolicyHandle,
    locked: PolicyHandle,
    hash_time: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    #[cfg(feature = "redis")]
    let (public, operators) = match env::var("REDIS_URL") {
        Ok(url) => {
            // A login can wait for longer than a page: until this has passed it is no outage.
            let store = tollgate::RedisStore::builder().url(url);
            routers(store.timeout(Duration::from_secs(2)).build()?).await?
        }
        Err(_) => routers(MemoryStore::new()).await?,
    };
    #[cfg(not(feature = "redis"))]
    let (public, operators) = routers(MemoryStore::new()).await?;

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    // Never beside the login: a client that reaches this address is an operator.
    let inside = TcpListener::bind(("127.0.0.1", if port == 0 { 0 } else { port + 1 })).await?;
    println!("Listening on http://{}", listener.local_addr()?);
    println!("Operators on http://{}", inside.local_addr()?);
    tokio::spawn(async move { axum::serve(inside, operators).await });
    let service = public.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

/// One ban, which the layer and the handler's limiter share, since they share the store: either's rejections count.
fn abuse(address: Peer) -> Policy {
    let rejections = Quota::requests(30).per(Duration::from_secs(600));
    let ban = Ban::for_duration(Duration::from_secs(3_600));
    Policy::new("abuse", rejections).key(address).strategy(ban)
}

async fn routers(store: impl Store + Clone) -> Result<(Router, Router), Box<dyn Error>> {
    // Behind a proxy: extract::client_ip().trusted_proxies(..).
    let address = extract::peer();
    let by_address = Policy::new("address", Quota::requests(20).per_minute())
        .key(address)
        .strategy(FixedWindow)
        // A client that hangs up before the answer has failed too.
        .charge_after(outcome::failure);
    let layer = RateLimitLayer::builder()
        .store(store.clone())
        .policy(by_address)
        .policy(abuse(address))
        .on_store_error(OnStoreError::Reject)
        .build()?;

    let by_account = Policy::new("account", Quota::requests(5).per_minute())
        .by_hand()
        .strategy(FixedWindow)
        // The handler charges failures; a right password costs nothing.
        .charge_after(outcome::failure);
    // Guesses that come together are all checked before the first is charged: so no more than five come together.
    let together = Policy::new("together", Quota::concurrent(5)).by_hand();
    let logins = Limiter::builder()
        .store(store)
        .policy(by_account)
        .policy(together)
        .policy(Policy::block_list("locked").by_hand())
        .policy(abuse(address))
        .on_store_error(OnStoreError::Reject)
        .build()?;
    for limiter in [layer.limiter(), &logins] {
        for issue in limiter.health_check().await.issues() {
            tracing::error!("rate limits: {issue}");
        }
    }

    let app = App {
        address,
        account: logins.policy("account")?,
        locked: logins.policy("locked")?,
        logins,
        hash_time: Duration::from_millis(env::var("HASH_MS").map_or(Ok(20), |ms| ms.parse())?),
    };
    let public = Router::new()
        .route("/login", post(login))
        .layer(layer)
        .with_state(app.clone());
    let operators = Router::new()
        .route("/accounts/{name}", get(show))
        .route("/accounts/{name}/reset", post(reset))
        .route("/accounts/{name}/block", post(block))
        .route("/accounts/{name}/unblock", post(unblock))
        .with_state(app);
    Ok((public, operators))
}

async fn login(
    State(app): State<App>,
    parts: Parts,
    Form(login): Form<Login>,
) -> Result<&'static str, Response> {
    let account = Key::new(&login.user);
    let address = app.address.key(&parts).unwrap_or(Key::missing());
    let keys = [
        ("account", account),
        ("together", account),
        ("locked", account),
        ("abuse", address),
    ];
    let attempt = app.logins.wait(keys, TURN).parts(&parts).await;
    let attempt = attempt.map_err(IntoResponse::into_response)?;
    if is_right(&app, &login.password).await {
        return Ok("welcome\n");
    }
    // If the failure can't be counted, the answer doesn't tell that it was one.
    let account = attempt.policy("account");
    let account = account.map_err(IntoResponse::into_response)?;
    account
        .charge(1)
        .await
        .map_err(IntoResponse::into_response)?;
    Err((StatusCode::UNAUTHORIZED, "wrong user or password\n").into_response())
}

/// Stands for a password hash, which takes its time.
async fn is_right(app: &App, password: &str) -> bool {
    sleep(app.hash_time).await;
    password == "correct horse"
}

/// How an account stands, without charging it.
async fn show(State(app): State<App>, Path(name): Path<String>) -> Result<String, OperatorError> {
    let status = app
        .logins
        .peek([("account", &name), ("locked", &name)])
        .await?;
    let mut page = format!("would be admitted: {}\n", status.would_admit());
    for policy in status.policies() {
        let (name, left, limit) = (policy.policy(), policy.remaining(), policy.limit());
        page += &format!(
            "{name}: {left} of {limit} left, {:?}\n",
            policy.retry_after()
        );
    }
    Ok(page)
}

/// Forgets an account's failures. A block is another policy, and stays.
async fn reset(State(app): State<App>, Path(name): Path<String>) -> Result<String, OperatorError> {
    let before = app.account.reset(name).await?;
    let left = before
        .policy("account")
        .map_or(0, |account| account.remaining());
    Ok(format!("reset; {left} failures were left\n"))
}

async fn block(State(app): State<App>, Path(name): Path<String>) -> Result<String, OperatorError> {
    let day = Duration::from_secs(86_400);
    app.locked.block(name, day).await?;
    Ok("blocked for a day\n".to_owned())
}

async fn unblock(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<String, OperatorError> {
    app.locked.unblock(name).await?;
    Ok("unblocked\n".to_owned())
}

/// Operators see what failed; `CallError` as a response says only what a client may know.
struct OperatorError(CallError);

impl From<CallError> for OperatorError {
    fn from(error: CallError) -> Self {
        Self(error)
    }
}

impl IntoResponse for OperatorError {
    fn into_response(self) -> Response {
        let text = format!("{}\n", self.0);
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}
