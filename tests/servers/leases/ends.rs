//! Resets, blocks and bans reach the leases of other processes within the TTL, and those of this process at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use testkit::Server;
use tollgate::{Ban, DecisionSource, Key, Limiter, Policy, Quota};

use crate::leases::{
    support::{
        KEY, StrategyKind, TTL, held, hold_units, leased, leases, limiter, single, store, until,
        used,
    },
    traffic::until_nothing_is_held,
};

fn ban() -> Policy {
    Policy::new("abuse", Quota::requests(3).per_hour())
        .strategy(Ban::for_duration(Duration::from_secs(600)))
}

fn banning(server: &Server, quota: &str) -> Limiter {
    let policy = leased(StrategyKind::Fixed, "p", quota);
    limiter(store(server), [policy, ban()])
}

#[tokio::test]
async fn a_reset_by_this_process_ends_its_leases_at_once() {
    for strategy in StrategyKind::ALL {
        let server = Server::start();
        let limiter = single(&server, strategy, "100000/month");
        hold_units(&limiter, KEY).await;
        limiter.reset(KEY).await.expect("a response");
        assert_eq!(held(&limiter), 0, "{strategy:?}");
        assert_eq!(used(&limiter, KEY).await, 0, "{strategy:?}");
        // What was leased before is not refunded: it would be taken off the fresh count.
        for _ in 0..9 {
            assert!(limiter.check(KEY).await.is_admitted());
        }
        until_nothing_is_held(std::slice::from_ref(&limiter), "p").await;
        let used = used(&limiter, KEY).await;
        assert!(used >= 9, "{strategy:?}: {used}");
        let stats = leases(&limiter, "p").expect("leases");
        assert!(stats.lapsed > 0, "{strategy:?}: {stats:?}");
    }
}

#[tokio::test]
async fn a_block_by_this_process_ends_its_leases_at_once() {
    let server = Server::start();
    let limiter = banning(&server, "100000/month");
    // A key that was blocked is leased again a second later.
    for key in ["a", "a", "b", "c", "d"].map(Key::new) {
        hold_units(&limiter, key).await;
        limiter
            .block(key, Duration::from_secs(60))
            .await
            .expect("a ban");
        for _ in 0..20 {
            assert!(!limiter.check(key).await.is_admitted());
        }
        assert_eq!(held(&limiter), 0);
        limiter.unblock(key).await.expect("a response");
    }
    until_nothing_is_held(std::slice::from_ref(&limiter), "p").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_holds_at_once_also_while_requests_go_on() {
    let server = Server::start();
    let limiter = banning(&server, "1000000/month");
    for round in 0..40 {
        // One that was blocked is leased again a second later only.
        let key = Key::new(format!("{round}"));
        hold_units(&limiter, key).await;
        let is_over = Arc::new(AtomicBool::new(false));
        let traffic: Vec<_> = (0..4)
            .map(|_| {
                let (limiter, is_over) = (limiter.clone(), is_over.clone());
                tokio::spawn(async move {
                    while !is_over.load(Ordering::Relaxed) {
                        drop(limiter.check(key).await);
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        limiter
            .block(key, Duration::from_secs(60))
            .await
            .expect("a ban");
        for _ in 0..50 {
            let decision = limiter.check(key).await;
            assert!(!decision.is_admitted(), "{round}: {decision:?}");
            tokio::task::yield_now().await;
        }
        is_over.store(true, Ordering::Relaxed);
        for task in traffic {
            task.await.expect("a task ends well");
        }
        limiter.unblock(key).await.expect("a response");
    }
}

/// A lease was requested before the ban, and ends one TTL later.
async fn rejects_within_the_ttl(limiter: &Limiter, banned: Instant) {
    loop {
        let asked = banned.elapsed();
        if !limiter.check(KEY).await.is_admitted() {
            return;
        }
        assert!(asked < TTL, "{asked:?}");
    }
}

#[tokio::test]
async fn a_block_by_another_process_ends_leases_within_the_ttl() {
    let server = Server::start();
    let [a, b] = [0, 1].map(|_| banning(&server, "100000/month"));
    hold_units(&a, KEY).await;
    b.block(KEY, Duration::from_secs(60)).await.expect("a ban");
    let blocked = Instant::now();
    rejects_within_the_ttl(&a, blocked).await;
    for _ in 0..200 {
        assert!(!a.check(KEY).await.is_admitted());
    }
}

/// The request of a lease is no request of a client.
#[tokio::test]
async fn a_ban_counts_rejected_requests_beside_a_leased_policy_and_not_rejected_leases() {
    let server = Server::start();
    let limiter = banning(&server, "400/month");
    let by_store = || limiter.peek(KEY);
    let mut by_lease = 0;
    let mut admitted = 0;
    for _ in 0..400 {
        let decision = limiter.check(KEY).await;
        by_lease += u64::from(decision.source() == DecisionSource::Lease);
        if !decision.is_admitted() {
            break;
        }
        admitted += 1;
    }
    assert!(by_lease > 0);
    assert_eq!(admitted, 400);
    let seen = by_store().await.expect("a response");
    let left = seen.policy("abuse").expect("the ban").remaining();
    assert_eq!(left, 3, "nothing was rejected yet");
    for left in [2, 1, 0] {
        assert!(!limiter.check(KEY).await.is_admitted());
        let seen = by_store().await.expect("a response");
        assert_eq!(seen.policy("abuse").expect("the ban").remaining(), left);
    }
    // It is banned now, with quota or without.
    limiter.reset([("p", KEY)]).await.expect("a response");
    assert!(!limiter.check(KEY).await.is_admitted());
}

#[tokio::test]
async fn a_ban_that_rejections_elsewhere_begin_reaches_leases_within_the_ttl() {
    let server = Server::start();
    let a = banning(&server, "100000/month");
    let b = banning(&server, "100000/month");
    hold_units(&a, KEY).await;
    let policy = b.policy("abuse").expect("the ban");
    policy.charge(KEY, 3).await.expect("a response");
    let banned = Instant::now();
    rejects_within_the_ttl(&a, banned).await;
    until("nothing is held", async || held(&a) == 0).await;
    for _ in 0..100 {
        assert!(!a.check(KEY).await.is_admitted());
    }
}
