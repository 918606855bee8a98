//! What holds on Redis too, or there alone.

use testkit::Clock;
use tokio::net::TcpListener;
use tollgate::{
    store::HealthIssue,
    strategy::{ErasedLocalRule, LuaScript, QuotaStatus, RuleInfo, Snapshot, Strategy},
};

use crate::http::{responses::fields, service::six_requests_of_which_four_pass, support::*};

fn layer_on(store: &RedisStore, policy: Policy) -> RateLimitLayer {
    let layer = RateLimitLayer::builder().store(store.clone());
    layer.policy(policy).built()
}

#[tokio::test]
async fn on_redis_the_service_that_was_polled_ready_is_called_and_none_on_a_rejection() {
    let server = Server::start();
    let layer = layer_on(&redis(&server), shared("four", "4/h"));
    six_requests_of_which_four_pass(layer).await;
}

#[tokio::test]
async fn the_reset_of_a_cached_rejection_is_counted_from_each_request() {
    const START: u64 = 1_800_000_000_000_000;
    let times = (
        Clock::at(START),
        ManualClock::at(Timestamp::from_micros(START as i64)),
    );
    let server = Server::builder().clock(&times.0).start();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let store = store.rejection_cache_clock(times.1.clone());
    let store = store.rejection_cache_staleness(secs(3_600)).built();
    let layer = layer_on(&store, shared("window", "1/h").strategy(FixedWindow));
    let app = hello(&layer.headers(Headers::x_ratelimit()));
    assert_eq!(status(&app, "/").await, 200);
    for minutes in 0..6 {
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, 429);
        let wait = 3_600 - 60 * minutes;
        assert_eq!(response.retry_after(), Some(wait));
        assert_eq!(response.field("x-ratelimit-reset"), wait.to_string());
        times.0.advance(secs(60));
        times.1.advance(secs(60));
    }
    // All but one were rejected from this process's cache.
    assert_eq!(server.calls("evalsha"), 2);
}

/// A strategy without a half for the store it is to count in.
#[derive(Clone, Debug)]
struct HalfOf(Arc<dyn Rule>, bool);

impl Strategy for HalfOf {
    fn bind(&self, _: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(self.clone()))
    }
}

impl Rule for HalfOf {
    fn info(&self) -> RuleInfo {
        RuleInfo::new("h1", self.0.info().capacity)
    }

    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus {
        self.0.status(snapshot, now, cost)
    }

    fn script(&self) -> Option<LuaScript> {
        self.0.script().filter(|_| !self.1)
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        self.0.local_rule().filter(|_| self.1)
    }
}

#[test]
fn a_strategy_that_the_store_cannot_run_is_a_config_error_of_its_policy() {
    let quota = Quota::requests(1).per_second();
    let of = |in_process| {
        let rule = Gcra.bind(&quota, &Terms::default()).expect("a rule");
        Policy::new("half", quota).strategy(HalfOf(rule, in_process))
    };
    let redis = || RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let on_redis = || Limiter::builder().store(redis());
    assert!(Limiter::builder().policy(of(true)).build().is_ok());
    assert!(on_redis().policy(of(false)).build().is_ok());
    for (built, valid) in [
        (Limiter::builder().policy(of(false)).build(), "a RedisStore"),
        (on_redis().policy(of(true)).build(), "a MemoryStore"),
    ] {
        let error = built.expect_err("a mistake");
        assert!(error.to_string().contains("half"), "{error}");
        assert!(error.expected().contains(valid), "{error}");
        assert_eq!(error.policy(), Some("half"));
    }
}

#[tokio::test]
async fn seconds_in_headers_never_exceed_the_window() {
    // Windows on Redis end on a millisecond: up to one later than after their period.
    let clock = Clock::at(1_800_000_000_000_001);
    let server = Server::builder().clock(&clock).start();
    let policy = shared("tokens", "1000/min").strategy(FixedWindow);
    let layer = layer_on(&redis(&server), policy);
    let response = send(&hello(&layer), to("/")).await;
    let expected = [r#""tokens";q=1000;w=60"#, r#""tokens";r=999;t=60"#];
    assert_eq!(fields(&response), expected);
}

#[tokio::test(start_paused = true)]
async fn a_health_check_of_a_server_that_hangs_ends_after_a_second_or_the_timeout() {
    // Connections are accepted, and nothing is ever sent on them.
    let hangs = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = hangs.local_addr().expect("an address");
    for (timeout, expected) in [(100, 1_000), (3_000, 3_000)] {
        let store = RedisStore::builder().url(format!("redis://{address}"));
        let store = store.timeout(ms(timeout)).built();
        let policies = ["a", "b", "c"].map(|name| shared(name, "5/s"));
        let limiter = stores::limiter(Limiter::builder().store(store), policies);
        let before = tokio::time::Instant::now();
        let health = limiter.health_check().await;
        let took = before.elapsed();
        let [HealthIssue::Unreachable { error, .. }] = health.issues() else {
            panic!("{health:?}");
        };
        assert_eq!(error.code(), "timeout");
        assert_eq!(took.as_millis(), expected, "a timeout of {timeout} ms");
    }
}
