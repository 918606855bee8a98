//! Random histories of several policies with leases, and of requests of any costs. Where nothing refills, what is used in the end
//! is what was admitted; where units refill, no interval has more than the strategy's promise. Every leased unit is accounted for.

use std::{collections::BTreeSet, future::IntoFuture, time::Duration};

use futures_util::{FutureExt, future::join_all};
use tollgate::{
    Admission, Decision, Key, Lease, Limiter, Policy, Quota,
    limiter::{Check, Refund},
    observe::DecisionSource,
};
use tollgate_tests::rng::Rng;

use crate::leases::{
    checker::{self, excess, units_in},
    support::{EXACT, Scene, StrategyKind, TEST_TIMEOUT, leases, ms, scene, secs, until, used_of},
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

/// Whether units come back during a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refill {
    Never,
    Within,
}

#[derive(Clone, Copy, Debug)]
struct Spec {
    strategy: StrategyKind,
    quota: u64,
    period: Duration,
    max_units: u64,
    costs: &'static [u64],
}

impl Spec {
    fn any(rng: &mut Rng, refill: Refill, ttl: Duration) -> Self {
        let max_units = rng.one_of(&[2, 8, 64, 1_000, 1_000_000]);
        let costs = rng.one_of(&COSTS);
        if refill == Refill::Never {
            return Self {
                strategy: rng.one_of(&EXACT),
                quota: rng.one_of(&[60, 300, 1_000, 5_000, 100_000]),
                period: secs(30 * 86_400),
                max_units,
                costs,
            };
        }
        let strategy = rng.one_of(&StrategyKind::ALL);
        let period = ttl * rng.one_of(&[2, 3, 10]);
        Self {
            strategy,
            quota: rng.one_of(&[20, 60, 300, 1_000]),
            period: match strategy {
                // A part of a day.
                StrategyKind::Calendar => secs(1).max(ttl),
                StrategyKind::Log => ttl * 100,
                _ => period,
            },
            max_units,
            costs,
        }
    }

    /// Whether its windows end with their key on the server.
    fn ends_with_key(&self) -> bool {
        matches!(self.strategy, StrategyKind::Fixed | StrategyKind::List)
    }

    /// By how many units the admissions exceed the promise at most. `ends` are the ends of the windows that end with their key.
    fn excess(&self, admissions: &[checker::Admission], ends: &BTreeSet<u64>) -> f64 {
        let (quota, period) = (self.quota as f64, self.period.as_micros() as u64);
        let within = |length: u64| {
            excess(admissions, |it| match it < length {
                true => quota,
                false => f64::INFINITY,
            })
        };
        let in_windows = |ends: &BTreeSet<u64>| {
            let windows = ends.iter().map(|end| (end - period, *end));
            let admitted: Vec<_> = windows.map(|it| units_in(admissions, it)).collect();
            let all: u64 = admissions.iter().map(|one| one.units).sum();
            assert_eq!(admitted.iter().sum::<u64>(), all, "outside of all windows");
            admitted.into_iter().max().unwrap_or(0) as f64 - quota
        };
        match self.strategy {
            StrategyKind::Gcra | StrategyKind::Bucket => {
                let refilled = |length| quota * length as f64 / period as f64;
                excess(admissions, |length| quota + refilled(length))
            }
            StrategyKind::Fixed | StrategyKind::List => in_windows(ends),
            StrategyKind::Calendar => {
                let ends = admissions
                    .iter()
                    .map(|it| (it.before / period + 1) * period);
                in_windows(&ends.collect())
            }
            StrategyKind::Log => within(period),
            StrategyKind::Sliding(buckets) => within(period - period / u64::from(buckets) + 1),
        }
    }
}

/// What a request was admitted for: its units under each policy, but those that were refunded.
struct Admitted {
    at: u64,
    key: usize,
    units: Vec<u64>,
}

struct History<'a> {
    scene: &'a Scene,
    rng: Rng,
    refill: Refill,
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
    /// The ends of windows that end with their key, by key and policy.
    ends: Vec<[BTreeSet<u64>; NAMES.len()]>,
    by_lease: u64,
    rejected: u64,
}

impl<'a> History<'a> {
    fn new(scene: &'a Scene, seed: u64, refill: Refill) -> Self {
        let mut rng = Rng::new(seed);
        let ttl = rng.one_of(&[ms(50), ms(200), secs(1), secs(10)]);
        let specs = (0..=rng.below(3)).map(|_| Spec::any(&mut rng, refill, ttl));
        let specs: Vec<_> = specs.collect();
        let keys: Vec<_> = (0..=rng.below(3))
            .map(|n| Key::new(format!("{refill:?}-{seed}-{n}")))
            .collect();
        let mut history = Self {
            scene,
            refill,
            ttl,
            limiters: Vec::new(),
            admitted: Vec::new(),
            open: Vec::new(),
            leased: vec![0; specs.len()],
            spent: vec![0; specs.len()],
            ends: keys.iter().map(|_| Default::default()).collect(),
            by_lease: 0,
            rejected: 0,
            specs,
            keys,
            rng,
        };
        for _ in 0..=history.rng.below(3) {
            history.limiters.push(history.limiter());
        }
        history
    }

