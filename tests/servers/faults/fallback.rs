//! What is admitted in process while the store fails: shares of quotas, whatever they are counted by.

use crate::faults::support::*;
use http::header::RETRY_AFTER;

fn falling_back(policy: Policy, processes: u32) -> Limiter {
    under(policy, nowhere(), LocalFallback::shared_by(processes))
}

#[tokio::test]
async fn all_processes_together_admit_the_sum_of_their_shares_by_every_strategy() {
    for (units, processes, share) in [(10, 4, 3), (3, 5, 1), (8, 2, 4), (7, 1, 7)] {
        for policy in every(units) {
            let mut all = 0;
            for _ in 0..processes {
                let limiter = falling_back(policy.clone(), processes);
                let admitted = admitted_in_process(&limiter, KEY, 2 * share + 2).await;
                assert_eq!(admitted, share, "{policy:?} across {processes}");
                all += admitted;
            }
            assert!(all < units + u64::from(processes));
        }
    }
}

#[tokio::test]
async fn a_process_admits_its_share_once_however_often_the_store_fails() {
    let (_server, network) = network();
    let limiters =
        every(100).map(|policy| under(policy, through(&network), LocalFallback::shared_by(2)));
    let mut admitted = vec![0; limiters.len()];
    for outage in 0..6 {
        network.cut();
        for (admitted, limiter) in admitted.iter_mut().zip(&limiters) {
            opened_in_process(limiter).await;
            // Some of them before the last outage, too many in the end.
            *admitted += admitted_in_process(limiter, KEY, 15 + 10 * outage).await;
        }
        network.pass();
        for limiter in &limiters {
            resumed(limiter).await;
        }
    }
    for (admitted, limiter) in admitted.into_iter().zip(&limiters) {
        assert_eq!(admitted, 50, "{limiter:?}");
        let used = used_on_the_store(limiter, KEY).await;
        assert_eq!(used, 0, "{limiter:?}: the store knows of none");
    }
}

#[tokio::test]
async fn a_burst_is_shared_like_the_rest() {
    let policy = Policy::new("p", quota(1_000).burst(9));
    let limiter = falling_back(policy, 4);
    assert_eq!(admitted_in_process(&limiter, KEY, 20).await, 3);
}

/// In process, units are spent as they are charged.
#[tokio::test]
async fn the_share_of_a_policy_with_leases_is_that_without_them() {
    let lease = Lease::max_units(64).ttl(secs(10));
    // With leases, 7 units in an hour have a burst of 6, and the share of one process none.
    let hourly = Policy::new("p", Quota::requests(7).per_hour());
    for policy in [hourly.clone(), hourly.strategy(TokenBucket)] {
        for (processes, share) in [(1, 7), (4, 2), (7, 1)] {
            let limiter = falling_back(policy.clone().lease(lease), processes);
            let admitted = admitted_in_process(&limiter, KEY, 10).await;
            assert_eq!(admitted, share, "{policy:?} across {processes}");
            let quota = "14/h".parse().expect("a quota");
            let other = limiter.check(Key::new("other")).quota_for("p", quota).await;
            let limit = other.policy("p").expect("p").limit();
            assert_eq!(limit, 14_u64.div_ceil(processes.into()), "{policy:?}");
        }
    }
}

#[tokio::test]
async fn a_requests_own_quota_is_shared_like_the_policys() {
    let limiter = falling_back(policy(8).strategy(FixedWindow), 4);
    let ask = async |units: u64| limiter.check("key").quota_for("p", quota(units)).await;
    // They have one count between them.
    for _ in 0..5 {
        assert!(ask(20).await.is_admitted());
    }
    let rejected = ask(20).await;
    assert!(matches!(rejected.kind(), DecisionKind::Rejected) && !ask(8).await.is_admitted());
    let verdict = rejected.policy("p").expect("a policy");
    assert!(verdict.rejected());
    assert_eq!((verdict.limit(), verdict.quota()), (5, quota(5)));
    assert!(ask(40).await.is_admitted());
}

