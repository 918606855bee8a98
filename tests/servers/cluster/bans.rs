//! Bans, rejections that count, and shadows: a request whose keys are in several slots is counted as if they were in one.

use tollgate::limiter::Keys;

use crate::cluster::support::*;
use tollgate_tests::every_policy::refund_every;

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
    Fixed
        .policy(name, quota)
        .strategy(Ban::for_duration(secs(7_200)))
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

/// Three keys: two of them in one slot, or each in its own.
const SPREAD: [[usize; 3]; 3] = [[0, 0, 1], [0, 1, 1], [0, 1, 2]];

/// Runs a history under policies whose keys are in these slots, and with all of them in one: both decide alike.
async fn in_slots_as_in_one<const N: usize>(
    name: &str,
    all_slots: &[[usize; N]],
    policies: impl Fn() -> [Policy; N],
    history: &[Step],
) {
    for slots in all_slots {
        let in_slots = run(&format!("{name}{slots:?}"), *slots, &policies, history).await;
        let in_one = run(&format!("{name}{slots:?}-one"), [0; N], &policies, history).await;
        assert_eq!(in_slots, in_one, "{slots:?}");
    }
}

/// What the calls of a history decide, and what is left after it.
async fn run<const N: usize>(
    name: &str,
    slots: [usize; N],
    policies: impl Fn() -> [Policy; N],
    history: &[Step],
) -> Vec<String> {
    let master_keys = MasterKeys::find(cluster(), name).await;
    let names = policies().map(|policy| policy.name().to_owned());
    let keys = names
        .into_iter()
        .zip(slots.map(|slot| master_keys.key(slot)));
    let all: Keys = keys.clone().collect();
    let under = |name: &str| -> Keys { keys.clone().filter(|(own, _)| own == name).collect() };
    let limiter = limiter(store(cluster()), policies());
    let (mut shown, mut last) = (Vec::new(), None);
    for step in history {
        match *step {
            Check(times) => {
                let decision = limiter.check(all.clone()).times(times).await;
                assert_eq!(admitted_by_store(&decision), decision.admitted() > 0);
                let admitted = decision.admitted();
                shown.push(format!("{admitted} {}", decision_text(&decision)));
                last = decision.into_result().ok().or(last);
            }
            AtOnce(many) => {
                let pending = (0..many).map(|_| limiter.check(all.clone()).into_future());
                let decisions = join_all(pending).await;
                let admitted = decisions.iter().filter(|d| admitted_by_store(d)).count();
                shown.push(admitted.to_string());
            }
            Refund(units) => {
                let admission = last.as_ref().expect("an admission");
                refund_every(admission, units).await.expect("a refund");
            }
            Block(name) => {
                let blocked = limiter.block(under(name), secs(3_600)).await;
                blocked.expect("a ban");
            }
            Unblock(name) => drop(limiter.unblock(under(name)).await.expect("no ban")),
        }
    }
    shown.push(left(&limiter, &all).await);
    shown
}

#[tokio::test]
async fn the_rejection_with_which_one_ban_begins_counts_in_all_of_them() {
    let policies = || [Fixed.policy("a", "1/day"), ban("b", "1/h"), ban("c", "4/h")];
    let history = [Check(1), Check(1), Unblock("b"), Check(1)];
    in_slots_as_in_one("begins", &SPREAD, policies, &history).await;
}

#[tokio::test]
async fn no_ban_counts_while_another_one_is_in_force() {
    let policies = || [Fixed.policy("a", "2/day"), ban("b", "4/h"), ban("c", "1/h")];
    let history = [Check(1), Check(1), Check(3), Check(1), Check(2)];
    in_slots_as_in_one("lasts", &SPREAD, policies, &history).await;
}

#[tokio::test]
async fn rejections_by_a_ban_in_another_slot_make_no_debt() {
    let a = || Gcra.policy("a", "2/h").charge_rejected(true);
    let policies = || [a(), ban("b", "9/h")];
    let history = [Check(2), Block("b"), Check(1), Check(2)];
    in_slots_as_in_one("free", &[[0, 1]], policies, &history).await;
    let lifted = [Check(1), Block("b"), Check(1), Unblock("b"), Check(1)];
    let history = [&[Check(2)], &lifted[..]].concat();
    in_slots_as_in_one("counts", &[[0, 1]], policies, &history).await;
}

