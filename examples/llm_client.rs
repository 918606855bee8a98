//! Clients of a model's API under one account, which obey its refusals.
//!
//! The program starts a stand-in for the provider and two processes of clients, or one if `REDIS_URL` is not set. Other clients use
//! a quarter of the account: now and then a call is refused, and no process calls before the time that the refusal names. Each makes
//! 60 calls (`CALLS`).
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example llm_client
//! ```

use std::{
    env,
    error::Error,
    process,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{Request, StatusCode},
    middleware::{self, Next},
    response::Response,
    routing::get,
};
use http_body_util::Empty;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, task::JoinSet};
use tollgate::{
    Limiter, OutgoingLayer, Policy, Quota, RateLimitHeaders, RateLimitLayer, extract,
    layer::Rejections, provider::Provider,
};
use tower::{ServiceBuilder, ServiceExt};

/// What the account has.
const ACCOUNT: Quota = Quota::requests(20).per(Duration::from_secs(2));

/// How often other clients call.
const OTHERS: Duration = Duration::from_millis(400);

/// Calls that a process makes at a time.
const TASKS: usize = 8;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    match env::var("PROVIDER") {
        Ok(address) => client(&address).await,
        Err(_) => provider().await,
    }
}

/// Makes the calls of one process.
async fn client(address: &str) -> Result<(), Box<dyn Error>> {
    let layer = OutgoingLayer::new(limiter()?)
        .key("our-account")
        .timeout(Duration::from_secs(60))
        .obey(Provider::openai().limit("requests", "rpm"))?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let api = ServiceBuilder::new().layer(layer).service(client);
    let uri = format!("http://{address}/v1/responses");
    let calls = calls()?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (api, uri) = (api.clone(), uri.clone());
        tasks.spawn(async move {
            for _ in (task..calls).step_by(TASKS) {
                let call = || Request::get(&uri).body(Empty::new());
                while api.clone().oneshot(call()?).await?.status() == StatusCode::TOO_MANY_REQUESTS
                {
                    // The block is in the store: the next call waits for its end.
                }
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task?.map_err(|error| error.to_string())?;
    }
    println!("process {}: {calls} calls answered", env::var("PROCESS")?);
    Ok(())
}

/// Calls of each process.
fn calls() -> Result<usize, Box<dyn Error>> {
    Ok(env::var("CALLS").map_or(Ok(60), |calls| calls.parse())?)
}

fn limiter() -> Result<Limiter, Box<dyn Error>> {
    let limiter = Limiter::builder()
        .policy(Policy::new("rpm", ACCOUNT))
        .policy(Policy::block_list("refused"));
    match env::var("REDIS_URL") {
        Ok(url) => {
            // A call that can wait for its turn can wait for Redis too.
            let store = tollgate::RedisStore::builder().url(url);
            let store = store.timeout(Duration::from_secs(2)).build()?;
            Ok(limiter.store(store).build()?)
        }
        Err(_) => Ok(limiter.build()?),
    }
}

/// What the stand-in has responded to the processes' calls.
#[derive(Default)]
struct Counts {
    answered: AtomicUsize,
    refused: AtomicUsize,
}

/// Stands for the provider, and starts the processes that call it.
async fn provider() -> Result<(), Box<dyn Error>> {
    let account = Policy::new("account", ACCOUNT).key(extract::global());
    let limits = RateLimitLayer::builder().policy(account).build()?;
    let limits = limits
        .headers(RateLimitHeaders::openai().requests("account"))
        .rejections(Rejections::OpenAi);
    let counts = Arc::new(Counts::default());
    let app = Router::new()
        .route("/v1/responses", get(async || "a completion"))
        .layer(limits);
    let others = app.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(OTHERS).await;
            let call = Request::get("/v1/responses").body(Body::empty());
            drop(others.clone().oneshot(call.expect("a request")).await);
        }
    });
    let app = app.layer(middleware::from_fn_with_state(counts.clone(), count));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    let processes = match env::var("REDIS_URL") {
        Ok(_) => 2,
        Err(_) => 1,
    };
    println!(
        "{processes} process(es) make {} calls each; the account has {ACCOUNT}.",
        calls()?
    );
    let start = |process: usize| {
        process::Command::new(env::current_exe()?)
            .env("PROVIDER", address.to_string())
            .env("PROCESS", process.to_string())
            .spawn()
    };
    let children = (1..=processes).map(start).collect::<Result<Vec<_>, _>>()?;
    for mut child in children {
        let ended = tokio::task::spawn_blocking(move || child.wait()).await??;
        if !ended.success() {
            return Err("a process failed".into());
        }
    }
    let answered = counts.answered.load(Ordering::Relaxed);
    let refused = counts.refused.load(Ordering::Relaxed);
    println!("the provider: {answered} calls answered, {refused} refused");
    Ok(())
}

async fn count(State(counts): State<Arc<Counts>>, request: Request<Body>, next: Next) -> Response {
    let response = next.run(request).await;
    let count = match response.status() {
        StatusCode::TOO_MANY_REQUESTS => &counts.refused,
        _ => &counts.answered,
    };
    count.fetch_add(1, Ordering::Relaxed);
    response
}
