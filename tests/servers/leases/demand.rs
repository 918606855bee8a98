//! Demand above the limit, from several limiters, while time passes by a clock that is set: no interval has more than the
//! strategy's bound, and all of the limit is used.

use std::collections::BTreeSet;

use crate::leases::{
    checker::{Admission, excess, rate, units_in},
    support::*,
};

const SECOND: u64 = 1_000_000;

/// Limiters, each with a store of its own, that share a key, and what they admitted.
struct Demand<'a> {
    scene: &'a Scene,
    limiters: Vec<Limiter>,
    key: Key,
    costs: &'static [u64],
    admissions: Vec<Admission>,
    by_lease: u64,
    /// The ends of windows that end with their key on the server.
    ends: BTreeSet<u64>,
}

impl<'a> Demand<'a> {
    fn new(
        scene: &'a Scene,
        (strategy, quota): (StrategyKind, &str),
        ttl: Duration,
        limiters: usize,
    ) -> Self {
        let policy = || strategy.policy("p", quota);
        let limiter = |_| scene.limiter([policy().lease(Lease::max_units(64).ttl(ttl))]);
        Self {
            scene,
            limiters: (0..limiters).map(limiter).collect(),
            key: Key::new(format!("{strategy:?} {limiters}")),
            costs: if limiters == 2 {
                &[1, 3, 2, 4, 1, 1, 2, 1, 3, 1]
            } else {
                &[1; 10]
            },
            admissions: Vec::new(),
            by_lease: 0,
            ends: BTreeSet::new(),
        }
    }

    /// Lets so much time pass, and sends ten requests through each limiter, but through one that pauses for half a
    /// second in its turn.
    async fn step(&mut self, time: Duration) {
        self.scene.advance(time);
        let (now, key, costs) = (self.scene.clock.micros(), self.key, self.costs);
        let pausing = match self.limiters.len() {
            1 => 1,
            limiters => (now / 500_000) as usize % limiters,
        };
        let active = self.limiters.iter().enumerate();
        let active = active.filter(|(number, _)| *number != pausing);
        let requests = active.flat_map(|(_, limiter)| {
            costs.iter().map(move |cost| async move {
                let decision = limiter.check(key).cost(*cost).await;
                let units = cost * u64::from(decision.is_admitted());
                (units, decision.source() == DecisionSource::Lease)
            })
        });
        let admitted = join_all(requests).await;
        self.by_lease += admitted.iter().filter(|(_, by_lease)| *by_lease).count() as u64;
        self.admissions.push(Admission {
            before: now,
            after: now,
            units: admitted.iter().map(|(units, _)| units).sum(),
        });
        // A lease that was requested is granted by then.
        let limiters = self.limiters.iter();
        join_all(limiters.map(|limiter| limiter.peek(key).into_future())).await;
    }

    /// Finds the ends of windows that end with their key.
    fn find_ends(&mut self) {
        let server = &self.scene.server;
        let keys = server.keys().into_iter();
        let ends = keys.filter(|key| key.contains(":p:"));
        let ends = ends.map(|key| server.expires_at(&key) as u64 * 1_000);
        self.ends.extend(ends);
    }

    fn admitted(&self) -> u64 {
        self.admissions.iter().map(|one| one.units).sum()
    }

    /// The units that requests did not use, and others could not: those that are held, and those that were refunded too late.
    fn unused(&self) -> u64 {
        let unused = |limiter| stats(limiter)[0] + stats(limiter)[4];
        self.limiters.iter().map(unused).sum()
    }

    fn excess(&self, bound: Bound) -> f64 {
        match bound {
            Bound::Rate => excess(&self.admissions, rate(1_000, 500)),
            Bound::Within(units, length) => excess(&self.admissions, |it| match it < length {
                true => units as f64,
                false => f64::INFINITY,
            }),
            Bound::Seconds(units) => {
                let admissions = self.admissions.iter();
                let ends = admissions.map(|one| (one.before / SECOND + 1) * SECOND);
                self.excess_in_windows(&ends.collect(), SECOND, units)
            }
            Bound::Windows(units, length) => self.excess_in_windows(&self.ends, length, units),
        }
    }

