//! What a ban rejects is rejected from memory: unlike other rejections beside a ban, it counts nowhere.

use testkit::Clock;
use tollgate::observe::DecisionSource::{RejectionCache, Store};
use tollgate_tests::prelude::*;

use crate::store::{
    rejection_cache::{BOUND, key, store},
    support::*,
};

/// One request a minute; three rejections ban for ten minutes.
fn banning(server: &Server, clock: &Clock) -> Limiter {
    let policies = [
        Policy::new("p", Quota::requests(1).per_minute()).charge_rejected(true),
        Policy::new("ban", Quota::requests(3).per_minute()).strategy(Ban::for_duration(secs(600))),
    ];
    limiter(store(server, clock), policies)
}

/// Where a rejection comes from, and its wait.
async fn rejected(limiter: &Limiter) -> (DecisionSource, Duration) {
    let decision = limiter.check(key()).await;
    let source = decision.source();
    let rejected = decision.into_result().expect_err("a rejection");
    (source, rejected.retry_after().duration().expect("a wait"))
}

#[tokio::test]
async fn a_banned_client_costs_the_server_one_call_per_bound() {
    let (clock, server) = on_a_clock();
    let limiter = banning(&server, &clock);
    assert!(limiter.check(key()).await.is_admitted());
    // Each of these is counted.
    for wait in [120, 120, 600] {
        assert_eq!(rejected(&limiter).await, (Store, secs(wait)));
    }
    server.reset_stats();
    for _ in 0..100 {
        clock.advance(ms(5));
        assert_eq!(rejected(&limiter).await.0, RejectionCache);
    }
    assert_eq!(server.calls("evalsha"), 0);
    let cached = (RejectionCache, secs(600) - ms(500));
    assert_eq!(rejected(&limiter).await, cached);
    clock.advance(BOUND);
    assert_eq!(rejected(&limiter).await.0, Store);
    assert_eq!(rejected(&limiter).await.0, RejectionCache);
    // Another client of the same limiter is not rejected with it.
    assert!(limiter.check("other").await.is_admitted());
}

#[tokio::test]
async fn rejections_are_counted_again_when_a_ban_has_ended() {
    let (clock, server) = on_a_clock();
    let policies = [
        Policy::new("p", Quota::requests(1).per_week()),
        Policy::new("ban", Quota::requests(1).per_minute()).strategy(Ban::for_duration(BOUND / 2)),
    ];
    let limiter = limiter(store(&server, &clock), policies);
    assert!(limiter.check(key()).await.is_admitted());
    for _ in 0..3 {
        // The first begins a ban, each time a longer one.
        assert_eq!(rejected(&limiter).await.0, Store);
        assert_eq!(rejected(&limiter).await.0, RejectionCache);
        let seen = limiter.peek([("ban", key())]).await.expect("a response");
        let left = seen.count("ban").retry_after().duration();
        clock.advance(left.expect("a ban"));
    }
}

#[tokio::test]
async fn a_lifted_ban_ends_at_once_in_this_process_and_within_the_bound_in_others() {
    let (clock, server) = on_a_clock();
    let [here, there] = [0, 1].map(|_| banning(&server, &clock));
    for (lifts, source) in [(&here, Store), (&there, RejectionCache)] {
        let _ = here.reset(key()).await.expect("a response");
        let hour = secs(3_600);
        there.block(key(), hour).await.expect("a ban");
        clock.advance(BOUND);
        assert_eq!(rejected(&here).await, (Store, hour - BOUND));
        lifts.unblock(key()).await.expect("no ban");
        let decision = here.check(key()).await;
        assert_eq!(decision.source(), source);
        assert_eq!(decision.is_admitted(), source == Store);
        clock.advance(BOUND);
    }
    assert!(here.check(key()).await.is_admitted());
}

#[tokio::test]
async fn a_block_list_counts_no_rejections_and_leaves_those_of_other_policies_cached() {
    let (clock, server) = on_a_clock();
    let policies = [
        Policy::new("p", Quota::requests(1).per_minute()),
        Policy::block_list("blocked"),
    ];
    let limiter = limiter(store(&server, &clock), policies);
    assert!(limiter.check(key()).await.is_admitted());
    let minute = secs(60);
    assert_eq!(rejected(&limiter).await, (Store, minute));
    server.reset_stats();
    for _ in 0..100 {
        assert_eq!(rejected(&limiter).await, (RejectionCache, minute));
    }
    assert_eq!(server.calls("evalsha"), 0);

    // A block holds once the wait is over, and its end within the bound.
    limiter.block(key(), 10 * minute).await.expect("a block");
    clock.advance(minute);
    assert_eq!(rejected(&limiter).await, (Store, 9 * minute));
    limiter.unblock(key()).await.expect("no block");
    clock.advance(BOUND);
    assert!(limiter.check(key()).await.is_admitted());
}

#[tokio::test]
async fn a_rejection_by_a_block_list_is_cached_until_the_key_is_unblocked() {
    let (clock, server) = on_a_clock();
    let counts = Policy::new("p", Quota::requests(9).per_minute()).charge_rejected(true);
    let policies = [counts, Policy::block_list("blocked")];
    let [here, there] = [0, 1].map(|_| limiter(store(&server, &clock), policies.clone()));
    let hour = secs(3_600);
    for (lifts, source) in [(&here, Store), (&there, RejectionCache)] {
        there.block(key(), hour).await.expect("a block");
        clock.advance(BOUND);
        assert_eq!(rejected(&here).await, (Store, hour - BOUND));
        server.reset_stats();
        for _ in 0..100 {
            assert_eq!(rejected(&here).await, (RejectionCache, hour - BOUND));
        }
        assert_eq!(server.calls("evalsha"), 0);
        // Another client is not rejected with it.
        assert!(here.check("other").await.is_admitted());
        lifts.unblock(key()).await.expect("no block");
        assert_eq!(here.check(key()).await.source(), source);
        clock.advance(BOUND);
        assert!(here.check(key()).await.is_admitted());
    }
    // A block is over in time, whatever is cached.
    here.block(key(), BOUND / 2).await.expect("a block");
    assert_eq!(rejected(&here).await.0, Store);
    assert_eq!(rejected(&here).await.0, RejectionCache);
    clock.advance(BOUND / 2);
    assert!(here.check(key()).await.is_admitted());
}
