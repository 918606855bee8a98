//! What is done to the permits of one key, as text, on both stores.
//!
//! Steps stand between commas; what is expected stands after a colon:
//! - `take a: true`: whether a request is admitted; `never`, if it never can be. It may `cost 3`; of several at once, as in
//!   `take a times 5: 3`, so many are admitted. Its decision holds the permits
//! - `fill a: 10`: requests one after the other, until one is rejected; `leak 6`: permits that are neither renewed nor released
//! - `clone a b`, `drop a`: of decisions; `refund a 2: 1` units
//! - `free: 4` permits now, `until free: 4` in the end; `stored: 6` on a server
//! - `+300ms`, `back 1s`: the clock steps; `beat 10`: so many permits are renewed
//! - `reset`

use tollgate_tests::{prelude::*, script::duration};

use crate::inflight::support::{World, *};

pub(crate) async fn play_each(policy: Policy, scripts: &[&str]) {
    for script in scripts {
        for world in World::both() {
            play(&world, policy.clone(), script).await;
        }
    }
}

async fn play(world: &World, policy: Policy, script: &str) {
    let limiter = world.limiter([policy]);
    let mut held = HashMap::<String, Vec<Decision>>::new();
    for step in script.split(", ") {
        let _case = Case(format!("{step:?} of {script:?}"));
        let (action, expected) = step.split_once(": ").unwrap_or((step, ""));
        let words: Vec<&str> = action.split(' ').collect();
        let number = |text: &str| text.parse::<u64>().expect(step);
        let found = match words[..] {
            ["take", name, ref settings @ ..] => {
                let check = settings
                    .chunks(2)
                    .fold(limiter.check(KEY), |check, pair| match pair {
                        ["cost", units] => check.cost(number(units)),
                        ["times", n] => check.times(number(n)),
                        _ => panic!("no setting: {step}"),
                    });
                let decision = check.await;
                let found = match admitted_by_store(&decision) {
                    _ if settings.contains(&"times") => decision.admitted().to_string(),
                    false if decision.retry_after() == RetryAfter::Never => "never".to_owned(),
                    is_admitted => is_admitted.to_string(),
                };
                held.insert(name.to_owned(), vec![decision]);
                found
            }
            ["fill", name] => {
                let filled = fill(&limiter).await;
                let permits = filled.len();
                held.insert(name.to_owned(), filled);
                permits.to_string()
            }
            ["refund", name, units] => {
                let of = held.get_mut(name).expect(name);
                let refunds = of[0].refund(number(units)).await.expect("a response");
                refunds[0].units().to_string()
            }
            ["free"] => free(&limiter).await.to_string(),
            ["until", "free"] => {
                until_free(&limiter, number(expected)).await;
                continue;
            }
            ["stored"] => match world {
                World::Redis(server, _) => stored_permits(server).to_string(),
                World::Memory(..) => continue,
            },
            _ => {
                match words[..] {
                    ["leak", n] => leak_permits(&limiter, number(n) as usize),
                    ["clone", from, to] => {
                        let clone = held[from].clone();
                        held.insert(to.to_owned(), clone);
                    }
                    ["drop", name] => drop(held.remove(name).expect(name)),
                    ["reset"] => drop(limiter.reset(KEY).await.expect("a response")),
                    ["beat", n] => world.until_heartbeats(number(n)).await,
                    ["back", time] => world.rewind(duration(time)),
                    [by] => world.advance(duration(by.strip_prefix('+').expect(step))),
                    _ => panic!("no step: {step}"),
                }
                String::new()
            }
        };
        assert_eq!(found, expected);
    }
    if let World::Redis(server, _) = world {
        assert_eq!(server.immortal_keys(), [""; 0]);
    }
}
