//! A rejected request is admitted at the instant that it was told, if nothing else is requested meanwhile.

use super::{
    Rng,
    bounds::Setting,
    fleet::{Clocks, MS, Process, World},
};
use crate::{
    store::{Op, OpResult, Units},
    strategy::RetryAfter,
};

/// When a request of this cost is to be retried, after its rejection.
fn retry_at(world: &World, at: i64, result: &OpResult, cost: u64) -> i64 {
    let status = world.limits[0].status(&result.counters[0].snapshot, result.at, Units::new(cost));
    match status.retry_after {
        RetryAfter::In(wait) => at + wait.as_micros() as i64,
        other => panic!("{other:?}"),
    }
}

/// A process whose requests are decided one after the other, and whose rejected ones are retried. A lease reaches the store right
/// after the request with which it was requested, or only when that is retried. Returns how many were rejected, and how many
/// were admitted by leases.
fn retries_hold(setting: &Setting, seed: u64) -> (usize, usize) {
    let mut rng = Rng(seed);
    let mut world = World::new(std::slice::from_ref(setting));
    let mut process = Process::new(&world, 0, Clocks::EXACT);
    let (mut at, mut rejections, mut by_leases) = (0, 0, 0);
    for _ in 0..1_000 {
        at += if rng.one_in(100) {
            rng.below(4 * setting.ttl)
        } else {
            rng.below(MS)
        };
        let costs = [rng.one_of(&[1, 1, 1, 2, 5, 20])];
        let (by_lease, due) = process.decide(&mut world, at, &costs);
        by_leases += usize::from(by_lease);
        let mut charged_at = at;
        let mut is_retried = false;
        if !by_lease {
            let result = world.response(at, &costs);
            process.record_response((at, at), &result);
            if result.admitted == 0 {
                is_retried = true;
                at = retry_at(&world, at, &result, costs[0]);
                charged_at = rng.one_of(&[charged_at, at]);
            }
        }
        let granted = due.map(|request| {
            let result = world.execute_owned(charged_at, Op::Acquire(1), &request.counters);
            (request, result)
        });
        if is_retried {
            rejections += 1;
            let (by_lease, _) = process.decide(&mut world, at, &costs);
            let is_admitted = by_lease || {
                let result = world.response(at, &costs);
                process.record_response((at, at), &result);
                result.admitted == 1
            };
            assert!(
                is_admitted,
                "retry {rejections} by seed {seed} of {setting:?}"
            );
        }
        if let Some((request, result)) = granted {
            let _ = process.grant(at, &request, &result);
        }
    }
    (rejections, by_leases)
}

#[test]
fn a_retry_at_the_instant_that_was_told_is_admitted() {
    for setting in [
        Setting::gcra(566, 1_000 * MS, 100, 50 * MS),
        Setting::token_bucket(566, 1_000 * MS, 100, 50 * MS),
        Setting::sliding_window(120, 400 * MS, 4, 50 * MS),
        Setting::fixed_window(120, 180 * MS, 50 * MS),
        Setting::sliding_log(200, 4_000 * MS, 40 * MS),
    ] {
        let (mut rejections, mut by_leases) = (0, 0);
        for seed in 0..40 {
            let done = retries_hold(&setting, seed);
            rejections += done.0;
            by_leases += done.1;
        }
        let tried = rejections >= 100 && by_leases >= 20;
        assert!(
            tried,
            "it tried little: {rejections} {by_leases} of {setting:?}"
        );
    }
}
