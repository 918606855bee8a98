//! A request whose keys are in several slots is decided and counted as if they were in one, which other tests have on a single server:
//! quotas, rejections that count, bans and shadows.

use tollgate::limiter::Keys;
use tollgate_tests::{every_policy::refund_every, script};

use crate::cluster::support::*;

/// What holds; and the slots of the policies' keys, by the number of a master for each, the policies, and the steps of a history:
/// - `check 3`: three requests in one call
/// - `at once 4`: four requests, each in its own call, sent together
/// - `refund 2`: of two units of the last call that was admitted
/// - `block b`: a ban by hand, under this policy; `unblock b`: its end
const CASES: &str = "
a request that one policy rejects is charged by none
    012 | a fixed 5/h, b gcra 2/h, c log 9/h | check 1, check 1, check 1, check 1
several requests are admitted as far as all policies have room
    001 011 012 | a fixed 50/h, b list 7/h, c log 20/h | check 10, check 10
the rejection with which one ban begins counts in all of them
    001 011 012 | a fixed 1/day, b ban 1/h, c ban 4/h | check 1, check 1, unblock b, check 1
no ban counts while another one is in force
    001 011 012 | a fixed 2/day, b ban 4/h, c ban 1/h | check 1, check 1, check 3, check 1, check 2
a ban counts the rejections of other policies, and holds where there is room
    012 | a gcra 2/h, b gcra 9/h, c ban 3/h | check 2, check 1, check 1, check 1, check 1
rejections by one ban are not counted by another, and charge nothing
    012 | a gcra 2/h, b ban 9/h, c ban 9/h | check 1, block c, check 1, check 1, unblock c, check 1
rejections by a ban in another slot make no debt
    01 | a gcra 2/h charged, b ban 9/h | check 2, block b, check 1, check 2
rejections make a debt again once the ban is lifted
    01 | a gcra 2/h charged, b ban 9/h | check 2, check 1, block b, check 1, unblock b, check 1
only rejections before a ban begins make a debt
    01 | a gcra 8/h charged, b ban 2/h | check 8, check 5, check 1
a rejection is charged only to the policy that rejected
    01 | a gcra 2/h charged, b gcra 9/h charged | check 1, check 1, check 1, check 1, check 1
a partly admitted call is refunded the admitted part
    001 011 012 | a gcra 3/h charged, b ban 9/h, c list 3/h charged | check 5, refund 2, check 1, refund 9, check 1
a policy that rejected for units that come back charges no rejections
    001 011 012 | a fixed 1/day, b fixed 2/day charged, c log 2/day charged | check 3
rejections of requests at the same time count once each
    001 011 012 | a gcra 2/h charged, b ban 5/h, c ban 9/h | check 2, at once 4, check 1, check 1
a shadow is evaluated before the rejection begins a ban
    001 010 012 | a fixed 1/day, b ban 1/h, looser fixed 9/day shadow | check 1, check 1, check 1
a shadow takes no more of several than the other policies have room for
    001 011 012 | a fixed 5/day, b fixed 3/day, looser fixed 9/day shadow | check 3, check 4
shadows that are looser and stricter are compared with the decision
    0121 | a fixed 2/h, b fixed 6/h, looser fixed 4/h shadow, stricter fixed 1/h shadow | check 1, check 1, check 1, check 1, check 1
a shadow beside others charges what they admit
    012 | a fixed 2/h, b fixed 6/h, beside fixed 9/h shadow | check 1, check 1, check 1, check 1
";

#[tokio::test]
async fn requests_in_several_slots_are_decided_as_in_one() {
    let master_keys = MasterKeys::find(cluster(), "alike").await;
    let lines: Vec<_> = CASES.trim().lines().collect();
    for (number, case) in lines.chunks(2).enumerate() {
        let mut parts = case[1].trim().split(" | ");
        let [all_slots, policies, history] = [(); 3].map(|()| parts.next().expect("a part"));
        for slots in all_slots.split(' ') {
            let (one, mut shown) = ("0".repeat(slots.len()), Vec::new());
            for keys in [slots, one.as_str()] {
                let prefix = format!("in{number}-{slots}-{}:", shown.len());
                shown.push(run(prefix, &master_keys, keys, policies, history).await);
            }
            assert_eq!(shown[0], shown[1], "{}: {slots}", case[0]);
        }
    }
}

