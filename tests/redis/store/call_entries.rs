//! Calls with several keys of one policy: all are charged or none, by any number of limiters at once.

use std::array;

use tollgate_tests::prelude::*;

use crate::store::support::*;

const KEYS: usize = 6;

const UNITS: u64 = 40;

#[tokio::test]
async fn keys_of_one_policy_are_charged_together_or_not_at_all() {
    let (_clock, server) = on_a_clock();
    for (number, strategy) in EACH.into_iter().enumerate() {
        let policy = strategy.policy(&format!("p{number}"), &format!("{UNITS}/month"));
        let limiters = [(); 2].map(|()| limiter(stores::redis(&server), [policy.clone()]));
        let tasks = (0..16).map(|task| {
            let limiter = limiters[task % 2].clone();
            let handle = limiter.policy(policy.name()).expect("a policy");
            tokio::spawn(async move {
                let (mut rng, mut charged) = (Rng::new(task as u64), [0; KEYS]);
                for _ in 0..20 {
                    // Some call for a key twice.
                    let keys: [u64; 3] = array::from_fn(|_| rng.below(KEYS as u64));
                    let entries = keys.map(|key| handle.entry(key).cost(1 + key % 2));
                    let decision = limiter.check(entries).await;
                    for key in keys.into_iter().filter(|_| decision.is_admitted()) {
                        charged[key as usize] += 1 + key % 2;
                    }
                }
                charged
            })
        });
        let tasks = all(tasks).await;
        let charged: [u64; KEYS] = array::from_fn(|key| tasks.iter().map(|of| of[key]).sum());
        assert!(
            charged.iter().any(|units| *units > UNITS - 4),
            "{charged:?}"
        );
        for (key, charged) in charged.into_iter().enumerate() {
            let own = (policy.name(), key.to_string());
            assert_eq!(used(&limiters[0], own).await, [charged], "{strategy:?}");
            assert!(charged <= UNITS, "{strategy:?}");
        }
    }
}
