//! Clients that obey what providers say, in simulated time: the runtime's clock is that of the store and of the providers.

use std::{
    convert::Infallible,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Response, StatusCode};
use proptest::{collection::vec, prelude::*};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tollgate::{
    FixedWindow, Key, Limiter, MemoryStore, OnStoreError, OutgoingLayer, Policy, RedisStore,
    SlidingLog,
    provider::{Feedback, Provider, ReportedLimit, Reset},
};
use tower::{Layer, ServiceExt, service_fn};

use super::support::{TEST_TIMEOUT, Time, left, limiter, ms, policy};

/// How long a call, and its response, are on their way.
const LATENCY: Duration = Duration::from_millis(20);

/// How a provider says what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    OpenAi,
    Anthropic,
    GitHub,
    Standard,
}

const DIALECTS: [Dialect; 4] = [
    Dialect::OpenAi,
    Dialect::Anthropic,
    Dialect::GitHub,
    Dialect::Standard,
];

/// The requests that an account has in a window, which begins anew after each period.
const LIMIT: u64 = 100;
const PERIOD: Duration = Duration::from_secs(10);

/// A provider that counts what arrives.
#[derive(Debug)]
struct Account {
    dialect: Dialect,
    start: Instant,
    /// The window, by its number, and what has arrived in it.
    window: (u64, u64),
    answered: u64,
    /// When calls were sent.
    sent: Vec<Duration>,
    /// When refusals were returned to their callers, and until when they refuse.
    refusals: Vec<(Duration, Duration)>,
}

impl Account {
    fn new(dialect: Dialect) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            dialect,
            start: Instant::now(),
            window: (0, 0),
            answered: 0,
            sent: Vec::new(),
            refusals: Vec::new(),
        }))
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// What it responds to a call that arrives now.
    fn respond(&mut self) -> Response<()> {
        let now = self.now();
        let window = (now.as_millis() / PERIOD.as_millis()) as u64;
        if window != self.window.0 {
            self.window = (window, 0);
        }
        let refused = self.window.1 >= LIMIT;
        if !refused {
            self.window.1 += 1;
            self.answered += 1;
        }
        let (remaining, ends) = (LIMIT - self.window.1, PERIOD * (window as u32 + 1));
        let resets_in = ends - now;
        let seconds = resets_in.as_millis().div_ceil(1_000);
        let fields: &[(&str, String)] = &match self.dialect {
            Dialect::OpenAi => vec![
                ("x-ratelimit-limit-requests", LIMIT.to_string()),
                ("x-ratelimit-remaining-requests", remaining.to_string()),
                (
                    "x-ratelimit-reset-requests",
                    format!("{}ms", resets_in.as_millis()),
                ),
            ],
            Dialect::Anthropic => vec![
                ("anthropic-ratelimit-requests-limit", LIMIT.to_string()),
                (
                    "anthropic-ratelimit-requests-remaining",
                    remaining.to_string(),
                ),
            ],
            Dialect::GitHub => {
                let now = 1_750_000_000;
                vec![
                    ("date", "Sun, 15 Jun 2025 15:06:40 GMT".into()),
                    ("x-ratelimit-limit", LIMIT.to_string()),
                    ("x-ratelimit-remaining", remaining.to_string()),
                    ("x-ratelimit-resource", "core".into()),
                    ("x-ratelimit-reset", (now + seconds).to_string()),
                ]
            }
            Dialect::Standard => vec![(
                "ratelimit",
                format!("\"default\";r={remaining};t={seconds}"),
            )],
        };
        let mut response = Response::builder();
        if refused {
            response = response.status(match self.dialect {
                Dialect::GitHub => StatusCode::FORBIDDEN,
                _ => StatusCode::TOO_MANY_REQUESTS,
            });
            response = match self.dialect {
                Dialect::OpenAi => {
                    response.header("retry-after-ms", resets_in.as_millis().to_string())
                }
                Dialect::GitHub => response,
                Dialect::Anthropic | Dialect::Standard => {
                    response.header("retry-after", seconds.to_string())
                }
            };
        }
        let response = fields.iter().fold(response, |response, (name, value)| {
            response.header(*name, value)
        });
        response.body(()).expect("a response")
    }

    /// How long a refusal that is returned now blocks at least.
    fn refuses_for(response: &Response<()>) -> Option<Duration> {
        let field = |name: &str| {
            response
                .headers()
                .get(name)?
                .to_str()
                .ok()?
                .parse::<u64>()
                .ok()
        };
        match response.status() {
            StatusCode::FORBIDDEN => Some(Duration::from_secs(
                field("x-ratelimit-reset")? - 1_750_000_000,
            )),
            StatusCode::TOO_MANY_REQUESTS => match field("retry-after-ms") {
                Some(millis) => Some(Duration::from_millis(millis)),
                None => field("retry-after").map(Duration::from_secs),
            },
            _ => None,
        }
    }
}

