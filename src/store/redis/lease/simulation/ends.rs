//! Resets, blocks and tiers that share a key, in random histories: a reset admits one more burst at most, a block ends leases, and
//! tiers admit no more than the largest of them.

use std::collections::BTreeSet;

use super::{
    bounds::Bound,
    fleet::{Clocks, MS},
    histories::{Block, Ends, History},
    settings::Setting,
};

impl History {
    /// By how much the promise is broken, of each tier alone, and of all together that of the largest one.
    fn excess(&self) -> f64 {
        let bounds = self.worlds.iter().map(|world| world.settings[0].bound);
        let of_tiers = self.worlds.iter().zip(bounds.clone());
        let of_tiers = of_tiers
            .map(|(world, bound)| self.excess_of(bound, &world.admitted(0), &world.ends(0)));
        let mut all: Vec<_> = self
            .worlds
            .iter()
            .zip(bounds.clone())
            .flat_map(|(world, bound)| {
                let admitted = world.admitted(0).into_iter();
                admitted.map(move |(at, units)| (at, units * bound.weight()))
            })
            .collect();
        all.sort_unstable();
        let ends = self.worlds.iter().flat_map(|world| world.ends(0)).collect();
        let together = self.excess_of(Bound::largest(bounds), &all, &ends);
        of_tiers.fold(together, f64::max)
    }

    fn excess_of(&self, bound: Bound, admitted: &[(i64, i64)], ends: &BTreeSet<i64>) -> f64 {
        match self.ends {
            // A refund of what was leased before the reset may come as late.
            Ends::Resets => bound.excess_after_resets(admitted, &self.resets, 5 * self.ttl),
            _ => bound.excess(admitted, ends),
        }
    }

    /// The requests that were admitted in spite of a block.
    fn admitted_in_blocks(&self) -> usize {
        let longest = Clocks {
            speed: 999,
            ..Clocks::EXACT
        };
        let spread = longest.true_time(self.ttl);
        let in_block = |block: &Block| {
            let in_store = block.in_store.unwrap_or(self.end);
            let by_lease = self.by_lease.iter().filter(|(at, process)| {
                let from = if *process == block.process {
                    block.from
                } else {
                    in_store + spread
                };
                (from..block.until).contains(at)
            });
            let by_store = self.by_store.iter();
            let by_store = by_store.filter(|at| (in_store..block.until).contains(*at));
            by_lease.count() + by_store.count()
        };
        self.blocks.iter().map(in_block).sum()
    }
}

/// Runs the tiers of a policy, by random choices of several seeds.
fn holds(tiers: &[Setting], ends: Ends) {
    let (mut by_lease, mut by_store, mut ended) = (0, 0, 0);
    for seed in 0..8 {
        let mut history = History::new(seed, tiers, ends);
        history.run();
        let excess = history.excess();
        assert!(
            excess <= 0.0,
            "{excess} over the promise by seed {seed}: {ends:?} of {tiers:?}"
        );
        let in_blocks = history.admitted_in_blocks();
        assert_eq!(in_blocks, 0, "by seed {seed}: {ends:?} of {tiers:?}");
        by_lease += history.by_lease.len();
        by_store += history.by_store.len();
        ended += history.resets.len() + history.blocks.len();
    }
    let least = if ends == Ends::Nothing { 0 } else { 20 };
    let tried = by_lease.min(by_store) >= 100 && ended >= least;
    assert!(
        tried,
        "it tried little: {by_lease} {by_store} {ended} of {tiers:?}"
    );
}

/// Policies of each strategy, of one tier.
fn policies() -> [Setting; 6] {
    [
        Setting::gcra(200, 1_000 * MS, 60, 50 * MS),
        Setting::token_bucket(200, 1_000 * MS, 60, 50 * MS),
        Setting::fixed_window(100, 180 * MS, 50 * MS),
        Setting::calendar_window(100, 200 * MS, 50 * MS),
        Setting::sliding_log(100, 4_000 * MS, 40 * MS),
        Setting::sliding_window(100, 400 * MS, 4, 50 * MS),
    ]
}

#[test]
fn a_reset_admits_one_more_burst_at_most() {
    for policy in policies() {
        holds(&[policy], Ends::Resets);
    }
}

#[test]
fn nothing_is_admitted_while_a_key_is_blocked_once_the_leases_of_others_have_ended() {
    for policy in policies() {
        holds(&[policy], Ends::Blocks);
    }
}

#[test]
fn tiers_that_share_a_key_hold() {
    let rate = Setting::gcra;
    let bucket = Setting::token_bucket;
    for tiers in [
        [40, 80].map(|burst| rate(200, 1_000 * MS, burst, 50 * MS)),
        [
            rate(100, 1_000 * MS, 40, 50 * MS),
            rate(500, 1_000 * MS, 100, 50 * MS),
        ],
        [
            bucket(100, 1_000 * MS, 30, 50 * MS),
            bucket(700, 1_000 * MS, 200, 50 * MS),
        ],
        [40, 120].map(|n| Setting::fixed_window(n, 180 * MS, 50 * MS)),
        [40, 120].map(|n| Setting::calendar_window(n, 200 * MS, 50 * MS)),
        [60, 200].map(|n| Setting::sliding_log(n, 4_000 * MS, 40 * MS)),
        [40, 100].map(|n| Setting::sliding_window(n, 400 * MS, 4, 50 * MS)),
    ] {
        holds(&tiers, Ends::Nothing);
    }
    for ends in [Ends::Resets, Ends::Blocks] {
        let tiers = [40, 80].map(|burst| rate(200, 1_000 * MS, burst, 50 * MS));
        holds(&tiers, ends);
    }
}
