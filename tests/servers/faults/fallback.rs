//! What is admitted in process while the store fails: shares of quotas, whatever they are counted by.

use crate::faults::support::*;
use http::header::RETRY_AFTER;

fn falling_back(policy: Policy, processes: u32) -> Limiter {
    under(policy, nowhere(), LocalFallback::shared_by(processes))
}

/// Shares are rounded up, a burst is shared like the rest, and leases change nothing: in process, units are spent as they are charged.
#[tokio::test]
async fn each_process_admits_its_share_by_every_strategy() {
    let lease = Lease::max_units(64).ttl(secs(10));
    for (units, processes, share) in [(10, 4, 3), (3, 5, 1), (8, 2, 4), (7, 1, 7)] {
        // With leases, few units in an hour have a burst of one less.
        let leased = Policy::new("p", Quota::requests(units).per_hour()).lease(lease);
        let burst = Policy::new("p", quota(1_000).burst(units));
        let leased_bucket = leased.clone().strategy(TokenBucket);
        let other = falling_back(leased.clone(), processes);
        let other = other.check(KEY).quota_for("p", quota(14)).await;
        let limit = other.policy("p").expect("p").limit();
        assert_eq!(limit, 14_u64.div_ceil(processes.into()));
        let policies = every(units)
            .into_iter()
            .chain([leased, leased_bucket, burst]);
        for policy in policies {
            let limiter = falling_back(policy.clone(), processes);
            let admitted = admitted_in_process(&limiter, KEY, 2 * share + 2).await;
            assert_eq!(admitted, share, "{policy:?} across {processes}");
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
async fn in_flight_limits_and_bans_are_shared_and_permits_released_in_process() {
    let limiter = falling_back(Policy::new("p", Quota::concurrent(5)), 2);
    let permits = (0..3).map(|_| limiter.admit(KEY).into_future());
    let mut held = join_all(permits).await;
    assert!(held.iter().all(Result::is_ok));
    assert!(limiter.admit(KEY).await.is_err());
    drop(held.pop());
    held.push(limiter.admit(KEY).await);
    assert!(held.iter().all(Result::is_ok));
    assert!(limiter.admit(KEY).await.is_err());

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
async fn several_at_once_are_admitted_up_to_the_share_and_more_than_it_waits_a_second() {
    let limiter = sharing(nowhere(), 10, 4);
    let decision = limiter.check(KEY).cost(5).await;
    assert!(!decision.is_admitted());
    assert_eq!(decision.retry_after(), RetryAfter::In(secs(1)));
    // What the quota never allows, it won't then either.
    let decision = limiter.check(KEY).cost(11).await;
    assert_eq!(decision.retry_after(), RetryAfter::Never);
    let decision = limiter.check(KEY).times(8).await;
    assert_eq!(decision.admitted(), 3);
    assert_eq!(decision.source(), DecisionSource::Fallback);
}

#[tokio::test]
async fn a_reset_forgets_what_was_used_in_process_too() {
    let server = Server::start();
    let limiter = sharing(store(&server), 4, 2);
    server.kill();
    assert_eq!(admitted_in_process(&limiter, KEY, 5).await, 2);
    // The store has to be there.
    assert!(limiter.reset(KEY).await.is_err());
    assert_eq!(admitted_in_process(&limiter, KEY, 5).await, 0);
    server.restart();
    resumed(&limiter).await;
    let reset = limiter.reset(KEY).await.expect("a response");
    assert_eq!(reset.source(), DecisionSource::Store);
    server.kill();
    assert_eq!(admitted_in_process(&limiter, KEY, 5).await, 2);
}

#[tokio::test]
async fn behind_a_layer_a_local_rejection_is_a_429_that_reports_the_share() {
    let layer = RateLimitLayer::builder()
        .store(nowhere())
        .policy(Policy::new("p", Quota::requests(4).per_hour()).key(extract::global()))
        .on_store_error(LocalFallback::shared_by(2))
        .built();
    let hello = async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()));
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