/// Such as `b fixed 2/day charged` or `looser fixed 9/day shadow`.
fn policy(text: &str) -> Policy {
    let words: Vec<_> = text.split(' ').collect();
    let (name, quota) = (words[0], words[2]);
    let policy = match words[1] {
        "ban" => {
            let policy = Policy::new(name, stores::quota(quota));
            policy.strategy(Ban::for_duration(secs(7_200)))
        }
        kind => {
            let mut kinds = StrategyKind::ALL.into_iter();
            let kind = kinds.find(|other| script::name(*other) == kind);
            kind.expect(text).policy(name, quota)
        }
    };
    match words[3..] {
        [] => policy,
        ["charged"] => policy.charge_rejected(true),
        ["shadow"] => policy.shadow(),
        _ => panic!("{text}"),
    }
}

/// What the calls of a history decide, and what is left after each.
async fn run(
    prefix: String,
    master_keys: &MasterKeys,
    slots: &str,
    policies: &str,
    history: &str,
) -> Vec<String> {
    let store = builder(cluster().urls()).prefix(prefix).built();
    let limiter = limiter(store, policies.split(", ").map(policy));
    let names = policies.split(", ").map(|text| text.split(' ').next());
    let keys = names.zip(slots.bytes()).map(|(name, slot)| {
        let key = master_keys.key(usize::from(slot - b'0'));
        (name.expect("a name").to_owned(), key)
    });
    let keys: Vec<_> = keys.collect();
    let all: Keys = keys.iter().cloned().collect();
    let under = |policy: &str| -> Keys {
        let keys = keys.iter().filter(|(name, _)| name == policy);
        keys.cloned().collect()
    };
    let (mut shown, mut last) = (Vec::new(), None);
    for step in history.split(", ") {
        let (verb, argument) = step.rsplit_once(' ').expect(step);
        let number = || argument.parse::<u64>().expect(step);
        match verb {
            "check" => {
                let decision = limiter.check(all.clone()).times(number()).await;
                assert_eq!(admitted_by_store(&decision), decision.admitted() > 0);
                shown.push(decision_text(&decision));
                last = decision.into_result().ok().or(last);
            }
            "at once" => {
                let pending = (0..number()).map(|_| limiter.check(all.clone()).into_future());
                let decisions = join_all(pending).await;
                let admitted = decisions.iter().filter(|d| admitted_by_store(d)).count();
                shown.push(admitted.to_string());
            }
            "refund" => {
                let admission = last.as_ref().expect("an admission");
                refund_every(admission, number()).await.expect("a refund");
            }
            "block" => {
                let blocked = limiter.block(under(argument), secs(3_600)).await;
                blocked.expect("a ban");
            }
            "unblock" => drop(limiter.unblock(under(argument)).await.expect("no ban")),
            _ => panic!("{step}"),
        }
        shown.push(left(&limiter, &all).await);
    }
    shown
}

/// What a decision reports of each policy, and its wait in minutes.
fn decision_text(decision: &Decision) -> String {
    let enforced = decision
        .policies()
        .map(|v| (v.policy(), v.rejected(), v.remaining()));
    let shadows = decision
        .shadows()
        .map(|v| (v.policy(), v.would_reject(), v.remaining()));
    let all: Vec<_> = enforced.chain(shadows).collect();
    let wait = decision.retry_after().duration();
    let minutes = wait.map(|wait| wait.as_secs().div_ceil(60));
    format!("{} {all:?} {minutes:?}", decision.admitted())
}

/// What is left under each policy, and in how many minutes all will be: so a debt shows.
async fn left(limiter: &Limiter, keys: &Keys) -> String {
    let seen = limiter.peek(keys.clone()).await.expect("a response");
    let all = seen.policies().chain(seen.shadows()).map(|policy| {
        let minutes = policy.reset_after().as_secs().div_ceil(60);
        let (name, remaining) = (policy.policy(), policy.remaining());
        (name, remaining, minutes, limiter.shadow_stats(name))
    });
    format!("{:?}", all.collect::<Vec<_>>())
}
