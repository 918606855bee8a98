//! Scenarios as text: what is done to a key, and what is expected, under some strategies in both stores.
//!
//! Steps stand between commas; what is expected stands after a colon:
//! - `10/min burst 20`: the policy's quota from here on; `sliding10 10/min`: its strategy, too
//! - `+60s`: the clock moves on
//! - `send 20: 10`: of 20 requests, one after the other, 10 are admitted; `times 20: 10`, by one call
//! - `cost 5: true`: whether a request of this cost is admitted; it is what a `refund` is of
//! - `refund 2: 1`: of 2 units that are to be refunded, 1 is
//! - `admit 5`: a request of this cost is admitted, whose admission is then to `settle 7`, to `add 3` and to `return 2`; a call
//!   that is `cancelled`, as in `add 3 cancelled`, is dropped when it was polled once
//! - `charge 6`: past what is left
//! - `credit 6: 4`: of 6 units that are to be credited, 4 are
//! - `reset`
//! - `left: 4` units; `used: 6`; `remaining: 4`, as the admission has it
//! - `wait: 60s`, of a request, in a peek; `full: 60s`, until all units are back
//! - `keys: 0` on the server

use std::time::Duration;

use futures_util::FutureExt;
use tollgate::{Admission, Decision, Key, Limiter, Policy, limiter::PolicyAdmission};

use crate::{
    results::admitted_by_store,
    scene::{Case, fresh_key, left, refund, send},
    strategy_kind::StrategyKind,
    world::{START, World},
};

/// Ten seconds past a full hour: when each scenario begins.
pub const NOW: u64 = START + 10_000_000;

/// Plays a scenario under each of the strategies.
pub async fn play(strategies: &str, script: &str) {
    play_with(strategies, |policy| policy, script).await;
}

/// Plays a scenario under each of the strategies, and further settings of its policy.
pub async fn play_with(strategies: &str, settings: fn(Policy) -> Policy, script: &str) {
    for world in World::both() {
        for strategy in strategies.split(' ').flat_map(kinds) {
            world.set(NOW);
            let mut actor = Actor::new(&world, strategy, settings);
            for step in script.split(", ") {
                let _case = Case(format!("{strategy:?}, {step:?} of {script:?}"));
                actor.step(step).await;
            }
            world.no_key_is_immortal();
        }
    }
}

/// The strategies of a name.
fn kinds(name: &str) -> Vec<StrategyKind> {
    let all = StrategyKind::ALL.into_iter();
    match name {
        "all" => all.collect(),
        "even" => all.filter(|kind| kind.is_even()).collect(),
        "counted" => all.filter(|kind| !kind.is_even()).collect(),
        _ => match name.strip_prefix("sliding") {
            Some(buckets) => vec![StrategyKind::Sliding(buckets.parse().expect(name))],
            None => {
                let named: Vec<_> = all.filter(|kind| self::name(*kind) == name).collect();
                assert!(!named.is_empty(), "no strategy {name}");
                named
            }
        },
    }
}

/// The name of a strategy in a script.
pub fn name(strategy: StrategyKind) -> String {
    let name = format!("{strategy:?}").to_lowercase();
    name.replace(['(', ')'], "")
}

struct Actor<'a> {
    world: &'a World,
    strategy: StrategyKind,
    settings: fn(Policy) -> Policy,
    key: Key,
    limiter: Option<Limiter>,
    /// What refunds are of.
    charged: Option<Decision>,
    admission: Option<Admission>,
}

impl<'a> Actor<'a> {
    fn new(world: &'a World, strategy: StrategyKind, settings: fn(Policy) -> Policy) -> Self {
        Self {
            world,
            strategy,
            settings,
            key: fresh_key(),
            limiter: None,
            charged: None,
            admission: None,
        }
    }

    fn set_quota(&mut self, strategy: StrategyKind, quota: &str) {
        let policy = (self.settings)(strategy.policy("p", quota));
        self.limiter = Some(self.world.limiter([policy]));
    }

