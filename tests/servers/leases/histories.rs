//! Random histories of several policies with leases, and of requests of any costs: what is used in the end is what was admitted,
//! and every leased unit is accounted for. Nothing refills: the simulation of leases has the promise over intervals.

use tollgate::limiter::{Check, Refund};
use tollgate_tests::rng::Rng;

use crate::leases::support::*;

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

impl Spec {
    fn any(rng: &mut Rng) -> Self {
        Self {
            strategy: rng.one_of(&EXACT),
            quota: rng.one_of(&[60, 300, 1_000, 5_000, 100_000]),
            max_units: rng.one_of(&[2, 8, 64, 1_000, 1_000_000]),
            costs: rng.one_of(&COSTS),
        }
    }
}

/// What a request was admitted for: its units under each policy, but those that were refunded.
struct Admitted {
    key: usize,
    units: Vec<u64>,
}

struct History<'a> {
    scene: &'a Scene,
    rng: Rng,
    specs: Vec<Spec>,
    ttl: Duration,
    limiters: Vec<Limiter>,
    keys: Vec<Key>,
    admitted: Vec<Admitted>,
    /// Requests whose charge may be corrected: their index, and admission.
    open: Vec<(usize, Admission)>,
    /// The units of each policy that leases admitted, and those that the processes spent that have ended.
    leased: Vec<u64>,
    spent: Vec<u64>,
    by_lease: u64,
}

impl<'a> History<'a> {
    fn new(scene: &'a Scene, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let ttl = rng.one_of(&[ms(50), ms(200), secs(1), secs(10)]);
        let specs: Vec<_> = (0..=rng.below(3)).map(|_| Spec::any(&mut rng)).collect();
        let keys = (0..=rng.below(3)).map(|n| Key::new(format!("{seed}-{n}")));
        let mut history = Self {
            scene,
            ttl,
            limiters: Vec::new(),
            admitted: Vec::new(),
            open: Vec::new(),
            leased: vec![0; specs.len()],
            spent: vec![0; specs.len()],
            by_lease: 0,
            keys: keys.collect(),
            specs,
            rng,
        };
        for _ in 0..=history.rng.below(3) {
            history.limiters.push(history.limiter());
        }
        history
    }

    fn limiter(&self) -> Limiter {
        let policies = self.specs.iter().zip(NAMES).map(|(spec, name)| {
            let quota = Quota::requests(spec.quota).per(secs(30 * 86_400));
            let policy: Policy = spec.strategy.count(name, quota);
            policy.lease(Lease::max_units(spec.max_units).ttl(self.ttl))
        });
        self.scene.limiter(policies.collect::<Vec<_>>())
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
        let mut decisions: Vec<Option<Decision>> = Vec::new();
        match self.rng.below(5) {
            0 => {
                let all = join_all(requests.iter().map(check)).await;
                decisions.extend(all.into_iter().map(Some));
            }
            1 => decisions.extend(requests.iter().map(|costs| check(costs).now_or_never())),
            2 => {
                for costs in requests {
                    let admission = with_costs(limiter.admit(self.keys[key]), &costs).await;
                    if let Ok(admission) = admission {
                        self.add(key, &costs, admission.decisions()[0].source());
                        self.open.push((self.admitted.len() - 1, admission));
                    }
                }
                return;
            }
            _ => {
                for costs in &requests {
                    decisions.push(Some(check(costs).await));
                }
            }
        }
        for (costs, decision) in requests.iter().zip(decisions) {
            if let Some(decision) = decision.filter(Decision::is_admitted) {
                self.add(key, costs, decision.source());
            }
        }
    }

    fn add(&mut self, key: usize, costs: &[u64], source: DecisionSource) {
        if source == DecisionSource::Lease {
            self.by_lease += 1;
            let leased = self.leased.iter_mut().zip(costs);
            leased.for_each(|(leased, cost)| *leased += cost);
        }
        let units = costs.to_vec();
        self.admitted.push(Admitted { key, units });
    }

    /// Refunds a request, or settles it at a lower cost.
    async fn correct(&mut self) {
        let Some((admitted, admission)) = self.open.pop() else {
            return;
        };
        let admitted = &mut self.admitted[admitted];
        for (units, name) in admitted.units.iter_mut().zip(NAMES) {
            let handle = admission.policy(name).expect("a policy");
            if self.rng.below(2) == 0 {
                let refunds = handle.refund(*units).await.expect("a response");
                *units -= refunds.iter().map(Refund::units).sum::<u64>();
            } else {
                *units = self.rng.below(*units + 1);
                handle.settle(*units).await.expect("a response");
            }
        }
    }

    /// Ends a process, which refunds what it holds, and begins another one.
    async fn replace(&mut self) {
        let gone = self.limiters.swap_remove(0);
        self.scene.shut_down(&gone).await;
        for (name, spent) in NAMES.iter().zip(&mut self.spent) {
            *spent += leases(&gone, name).map_or(0, |it| it.spent);
        }
        self.limiters.push(self.limiter());
    }

    /// Returns how many requests leases decided.
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
        for (policy, name) in names.iter().enumerate() {
            let stats = self.limiters.iter().filter_map(|it| leases(it, name));
            let spent = self.spent[policy] + stats.map(|it| it.spent).sum::<u64>();
            assert_eq!(spent, self.leased[policy], "{name}: {:?}", self.specs);
            for (number, key) in self.keys.iter().enumerate() {
                let own = self.admitted.iter().filter(|it| it.key == number);
                let admitted: u64 = own.map(|it| it.units[policy]).sum();
                let what = format!("{admitted} units are used under {name}: {:?}", self.specs);
                let is_exact = until(&what, async || {
                    used_of(&self.limiters[0], *key, name).await == admitted
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
        assert!(by_lease > 200, "{by_lease}");
    });
}
