//! Clients that obey what providers say, in simulated time: the runtime's clock is that of the store and of the providers.

use std::num::NonZeroUsize;

use tokio::time::{Instant, sleep};
use tollgate::provider::{Feedback, Provider, ReportedLimit};
use tollgate_tests::prelude::*;

use crate::outgoing::support::{TEST_TIMEOUT, *};

/// How long a call, and its response, are on their way.
const LATENCY: Duration = ms(20);

/// The requests that an account has in a window, which begins anew after each period.
const LIMIT: u64 = 100;
const PERIOD: Duration = secs(10);

/// A stand-in for an account at Azure OpenAI, which says in its fields what is left of it.
#[derive(Debug, Default)]
struct Account {
    /// The window, by its number, and what was answered in it.
    window: (u128, u64),
    answered: u64,
    refused: u64,
}

impl Account {
    /// The response to a call that arrives so long after the account's first window has begun.
    fn respond(&mut self, now: Duration) -> Response<String> {
        let window = now.as_micros() / PERIOD.as_micros();
        if window != self.window.0 {
            self.window = (window, 0);
        }
        let ends_in = PERIOD * (window as u32 + 1) - now;
        let ends_in = ends_in.as_micros().div_ceil(1_000) as u64;
        let mut response = Response::builder();
        if self.window.1 >= LIMIT {
            self.refused += 1;
            response = response.status(429).header("retry-after-ms", ends_in);
        } else {
            self.window.1 += 1;
            self.answered += 1;
        }
        response = response
            .header("x-ratelimit-limit-requests", LIMIT)
            .header("x-ratelimit-remaining-requests", LIMIT - self.window.1)
            .header("x-ratelimit-reset-requests", format!("{ends_in}ms"));
        response.body(String::new()).expect("a response")
    }
}

/// For how long a response refuses calls, from the moment at which it was made on.
fn refused_for<B>(response: &Response<B>) -> Option<Duration> {
    let time = response.headers().get("retry-after-ms")?.to_str();
    Some(ms(time.expect("ASCII").parse().expect("a number")))
}

/// What is known of the calls.
#[derive(Debug, Default)]
struct Calls {
    account: Account,
    /// When calls were sent.
    sent: Vec<Duration>,
    /// When refusals were returned to their callers, and until when they refuse at least.
    refusals: Vec<(Duration, Duration)>,
}

/// Calls of so many, and a block list.
fn calls_of(quota: &str) -> [Policy; 2] {
    [policy("calls", quota), Policy::block_list("refused")]
}

/// Sends calls from so many processes and callers until a time has passed. The quota of each process is twice what the account has.
async fn call_from(processes: usize, callers: usize, lasts: Duration) -> Calls {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let start = Instant::now();
    let calls = Arc::<Mutex<Calls>>::default();
    let process = |_| limiter_on(store.clone(), calls_of("200/10s"));
    let limiters: Vec<_> = (0..processes).map(process).collect();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (sender, receiver) = (calls.clone(), calls.clone());
        let service = service_fn(move |()| {
            let calls = sender.clone();
            calls.lock().expect("no panic").sent.push(start.elapsed());
            async move {
                sleep(LATENCY).await;
                let respond = |now| calls.lock().expect("no panic").account.respond(now);
                let response = respond(start.elapsed());
                sleep(LATENCY).await;
                Ok::<_, Infallible>(response)
            }
        });
        let layer = OutgoingLayer::new(limiters[caller % processes].clone())
            .key("account")
            .timeout(TEST_TIMEOUT)
            .obey(Provider::azure_openai().limit("requests", "calls"))
            .expect("a block list");
        let service = layer.layer(service);
        tasks.spawn(async move {
            while start.elapsed() < lasts {
                let response = service.clone().oneshot(()).await.expect("a response");
                if let Some(time) = refused_for(&response) {
                    let now = start.elapsed();
                    let refusal = (now, now + time);
                    receiver.lock().expect("no panic").refusals.push(refusal);
                }
            }
        });
    }
    tasks.join_all().await;
    let calls = Arc::into_inner(calls).expect("no caller is left");
    calls.into_inner().expect("no panic")
}

#[tokio::test(start_paused = true)]
async fn once_a_refusal_is_in_the_store_no_process_sends_a_call_before_its_end() {
    for processes in [2, 8] {
        let calls = call_from(processes, 64, 3 * PERIOD).await;
        assert!(!calls.refusals.is_empty(), "nothing is shown");
        for (known, ends) in &calls.refusals {
            let mut sent = calls.sent.iter();
            let early = sent.find(|sent| *sent > known && *sent < ends);
            assert_eq!(early, None, "refused from {known:?} to {ends:?}");
        }
    }
}