#[tokio::test]
async fn only_rejections_before_a_ban_begins_make_a_debt() {
    let a = || Gcra.policy("a", "8/h").charge_rejected(true);
    let history = [Check(8), Check(5), Check(1)];
    in_slots_as_in_one("before", &[[0, 1]], || [a(), ban("b", "2/h")], &history).await;
}

#[tokio::test]
async fn a_partly_admitted_call_is_refunded_the_admitted_part() {
    let a = || Gcra.policy("a", "3/h").charge_rejected(true);
    let c = || List.policy("c", "3/h").charge_rejected(true);
    let history = [Check(5), Refund(2), Check(1), Refund(9), Check(1)];
    in_slots_as_in_one("part", &SPREAD, || [a(), ban("b", "9/h"), c()], &history).await;
}

#[tokio::test]
async fn a_policy_that_rejected_for_units_that_come_back_charges_no_rejections() {
    let a = || Fixed.policy("a", "1/day");
    let b = || Fixed.policy("b", "2/day").charge_rejected(true);
    let c = || Log.policy("c", "2/day").charge_rejected(true);
    in_slots_as_in_one("back", &SPREAD, || [a(), b(), c()], &[Check(3)]).await;
}

#[tokio::test]
async fn rejections_of_requests_at_the_same_time_count_once_each() {
    let a = || Gcra.policy("a", "2/h").charge_rejected(true);
    let policies = || [a(), ban("b", "5/h"), ban("c", "9/h")];
    let history = [Check(2), AtOnce(4), Check(1), Check(1)];
    in_slots_as_in_one("once", &SPREAD, policies, &history).await;
}

#[tokio::test]
async fn a_shadow_is_evaluated_before_the_rejection_begins_a_ban() {
    let looser = || Fixed.policy("looser", "9/day").shadow_of("a");
    let policies = || [Fixed.policy("a", "1/day"), ban("b", "1/h"), looser()];
    let history = [Check(1), Check(1), Check(1)];
    let slots = [[0, 0, 1], [0, 1, 0], [0, 1, 2]];
    in_slots_as_in_one("judged", &slots, policies, &history).await;
}

#[tokio::test]
async fn a_shadow_takes_no_more_of_several_than_the_other_policies_have_room_for() {
    let enforced = |name: &str, quota: &str| Fixed.policy(name, quota);
    let looser = || Fixed.policy("looser", "9/day").shadow_of("b");
    let policies = || [enforced("a", "5/day"), enforced("b", "3/day"), looser()];
    in_slots_as_in_one("takes", &SPREAD, policies, &[Check(3), Check(4)]).await;
    in_slots_as_in_one("all", &SPREAD, policies, &[Check(7)]).await;
}

#[tokio::test]
async fn a_charged_rejection_is_charged_only_to_the_policy_that_rejected() {
    let policies = || {
        [("a", "2/h"), ("b", "9/h")]
            .map(|(name, quota)| Gcra.policy(name, quota).charge_rejected(true))
    };
    in_slots_as_in_one("debts", &[[0, 1]], policies, &[Check(1); 5]).await;
}

#[tokio::test]
async fn a_ban_counts_rejections_in_other_slots_and_holds_in_all_of_them() {
    let master_keys = MasterKeys::find(cluster(), "ban").await;
    let counted = [Gcra.policy("a", "2/h"), Gcra.policy("b", "9/h")];
    let limiter = limiter(
        store(cluster()),
        counted.into_iter().chain([ban("c", "3/h")]),
    );
    for _ in 0..2 {
        assert!(admits(&limiter, master_keys.apart()).await);
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
    assert!(rejected.policy("c").is_some_and(|policy| policy.rejected()));
    assert_eq!(used(&limiter, [("b", master_keys.key(1))]).await, [2]);
}

#[tokio::test]
async fn rejections_by_one_ban_are_not_counted_by_another() {
    let policies = || [Gcra.policy("a", "2/h"), ban("b", "9/h"), ban("c", "9/h")];
    let history = [Block("c"), Check(1), Check(1), Check(1), Unblock("c")];
    in_slots_as_in_one("bans", &SPREAD, policies, &history).await;
}
