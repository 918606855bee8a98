//! The callers of a list window, under costs and refunds of any size.

use tollgate_tests::prelude::*;

use super::support::*;

/// One entry for each unit, the oldest first.
#[derive(Default)]
struct Listed(Vec<Key>);

impl Listed {
    /// Removes the caller's last units.
    fn refund(&mut self, caller: Key, units: u64) {
        for _ in 0..units {
            let last = self.0.iter().rposition(|listed| *listed == caller);
            self.0.remove(last.expect("a unit of the caller"));
        }
    }
}

#[tokio::test]
async fn each_unit_has_its_caller_whatever_requests_cost_and_give_back() {
    let names = ["alice", "bob", "carol"].map(Key::new);
    for world in World::both() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let limiter = world.single(StrategyKind::List, "40/h");
            let policy = limiter.policy("p").expect("a policy");
            let mut listed = Listed::default();
            let mut decisions: Vec<(Key, Decision)> = Vec::new();
            for step in 0..40 {
                if !decisions.is_empty() && rng.below(2) == 0 {
                    let of = rng.below(decisions.len() as u64) as usize;
                    let (caller, decision) = &mut decisions[of];
                    let units = refund(decision, 1 + rng.below(7)).await;
                    listed.refund(*caller, units);
                } else {
                    let (caller, cost) = (rng.one_of(&names), 1 + rng.below(6));
                    let check = limiter.check(Keys::from(KEY).caller(caller)).cost(cost);
                    let decision = check.times(1 + rng.below(3)).await;
                    let units = decision.admitted() * cost;
                    listed.0.extend(vec![caller; units as usize]);
                    if units > 0 {
                        decisions.push((caller, decision));
                    }
                }
                let callers = policy.callers(KEY).await.expect("callers");
                assert_eq!(callers, listed.0, "seed {seed}, step {step}");
            }
            let _ = limiter.reset(KEY).await.expect("a response");
        }
    }
}

/// So many that the list is written anew from the first of them on.
#[tokio::test]
async fn a_large_refund_removes_the_callers_last_units_among_those_of_others() {
    for world in World::both() {
        let limiter = world.single(StrategyKind::List, "10000/h");
        let [alice, bob] = ["alice", "bob"].map(Key::new);
        let charge = |caller: Key, cost| {
            let check = limiter.check(Keys::from(KEY).caller(caller)).cost(cost);
            check.into_future()
        };
        let mut first = charge(alice, 900).await;
        let small = (0..1_400).map(|n| charge(if n % 2 == 0 { bob } else { alice }, 1 + n % 3));
        let small = join_all(small).await;
        assert!(small.iter().all(Decision::is_admitted));
        let policy = limiter.policy("p").expect("a policy");
        let mut listed = Listed(policy.callers(KEY).await.expect("callers"));
        assert_eq!(refund(&mut first, 899).await, 899);
        listed.refund(alice, 899);
        let callers = policy.callers(KEY).await.expect("callers");
        assert_eq!(callers, listed.0);
    }
}