/// A quota that is too high costs no calls: what is left is learned from the responses.
#[tokio::test(start_paused = true)]
async fn an_account_is_used_up_and_few_calls_are_refused() {
    let Account {
        answered, refused, ..
    } = call_from(2, 8, 20 * PERIOD).await.account;
    assert!(answered >= 20 * LIMIT * 95 / 100, "{answered}");
    // In each period those that are in flight at its end.
    assert!(refused <= 20 * 8, "{refused} refused");
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_already_wait_for_the_end_of_a_block_in_their_order() {
    let (limiter, time) = limiter(calls_of("1/s"));
    let wait = |timeout| limiter.wait(Key::new("account"), timeout);
    drop(wait(ms(0)).await.expect("the first one"));
    let mut waiting = JoinSet::new();
    for _ in 0..3 {
        let wait = wait(TEST_TIMEOUT);
        waiting.spawn(async move { wait.await.map(drop) });
        tokio::task::yield_now().await;
    }
    let response = Response::builder().status(429).header("retry-after", "30");
    let response = response.body(()).expect("a response");
    let provider = Provider::standard();
    let feedback = provider.read(response.status(), response.headers());
    let heeded = provider.heed(&limiter, "account", &feedback).await;
    assert_eq!(heeded.expect("a response"), Some(secs(30)));
    let rejected = wait(secs(29)).await.expect_err("too long");
    assert_contains(rejected, ["refused"]);
    while let Some(waited) = waiting.join_next().await {
        waited.expect("no panic").expect("admitted");
    }
    // At 30 s, 31 s and 32 s.
    assert_eq!(time.passed().as_secs(), 32);
}

/// The hosts that calls are sent to may be made up by others.
#[tokio::test(start_paused = true)]
async fn refusals_of_many_hosts_make_way_for_that_of_another() {
    let store = MemoryStore::builder().clock(TokioClock::new());
    let store = store.max_keys(NonZeroUsize::new(100).expect("not zero"));
    let limiter = limiter_on(store.build(), [Policy::block_list("refused")]);
    let refused = limiter.policy("refused").expect("its policy");
    let hosts = (0..1_000).map(|host| (host.to_string(), 60));
    for (host, seconds) in hosts.chain([("api".to_owned(), 3_600)]) {
        let blocked = refused.prolong_block(host, secs(seconds)).await;
        blocked.expect("room");
    }
    assert!(!limiter.check("api").await.is_admitted());
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_block_list_alone_wait_for_the_end_of_a_block() {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let limiter = limiter_on(store, [Policy::block_list("refused")]);
    let refused = limiter.policy("refused").expect("its policy");
    let blocked = refused.prolong_block("api", secs(60)).await;
    blocked.expect("a response");
    let start = Instant::now();
    let sent = limiter.wait("api", secs(90)).await;
    assert!(sent.is_ok() && start.elapsed() >= secs(60), "{sent:?}");
}

#[tokio::test]
async fn a_store_that_fails_loses_no_response() {
    let builder = Limiter::builder().store(StubStore::unreachable());
    let limiter = stores::limiter(builder.on_store_error(OnStoreError::Admit), calls_of("5/h"));
    let layer = OutgoingLayer::new(limiter).obey(Provider::openai());
    let refusing = service_fn(async |()| {
        let refusal = Response::builder().status(429).header("retry-after", "60");
        Ok::<_, Infallible>(refusal.body("a body".to_owned()).expect("a response"))
    });
    let api = layer.expect("a block list").layer(refusing);
    let response = api.oneshot(()).await.expect("the response");
    assert_eq!(response.status(), 429);
    let body = response.into_body().collect().await.expect("a body");
    assert_eq!(body.to_bytes(), "a body");
}

#[test]
fn a_provider_that_the_limiter_cannot_obey_is_an_error_when_the_layer_is_built() {
    let plain = Provider::openai;
    for (lists, provider, expected) in [
        (&[][..], plain(), "without a block list"),
        (&["a", "b"], plain(), "without a block list"),
        (&["a"], plain().block_list("calls"), "block list \"calls\""),
        (&["a"], plain().limit("requests", "call"), "policy \"call\""),
    ] {
        let lists = lists.iter().map(|name| Policy::block_list(*name));
        let policies = lists.chain([policy("calls", "5/h")]);
        let layer = OutgoingLayer::new(stores::limiter(Limiter::builder(), policies));
        let error = layer.obey(provider).expect_err(expected);
        assert_contains(error, [expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_that_a_policy_counts_blocks_until_its_end_once_nothing_is_left_of_it() {
    let (limiter, _) = limiter(calls_of("100/h"));
    let counted = Provider::github().limit("requests", "calls");
    let end = Some(secs(600));
    for (provider, remaining, window_end, blocked_for) in [
        (&counted, 40, end, None),
        (&counted, 0, None, None),
        (&counted, 0, end, end),
        (&Provider::github(), 0, end, None),
    ] {
        let mut limit = ReportedLimit::new("requests");
        (limit.remaining, limit.window_end) = (Some(remaining), window_end);
        let mut feedback = Feedback::default();
        feedback.limits.push(limit);
        let heeded = provider.heed(&limiter, "account", &feedback).await;
        assert_eq!(heeded.expect("a response"), blocked_for, "{feedback:?}");
        // No count changes.
        assert_eq!(left(&limiter, "calls").await, 100);
    }
}
