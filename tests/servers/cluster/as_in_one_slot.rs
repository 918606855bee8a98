//! A request whose keys are in several slots is decided and counted as if they were in one, which other tests have on a single server:
//! quotas, rejections that count, bans and shadows.

use std::sync::atomic::Ordering::SeqCst;

use tollgate::{
    limiter::Keys,
    observe::{Event, Observer},
};
use tollgate_tests::charges::refund_every;

use crate::cluster::support::*;

/// A step of a history.
#[derive(Clone, Copy)]
enum Step {
    /// So many requests in one call.
    Check(u64),
    /// A request of so many units.
    Admit(u64),
    /// So many requests, each in its own call, sent together.
    AtOnce(u64),
    /// A refund of units of the last of these that was admitted.
    Refund(u64),
    /// A ban by hand under a policy, and its end.
    Block(&'static str),
    Unblock(&'static str),
}

/// What holds; the slots of the policies' keys, by the number of a master for each; the policies, and the steps.
type History<'a> = (&'a str, &'a [&'a str], Vec<Policy>, &'a [Step]);

use Step::{Admit, AtOnce, Block, Check, Refund, Unblock};

fn ban(name: &str, words: &str) -> Policy {
    let policy = Policy::new(name, stores::quota(words));
    policy.strategy(Ban::for_duration(secs(7_200)))
}

#[tokio::test]
async fn requests_in_several_slots_are_decided_as_in_one() {
    let charged = |policy: Policy| policy.charge_rejected(true);
    let shadow = |quota| Fixed.policy("looser", quota).shadow();
    let master_keys = MasterKeys::find(cluster(), "alike").await;
    #[rustfmt::skip]
    let cases: [History<'_>; 12] = [
        ("a request that one policy rejects is charged by none", &["012"],
         vec![Fixed.policy("a", "5/h"), Gcra.policy("b", "2/h"), Log.policy("c", "9/h")],
         &[Check(1), Check(1), Check(1), Check(1)]),
        ("several requests are admitted as far as all policies have room", &["001", "011", "012"],
         vec![Fixed.policy("a", "50/h"), List.policy("b", "7/h"), Log.policy("c", "20/h")],
         &[Check(10), Check(10)]),
        ("the rejection with which one ban begins counts in all of them, and no ban counts while another is in force", &["001", "012"],
         vec![Fixed.policy("a", "2/day"), ban("b", "4/h"), ban("c", "1/h")],
         &[Check(1), Check(1), Check(3), Check(1), Unblock("c"), Check(2), Check(1)]),
        ("a ban counts the rejections of other policies, and holds where there is room", &["012"],
         vec![Gcra.policy("a", "2/h"), Gcra.policy("b", "9/h"), ban("c", "3/h")],
         &[Check(2), Check(1), Check(1), Check(1), Check(1)]),
        ("rejections by one ban are not counted by another, and charge nothing", &["012"],
         vec![charged(Gcra.policy("a", "2/h")), ban("b", "9/h"), ban("c", "9/h")],
         &[Check(1), Block("c"), Check(1), Check(2), Unblock("c"), Check(1), Check(1)]),
        ("only rejections before a ban begins make a debt", &["01"],
         vec![charged(Gcra.policy("a", "8/h")), ban("b", "2/h")],
         &[Check(8), Check(5), Check(1)]),
        ("what a call admits is no room for those that it rejects", &["01"],
         vec![charged(Gcra.policy("a", "8/h")), ban("b", "2/h")],
         &[Check(13), Check(1)]),
        ("a rejection is charged only to the policy that rejected", &["01"],
         vec![charged(Gcra.policy("a", "2/h")), charged(Gcra.policy("b", "9/h"))],
         &[Check(1), Check(1), Check(1), Check(1), Check(1)]),
        ("a policy that rejected for units that come back charges no rejections", &["001", "012"],
         vec![Fixed.policy("a", "1/day"), charged(Fixed.policy("b", "2/day")), charged(Log.policy("c", "2/day"))],
         &[Check(3)]),
        ("a request is refunded what it was charged, amid rejections that count", &["001", "012"],
         vec![charged(Gcra.policy("a", "3/h")), ban("b", "9/h"), charged(List.policy("c", "3/h"))],
         &[Admit(3), Check(2), Refund(2), Admit(1), Refund(9), Admit(1)]),
        ("rejections of requests at the same time count once each", &["001", "110", "012"],
         vec![charged(Gcra.policy("a", "2/h")), ban("b", "5/h"), ban("c", "9/h")],
         &[Check(2), AtOnce(4), Check(1), Check(1)]),
        ("a shadow takes no more than the others have room for, and is evaluated before the rejection begins a ban", &["001", "010", "012"],
         vec![Fixed.policy("a", "5/day"), ban("b", "1/h"), shadow("7/day")],
         &[Check(3), Check(4), Check(1)]),
    ];
    for (number, (what, all_slots, policies, steps)) in cases.iter().enumerate() {
        for slots in *all_slots {
            let (one, mut shown) = ("0".repeat(slots.len()), Vec::new());
            for keys in [*slots, &one] {
                let prefix = format!("in{number}-{slots}-{}:", shown.len());
                shown.push(run(prefix, &master_keys, keys, policies, steps).await);
            }
            assert_eq!(shown[0], shown[1], "{what}: {slots}");
        }
    }
}

/// What the calls of a history decide, and what is left after each.
async fn run(
    prefix: String,
    master_keys: &MasterKeys,
    slots: &str,
    policies: &[Policy],
    steps: &[Step],
) -> Vec<String> {
    let store = builder(cluster().urls()).prefix(prefix).built();
    let bans = Arc::new(Bans::default());
    let limiter = Limiter::builder().store(store).observe(bans.clone());
    let limiter = policies
        .iter()
        .cloned()
        .fold(limiter, LimiterBuilder::policy);
    let limiter = limiter.build().expect("a limiter");
    let names = policies.iter().map(|policy| policy.name().to_owned());
    let keys = names.zip(slots.bytes()).map(|(name, slot)| {
        let key = master_keys.key(usize::from(slot - b'0'));
        (name, key)
    });
    let keys: Vec<_> = keys.collect();
    let all: Keys = keys.iter().cloned().collect();
    let under = |policy: &str| -> Keys {
        let keys = keys.iter().filter(|(name, _)| name == policy);
        keys.cloned().collect()
    };
    let (mut shown, mut last) = (Vec::new(), None);
    for step in steps {
        match *step {
            Check(times) => {
                let decision = limiter.check(all.clone()).times(times).await;
                assert_eq!(admitted_by_store(&decision), decision.admitted() > 0);
                shown.push(decision_text(&decision));
            }
            Admit(cost) => {
                let result = limiter.admit(all.clone()).cost(cost).await;
                shown.push(decision_text(&result.decision()));
                last = result.ok().or(last);
            }
            AtOnce(requests) => {
                let pending = (0..requests).map(|_| limiter.check(all.clone()).into_future());
                let decisions = join_all(pending).await;
                let mut rejected = decisions.iter().filter(|one| !one.is_admitted());
                assert!(rejected.all(|one| matches!(one.retry_after(), RetryAfter::In(_))));
                let admitted = decisions.iter().filter(|d| admitted_by_store(d)).count();
                shown.push(admitted.to_string());
            }
            Refund(units) => {
                let admission = last.as_ref().expect("an admission");
                refund_every(admission, units).await.expect("a refund");
            }
            Block(policy) => {
                let blocked = limiter.block(under(policy), secs(3_600)).await;
                blocked.expect("a ban");
            }
            Unblock(policy) => drop(limiter.unblock(under(policy)).await.expect("no ban")),
        }
        shown.push(left(&limiter, &all).await);
        shown.push(format!("{} bans have begun", bans.0.load(SeqCst)));
    }
    shown
}

/// How many bans have begun.
#[derive(Debug, Default)]
struct Bans(AtomicU64);

impl Observer for Bans {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::BanBegan { .. } = event {
            self.0.fetch_add(1, SeqCst);
        }
    }
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

/// What one slot rejects by itself is, for the request that it rejected.
#[tokio::test]
async fn a_rejection_across_slots_is_not_cached() {
    let master_keys = MasterKeys::find(cluster(), "never").await;
    let store = RedisStore::builder()
        .cluster(cluster().urls())
        .timeout(TEST_TIMEOUT)
        .rejection_cache_clock(ManualClock::at(Timestamp::from_micros(1 << 50)))
        .rejection_cache_staleness(secs(60));
    let policies = [("a", "2/month"), ("b", "9/month"), ("c", "9/month")];
    let policies = policies.map(|(name, quota)| Fixed.policy(name, quota));
    let limiter = limiter(store.built(), policies);
    for is_admitted in [true, true, false, false, false] {
        assert_eq!(admits(&limiter, master_keys.apart()).await, is_admitted);
    }
    for source in [DecisionSource::Store, DecisionSource::RejectionCache] {
        let rejected = limiter.check(master_keys.key(0)).await;
        assert_eq!((rejected.is_admitted(), rejected.source()), (false, source));
    }
    let source = limiter.check(master_keys.apart()).await.source();
    assert_eq!(source, DecisionSource::Store);
}
