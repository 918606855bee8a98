//! Requests of large costs beside plain ones, under the strategies that store each charge.

use testkit::Server;
use tollgate::{Concurrency, Key, Limiter, ListWindow, Policy, Quota, SlidingLog};

use super::waiting;
use crate::{
    contenders::tollgate::{TollgateLimiter, on_redis},
    keys::{Callers, Rule},
    load::{Contender, Rng},
    outcome::{Outcome, Target},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

/// One request in so many comes with a costly one.
const PLAIN: usize = 64;

/// Keys of the costly requests.
const KEYS: usize = 16;

/// Decides plain requests, and charges and refunds costly ones beside them.
struct BesideCostly {
    plain: TollgateLimiter,
    costly: Limiter,
    cost: u64,
}

impl Contender for BesideCostly {
    async fn decide(&self, rng: &mut Rng) -> bool {
        if rng.below(PLAIN) == 0 {
            let key = Key::from(rng.below(KEYS) as u64);
            if let Ok(admission) = self.costly.admit(key).cost(self.cost).await {
                admission.refund(self.cost).await.expect("a refund");
            }
        }
        self.plain.decide(rng).await
    }
}

pub(super) async fn beside(plan: Plan) -> Vec<Outcome> {
    let plan = Plan { keys: 1, ..plan };
    let rate = Quota::requests(100_000).per_hour();
    let permits = Quota::concurrent(10_000);
    let policies = [
        (
            "a sliding log",
            Policy::new("costly", rate).strategy(SlidingLog),
        ),
        (
            "a list window",
            Policy::new("costly", rate).strategy(ListWindow),
        ),
        (
            "permits",
            Policy::new("costly", permits).strategy(Concurrency::new()),
        ),
    ];
    let mut outcomes = Vec::new();
    for (what, policy) in policies {
        let cost = policy.quota().capacity();
        // A server each, or the costly requests of both would share a quota.
        let servers = [Server::start(), Server::start()];
        let entrant = |name, server: &Server, cost| {
            let costly = on_redis(&server.url()).policy(policy.clone()).build();
            let plain = on_redis(&server.url());
            let contender = BesideCostly {
                plain: TollgateLimiter::one(plain, Rule::ample(1), Callers::kept(1)),
                costly: costly.expect("a limiter"),
                cost,
            };
            Entrant::new(name, contender)
        };
        let entrants = vec![
            entrant("beside a cost of the whole quota", &servers[0], cost),
            entrant("beside a cost of 1", &servers[1], 1),
        ];
        let turns = run_comparison(&plan, waiting(&plan, 64), Expect::Admitted, entrants).await;
        let title = format!("64 tasks, one key, beside requests of large costs under {what}");
        let outcome = Outcome::of("costs", title, &turns);
        outcomes.push(outcome.compare(&turns, Measure::Rate, 1, Target::AtLeast(0.9)));
    }
    outcomes
}
