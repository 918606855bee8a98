//! Bans, rejections that count, and shadows: a request whose keys are in several slots is counted as if they were in one.

use std::{future::IntoFuture, time::Duration};

use futures_util::future::join_all;
use tollgate::{Ban, Decision, Limiter, Policy, Quota, RetryAfter, limiter::Keys};

use crate::cluster::{
    every_policy::refund_every,
    support::{MasterKeys, StrategyKind, admitted_by_store, cluster, limiter, store, used},
};

/// A step of a history.
#[derive(Clone, Copy)]
enum Step {
    /// This many requests, in one call.
    Check(u64),
    /// This many requests, each in its own call, sent together.
    AtOnce(usize),
    /// A refund of this many units of the last call that was admitted.
    Refund(u64),
    /// A ban by hand, under the policy of that name.
    Block(&'static str),
    /// Its end.
    Unblock(&'static str),
}
use Step::{AtOnce, Block, Check, Refund, Unblock};

fn ban(name: &str, quota: &str) -> Policy {
    StrategyKind::Fixed
        .policy(name, quota)
        .strategy(Ban::for_duration(Duration::from_secs(7_200)))
}

/// What a decision reports of each policy.
fn decision_text(decision: &Decision) -> String {
    let enforced = decision
        .policies()
        .map(|v| (v.policy(), v.rejected(), v.remaining()));
    let shadows = decision
        .shadows()
        .map(|v| (v.policy(), v.would_reject(), v.remaining()));
    format!("{:?}", enforced.chain(shadows).collect::<Vec<_>>())
}

/// What is left under each policy, and in how many minutes all will be: so a debt shows.
async fn left(limiter: &Limiter, keys: &Keys) -> String {
    let seen = limiter.peek(keys.clone()).await.expect("a response");
    let all = seen.policies().chain(seen.shadows()).map(|policy| {
        let minutes = policy.reset_after().as_secs().div_ceil(60);
        let name = policy.policy();
        (
            name,
            policy.remaining(),
            minutes,
            limiter.shadow_stats(name),
        )
    });
    format!("{:?}", all.collect::<Vec<_>>())
}

/// Runs a history under policies whose keys are in these slots, and with all of them in one; both decide alike. Returns
/// what is left.
async fn in_slots_as_in_one<const N: usize>(
    name: &str,
    slots: [usize; N],
    policies: impl Fn() -> [Policy; N],
    history: &[Step],
) -> String {
    let mut shown = Vec::new();
    for in_one in [true, false] {
        let master_keys = MasterKeys::find(cluster(), &format!("{name}-{in_one}-")).await;
        let policies = policies();
        let place = |slot| master_keys.key(if in_one { 0 } else { slot });
        let keys = policies.iter().zip(slots);
        let keys: Vec<_> = keys
            .map(|(policy, slot)| (policy.name().to_owned(), place(slot)))
            .collect();
        let under = |name: &str| -> Keys {
            let (name, key) = keys.iter().find(|(own, _)| own == name).expect(name);
            [(name.clone(), *key)].into()
        };
        let all: Keys = keys.clone().into_iter().collect();
        let limiter = limiter(store(cluster()), policies);
        let (mut says_all, mut last) = (Vec::new(), None);
        for step in history {
            match *step {
                Check(times) => {
                    let decision = limiter.check(all.clone()).times(times).await;
                    assert_eq!(admitted_by_store(&decision), decision.admitted() > 0);
                    says_all.push(format!(
                        "{} {}",
                        decision.admitted(),
                        decision_text(&decision)
                    ));
                    last = decision.into_result().ok().or(last);
                }
                AtOnce(many) => {
                    let pending = (0..many).map(|_| limiter.check(all.clone()).into_future());
                    let decisions = join_all(pending).await;
                    let admitted = decisions.iter().filter(|d| admitted_by_store(d)).count();
                    says_all.push(admitted.to_string());
                }
                Refund(units) => {
                    let admission = last.as_ref().expect("an admission");
                    refund_every(admission, units).await.expect("a refund");
                }
                Block(name) => {
                    let hour = Duration::from_secs(3_600);
                    limiter.block(under(name), hour).await.expect("a ban");
                }
                Unblock(name) => drop(limiter.unblock(under(name)).await.expect("no ban")),
            }
        }
        shown.push((says_all, left(&limiter, &all).await));
    }
    let [in_one, in_slots] = &shown[..] else {
        unreachable!()
    };
    assert_eq!(in_slots, in_one);
    in_one.1.clone()
}

#[tokio::test]
async fn the_rejection_with_which_one_ban_begins_counts_in_all_of_them() {
    let policies = || {
        [
            StrategyKind::Fixed.policy("a", "1/day"),
            ban("b", "1/h"),
            ban("c", "4/h"),
        ]
    };
    for slots in [[0, 0, 1], [0, 1, 1], [0, 1, 2]] {
        let history = [Check(1), Check(1), Unblock("b"), Check(1)];
        in_slots_as_in_one(&format!("begins{slots:?}"), slots, policies, &history).await;
    }
}

#[tokio::test]
async fn no_ban_counts_while_another_one_is_in_force() {
    let policies = || {
        [
            StrategyKind::Fixed.policy("a", "2/day"),
            ban("b", "4/h"),
            ban("c", "1/h"),
        ]
    };
    for slots in [[0, 0, 1], [0, 1, 1], [0, 1, 2]] {
        let history = [Check(1), Check(1), Check(3), Check(1), Check(2)];
        in_slots_as_in_one(&format!("lasts{slots:?}"), slots, policies, &history).await;
    }
}

#[tokio::test]
async fn rejections_by_a_ban_in_another_slot_make_no_debt() {
    let policies = || {
        [
            StrategyKind::Gcra.policy("a", "2/h").charge_rejected(true),
            ban("b", "9/h"),
        ]
    };
    let history = [Check(2), Block("b"), Check(1), Check(2)];
    in_slots_as_in_one("free", [0, 1], policies, &history).await;
    let history = [
        Check(2),
        Check(1),
        Block("b"),
        Check(1),
        Unblock("b"),
        Check(1),
    ];
    in_slots_as_in_one("counts", [0, 1], policies, &history).await;
}

#[tokio::test]
async fn only_rejections_before_a_ban_begins_make_a_debt() {
    let policies = || {
        [
            StrategyKind::Gcra.policy("a", "8/h").charge_rejected(true),
            ban("b", "2/h"),
        ]
    };
    in_slots_as_in_one("before", [0, 1], policies, &[Check(8), Check(5), Check(1)]).await;
}

#[tokio::test]
async fn a_partly_admitted_call_is_refunded_the_admitted_part() {
    let policies = || {
        [
            StrategyKind::Gcra.policy("a", "3/h").charge_rejected(true),
            ban("b", "9/h"),
            StrategyKind::List.policy("c", "3/h").charge_rejected(true),
        ]
    };
    for slots in [[0, 1, 2], [0, 0, 1]] {
        let name = format!("part{slots:?}");
        let history = [Check(5), Refund(2), Check(1), Refund(9), Check(1)];
        in_slots_as_in_one(&name, slots, policies, &history).await;
    }
}

#[tokio::test]
async fn a_policy_that_rejected_for_units_that_come_back_charges_no_rejections() {
    let policies = || {
        [
            StrategyKind::Fixed.policy("a", "1/day"),
            StrategyKind::Fixed
                .policy("b", "2/day")
                .charge_rejected(true),
            StrategyKind::Log.policy("c", "2/day").charge_rejected(true),
        ]
    };
    for slots in [[0, 1, 2], [0, 1, 1], [0, 0, 1]] {
        let name = format!("back{slots:?}");
        in_slots_as_in_one(&name, slots, policies, &[Check(3)]).await;
    }
}

#[tokio::test]
async fn rejections_of_requests_at_the_same_time_count_once_each() {
    let policies = || {
        [
            StrategyKind::Gcra.policy("a", "2/h").charge_rejected(true),
            ban("b", "5/h"),
            ban("c", "9/h"),
        ]
    };
    for slots in [[0, 1, 2], [0, 0, 1]] {
        let name = format!("once{slots:?}");
        let history = [Check(2), AtOnce(4), Check(1), Check(1)];
        in_slots_as_in_one(&name, slots, policies, &history).await;
    }
}

#[tokio::test]
async fn a_shadow_is_evaluated_before_the_rejection_begins_a_ban() {
    let policies = || {
        [
            StrategyKind::Fixed.policy("a", "1/day"),
            ban("b", "1/h"),
            StrategyKind::Fixed.policy("looser", "9/day").shadow_of("a"),
        ]
    };
    for slots in [[0, 0, 1], [0, 1, 0], [0, 1, 2]] {
        let history = [Check(1), Check(1), Check(1)];
        in_slots_as_in_one(&format!("judged{slots:?}"), slots, policies, &history).await;
    }
}

#[tokio::test]
async fn a_shadow_takes_no_more_of_several_than_the_other_policies_have_room_for() {
    let policies = || {
        [
            StrategyKind::Fixed.policy("a", "5/day"),
            StrategyKind::Fixed.policy("b", "3/day"),
            StrategyKind::Fixed.policy("looser", "9/day").shadow_of("b"),
        ]
    };
    for slots in [[0, 0, 1], [0, 1, 1], [0, 1, 2]] {
        let history = [Check(3), Check(4)];
        in_slots_as_in_one(&format!("takes{slots:?}"), slots, policies, &history).await;
        in_slots_as_in_one(&format!("all{slots:?}"), slots, policies, &[Check(7)]).await;
    }
}

#[tokio::test]
async fn a_charged_rejection_is_charged_only_to_the_policy_that_rejected() {
    let master_keys = MasterKeys::find(cluster(), "counts").await;
    let policies = [
        StrategyKind::Gcra.policy("a", "2/h").charge_rejected(true),
        StrategyKind::Gcra.policy("b", "9/h").charge_rejected(true),
    ];
    let limiter = limiter(store(cluster()), policies);
    let both = || [("a", master_keys.key(0)), ("b", master_keys.key(1))];
    let wait = async || match limiter.check(both()).await.retry_after() {
        RetryAfter::In(wait) => wait.as_secs().div_ceil(60),
        other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        assert!(admitted_by_store(&limiter.check(both()).await));
    }
    let waits = [wait().await, wait().await, wait().await];
    assert_eq!(waits, [60, 90, 90]);
    assert_eq!(used(&limiter, [("b", master_keys.key(1))]).await, [2]);
}

#[tokio::test]
async fn a_ban_counts_rejections_in_other_slots_and_holds_in_all_of_them() {
    let master_keys = MasterKeys::find(cluster(), "ban").await;
    let ban = || {
        Policy::new("c", Quota::requests(3).per_hour())
            .strategy(Ban::for_duration(Duration::from_secs(600)))
    };
    let limiter = limiter(
        store(cluster()),
        [
            StrategyKind::Gcra.policy("a", "2/h"),
            StrategyKind::Gcra.policy("b", "9/h"),
            ban(),
        ],
    );
    for _ in 0..2 {
        assert!(admitted_by_store(&limiter.check(master_keys.apart()).await));
    }
    assert_eq!(used(&limiter, [("c", master_keys.key(2))]).await, [0]);
    for rejections in 1..=3 {
        let rejected = limiter.check(master_keys.apart()).await;
        assert!(!admitted_by_store(&rejected));
        let banned = rejected.policy("c").is_some_and(|policy| policy.rejected());
        assert_eq!(banned, rejections == 3, "{rejected:?}");
    }
    // While it lasts nothing is charged, also where there is room.
    let elsewhere: Keys = [("b", master_keys.key(1)), ("c", master_keys.key(2))].into();
    let rejected = limiter.check(elsewhere).await;
    assert!(
        !admitted_by_store(&rejected)
            && rejected.policy("c").is_some_and(|policy| policy.rejected())
    );
    assert_eq!(used(&limiter, [("b", master_keys.key(1))]).await, [2]);
}

#[tokio::test]
async fn rejections_by_one_ban_are_not_counted_by_another() {
    let master_keys = MasterKeys::find(cluster(), "bans").await;
    let ban = |name| {
        let policy = Policy::new(name, Quota::requests(9).per_hour());
        policy.strategy(Ban::for_duration(Duration::from_secs(600)))
    };
    let policies = [StrategyKind::Gcra.policy("a", "2/h"), ban("b"), ban("c")];
    let limiter = limiter(store(cluster()), policies);
    let c: Keys = [("c", master_keys.key(2))].into();
    let hour = Duration::from_secs(3_600);
    limiter.block(c.clone(), hour).await.expect("a block");
    for _ in 0..3 {
        assert!(!admitted_by_store(
            &limiter.check(master_keys.apart()).await
        ));
    }
    limiter.unblock(c).await.expect("no block");
    assert_eq!(used(&limiter, master_keys.apart()).await, [0, 0, 0]);
}