impl Dialect {
    fn provider(self) -> Provider {
        match self {
            Self::OpenAi => Provider::openai().limit("requests", "calls"),
            Self::Anthropic => Provider::anthropic().limit("requests", "calls"),
            Self::GitHub => Provider::github().limit("core", "calls"),
            Self::Standard => Provider::standard().limit("default", "calls"),
        }
    }
}

/// A limiter of one process, whose quota is twice what the account has.
fn process(store: &MemoryStore) -> Limiter {
    let limiter = Limiter::builder()
        .store(store.clone())
        .policy(policy("calls", "200/10s"))
        .policy(Policy::block_list("refused"));
    limiter.build().expect("a limiter")
}

/// Sends calls from so many processes and callers until a time has passed.
async fn call_from(
    processes: usize,
    callers: usize,
    dialect: Dialect,
    lasts: Duration,
) -> Arc<Mutex<Account>> {
    let time = Time::start();
    let store = MemoryStore::builder().clock(time.clone()).build();
    let account = Account::new(dialect);
    let limiters: Vec<_> = (0..processes).map(|_| process(&store)).collect();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (sender, receiver) = (account.clone(), account.clone());
        let service = service_fn(move |()| {
            let account = sender.clone();
            account.lock().expect("no panic").note_sent();
            async move {
                sleep(LATENCY).await;
                let response = account.lock().expect("no panic").respond();
                sleep(LATENCY).await;
                Ok::<_, Infallible>(response)
            }
        });
        let layer = OutgoingLayer::new(limiters[caller % processes].clone())
            .key("account")
            .timeout(TEST_TIMEOUT)
            .obey(dialect.provider())
            .expect("a block list");
        let service = layer.layer(service);
        let end = account.lock().expect("no panic").start + lasts;
        tasks.spawn(async move {
            while Instant::now() < end {
                let response = service.clone().oneshot(()).await.expect("a response");
                if let Some(time) = Account::refuses_for(&response) {
                    let mut account = receiver.lock().expect("no panic");
                    let now = account.now();
                    account.refusals.push((now, now + time));
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("a caller ends well");
    }
    account
}

impl Account {
    fn note_sent(&mut self) {
        let now = self.now();
        self.sent.push(now);
    }
}

#[tokio::test(start_paused = true)]
async fn once_a_refusal_is_in_the_store_no_process_sends_a_call_before_its_end() {
    for dialect in DIALECTS {
        for processes in [2, 8] {
            let account = call_from(processes, 64, dialect, 3 * PERIOD).await;
            let account = account.lock().expect("no panic");
            assert!(
                !account.refusals.is_empty(),
                "{dialect:?}: nothing is shown"
            );
            for (known, ends) in &account.refusals {
                let early = account
                    .sent
                    .iter()
                    .find(|sent| *sent > known && *sent < ends);
                assert_eq!(
                    early, None,
                    "{dialect:?}, refused from {known:?} to {ends:?}"
                );
            }
        }
    }
}

/// A quota that is too high costs no calls: what is left is learned from the responses.
#[tokio::test(start_paused = true)]
async fn an_account_is_used_up_and_few_calls_are_refused() {
    for dialect in DIALECTS {
        let account = call_from(2, 8, dialect, 20 * PERIOD).await;
        let account = account.lock().expect("no panic");
        let (answered, refused) = (account.answered, account.refusals.len() as u64);
        println!(
            "{dialect:?}: {answered} of {} answered, {refused} refused",
            20 * LIMIT
        );
        assert!(answered >= 20 * LIMIT * 95 / 100, "{dialect:?}: {answered}");
        // In each period those that are in flight at its end.
        assert!(refused <= 20 * 8, "{dialect:?}: {refused} refused");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_lowers_what_is_left_and_never_raises_it() {
    let (limiter, _) = limiter([policy("calls", "100/h"), Policy::block_list("refused")]);
    let layer = OutgoingLayer::new(limiter.clone())
        .obey(Provider::openai().limit("requests", "calls"))
        .expect("a block list");
    let api = layer.layer(service_fn(async |remaining: u64| {
        let response = Response::builder();
        let response = response.header("x-ratelimit-remaining-requests", remaining.to_string());
        Ok::<_, Infallible>(response.body(()).expect("a response"))
    }));
    // Each call costs one.
    for (remaining, expected) in [(40, 40), (90, 39), (38, 38), (10, 10)] {
        api.clone().oneshot(remaining).await.expect("a response");
        assert_eq!(left(&limiter, "calls").await, expected);
    }
}

fn reported(remaining: u64, reset: Option<Reset>) -> Feedback {
    let mut limit = ReportedLimit::new("requests");
    (limit.remaining, limit.reset) = (Some(remaining), reset);
    let mut feedback = Feedback::default();
    feedback.limits.push(limit);
    feedback
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Late, repeated, in any order, from two processes.
    #[test]
    fn responses_in_any_order_leave_the_least_that_one_of_them_says(remaining in vec(1_u64..250, 1..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let store = MemoryStore::builder().clock(Time::start()).build();
            let processes = [0, 1].map(|_| process(&store));
            let provider = Provider::openai().limit("requests", "calls");
            for (index, remaining) in remaining.iter().enumerate() {
                let feedback = reported(*remaining, None);
                let heeded = processes[index % 2].heed("account", &provider, &feedback).await;
                prop_assert_eq!(heeded.expect("heeded").blocked_for, None);
            }
            let least = remaining.iter().min().expect("one").min(&200);
            prop_assert_eq!(left(&processes[0], "calls").await, *least);
            Ok(())
        })?;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_already_wait_for_the_end_of_a_block_in_their_order() {
    let (limiter, time) = limiter([policy("calls", "1/s"), Policy::block_list("refused")]);
    let provider = Provider::standard();
    let wait = |timeout| limiter.wait(Key::new("account"), timeout);
    drop(wait(ms(0)).await.expect("the first one"));
    let mut waiting = JoinSet::new();
    for _ in 0..3 {
        let wait = wait(TEST_TIMEOUT);
        waiting.spawn(async move { wait.await.map(drop) });
        tokio::task::yield_now().await;
    }
    let mut response = Response::builder().status(429);
    response = response.header("retry-after", "30");
    let response = response.body(()).expect("a response");
    let feedback = provider.read(response.status(), response.headers());
    let heeded = limiter
        .heed("account", &provider, &feedback)
        .await
        .expect("heeded");
    assert_eq!(heeded.blocked_for, Some(Duration::from_secs(30)));
    let rejected = wait(Duration::from_secs(29)).await.expect_err("too long");
    let text = r#"banned: "refused""#;
    assert!(
        rejected.to_string().contains("refused"),
        "{rejected}, {text}"
    );
    while let Some(waited) = waiting.join_next().await {
        waited.expect("no panic").expect("admitted");
    }
    // At 30 s, 31 s and 32 s.
    assert_eq!(time.passed().as_secs(), 32);
}

/// The hosts that calls are sent to may be made up by others.
#[tokio::test(start_paused = true)]
async fn refusals_of_many_hosts_make_way_for_that_of_another() {
    let store = MemoryStore::builder().clock(Time::start());
    let store = store.max_keys(NonZeroUsize::new(100).expect("not zero"));
    let limiter = Limiter::builder()
        .store(store.build())
        .policy(Policy::block_list("refused"))
        .build()
        .expect("a limiter");
    let refused = limiter.policy("refused").expect("its policy");
    for host in 0..1_000 {
        let blocked = refused
            .prolong_block(host.to_string(), Duration::from_secs(60))
            .await;
        blocked.expect("room");
    }
    refused
        .prolong_block("api", Duration::from_secs(3_600))
        .await
        .expect("room");
    assert!(!limiter.check("api").await.is_admitted());
}

#[tokio::test]
async fn a_store_that_fails_loses_no_response() {
    let store = RedisStore::builder()
        .url("redis://127.0.0.1:1")
        .timeout(ms(50));
    let limiter = Limiter::builder()
        .store(store.build().expect("a store"))
        .on_store_error(OnStoreError::Admit)
        .policy(policy("calls", "5/h"))
        .policy(Policy::block_list("refused"));
    let layer = OutgoingLayer::new(limiter.build().expect("a limiter"))
        .obey(Provider::openai().limit("requests", "calls"))
        .expect("a block list");
    let refuse = service_fn(async |()| {
        let response = Response::builder().status(429).header("retry-after", "60");
        Ok::<_, Infallible>(response.body("slow down").expect("a response"))
    });
    let response = layer.layer(refuse).oneshot(()).await.expect("the response");
    assert_eq!(
        (response.status().as_u16(), *response.body()),
        (429, "slow down")
    );
}

#[test]
fn a_provider_that_the_limiter_cannot_obey_is_an_error_when_the_layer_is_built() {
    let calls = || policy("calls", "5/h");
    let errors = [
        (vec![calls()], Provider::openai(), "without a block list"),
        (
            vec![calls(), Policy::block_list("a"), Policy::block_list("b")],
            Provider::openai(),
            "without a block list",
        ),
        (
            vec![calls(), Policy::block_list("a")],
            Provider::openai().block_list("calls"),
            "block list \"calls\"",
        ),
        (
            vec![calls(), Policy::block_list("a")],
            Provider::openai().limit("requests", "call"),
            "policy \"call\"",
        ),
        (
            vec![calls().strategy(SlidingLog), Policy::block_list("a")],
            Provider::openai().limit("requests", "calls"),
            "policy \"calls\"",
        ),
    ];
    for (policies, provider, expected) in errors {
        let builder = policies
            .into_iter()
            .fold(Limiter::builder(), |b, p| b.policy(p));
        let layer = OutgoingLayer::new(builder.build().expect("a limiter"));
        let error = layer.obey::<()>(provider).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_is_lowered_by_that_of_the_provider_if_they_end_together() {
    let window = policy("calls", "100/h").strategy(FixedWindow);
    let (limiter, _) = limiter([window, Policy::block_list("refused")]);
    let provider = Provider::github().limit("requests", "calls");
    drop(limiter.check(Key::new("account")).await);
    let within = |seconds| Some(Reset::WindowEnd(Duration::from_secs(seconds)));
    for (resets_in, expected) in [(600, 99), (3_300, 40)] {
        let feedback = reported(40, within(resets_in));
        limiter
            .heed("account", &provider, &feedback)
            .await
            .expect("heeded");
        assert_eq!(left(&limiter, "calls").await, expected);
    }
    // Without a reset it is not known to be the same window.
    limiter
        .heed("account", &provider, &reported(10, None))
        .await
        .expect("heeded");
    assert_eq!(left(&limiter, "calls").await, 40);
    // Nothing is left of a window: it blocks until its end, whatever the policy's own window is.
    let feedback = reported(0, within(600));
    let heeded = limiter
        .heed("account", &provider, &feedback)
        .await
        .expect("heeded");
    assert_eq!(heeded.blocked_for, Some(Duration::from_secs(600)));
}