    /// The charge of the admission, by a copy of it.
    fn admitted(&self) -> PolicyAdmission {
        let admission = self.admission.clone().expect("an admission");
        admission.policy("p").expect("a policy")
    }

    async fn step(&mut self, step: &str) {
        let (action, expected) = step.split_once(": ").unwrap_or((step, ""));
        let (verb, argument) = action.split_once(' ').unwrap_or((action, ""));
        if verb.contains('/') {
            return self.set_quota(self.strategy, action);
        }
        if argument.contains('/') {
            return self.set_quota(kinds(verb)[0], argument);
        }
        let (units, is_cancelled) = match argument.strip_suffix(" cancelled") {
            Some(units) => (units, true),
            None => (argument, false),
        };
        let number = || units.parse::<u64>().expect(step);
        let (limiter, key) = (self.limiter.as_ref().expect("a quota"), self.key);
        let peek = async || limiter.peek(key).await.expect("a response");
        let found = match verb {
            "send" => send(limiter, key, number()).await.to_string(),
            "times" => {
                let decision = limiter.check(key).times(number()).await;
                decision.admitted().to_string()
            }
            "cost" => {
                let decision = limiter.check(key).cost(number()).await;
                let admitted = admitted_by_store(&decision);
                self.charged = Some(decision);
                admitted.to_string()
            }
            "refund" => {
                let charged = self.charged.as_mut().expect("a request");
                refund(charged, number()).await.to_string()
            }
            "admit" => {
                let admission = limiter.admit(key).cost(number()).await;
                self.admission = Some(admission.expect("room"));
                return;
            }
            "settle" | "add" | "return" => {
                let (charge, units) = (self.admitted(), number());
                let mut done = Box::pin(async {
                    match verb {
                        "settle" => charge.settle(units).await,
                        "add" => charge.charge(units).await,
                        _ => charge.refund(units).await.map(drop),
                    }
                });
                return match is_cancelled {
                    true => drop(done.as_mut().now_or_never()),
                    false => done.await.expect("a response"),
                };
            }
            "charge" => {
                let charged = limiter.charge(key, number()).await.expect("a response");
                assert!(admitted_by_store(&charged));
                return;
            }
            "credit" => {
                let policy = limiter.policy("p").expect("a policy");
                let credited = policy.credit(key, number()).await.expect("a response");
                let shown = credited.status().policy("p").expect("p").remaining();
                assert_eq!(shown, left(limiter, key).await);
                assert_eq!(credited.status().would_admit(), shown > 0);
                credited.units().to_string()
            }
            "reset" => return drop(limiter.reset(key).await.expect("a response")),
            "left" => left(limiter, key).await.to_string(),
            "used" => {
                let limit = peek().await.policy("p").expect("p").limit();
                (limit - left(limiter, key).await).to_string()
            }
            "remaining" => {
                let admission = self.admission.as_ref().expect("an admission");
                admission.remaining("p").expect("it is known").to_string()
            }
            "wait" => {
                let wait = peek().await.retry_after().duration().expect("a wait");
                return assert_eq!(wait, duration(expected));
            }
            "full" => {
                let reset_after = peek().await.policy("p").expect("p").reset_after();
                return assert_eq!(reset_after, duration(expected));
            }
            "keys" => match self.world.redis_server() {
                Some(server) => server.keys().len().to_string(),
                None => return,
            },
            by => {
                let time = by.strip_prefix('+').expect(step);
                return self.world.advance(duration(time));
            }
        };
        assert_eq!(found, expected);
    }
}

/// Such as `600ms`.
pub fn duration(text: &str) -> Duration {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text.strip_suffix(unit).expect(text).parse::<u64>();
    let micros = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        other => panic!("{other:?} is no unit of time"),
    };
    Duration::from_micros(number.expect(text) * micros)
}