    fn excess_in_windows(&self, ends: &BTreeSet<u64>, length: u64, units: u64) -> f64 {
        let windows = ends.iter().map(|end| (end - length, *end));
        let admitted = windows.map(|window| units_in(&self.admissions, window));
        let admitted: Vec<_> = admitted.collect();
        assert_eq!(admitted.iter().sum::<u64>(), self.admitted(), "outside");
        admitted.into_iter().max().expect("a window") as f64 - units as f64
    }
}

/// What a strategy allows.
#[derive(Clone, Copy, Debug)]
enum Bound {
    /// A thousand units a second, and a burst of 500.
    Rate,
    /// So many units in less than so many microseconds.
    Within(u64, u64),
    /// So many units in each second of the calendar.
    Seconds(u64),
    /// So many units in each window of so many microseconds, which ends with its key.
    Windows(u64, u64),
}

/// What is admitted within two seconds, and at least, if demand is far above the limit.
#[test]
fn no_interval_has_more_than_the_bound_and_demand_above_the_limit_uses_all_of_it() {
    let within_buckets = Bound::Within(500, 450_001);
    let windows = Bound::Windows(400, 400_000);
    let log = Bound::Within(1_000, SECOND);
    let cases = [
        // The burst is smaller by what refills within a lease.
        (Gcra, "1000/s burst 500", Bound::Rate, 2_448),
        (Bucket, "1000/s burst 500", Bound::Rate, 2_448),
        (Calendar, "1000/s", Bound::Seconds(1_000), 3_000),
        (Fixed, "400/400ms", windows, 2_000),
        (List, "400/400ms", windows, 2_000),
        (Log, "1000/s", log, 2_000),
        (Sliding(10), "500/500ms", within_buckets, 0),
    ];
    scene(async |scene| {
        for (strategy, quota, bound, least) in cases {
            // A lease of a log lives for a hundredth of the period at most.
            let (ttl, step, steps) = match strategy {
                Log => (ms(10), ms(8), 180),
                _ => (ms(50), ms(20), 100),
            };
            for (limiters, steps) in [(2, steps / 4), (6, steps)] {
                scene.server.command(&["FLUSHALL"]);
                scene.server_clock.set(BEGIN);
                scene.clock.set(BEGIN);
                let mut demand = Demand::new(&scene, (strategy, quota), ttl, limiters);
                for _ in 0..steps {
                    demand.step(step).await;
                    if matches!(bound, Bound::Windows(..)) {
                        demand.find_ends();
                    }
                }
                let name = format!("{strategy:?} of {limiters}");
                let excess = demand.excess(bound);
                assert!(excess <= 0.0, "{name}: {excess} too many");
                let used = demand.admitted() + demand.unused();
                assert!(limiters == 2 || used >= least * 99 / 100, "{name}: {used}");
                assert!(demand.by_lease > 0, "{name}");
            }
        }
    });
}

/// Units that don't refill meanwhile. What idle limiters hold is refunded to the others.
#[test]
fn the_whole_quota_is_used_by_any_number_of_limiters() {
    scene(async |scene| {
        for strategy in StrategyKind::ALL {
            for limiters in [1, 8] {
                let mut demand = Demand::new(&scene, (strategy, "1500/month"), ms(50), limiters);
                let limit = demand.limiters[0].stats().policies[0].limit;
                let mut steps = 0;
                while demand.admitted() < limit - 2 {
                    demand.step(ms(20)).await;
                    steps += 1;
                    assert!(steps < 10_000, "{strategy:?}, {limiters}");
                }
                scene.advance(ms(50));
                until_nothing_is_held(&demand.limiters).await;
                let [admitted, used] = [
                    demand.admitted(),
                    used(&demand.limiters[0], demand.key).await,
                ];
                assert!(
                    admitted <= used && used <= limit,
                    "{strategy:?}: {admitted} {used}"
                );
                assert!(demand.by_lease > limit / 10, "{strategy:?}, {limiters}");
            }
        }
    });
}
