//! Random histories of several policies with leases, and of requests of any costs: what is used in the end is what was admitted.

use std::{future::IntoFuture, time::Duration};

use futures_util::{FutureExt, future::join_all};
use tollgate::{Admission, Check, Decision, DecisionSource, Key, Lease, Limiter, Policy};
use tollgate_tests::rng::Rng;

use crate::leases::support::{
    EXACT, Scene, StrategyKind, TEST_TIMEOUT, leases, ms, scene, secs, until, used_of,
};

const NAMES: [&str; 3] = ["p", "q", "r"];

/// What the requests of a history cost under a policy.
const COSTS: [&[u64]; 8] = [
    &[1],
    &[3],
    &[1, 2, 5],
    &[0, 1],
    &[1, 1, 1, 50],
    &[1, u64::MAX],
    &[7, 0, 50, 20_000],
    &[u64::MAX / 2, 2, 1 << 53, 1],
];

#[derive(Clone, Copy, Debug)]
struct Spec {
    strategy: StrategyKind,
    quota: u64,
    max_units: u64,
    costs: &'static [u64],
}

struct History<'a> {
    scene: &'a Scene,
    rng: Rng,
    specs: Vec<Spec>,
    ttl: Duration,
    limiters: Vec<Limiter>,
    keys: Vec<Key>,
    /// By key and policy.
    admitted: Vec<[u64; NAMES.len()]>,
    /// Requests whose charge may be corrected: their key, costs, and admission.
    open: Vec<(usize, Vec<u64>, Admission)>,
    by_lease: u64,
}

