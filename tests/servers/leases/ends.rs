//! Resets, blocks and bans reach the leases of other processes within the TTL, and those of this process at once.

use std::slice;

use crate::leases::support::*;

fn banning(scene: &Scene, quota: &str) -> Limiter {
    let ban = Policy::new("abuse", Quota::requests(3).per_hour());
    let ban = ban.strategy(Ban::for_duration(secs(600)));
    scene.limiter([leased(Fixed, "p", quota), ban])
}

/// A refund could be done after the reset, and take off units that were charged since.
#[test]
fn a_reset_by_this_process_ends_its_leases_at_once_and_they_are_not_refunded() {
    scene(async |scene| {
        for strategy in StrategyKind::ALL {
            let _case = Case(format!("{strategy:?}"));
            let limiter = scene.limiter(["p", "q"].map(|it| leased(strategy, it, "100000/month")));
            let key = Key::new(format!("{strategy:?}"));
            hold(&limiter, key).await;
            let before = held(&limiter);
            limiter.reset(key).await.expect("a response");
            for policy in ["p", "q"] {
                let units = leases(&limiter, policy).expect("leases");
                let ended = (units.held, units.refunded, units.lapsed);
                assert_eq!(ended, (0, 0, before), "{policy}");
            }
            assert_eq!(used(&limiter, key).await, 0);
            for _ in 0..9 {
                assert!(limiter.check(key).await.is_admitted());
            }
            scene.refund_leases(slice::from_ref(&limiter)).await;
            assert_eq!(used(&limiter, key).await, 9);
            assert_eq!(stats(&limiter)[4], before, "it lapses");
        }
    });
}

#[test]
fn a_block_by_this_process_holds_at_once_also_while_requests_go_on() {
    let test = async |scene: Scene| {
        for round in 0..20 {
            let limiter = banning(&scene, "1000000/month");
            let key = Key::new(format!("{round}"));
            let mut admitted = hold(&limiter, key).await;
            let traffic = (0..round % 4).map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    let mut admitted = 0;
                    while limiter.check(key).await.is_admitted() {
                        admitted += 1;
                    }
                    admitted
                })
            });
            let traffic: Vec<_> = traffic.collect();
            let blocked = match round % 2 {
                0 => limiter.block(key, secs(60)).await,
                _ => limiter.prolong_block(key, secs(60)).await,
            };
            blocked.expect("a ban");
            for _ in 0..50 {
                let decision = limiter.check(key).await;
                assert!(!decision.is_admitted(), "{round}: {decision:?}");
            }
            for task in join_all(traffic).await {
                admitted += task.expect("it ends well");
            }
            until_nothing_is_held(slice::from_ref(&limiter)).await;
            limiter.unblock(key).await.expect("a response");
            until_used(&limiter, key, admitted).await;
        }
    };
    scene_with(Timers::Stopped, |scene| {
        multi_thread(2).block_on(test(scene))
    });
}

/// A lease was requested before the ban, and ends one TTL later. Requests that cost more than there is are rejected while units are
/// held.
#[test]
fn bans_by_another_process_and_by_rejections_end_leases_within_the_ttl() {
    scene(async |scene| {
        let [a, b] = [0, 1].map(|_| banning(&scene, "100000/month"));
        for ban in ["block", "charge", "rejections"] {
            let key = Key::new(ban);
            hold(&a, key).await;
            match ban {
                "block" => b.block(key, secs(60)).await.expect("a ban"),
                "charge" => {
                    let abuse = b.policy("abuse").expect("the ban");
                    abuse.charge(key, 3).await.map(drop).expect("a response");
                }
                _ => {
                    for _ in 0..3 {
                        assert!(!a.check(key).cost(100_001).await.is_admitted());
                    }
                }
            }
            let decision = a.check(key).await;
            assert_eq!(decision.source(), DecisionSource::Lease, "{ban}");
            scene.advance(TTL);
            for _ in 0..100 {
                assert!(!a.check(key).await.is_admitted(), "{ban}");
            }
            until_nothing_is_held(slice::from_ref(&a)).await;
        }
    });
}

/// The request of a lease is no request of a client.
#[test]
fn a_ban_counts_rejected_requests_beside_a_leased_policy_and_not_rejected_leases() {
    scene(async |scene| {
        let limiter = banning(&scene, "400/month");
        let (admitted, by_lease) = send(&limiter, 400).await;
        assert!(admitted == 400 && by_lease > 0, "{admitted} {by_lease}");
        for left in [3, 2, 1] {
            let seen = limiter.peek(KEY).await.expect("a response");
            assert_eq!(seen.left("abuse"), left);
            assert!(!limiter.check(KEY).await.is_admitted());
        }
        // It is banned now, with quota or without.
        limiter.reset([("p", KEY)]).await.expect("a response");
        assert!(!limiter.check(KEY).await.is_admitted());
    });
}
