//! Calls with several keys of one policy: all are charged or none, by any number of limiters at once.

use std::array;

use tollgate_tests::prelude::*;

use crate::store::support::*;

const KEYS: usize = 6;

const UNITS: u64 = 40;

fn of_another_process(server: &Server, policy: &Policy) -> Arc<Limiter> {
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    Arc::new(limiter(store.build().expect("a store"), [policy.clone()]))
}

#[tokio::test]
async fn keys_of_one_policy_are_charged_together_or_not_at_all() {
    let (_clock, server) = on_a_clock();
    for (number, strategy) in EACH.into_iter().enumerate() {
        let policy = strategy.policy(&format!("p{number}"), &format!("{UNITS}/month"));
        let limiters = [(); 2].map(|()| of_another_process(&server, &policy));
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
                    if decision.is_admitted() {
                        keys.iter()
                            .for_each(|key| charged[*key as usize] += 1 + key % 2);
                    }
                }
                charged
            })
        });
        let mut charged = [0; KEYS];
        for task in join_all(tasks).await {
            let of_task = task.expect("no panic");
            charged
                .iter_mut()
                .zip(of_task)
                .for_each(|(all, own)| *all += own);
        }
        assert!(
            charged.iter().any(|charged| *charged > UNITS - 4),
            "{charged:?}"
        );
        for (key, charged) in charged.into_iter().enumerate() {
            let own = (policy.name(), key.to_string());
            assert_eq!(used(&limiters[0], own).await, [charged], "{strategy:?}");
            assert!(charged <= UNITS, "{strategy:?}");
        }
    }
}