    fn limiter(&self) -> Limiter {
        let policy = |(spec, name): (&Spec, &str)| -> Policy {
            let quota = Quota::requests(spec.quota).per(spec.period);
            let policy = spec.strategy.count(name, quota);
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
                        self.add(key, &costs, admission.decisions()[0].source());
                        self.open.push((self.admitted.len() - 1, admission));
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
            let Some(decision) = decision else { continue };
            self.rejected += u64::from(!decision.is_admitted());
            if decision.is_admitted() {
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
        self.admitted.push(Admitted {
            at: self.scene.clock.micros(),
            key,
            units: costs.to_vec(),
        });
    }

    /// Refunds a request, or settles it at a lower cost.
    async fn correct(&mut self) {
        let Some((admitted, admission)) = self.open.pop() else {
            return;
        };
        let admitted = &mut self.admitted[admitted];
        for (policy, units) in admitted.units.iter_mut().enumerate() {
            let handle = admission.policy(NAMES[policy]).expect("a policy");
            match self.rng.below(2) {
                0 => {
                    let refunds = handle.refund(*units).await.expect("a response");
                    *units -= refunds.iter().map(Refund::units).sum::<u64>();
                }
                _ => {
                    *units = self.rng.below(*units + 1);
                    handle.settle(*units).await.expect("a response");
                }
            }
        }
    }

    /// Ends a process, which refunds what it holds, and begins another one.
    async fn replace(&mut self) {
        let gone = self.limiters.swap_remove(0);
        let ended = self.scene.wait(gone.shutdown(TEST_TIMEOUT)).await;
        ended.expect("it ends");
        for (name, spent) in NAMES.iter().zip(&mut self.spent) {
            *spent += leases(&gone, name).map_or(0, |it| it.spent);
        }
        self.limiters.push(self.limiter());
    }

    /// Finds the ends of windows that end with their key: each one in which a request was admitted at this instant has a key.
    fn find_ends(&mut self) {
        for (key, ends) in self.keys.iter().zip(&mut self.ends) {
            for ((spec, name), ends) in self.specs.iter().zip(NAMES).zip(ends) {
                if !spec.ends_with_key() {
                    continue;
                }
                let name = format!(":{name}:{key}");
                let server = &self.scene.server;
                let keys = server.keys().into_iter();
                let own = keys.filter(|key| key.ends_with(&name));
                ends.extend(own.map(|key| server.expires_at(&key) as u64 * 1_000));
            }
        }
    }

    async fn run(mut self) -> [u64; 2] {
        let ends_with_key = self.specs.iter().any(Spec::ends_with_key);
        if ends_with_key {
            // Such windows are counted in milliseconds.
            let rest = 1_000 - self.scene.clock.micros() % 1_000;
            self.scene.advance(Duration::from_micros(rest));
        }
        for _ in 0..60 {
            let longest = self.specs.iter().map(|spec| spec.period).max();
            let most = match (self.refill, longest) {
                (Refill::Within, Some(period)) if self.rng.below(12) == 0 => period,
                _ => self.ttl / 3,
            };
            let mut part = Duration::from_micros(self.rng.below(most.as_micros() as u64));
            if ends_with_key {
                part = ms(part.as_millis() as u64);
            }
            self.scene.advance(part);
            match self.rng.below(12) {
                0 => self.replace().await,
                1 | 2 => self.correct().await,
                _ => self.requests().await,
            }
            if ends_with_key {
                self.find_ends();
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
            let limiters = self.limiters.iter();
            let spent: u64 = limiters
                .filter_map(|it| leases(it, name))
                .map(|it| it.spent)
                .sum();
            let spent = spent + self.spent[policy];
            assert_eq!(spent, self.leased[policy], "{name}: {:?}", self.specs);
            for (number, key) in self.keys.iter().enumerate() {
                let own = self.admitted.iter().filter(|it| it.key == number);
                let own = own.map(|it| checker::Admission {
                    before: it.at,
                    after: it.at,
                    units: it.units[policy],
                });
                let own: Vec<_> = own.filter(|it| it.units > 0).collect();
                if self.refill == Refill::Within {
                    let excess = self.specs[policy].excess(&own, &self.ends[number][policy]);
                    let what = format!("{key} {name}: {excess} too many: {:?}", self.specs);
                    assert!(excess <= 1e-6, "{what}");
                    continue;
                }
                let admitted: u64 = own.iter().map(|it| it.units).sum();
                let what = format!("{admitted} units are used under {name}: {:?}", self.specs);
                let is_exact = until(&what, async || {
                    used_of(&self.limiters[0], *key, name).await == admitted
                });
                // A lease may have been on its way.
                self.scene.wait(is_exact).await;
            }
        }
        [self.by_lease, self.rejected]
    }
}

/// A call that costs so much under each policy.
fn with_costs<T>(call: Check<T>, costs: &[u64]) -> Check<T> {
    let costs = NAMES.into_iter().zip(costs);
    costs.fold(call, |call, (name, cost)| call.cost_for(name, *cost))
}

/// Runs histories; returns how many requests leases decided, and how many were rejected.
async fn run(scene: &Scene, refill: Refill) -> [u64; 2] {
    let mut all = [0, 0];
    for seed in 0..60 {
        let done = History::new(scene, seed, refill).run().await;
        all = [all[0] + done[0], all[1] + done[1]];
    }
    println!("{all:?} requests decided by leases, and rejected");
    all
}

#[test]
fn what_is_used_is_what_was_admitted_whatever_the_policies_and_costs() {
    scene(async |scene| {
        let [by_lease, _] = run(&scene, Refill::Never).await;
        assert!(by_lease > 200, "{by_lease}");
    });
}

#[test]
fn no_interval_has_more_than_the_promise_whatever_the_policies_and_costs() {
    scene(async |scene| {
        let [by_lease, rejected] = run(&scene, Refill::Within).await;
        assert!(by_lease > 200 && rejected > 200, "{by_lease} {rejected}");
    });
}
