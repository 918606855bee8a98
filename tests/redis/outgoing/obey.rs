//! Clients that obey what providers say, in simulated time: the runtime's clock is that of the store and of the providers.

use std::{
    convert::Infallible,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Response;
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
use tollgate_tests::log::Log;
use tower::{Layer, ServiceExt, service_fn};

use super::account::{Account, DIALECTS, Dialect, RefusedFor};
use super::support::{TEST_TIMEOUT, Time, left, limiter, ms, policy};

/// How long a call, and its response, are on their way.
const LATENCY: Duration = Duration::from_millis(20);

/// The requests that an account has in a window, which begins anew after each period.
const LIMIT: u64 = 100;
const PERIOD: Duration = Duration::from_secs(10);

/// What is known of the calls.
#[derive(Debug)]
struct Calls {
    account: Account,
    /// When calls were sent.
    sent: Vec<Duration>,
    /// When refusals were returned to their callers, and until when they refuse at least.
    refusals: Vec<(Duration, Duration)>,
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
    dialect: &'static Dialect,
    lasts: Duration,
) -> Calls {
    let store = MemoryStore::builder().clock(Time::start()).build();
    let start = Instant::now();
    let calls = Arc::new(Mutex::new(Calls {
        account: Account::new(dialect, LIMIT, PERIOD),
        sent: Vec::new(),
        refusals: Vec::new(),
    }));
    let limiters: Vec<_> = (0..processes).map(|_| process(&store)).collect();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (sender, receiver) = (calls.clone(), calls.clone());
        let service = service_fn(move |()| {
            let calls = sender.clone();
            calls.lock().expect("no panic").sent.push(start.elapsed());
            async move {
                sleep(LATENCY).await;
                let response = calls
                    .lock()
                    .expect("no panic")
                    .account
                    .respond(start.elapsed());
                sleep(LATENCY).await;
                Ok::<_, Infallible>(response)
            }
        });
        let layer = OutgoingLayer::new(limiters[caller % processes].clone())
            .key("account")
            .timeout(TEST_TIMEOUT)
            .obey((dialect.provider)())
            .expect("a block list");
        let service = layer.layer(service);
        tasks.spawn(async move {
            while start.elapsed() < lasts {
                let response = service.clone().oneshot(()).await.expect("a response");
                if let Some(RefusedFor(time)) = response.extensions().get() {
                    let now = start.elapsed();
                    let refusal = (now, now + *time);
                    receiver.lock().expect("no panic").refusals.push(refusal);
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("a caller ends well");
    }
    Arc::into_inner(calls)
        .expect("no caller is left")
        .into_inner()
        .expect("no panic")
}

#[tokio::test(start_paused = true)]
async fn once_a_refusal_is_in_the_store_no_process_sends_a_call_before_its_end() {
    for dialect in &DIALECTS {
        for processes in [2, 8] {
            let calls = call_from(processes, 64, dialect, 3 * PERIOD).await;
            assert!(!calls.refusals.is_empty(), "{dialect:?}: nothing is shown");
            for (known, ends) in &calls.refusals {
                let mut sent = calls.sent.iter();
                let early = sent.find(|sent| *sent > known && *sent < ends);
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
    for dialect in &DIALECTS {
        let calls = call_from(2, 8, dialect, 20 * PERIOD).await;
        let (answered, refused) = (calls.account.answered, calls.account.refused);
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

#[tokio::test(start_paused = true)]
async fn what_a_response_changes_is_logged_with_the_limit_or_the_field_that_says_so() {
    let openai = || Provider::openai().limit("requests", "calls");
    type Case<'a> = (Provider, u16, &'a [(&'a str, &'a str)], &'a str);
    let cases: [Case<'_>; 3] = [
        (
            openai(),
            200,
            &[("x-ratelimit-remaining-requests", "40")],
            r#"limit="requests" remaining=40 policy="calls" units=59"#,
        ),
        (
            openai(),
            429,
            &[("retry-after-ms", "250")],
            r#"cause="retry-after-ms" blocked_for=250ms"#,
        ),
        (
            Provider::github().limit("core", "calls"),
            200,
            &[
                ("date", "Sun, 15 Jun 2025 15:06:40 GMT"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1750000060"),
            ],
            r#"cause="core" blocked_for=60s"#,
        ),
    ];
    for (provider, status, fields, expected) in cases {
        let fields = fields.iter();
        let response = Response::builder().status(status);
        let response = fields.fold(response, |response, (name, value)| {
            response.header(*name, *value)
        });
        let response = response.body(()).expect("a response");
        let (limiter, _) = limiter([policy("calls", "100/h"), Policy::block_list("refused")]);
        let layer = OutgoingLayer::new(limiter).obey(provider);
        let api = layer.expect("a block list").layer(service_fn(|()| {
            std::future::ready(Ok::<_, Infallible>(response.clone()))
        }));
        let log = Log::default();
        let _guard = log.info();
        api.oneshot(()).await.expect("the response");
        assert_eq!(log.lines(expected).len(), 1, "{expected}: {}", log.text());
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