#[tokio::test]
async fn in_flight_limits_are_shared_and_their_permits_released_in_process() {
    let policy = Policy::new("p", Quota::concurrent(5));
    let limiter = falling_back(policy, 2);
    for _ in 0..3 {
        let permits = (0..3).map(|_| limiter.admit(KEY).into_future());
        let mut held = join_all(permits).await;
        assert!(held.iter().all(Result::is_ok));
        assert!(!limiter.check(KEY).await.is_admitted());
        drop(held.pop());
        held.push(limiter.admit(KEY).await);
        assert!(held.iter().all(Result::is_ok));
        assert!(!limiter.check(KEY).await.is_admitted());
    }
}

#[tokio::test]
async fn bans_are_shared_too() {
    let ban = Ban::for_duration(secs(600));
    let limiter = Limiter::builder()
        .store(nowhere())
        .policy(policy(2))
        .policy(Policy::new("ban", Quota::requests(6).per_hour()).strategy(ban))
        .on_store_error(LocalFallback::shared_by(2))
        .built();
    assert_eq!(admitted_in_process(&limiter, KEY, 4).await, 1);
    let rejected = limiter.check(KEY).await;
    let verdict = rejected.policy("ban").expect("it blocks after three");
    assert!(verdict.rejected());
}

#[tokio::test]
async fn several_requests_at_once_are_admitted_up_to_the_share() {
    let limiter = sharing(nowhere(), 10, 2);
    let decision = limiter.check(KEY).times(8).await;
    assert_eq!(decision.admitted(), 5);
    assert_eq!(decision.source(), DecisionSource::Fallback);
}

#[tokio::test]
async fn a_request_that_exceeds_the_share_has_a_retry_after_of_a_second() {
    let limiter = sharing(nowhere(), 10, 4);
    let decision = limiter.check(KEY).cost(5).await;
    assert!(!decision.is_admitted());
    assert_eq!(decision.retry_after(), RetryAfter::In(secs(1)));
    // What the quota never allows, it won't then either.
    let decision = limiter.check(KEY).cost(11).await;
    assert_eq!(decision.retry_after(), RetryAfter::Never);
}

#[tokio::test]
async fn a_reset_forgets_what_was_used_in_process_too() {
    let limiter = sharing(nowhere(), 4, 2);
    assert_eq!(admitted_in_process(&limiter, KEY, 5).await, 2);
    // The store has to be there.
    assert!(limiter.reset(KEY).await.is_err());
    assert_eq!(admitted_in_process(&limiter, KEY, 5).await, 0);

    let server = Server::start();
    let limiter = sharing(store(&server), 4, 2);
    server.kill();
    assert_eq!(admitted_in_process(&limiter, KEY, 5).await, 2);
    server.restart();
    resumed(&limiter).await;
    let reset = limiter.reset(KEY).await.expect("a response");
    assert_eq!(reset.source(), DecisionSource::Store);
    server.kill();
    assert_eq!(admitted_in_process(&limiter, KEY, 5).await, 2);
}

#[tokio::test]
async fn a_rejection_by_a_store_on_redis_or_in_process_is_no_failure() {
    let server = Server::start();
    let in_process = Limiter::builder()
        .store(MemoryStore::new())
        .policy(policy(2))
        .on_store_error(LocalFallback::shared_by(2))
        .built();
    for limiter in [sharing(store(&server), 2, 2), in_process] {
        for admitted in [true, true, false, false, false] {
            assert_eq!(admitted_by_store(&limiter.check(KEY).await), admitted);
        }
    }
}

#[tokio::test]
async fn behind_a_layer_a_local_rejection_is_a_429_that_reports_the_share() {
    let layer = RateLimitLayer::builder()
        .store(nowhere())
        .policy(Policy::new("p", Quota::requests(4).per_hour()).key(extract::global()))
        .on_store_error(LocalFallback::shared_by(2))
        .built();
    let hello = async |_: Request<()>| Ok::<_, Infallible>(Response::new(()));
    let service = layer.layer(service_fn(hello));
    for remaining in [1, 0] {
        let Ok(response) = service.clone().oneshot(Request::new(())).await;
        assert_eq!(response.status(), 200);
        let fields = response.headers()["ratelimit"].to_str().expect("text");
        assert!(fields.contains(&format!("r={remaining}")), "{fields}");
        assert_eq!(response.headers()["ratelimit-policy"], r#""p";q=2;w=3600"#);
    }
    let Ok(response) = service.oneshot(Request::new(())).await;
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key(RETRY_AFTER));
}
