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
        let limiter = in_process(&observed, [daily("api", 10)]);
        send(&limiter, 15).await;
        let exposition = observed.exposition();
        let of = |result| format!("policy_requests_total policy=api result={result}");
        ["within", "near", "over"].map(|result| value(&exposition, &of(result)))
    };
    assert_eq!(results(None).await, [8.0, 2.0, 5.0]);
    assert_eq!(results(Some(50)).await, [5.0, 5.0, 5.0]);
}

#[tokio::test]
async fn quotas_are_gauges_and_change_with_the_policies() {
    let observed = Observed::default();
    let policies = [
        Policy::new("api", quota("100/min burst 20")),
        Policy::new("busy", Quota::concurrent(8)),
        Policy::block_list("blocked"),
    ];
    let limiter = in_process(&observed, policies);
    let gauges = |policy: &str| {
        let gauges = ["quota_units", "quota_period_seconds", "burst_units"];
        gauges.map(|gauge| value_now(&observed, &format!("policy_{gauge} policy={policy}")))
    };
    assert_eq!(gauges("api"), [100.0, 60.0, 20.0]);
    assert_eq!(gauges("busy"), [8.0, 0.0, 8.0]);
    assert_eq!(gauges("blocked"), [0.0; 3]);
    let blocked = &limiter.stats().policies[2];
    assert_eq!((blocked.quota, blocked.limit), (None, 0));
    let next = Limiter::builder().policy(Policy::new("api", quota("7/s")));
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
    let gauge = |name: &str| value_now(&observed, &format!("{name} policy=busy"));
    let held = limiter.admit("alice").await.expect("a permit");
    assert_eq!(gauge("permits"), 1.0);
    let waiting = tokio::spawn(limiter.wait("alice", secs(60)).into_future());
    until("it waits", async || gauge("waiters") == 1.0).await;
    tokio::time::sleep(secs(3)).await;
    drop(held);
    let held = waiting.await.expect("the task").expect("a permit");
    let now = (gauge("permits"), gauge("waiters"));
    assert_eq!(now, (1.0, 0.0));
    drop(held);
    assert_eq!(gauge("permits"), 0.0);
    assert_eq!(value_now(&observed, "wait_seconds_count"), 1.0);
}

#[tokio::test]
async fn bans_that_begin_are_counted() {
    let observed = Observed::default();
    let ban = Policy::new("abuse", Quota::requests(3).per_minute());
    let ban = ban.strategy(Ban::for_duration(secs(600)));
    let limiter = in_process(&observed, [daily("api", 1), ban]);
    for caller in ["alice", "bob"] {
        for _ in 0..10 {
            drop(limiter.check(caller).await);
        }
    }
    assert_eq!(value_now(&observed, "bans_total policy=abuse"), 2.0);
}

#[tokio::test]
async fn what_a_shadow_policy_would_reject_is_a_result_of_its_own() {
    let observed = Observed::default();
    let limiter = in_process(&observed, [daily("api", 10), daily("next", 4).shadow()]);
    send(&limiter, 10).await;
    let result = |result| {
        let series = format!("policy_requests_total policy=next result={result}");
        value_now(&observed, &series)
    };
    assert_eq!(result("shadow_over"), 6.0);
    assert_eq!(result("within") + result("near"), 4.0);
}
