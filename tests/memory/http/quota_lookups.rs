//! Quotas that are looked up: what becomes of a look-up that takes longer than its timeout.

use std::future::{pending, ready};

use crate::http::support::*;
use tokio::{runtime::Builder, sync::Notify};

/// A database that responds when the test allows it, and the application's cache in front of it.
#[derive(Default)]
struct Tiers {
    cache: Mutex<Option<Quota>>,
    gate: Notify,
    running: Arc<AtomicUsize>,
    begun: AtomicUsize,
}

/// Counts a look-up for as long as it is not dropped.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Tiers {
    async fn look_up(self: Arc<Self>) -> Option<Quota> {
        let cached = *self.cache.lock().expect("no panic");
        if cached.is_some() {
            return cached;
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_add(1, Ordering::SeqCst);
        let _running = Running(self.running.clone());
        self.gate.notified().await;
        let paid = quota("1000/h");
        *self.cache.lock().expect("no panic") = Some(paid);
        Some(paid)
    }
}

/// Held by each test with late look-ups, since these share 64 slots in a process.
static LATE_SLOTS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(start_paused = true)]
async fn late_look_ups_continue_and_fill_the_cache_at_most_64_at_a_time() {
    let _slots = LATE_SLOTS.lock().await;
    let tiers = Arc::new(Tiers::default());
    let found = tiers.clone();
    let policy = Policy::new("api", quota("500/h"));
    let policy = policy.quota_lookup(ms(10), move |_| found.clone().look_up());
    let limiter = limiter([policy]);
    let (log, _guard) = Log::of_warnings();
    let parts = head(Request::get("/"));
    let limit = async || {
        let decision = limiter.check("alice").parts(&parts).await;
        decision.count("api").limit()
    };

    assert_eq!(limit().await, 500, "not found in time");
    let said = log.lines("quota_lookup exceeded its timeout");
    assert_eq!(said.len(), 1, "{}", log.text());
    assert!(said[0].contains(r#"policy="api""#), "{}", said[0]);
    assert_eq!(tiers.running.load(Ordering::SeqCst), 1, "it runs on");
    for late in 2..=64 {
        assert_eq!(limit().await, 500);
        assert_eq!(tiers.running.load(Ordering::SeqCst), late);
    }
    // There is no slot for another.
    assert_eq!(limit().await, 500);
    assert_eq!(tiers.begun.load(Ordering::SeqCst), 65);
    assert_eq!(tiers.running.load(Ordering::SeqCst), 64);

    tiers.gate.notify_waiters();
    while tiers.cache.lock().expect("no panic").is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(limit().await, 1_000, "from the cache");
    assert_eq!(tiers.begun.load(Ordering::SeqCst), 65);
    // A slot is free again when its look-up has ended.
    while tiers.running.load(Ordering::SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_quota_that_is_looked_up_is_its_own_policys_where_others_are_skipped() {
    let tier = |name: &str, quota: Quota| {
        let policy = Policy::new(name, Quota::requests(1).per_hour());
        policy.quota_lookup(secs(60), move |_| ready(Some(quota)))
    };
    let limiter = limiter([
        tier("elsewhere", quota("100/h")).only_path("/elsewhere"),
        tier("api", quota("200/h")),
        tier("user", quota("300/h")),
    ]);
    let parts = head(Request::get("/"));
    let decision = limiter.check("alice").parts(&parts).await;
    let limits: Vec<_> = decision.policies().map(|policy| policy.limit()).collect();
    assert_eq!(limits, [200, 300]);

    let app = hello(&RateLimitLayer::new(limiter));
    let response = send(&app, to("/")).await;
    let policies = response.field("ratelimit-policy");
    assert_eq!(policies, r#""api";q=200;w=3600, "user";q=300;w=3600"#);
}

#[test]
fn without_timers_a_look_up_that_is_not_ready_at_once_is_late_and_an_error_is_logged() {
    let _slots = LATE_SLOTS.blocking_lock();
    let found = quota("1000/h");
    let policy = |name: &str| Policy::new(name, quota("500/h"));
    let timeout = secs(60);
    let limiter = limiter([
        policy("hangs").quota_lookup(timeout, |_| pending()),
        policy("cached").quota_lookup(timeout, move |_| ready(Some(found))),
    ]);
    let (log, _guard) = Log::of_errors();
    let parts = head(Request::get("/"));
    let check = || limiter.check("alice").parts(&parts).into_future();
    let without_timers = Builder::new_current_thread().build().expect("a runtime");
    for decision in [
        check().now_or_never().expect("a decision at once"),
        without_timers.block_on(check()),
    ] {
        let limits = decision.policies().map(|policy| policy.limit());
        assert_eq!(limits.collect::<Vec<_>>(), [500, 1_000]);
    }
    let lines = log.lines("quota_lookup can't wait outside of a tokio runtime with timers");
    assert!(lines[0].contains(r#"policy="hangs""#), "{lines:?}");
}

#[tokio::test]
async fn a_requests_quota_that_has_no_room_for_the_policys_leases_is_counted_without_them() {
    let policy = Policy::new("p", quota("100/s"))
        .lease(Lease::max_units(64))
        .quota_with(|parts| parts.headers.get("x-quota")?.to_str().ok()?.parse().ok());
    let limiter = limiter([policy]);
    let (log, _guard) = Log::of_errors();
    let limit = async |quota: &str| {
        let parts = head(Request::get("/").header("x-quota", quota));
        let decision = limiter.check("alice").parts(&parts).await;
        decision.count("p").limit()
    };
    assert_eq!(limit("200/s").await, 189);
    // Never by the policy's own quota, which may be larger.
    assert_eq!(limit("200/s burst 3").await, 3);
    assert_eq!(limit("1/min").await, 1);
    assert_eq!(limit("200/s").await, 189);
    assert_eq!(log.text(), "");
}
