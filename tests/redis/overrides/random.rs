//! Overrides that are set, replaced, removed and end among requests, against calls that are given the quota that is in force.

use std::{collections::HashMap, time::SystemTime};

use tollgate::{
    FixedWindow, Gcra, Key, Limiter, Policy, Quota, SlidingWindow, TokenBucket,
    clock::{Clock, Timestamp},
    limiter::Override,
};
use tollgate_tests::{
    rng::Rng,
    stores::{frozen, limiter},
};

/// Of one period, so that every strategy counts them.
const QUOTAS: [u64; 4] = [1, 4, 10, 50];

fn policies() -> [Policy; 4] {
    let policy = |name| Policy::new(name, Quota::requests(10).per_minute());
    [
        policy("fixed").strategy(FixedWindow),
        policy("gcra").strategy(Gcra),
        policy("bucket").strategy(TokenBucket),
        policy("sliding").strategy(SlidingWindow::default()),
    ]
}

/// What is in force: the quota, or none, and its end.
type Model = HashMap<(&'static str, u64), (Option<Quota>, Option<Timestamp>)>;

#[tokio::test]
async fn requests_are_decided_by_what_is_in_force() {
    const NAMES: [&str; 4] = ["fixed", "gcra", "bucket", "sliding"];
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (store, clock) = frozen();
        let (plain_store, plain_clock) = frozen();
        let tested = limiter(Limiter::builder().store(store), policies());
        let plain = limiter(Limiter::builder().store(plain_store), policies());
        let mut model = Model::new();
        for step in 0..100 {
            let at = format!("seed {seed}, step {step}");
            let (name, user) = (rng.one_of(&NAMES), rng.below(3));
            let (policy, key) = (tested.policy(name).expect("a policy"), Key::from(user));
            let now = clock.now();
            model.retain(|_, (_, end)| end.is_none_or(|end| end > now));
            match rng.below(8) {
                0 => {
                    let quota = Quota::requests(rng.one_of(&QUOTAS)).per_minute();
                    let exempt = rng.below(5) == 0;
                    let end = (rng.below(2) == 0).then(|| now + rng.ms(1, 90_000));
                    let mut setting = match exempt {
                        true => Override::exempt(),
                        false => Override::quota(quota),
                    };
                    if let Some(end) = end {
                        let since = end.since(Timestamp::from_micros(0));
                        setting = setting.until(SystemTime::UNIX_EPOCH + since);
                    }
                    let before = policy.set_override(key, setting).await.expect("it is set");
                    let known = model.insert((name, user), ((!exempt).then_some(quota), end));
                    assert_eq!(before.is_some(), known.is_some(), "{at}");
                }
                1 => {
                    let before = policy.remove_override(key).await.expect("it is removed");
                    let known = model.remove(&(name, user));
                    assert_eq!(before.is_some(), known.is_some(), "{at}");
                }
                2 => {
                    let by = rng.ms(1, 40_000);
                    clock.advance(by);
                    plain_clock.advance(by);
                }
                _ => {
                    let cost = 1 + rng.below(3);
                    let decision = tested.check((name, key)).cost(cost).await;
                    let expected = match model.get(&(name, user)) {
                        Some((None, _)) => {
                            assert!(decision.policy(name).is_none(), "{at}");
                            continue;
                        }
                        Some((Some(quota), _)) => {
                            plain
                                .check((name, key))
                                .cost(cost)
                                .quota_for(name, *quota)
                                .await
                        }
                        None => plain.check((name, key)).cost(cost).await,
                    };
                    let [own, expected] = [&decision, &expected].map(|decision| {
                        let policy = decision.policy(name).expect("it applies");
                        let left = (policy.limit(), policy.remaining(), policy.retry_after());
                        (decision.is_admitted(), left)
                    });
                    assert_eq!(own, expected, "{at}");
                }
            }
        }
        let listed = tested.overrides(99).await.expect("a list").len();
        let now = clock.now();
        model.retain(|_, (_, end)| end.is_none_or(|end| end > now));
        assert_eq!(listed, model.len(), "seed {seed}");
    }
}
