//! A login that counts failures alone, bans addresses that keep trying, and locks no owner out of an account. The right password
//! is `correct horse`. The guide to logins says which attack each limit stops.
//!
//! - An address may fail 5 times a minute under one account, and 20 times under all of them. Windows of a minute: GCRA would
//!   admit up to 9 failures in the first one.
//! - An account may fail 100 times a day, from all addresses. Beyond that nothing is rejected, but a right password is not enough:
//!   the login asks for a second factor, which the owner has.
//! - An address that is rejected 30 times within ten minutes is banned for an hour.
//! - A right password is never rejected for the others that are being checked: five are at a time, and more wait for their turn.
//! - While Redis fails all logins are rejected (503), or an outage would allow any number of guesses.
//! - Passwords are hashed on threads of their own, and one core less than there are is busy with them: on the runtime's threads a
//!   flood of logins would hold up every other request, and the calls of the store.
//!
//! ```text
//! PORT=3000 cargo run --example login --features argon2
//! curl -d user=alice --data-urlencode 'password=correct horse' http://127.0.0.1:3000/login
//! curl http://127.0.0.1:3001/accounts/alice/127.0.0.1          # on the port that it prints
//! curl -X POST http://127.0.0.1:3001/accounts/alice/block
//! ```

use std::{
    env,
    error::Error,
    net::{IpAddr, SocketAddr},
    num::NonZero,
    sync::Arc,
    thread,
    time::Duration,
};

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use axum::{
    Form, Router,
    extract::{Path, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use caseless::Caseless;
use tokio::{net::TcpListener, sync::Semaphore, task::spawn_blocking};
use tollgate::{
    Ban, CallError, FixedWindow, Key, KeyExtractor, Limiter, MemoryStore, OnStoreError, Policy,
    Quota,
    extract::{self, Peer},
    outcome,
    store::Store,
};
use unicode_normalization::UnicodeNormalization;

#[derive(serde::Deserialize)]
struct Login {
    user: String,
    password: String,
}

#[derive(Clone)]
struct App {
    address: Peer,
    logins: Limiter,
    passwords: Passwords,
    /// How long a login waits for its turn to have its password checked.
    turn: Duration,
}

/// The hash of the one password, and the threads that compare others with it.
#[derive(Clone)]
struct Passwords {
    hash: Arc<str>,
    threads: Arc<Semaphore>,
}

impl Passwords {
    fn new() -> Result<Self, Box<dyn Error>> {
        let hash = Argon2::default().hash_password(b"correct horse");
        let hash = hash.map_err(|error| error.to_string())?.to_string();
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Ok(Self {
            hash: hash.into(),
            // One core is left for everything else. `spawn_blocking` alone has up to 512 threads.
            threads: Arc::new(Semaphore::new((cores - 1).max(1))),
        })
    }

    async fn is_right(&self, password: String) -> Result<bool, Box<dyn Error + Send + Sync>> {
        let thread = self.threads.clone().acquire_owned().await?;
        let hash = self.hash.clone();
        let verify = move || {
            // The thread is busy until the end, also if the client leaves.
            let _thread = thread;
            let hash = PasswordHash::new(&hash).map_err(|error| error.to_string())?;
            let verified = Argon2::default().verify_password(password.as_bytes(), &hash);
            Ok(verified.is_ok())
        };
        spawn_blocking(verify).await?
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let (public, operators) = match env::var("REDIS_URL") {
        Ok(url) => {
            // A login can wait for longer than a page: until this has passed it is no outage.
            let store = tollgate::RedisStore::builder().url(url);
            routers(store.timeout(Duration::from_secs(2)).build()?).await?
        }
        Err(_) => routers(MemoryStore::new()).await?,
    };

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    // Never beside the login: a client that reaches this address is an operator.
    let inside = TcpListener::bind(("127.0.0.1", if port == 0 { 0 } else { port + 1 })).await?;
    println!("Listening on http://{}", listener.local_addr()?);
    println!("Operators on http://{}", inside.local_addr()?);
    tokio::spawn(async move { axum::serve(inside, operators).await });
    let service = public.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
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

fn limiter(store: impl Store) -> Result<Limiter, Box<dyn Error>> {
    let failures = |name: &str, quota: Quota| {
        let policy = Policy::new(name, quota).by_hand().strategy(FixedWindow);
        // The handler charges failures; a right password costs nothing.
        policy.charge_after(outcome::failure)
    };
    let rejections = Quota::requests(30).per(Duration::from_secs(600));
    let ban = Ban::for_duration(Duration::from_secs(3_600));
    let limiter = Limiter::builder()
        .store(store)
        .policy(failures("pair", Quota::requests(5).per_minute()))
        .policy(failures("address", Quota::requests(20).per_minute()))
        .policy(failures("account", Quota::requests(100).per_day()))
        // Guesses that come together are all checked before the first is charged: so no more than five come together.
        .policy(Policy::new("together", Quota::concurrent(5)).by_hand())
        .policy(Policy::new("abuse", rejections).by_hand().strategy(ban))
        .policy(Policy::block_list("locked").by_hand())
        .on_store_error(OnStoreError::Reject);
    Ok(limiter.build()?)
}

async fn routers(store: impl Store) -> Result<(Router, Router), Box<dyn Error>> {
    let logins = limiter(store)?;
    for issue in logins.health_check().await.issues() {
        tracing::error!("rate limits: {issue}");
    }
    let app = App {
        // Behind a proxy: extract::client_ip().trusted_proxies(..).
        address: extract::peer(),
        logins,
        passwords: Passwords::new()?,
        turn: Duration::from_secs(env::var("TURN").map_or(Ok(5), |secs| secs.parse())?),
    };
    let public = Router::new()
        .route("/login", post(login))
        .with_state(app.clone());
    let operators = Router::new()
        .route("/accounts/{name}/{address}", get(show))
        .route("/accounts/{name}/{address}/reset", post(reset))
        .route("/accounts/{name}/block", post(block))
        .route("/accounts/{name}/unblock", post(unblock))
        .with_state(app);
    Ok((public, operators))
}

/// An account has one key, however its name is typed: with spaces around it, in capitals, or in other forms of its characters (NFKC). A
/// service that finds the account before it counts has the account's id as its key.
fn account_key(name: &str) -> Key {
    let name: String = name.nfkc().default_case_fold().nfkc().collect();
    // Last: normalization makes a space of some characters.
    Key::new(name.trim())
}

async fn login(
    State(app): State<App>,
    parts: Parts,
    Form(login): Form<Login>,
) -> Result<(StatusCode, &'static str), Response> {
    let account = account_key(&login.user);
    let address = app.address.extract(&parts).key().unwrap_or(Key::missing());
    let pair = Key::tuple([account, address]);
    let keys = [
        ("pair", pair),
        ("address", address),
        ("together", address),
        ("abuse", address),
        ("locked", account),
    ];
    let attempt = app.logins.wait(keys, app.turn).parts(&parts).await;
    // Until it is dropped, an attempt is one of the five that are checked at a time.
    let _attempt = attempt.map_err(IntoResponse::into_response)?;
    let is_right = app.passwords.is_right(login.password).await;
    let is_right = is_right.map_err(|error| {
        tracing::error!("passwords can't be checked: {error}");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })?;
    if !is_right {
        let failed = [("pair", pair), ("address", address), ("account", account)];
        // If the failure can't be counted, the answer doesn't tell that it was one.
        let charged = app.logins.charge(failed, 1).await;
        charged.map_err(IntoResponse::into_response)?;
        return Ok((StatusCode::UNAUTHORIZED, "wrong user or password\n"));
    }
    let status = app.logins.peek(("account", account)).await;
    match status.map_err(IntoResponse::into_response)?.would_admit() {
        true => Ok((StatusCode::OK, "welcome\n")),
        false => Ok((StatusCode::ACCEPTED, "right; now the second factor\n")),
    }
}

/// How an account and an address stand, without charging them.
async fn show(
    State(app): State<App>,
    Path((name, address)): Path<(String, IpAddr)>,
) -> Result<String, OperatorError> {
    let (account, address) = (account_key(&name), Key::ip(address));
    let keys = [
        ("pair", Key::tuple([account, address])),
        ("address", address),
        ("account", account),
        ("abuse", address),
        ("locked", account),
    ];
    let mut page = String::new();
    for policy in app.logins.peek(keys).await?.policies() {
        let (left, wait) = (policy.remaining(), policy.retry_after());
        page += &match policy.policy() {
            name @ ("abuse" | "locked") => format!("{name}: {wait:?}\n"),
            name => format!("{name}: {left} left, {wait:?}\n"),
        };
    }
    Ok(page)
}

/// Forgets the failures of an account, and of an address under it. A ban and a block are other policies, and stay.
async fn reset(
    State(app): State<App>,
    Path((name, address)): Path<(String, IpAddr)>,
) -> Result<&'static str, OperatorError> {
    let account = account_key(&name);
    let pair = Key::tuple([account, Key::ip(address)]);
    app.logins.policy("pair")?.reset(pair).await?;
    app.logins.policy("account")?.reset(account).await?;
    Ok("reset\n")
}

async fn block(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<&'static str, OperatorError> {
    let day = Duration::from_secs(86_400);
    let locked = app.logins.policy("locked")?;
    locked.block(account_key(&name), day).await?;
    Ok("blocked for a day\n")
}

async fn unblock(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<&'static str, OperatorError> {
    let locked = app.logins.policy("locked")?;
    locked.unblock(account_key(&name)).await?;
    Ok("unblocked\n")
}

/// Operators see what failed; `CallError` as a response says only what a client may know.
struct OperatorError(CallError);

impl<E: Into<CallError>> From<E> for OperatorError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for OperatorError {
    fn into_response(self) -> Response {
        let text = format!("{}\n", self.0);
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}
