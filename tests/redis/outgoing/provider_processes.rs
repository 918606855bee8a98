//! Processes that obey one provider, on one Redis and in real time.
//!
//! What is asserted holds at any speed. The provider looks at the store beside each arrival, in one call: at how many calls were
//! admitted, and for how long the account is blocked. While it is, no call is admitted; and never have more arrived than were admitted.

use axum::{body::Bytes, extract::State};
use http_body_util::Empty;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{
    net::TcpListener,
    process::Command,
    sync::{Barrier, Mutex},
};
use tollgate_tests::prelude::*;

use super::account::{AZURE, Account, Dialect, RefusedFor};
use crate::outgoing::support::{limiter_on, policy, window};

const URL: &str = "TOLLGATE_TEST_URL";
const PROVIDER: &str = "TOLLGATE_TEST_PROVIDER";
const CALLERS: &str = "TOLLGATE_TEST_CALLERS";
/// The field of a call that names the process and the caller.
const CALLER: &str = "caller";

static DIALECT: Dialect = AZURE;
/// The calls that the account has in a period.
const LIMIT: u64 = 100;
const PERIOD: Duration = secs(2);
const PERIODS: u32 = 4;
/// Waits are rounded by less.
const RESOLUTION: Duration = ms(1);

/// The limiter of each process, whose quota is twice what the account has. `admitted` counts the calls.
fn limiter(url: &str) -> Limiter {
    let store = RedisStore::builder().url(url).timeout(TEST_TIMEOUT);
    let policies = [
        policy("calls", "200/2s"),
        window("admitted", "1000000/day"),
        Policy::block_list("refused"),
    ];
    limiter_on(store.built(), policies)
}

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    let [provider, callers] = [PROVIDER, CALLERS].map(|name| env::var(name).expect(name));
    let layer = OutgoingLayer::new(limiter(&url))
        .key("account")
        .timeout(TEST_TIMEOUT)
        .obey((DIALECT.provider)());
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    // All processes begin together.
    let ready = format!("{provider}ready").parse().expect("a URL");
    client.get(ready).await.expect("a response");
    let api = layer.expect("a block list").layer(client);
    let mut calls = JoinSet::new();
    for caller in 0..callers.parse().expect("a number") {
        let (api, provider) = (api.clone(), provider.clone());
        let caller = format!("{}-{caller}", std::process::id());
        calls.spawn(async move {
            loop {
                let call = Request::get(&provider).header(CALLER, &caller);
                let call = call.body(Empty::new()).expect("a request");
                let response = api.clone().oneshot(call).await.expect("a response");
                if response.status() == StatusCode::GONE {
                    break;
                }
            }
        });
    }
    calls.join_all().await;
}

/// What the provider has seen.
struct Provider {
    limiter: Limiter,
    /// When the first call arrived.
    start: Instant,
    account: Account,
    arrived: u64,
    /// When the latest known block ends at the earliest, and how many calls were admitted before.
    block: Option<(Instant, u64)>,
    /// The calls that were answered in whole periods.
    used: u64,
    /// How often the store was looked at while a block was known.
    compared: u64,
    /// Callers that were refused, and until when.
    refused: Vec<(String, Instant)>,
    has_ended: bool,
    failures: Vec<String>,
}

impl Provider {
    /// Compares the store with what is known.
    async fn look(&mut self) {
        let before = Instant::now();
        let status = self.limiter.peek("account").await.expect("a response");
        let after = Instant::now();
        let (admitted, arrived) = (status.used("admitted"), self.arrived);
        if arrived > admitted {
            let failure = format!("{arrived} calls have arrived, {admitted} were admitted");
            self.failures.push(failure);
        }
        if let Some((ends, known)) = self.block.filter(|(ends, _)| after < *ends) {
            self.compared += 1;
            if admitted != known {
                let left = ends - after;
                let failure =
                    format!("{known} before a block, and {admitted} {left:?} before its end");
                self.failures.push(failure);
            }
        }
        // It was looked at after `before`.
        let blocked_for = status.count("refused").retry_after();
        let blocked_for = blocked_for.duration().unwrap_or_default();
        let ends = before + blocked_for.saturating_sub(RESOLUTION);
        if self.block.is_none_or(|(known, _)| known < ends) {
            self.block = Some((ends, admitted));
        }
    }

    /// The response to a call.
    async fn respond(&mut self, caller: &str) -> Response<Body> {
        let now = Instant::now();
        if self.arrived == 0 {
            self.start = now;
        }
        self.arrived += 1;
        self.look().await;
        let refused = self.refused.iter().position(|(name, _)| name == caller);
        if let Some((_, ends)) = refused.map(|index| self.refused.swap_remove(index))
            && now < ends
        {
            let early = ends - now;
            let failure = format!("{caller} calls {early:?} before the end of its refusal");
            self.failures.push(failure);
        }
        let response = self.account.respond(self.start.elapsed());
        if self.start.elapsed() < PERIODS * PERIOD {
            self.used = self.account.answered;
        }
        if let Some(RefusedFor(time)) = response.extensions().get() {
            let ends = Instant::now() + time.saturating_sub(RESOLUTION);
            self.refused.push((caller.to_owned(), ends));
        }
        response.map(|()| Body::empty())
    }
}

async fn respond(
    State(provider): State<Arc<Mutex<Provider>>>,
    headers: HeaderMap,
) -> Response<Body> {
    let mut provider = provider.lock().await;
    if provider.has_ended {
        let response = Response::builder().status(StatusCode::GONE);
        return response.body(Body::empty()).expect("a response");
    }
    let caller = headers.get(CALLER).expect("a caller");
    provider.respond(caller.to_str().expect("its name")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_process_sends_a_call_before_the_end_of_a_refusal_that_is_in_the_store() {
    for processes in [2, 8] {
        let server = Server::start();
        let provider = Arc::new(Mutex::new(Provider {
            limiter: limiter(&server.url()),
            start: Instant::now(),
            account: Account::new(&DIALECT, LIMIT, PERIOD),
            arrived: 0,
            block: None,
            used: 0,
            compared: 0,
            refused: Vec::new(),
            has_ended: false,
            failures: Vec::new(),
        }));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let all = Arc::new(Barrier::new(processes));
        let ready = async move || {
            let _leader = all.wait().await;
        };
        let app = Router::new().route("/ready", get(ready));
        let app = app.fallback(respond).with_state(provider.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });
        let children = (0..processes).map(|_| {
            let child = tollgate_tests::child::test(module_path!(), "child_process");
            Command::from(child)
                .env(URL, server.url())
                .env(PROVIDER, format!("http://{address}/"))
                .env(CALLERS, (64 / processes).to_string())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .expect("a process")
        });
        let children: Vec<_> = children.collect();
        until("blocks are seen, in all periods", async || {
            let mut provider = provider.lock().await;
            provider.look().await;
            provider.compared > 0
                && provider.account.refused > 0
                && provider.start.elapsed() >= PERIODS * PERIOD
        })
        .await;
        provider.lock().await.has_ended = true;
        for child in children {
            let output = child.wait_with_output().await.expect("its output");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}");
        }
        serving.abort();
        let provider = provider.lock().await;
        println!(
            "{processes} processes: {} of {} calls answered in {PERIODS} periods; {} arrived, {} were refused; \
             {} looks at the store during blocks",
            provider.used,
            LIMIT * u64::from(PERIODS),
            provider.arrived,
            provider.account.refused,
            provider.compared,
        );
        assert_eq!(provider.failures, [""; 0]);
    }
}
