//! The metrics of policies.

use tollgate_tests::prelude::*;

use crate::metrics::support::*;

#[tokio::test]
async fn requests_are_within_near_or_over_the_limit() {
    let results = async |percent: Option<u8>| {
        let observed = Observed::with(|metrics| match percent {
            Some(percent) => metrics.near_percent(percent),
            None => metrics,
        });
        let policy = Policy::new("api", Quota::requests(10).per_day());
        let limiter = in_process(&observed, [policy]);
        for _ in 0..15 {
            drop(limiter.check("alice").await);
        }
        let exposition = observed.exposition();
        ["within", "near", "over"].map(|result| {
            let labels = [("policy", "api"), ("result", result)];
            exposition.value("tollgate_policy_requests_total", &labels)
        })
    };
    assert_eq!(results(None).await, [8.0, 2.0, 5.0]);
    assert_eq!(results(Some(50)).await, [5.0, 5.0, 5.0]);
}

#[tokio::test]
async fn quotas_are_gauges_and_change_with_the_policies() {
    let observed = Observed::default();
    let quota = Quota::requests(100).per_minute().burst(20);
    let busy = Policy::new("busy", Quota::concurrent(8));
    let policies = [
        Policy::new("api", quota),
        busy,
        Policy::block_list("blocked"),
    ];
    let limiter = in_process(&observed, policies);
    let gauges = |policy: &str| {
        let exposition = observed.exposition();
        ["quota_units", "quota_period_seconds", "burst_units"].map(|gauge| {
            exposition.value(&format!("tollgate_policy_{gauge}"), &[("policy", policy)])
        })
    };
    assert_eq!(gauges("api"), [100.0, 60.0, 20.0]);
    assert_eq!(gauges("busy"), [8.0, 0.0, 8.0]);
    assert_eq!(gauges("blocked"), [0.0; 3]);
    let blocked = &limiter.stats().policies[2];
    assert_eq!((blocked.quota, blocked.limit), (None, 0));
    let next = Limiter::builder().policy(Policy::new("api", Quota::requests(7).per_second()));
    limiter.reconfigure(next).expect("a policy");
    assert_eq!(gauges("api"), [7.0, 1.0, 7.0]);
    assert_eq!(gauges("busy"), [0.0; 3]);
    drop(limiter);
    assert_eq!(gauges("api"), [0.0; 3]);
}

#[tokio::test(start_paused = true)]
async fn permits_and_waiters_are_those_of_now_and_waiting_is_timed() {
    let observed = Observed::default();
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let builder = observed.limiter().store(store);
    let builder = builder.policy(Policy::new("busy", Quota::concurrent(1)));
    let limiter = builder.build().expect("a limiter");
    let gauge = |name: &str| observed.value(name, &[("policy", "busy")]);
    let held = limiter.admit("alice").await.expect("a permit");
    assert_eq!(gauge("tollgate_permits"), 1.0);
    let waiting = tokio::spawn(limiter.wait("alice", secs(60)).into_future());
    until("it waits", async || gauge("tollgate_waiters") == 1.0).await;
    tokio::time::sleep(secs(3)).await;
    drop(held);
    let held = waiting.await.expect("the task").expect("a permit");
    let now = (gauge("tollgate_permits"), gauge("tollgate_waiters"));
    assert_eq!(now, (1.0, 0.0));
    drop(held);
    assert_eq!(gauge("tollgate_permits"), 0.0);
    assert_eq!(observed.value("tollgate_wait_seconds_count", &[]), 1.0);
}

#[tokio::test]
async fn bans_that_begin_are_counted() {
    let observed = Observed::default();
    let ban = Policy::new("abuse", Quota::requests(3).per_minute());
    let ban = ban.strategy(Ban::for_duration(secs(600)));
    let once = Policy::new("api", Quota::requests(1).per_day());
    let limiter = in_process(&observed, [once, ban]);
    for caller in ["alice", "bob"] {
        for _ in 0..10 {
            drop(limiter.check(caller).await);
        }
    }
    let bans = observed.value("tollgate_bans_total", &[("policy", "abuse")]);
    assert_eq!(bans, 2.0);
}

#[tokio::test]
async fn shadow_policies_are_compared_also_after_they_change() {
    let observed = Observed::default();
    let policies = |live: u64, shadow: u64| {
        let live = Policy::new("api", Quota::requests(live).per_day());
        let shadow = Policy::new("next", Quota::requests(shadow).per_day());
        [live, shadow.shadow_of("api")]
    };
    let limiter = in_process(&observed, policies(10, 4));
    for _ in 0..10 {
        drop(limiter.check("alice").await);
    }
    let differs = || {
        let exposition = observed.exposition();
        ["same", "stricter", "looser"].map(|differs| {
            let labels = [("policy", "next"), ("differs", differs)];
            exposition.value("tollgate_shadow_requests_total", &labels)
        })
    };
    assert_eq!(differs(), [4.0, 6.0, 0.0]);
    let shadow_over = [("policy", "next"), ("result", "shadow_over")];
    let over = observed.value("tollgate_policy_requests_total", &shadow_over);
    assert_eq!(over, 6.0);
    // The limiter's own statistics begin anew; the counters go on.
    let next = policies(1, 3).into_iter();
    let next = next.fold(Limiter::builder(), |all, one| all.policy(one));
    limiter.reconfigure(next).expect("policies");
    assert_eq!(limiter.shadow_stats("next").expect("a shadow").evaluated, 0);
    assert_eq!(differs(), [4.0, 6.0, 0.0]);
    for _ in 0..3 {
        drop(limiter.check("bob").await);
    }
    assert_eq!(differs(), [5.0, 6.0, 2.0]);
}