impl<'a> History<'a> {
    fn new(scene: &'a Scene, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let spec = |rng: &mut Rng| Spec {
            strategy: rng.one_of(&EXACT),
            quota: rng.one_of(&[60, 300, 1_000, 5_000, 100_000]),
            max_units: rng.one_of(&[2, 8, 64, 1_000, 1_000_000]),
            costs: rng.one_of(&COSTS),
        };
        let specs = (0..=rng.below(3)).map(|_| spec(&mut rng)).collect();
        let keys: Vec<_> = (0..=rng.below(3))
            .map(|n| Key::new(format!("{seed} {n}")))
            .collect();
        let mut history = Self {
            scene,
            specs,
            ttl: rng.one_of(&[ms(50), ms(200), secs(1), secs(10)]),
            limiters: Vec::new(),
            admitted: vec![[0; NAMES.len()]; keys.len()],
            keys,
            open: Vec::new(),
            by_lease: 0,
            rng,
        };
        for _ in 0..=history.rng.below(3) {
            history.limiters.push(history.limiter());
        }
        history
    }

    fn limiter(&self) -> Limiter {
        let policy = |(spec, name): (&Spec, &str)| -> Policy {
            let policy = spec.strategy.policy(name, &format!("{}/month", spec.quota));
            policy.lease(Lease::max_units(spec.max_units).ttl(self.ttl))
        };
        let policies: Vec<_> = self.specs.iter().zip(NAMES).map(policy).collect();
        self.scene.limiter(policies)
    }

    /// One to 30 requests of a key: one after the other, at once, dropped after their first poll, or to be corrected later.
    async fn requests(&mut self) {
        let limiter = self.limiters[self.rng.below(self.limiters.len() as u64) as usize].clone();
        let key = self.rng.below(self.keys.len() as u64) as usize;
        let requests: Vec<Vec<u64>> = (0..=self.rng.below(30))
            .map(|_| {
                let costs = self.specs.iter().map(|spec| spec.costs);
                costs.map(|costs| self.rng.one_of(costs)).collect()
            })
            .collect();
        let check =
            |costs: &Vec<u64>| with_costs(limiter.check(self.keys[key]), costs).into_future();
        let decisions: Vec<Option<Decision>> = match self.rng.below(5) {
            0 => join_all(requests.iter().map(check))
                .await
                .into_iter()
                .map(Some)
                .collect(),
            1 => requests
                .iter()
                .map(|costs| check(costs).now_or_never())
                .collect(),
            2 => {
                for costs in requests {
                    let admission = with_costs(limiter.admit(self.keys[key]), &costs).await;
                    if let Ok(admission) = admission {
                        self.add(key, &costs);
                        self.open.push((key, costs, admission));
                    }
                }
                return;
            }
            _ => {
                let mut decisions = Vec::new();
                for costs in &requests {
                    decisions.push(Some(check(costs).await));
                }
                decisions
            }
        };
        for (costs, decision) in requests.iter().zip(decisions) {
            if let Some(decision) = decision.filter(Decision::is_admitted) {
                self.by_lease += u64::from(decision.source() == DecisionSource::Lease);
                self.add(key, costs);
            }
        }
    }

    fn add(&mut self, key: usize, costs: &[u64]) {
        for (admitted, cost) in self.admitted[key].iter_mut().zip(costs) {
            *admitted += cost;
        }
    }

    /// Refunds a request, or settles it at a lower cost.
    async fn correct(&mut self) {
        let Some((key, costs, admission)) = self.open.pop() else {
            return;
        };
        for (policy, cost) in costs.into_iter().enumerate() {
            let handle = admission.policy(NAMES[policy]).expect("a policy");
            let actual = match self.rng.below(2) {
                0 => {
                    handle.refund(cost).await.expect("a response");
                    0
                }
                _ => {
                    let actual = self.rng.below(cost + 1);
                    handle.settle(actual).await.expect("a response");
                    actual
                }
            };
            let admitted = &mut self.admitted[key][policy];
            *admitted = *admitted - cost + actual;
        }
    }

    /// Ends a process, which refunds what it holds, and begins another one.
    async fn replace(&mut self) {
        let gone = self.limiters.swap_remove(0);
        let ended = self.scene.wait(gone.shutdown(TEST_TIMEOUT)).await;
        ended.expect("it ends");
        self.limiters.push(self.limiter());
    }

    async fn run(mut self) -> u64 {
        for _ in 0..60 {
            let part = self.rng.below(self.ttl.as_micros() as u64 / 3);
            self.scene.advance(Duration::from_micros(part));
            match self.rng.below(12) {
                0 => self.replace().await,
                1 | 2 => self.correct().await,
                _ => self.requests().await,
            }
        }
        self.scene.advance(self.ttl * 9 / 10);
        let names = &NAMES[..self.specs.len()];
        let all_are_refunded = until("no process holds units", async || {
            self.limiters.iter().all(|limiter| {
                let mut all = names.iter().filter_map(|name| leases(limiter, name));
                all.all(|it| it.held == 0 && it.granted == it.spent + it.refunded + it.lapsed)
            })
        });
        self.scene.wait(all_are_refunded).await;
        for (key, admitted) in self.keys.iter().zip(&self.admitted) {
            for (name, admitted) in names.iter().zip(admitted) {
                let what = format!("{admitted} units are used under {name}: {:?}", self.specs);
                let is_exact = until(&what, async || {
                    used_of(&self.limiters[0], *key, name).await == *admitted
                });
                // A lease may have been on its way.
                self.scene.wait(is_exact).await;
            }
        }
        self.by_lease
    }
}

/// A call that costs so much under each policy.
fn with_costs<T>(call: Check<T>, costs: &[u64]) -> Check<T> {
    let costs = NAMES.into_iter().zip(costs);
    costs.fold(call, |call, (name, cost)| call.cost_for(name, *cost))
}

#[test]
fn what_is_used_is_what_was_admitted_whatever_the_policies_and_costs() {
    scene(async |scene| {
        let mut by_lease = 0;
        for seed in 0..60 {
            by_lease += History::new(&scene, seed).run().await;
        }
        println!("{by_lease} requests decided by leases");
        assert!(by_lease > 200, "{by_lease}");
    });
}
