//! Scenarios as text: what is done to a key, and what is expected, under some strategies in both stores.
//!
//! Steps stand between commas; what is expected stands after a colon:
//! - `10/min burst 20`: the policy's quota from here on; `sliding10 10/min`: its strategy, too
//! - `+60s`: the clock moves on
//! - `send 20: 10`: of 20 requests, one after the other, 10 are admitted; `times 20: 10`, by one call
//! - `cost 5: true`: whether a request of this cost is admitted; it is what a `refund` is of
//! - `refund 2: 1`: of 2 units that are to be refunded, 1 is
//! - `charge 6`: past what is left
//! - `reset`
//! - `left: 4` units; `wait: 60s`, of a request, in a peek
//! - `keys: 0` on the server

use tollgate_tests::prelude::*;

use super::support::*;

/// Ten seconds past a full hour: when each scenario begins.
pub(crate) const NOW: u64 = START + 10_000_000;

/// Plays a scenario under each of the strategies.
pub(crate) async fn play(strategies: &str, script: &str) {
    for world in World::both() {
        for strategy in strategies.split(' ').flat_map(kinds) {
            world.set(NOW);
            let mut actor = Actor::new(&world, strategy);
            for step in script.split(", ") {
                let name = world.name();
                let _case = Case(format!("{strategy:?}, {name}, {step:?} of {script:?}"));
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
pub(crate) fn name(strategy: StrategyKind) -> String {
    let name = format!("{strategy:?}").to_lowercase();
    name.replace(['(', ')'], "")
}

struct Actor<'a> {
    world: &'a World,
    strategy: StrategyKind,
    key: tollgate::Key,
    limiter: Option<Limiter>,
    /// What refunds are of.
    charged: Option<Decision>,
}

impl<'a> Actor<'a> {
    fn new(world: &'a World, strategy: StrategyKind) -> Self {
        Self {
            world,
            strategy,
            key: fresh_key(),
            limiter: None,
            charged: None,
        }
    }

    async fn step(&mut self, step: &str) {
        let (action, expected) = step.split_once(": ").unwrap_or((step, ""));
        let (verb, argument) = action.split_once(' ').unwrap_or((action, ""));
        let number = || argument.parse::<u64>().expect(step);
        if verb.contains('/') {
            self.limiter = Some(self.world.single(self.strategy, action));
            return;
        }
        if argument.contains('/') {
            let strategy = kinds(verb)[0];
            self.limiter = Some(self.world.single(strategy, argument));
            return;
        }
        let (limiter, key) = (self.limiter.as_ref().expect("a quota"), self.key);
        let found = match verb {
            "send" => send(limiter, key, number()).await.to_string(),
            "times" => limiter
                .check(key)
                .times(number())
                .await
                .admitted()
                .to_string(),
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
            "charge" => {
                let charged = limiter.charge(key, number()).await.expect("a response");
                assert!(admitted_by_store(&charged));
                return;
            }
            "reset" => return drop(limiter.reset(key).await.expect("a response")),
            "left" => left(limiter, key).await.to_string(),
            "wait" => {
                let seen = limiter.peek(key).await.expect("a response");
                let wait = seen.retry_after().duration().expect("a wait");
                return assert_eq!(wait, duration(expected));
            }
            "keys" => match self.world.redis_server() {
                Some(server) => server.keys().len().to_string(),
                None => return,
            },
            by => {
                return self
                    .world
                    .advance(duration(by.strip_prefix('+').expect(step)));
            }
        };
        assert_eq!(found, expected);
    }
}

/// Such as `600ms`.
fn duration(text: &str) -> Duration {
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
