//! Overrides that are set, replaced, removed and end among requests, against calls that are given the quota that is in force.

use std::{collections::HashMap, time::SystemTime};

use tollgate::limiter::Override;
use tollgate_tests::{prelude::*, world::START};

/// Of one period, so that every strategy counts them.
const QUOTAS: [u64; 4] = [1, 4, 10, 50];
const NAMES: [&str; 4] = ["fixed", "gcra", "bucket", "sliding"];

fn policies(period: Duration) -> [Policy; 4] {
    let policy = |name| Policy::new(name, Quota::requests(10).per(period));
    [
        policy("fixed").strategy(FixedWindow),
        policy("gcra").strategy(Gcra),
        policy("bucket").strategy(TokenBucket),
        policy("sliding").strategy(SlidingWindow::default()),
    ]
}

/// What is in force: the quota, or none, and its end.
type Model = HashMap<(&'static str, u64), (Option<Quota>, Option<Timestamp>)>;

/// The clock moves by so many grains, and overrides end between two of its instants: a process goes on counting time from the
/// last that it has read of a server, whose clock stands still here.
async fn play(world: &World, seed: u64, grain: Duration) {
    let period = 60 * grain;
    let (mut rng, plain_world) = (Rng::new(seed), World::memory());
    let tested = world.limiter(policies(period));
    let plain = plain_world.limiter(policies(period));
    let (mut model, mut now) = (Model::new(), Timestamp::from_micros(START as i64));
    for step in 0..100 {
        let at = format!("seed {seed}, step {step}");
        let (name, user) = (rng.one_of(&NAMES), rng.below(3));
        let (policy, key) = (tested.policy(name).expect("a policy"), Key::from(user));
        match rng.below(8) {
            0 => {
                let quota = Quota::requests(rng.one_of(&QUOTAS)).per(period);
                let exempt = rng.below(5) == 0;
                let end = (rng.below(2) == 0).then(|| {
                    let grains = 1 + rng.below(90) as u32;
                    now + grains * grain - grain / 2
                });
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
                let by = (1 + rng.below(40) as u32) * grain;
                world.advance(by);
                plain_world.advance(by);
                now = now + by;
                model.retain(|_, (_, end)| end.is_none_or(|end| end > now));
                // A change reads the server's time, too.
                policy
                    .set_override("other", Override::exempt())
                    .await
                    .expect("it is set");
                policy
                    .remove_override("other")
                    .await
                    .expect("it is removed");
                let listed = tested.overrides().await.expect("a list").len();
                assert_eq!(listed, model.len(), "{at}");
            }
            _ => {
                let cost = 1 + rng.below(3);
                let decision = tested.check((name, key)).cost(cost).await;
                let by_own = plain.check((name, key)).cost(cost);
                let expected = match model.get(&(name, user)) {
                    Some((None, _)) => {
                        assert!(decision.policy(name).is_none(), "{at}");
                        continue;
                    }
                    Some((Some(quota), _)) => by_own.quota_for(name, *quota).await,
                    None => by_own.await,
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
}

#[tokio::test]
async fn requests_are_decided_by_what_is_in_force() {
    for seed in 0..200 {
        play(&World::memory(), seed, secs(1)).await;
    }
    for seed in 0..10 {
        for world in World::both_with_overrides() {
            play(&world, seed, secs(600)).await;
        }
    }
}
