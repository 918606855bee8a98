//! The blocks of a sliding log on Redis, at a few entries each: a log of many blocks counts as the one in process does.

use tollgate::strategy::{LuaScript, RuleInfo};
use tollgate_tests::prelude::*;

use super::support::*;

/// The log with blocks of three entries on Redis.
fn small_blocks() -> Policy {
    let path = tollgate_tests::repository("src/strategy/window/sliding_log.lua");
    let script = fs::read_to_string(&path).expect("the script");
    let small = script.replace("block_len = 500", "block_len = 3");
    assert_ne!(small, script);
    let parameters = [REQUESTS as i64, PERIOD as i64];
    Altered::policy("p", "60/min", SlidingLog, |log| {
        log.script = Some(LuaScript::new(String::leak(small), parameters));
        log.info = RuleInfo::new("z1", REQUESTS);
        log.info.stores_each_unit = true;
    })
}

const REQUESTS: u64 = 60;

/// A period of a minute, in microseconds.
const PERIOD: u64 = 60_000_000;

/// A world, its limiter, and what was decided.
struct Side {
    world: World,
    limiter: Limiter,
    decisions: Vec<Decision>,
}

impl Side {
    fn new(world: World) -> Self {
        Self {
            limiter: world.limiter([small_blocks()]),
            world,
            decisions: Vec::new(),
        }
    }

    async fn check(&mut self, cost: u64) -> String {
        let decision = self.limiter.check(KEY).cost(cost).await;
        let shown = format!("{:?} {:?}", decision.admitted(), decision.retry_after());
        self.decisions.push(decision);
        shown
    }

    async fn refund(&mut self, of: u64, units: u64) -> String {
        let len = self.decisions.len() as u64;
        match self.decisions.get_mut((of % len.max(1)) as usize) {
            Some(decision) if decision.is_admitted() => refund(decision, units).await.to_string(),
            _ => String::new(),
        }
    }

    /// What is left, and the waits of several costs.
    async fn status(&self) -> (u64, String) {
        let (mut left, mut shown) = (0, String::new());
        let peeks = [1, 7, REQUESTS / 2, REQUESTS].map(|cost| {
            let peek = self.limiter.peek(KEY).cost(cost);
            peek.into_future()
        });
        for seen in join_all(peeks).await {
            let seen = seen.expect("a response");
            let policy = seen.policies().next().expect("a policy");
            left = policy.remaining();
            shown += &format!(
                "{left} {:?} {:?}; ",
                policy.retry_after(),
                policy.reset_after()
            );
        }
        (left, shown)
    }
}

#[tokio::test]
async fn a_log_of_many_blocks_counts_as_in_process() {
    let mut sides = [Side::new(World::memory()), Side::new(World::redis())];
    for seed in 0..12 {
        let (mut rng, mut now) = (Rng::new(seed), START + seed * 1_000 * PERIOD);
        for side in &mut sides {
            side.world.set(now);
            side.decisions.clear();
        }
        let mut left = REQUESTS;
        for step in 0..80 {
            let forth = now + rng.one_of(&[0, 1, 900_000, 2_000_000, PERIOD / 4]);
            now = match rng.below(16) {
                // A key on Redis that has expired is gone.
                0 if left < REQUESTS => now - rng.below(PERIOD / 2),
                _ => forth,
            };
            let (op, of) = (rng.below(8), rng.any());
            let cost = rng.one_of(&[1, 1, 1, 2, 5, REQUESTS / 2]);
            let mut seen = Vec::new();
            for side in &mut sides {
                side.world.set(now);
                let shown = match op {
                    0 | 1 => side.refund(of, cost).await,
                    2 => String::new(),
                    _ => side.check(cost).await,
                };
                let (now_left, status) = side.status().await;
                left = now_left;
                seen.push(format!("{shown}, {status}"));
            }
            assert_eq!(seen[0], seen[1], "seed {seed}, step {step}");
        }
    }
}
