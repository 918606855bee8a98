//! Worst cases of resets, blocks, and tiers that share a key.

use super::{
    super::leased_key::Granted,
    fleet::{Clocks, MS, Process, World},
    settings::Setting,
};
use crate::{
    key::Key,
    store::{CounterOp, Op},
};

fn reset(world: &mut World, at: i64) {
    let limit = world.limits[0].clone();
    let counter = CounterOp::new(&limit, Key::new("hot"));
    world.execute(at, Op::Reset, &[counter]);
}

/// Policies, and what each admits at once beside leases.
fn policies() -> [(Setting, i64); 4] {
    [
        (Setting::gcra(10, 171 * MS, 20, 50 * MS), 17),
        (Setting::token_bucket(10, 171 * MS, 20, 50 * MS), 17),
        (Setting::fixed_window(40, 400 * MS, 50 * MS), 40),
        (Setting::sliding_log(40, 5_000 * MS, 50 * MS), 40),
    ]
}

#[test]
fn what_was_leased_before_a_reset_is_spent_beside_one_burst_and_within_the_ttl() {
    for (setting, burst) in policies() {
        for (at, spent) in [(50 * MS - 1, burst), (50 * MS, 0)] {
            let mut world = World::new(std::slice::from_ref(&setting));
            let mut other = Process::hoarding(&mut world, (0, 0, 1), 99, Clocks::EXACT);
            reset(&mut world, 2);
            assert_eq!(world.ask_all(3), burst);
            assert_eq!(other.spend(&mut world, at), spent, "{setting:?} at {at}");
        }
    }
}

#[test]
fn a_process_spends_and_refunds_nothing_that_it_leased_before_its_own_reset() {
    for (setting, burst) in policies() {
        // A lease that is on its way.
        let mut world = World::new(std::slice::from_ref(&setting));
        let mut process = Process::new(&world, 0, Clocks::EXACT);
        let request = process.request(&world, 0, 2);
        let result = world.execute_owned(1, Op::Acquire(1), &request.counters);
        assert!(process.key.discard_for_reset().is_empty());
        reset(&mut world, 2);
        let granted = process.grant(3, &request, &result);
        assert!(matches!(granted, Granted::Discarded), "{granted:?}");
        assert_eq!(process.spend(&mut world, 4), 0, "{setting:?}");
        assert_eq!(world.ask_all(5), burst, "{setting:?}");

        // A lease that is held.
        let mut world = World::new(&[setting]);
        let mut process = Process::hoarding(&mut world, (0, 0, 1), 99, Clocks::EXACT);
        assert_eq!(process.key.discard_for_reset().len(), 1);
        assert_eq!(process.spend(&mut world, 2), 0);
    }
}

#[test]
fn a_process_that_blocks_a_key_spends_nothing_of_it_and_leases_nothing_until_that_is_done() {
    for (setting, burst) in policies() {
        for is_held in [false, true] {
            let mut world = World::new(std::slice::from_ref(&setting));
            let mut process = Process::new(&world, 0, Clocks::EXACT);
            let request = process.request(&world, 0, 2);
            let result = world.execute_owned(1, Op::Acquire(1), &request.counters);
            let now = process.clocks.at(2).monotonic;
            let mut unspent = Vec::new();
            if is_held {
                let _ = process.grant(2, &request, &result);
            }
            process.key.pause(now);
            unspent.append(&mut process.key.release());
            if !is_held {
                match process.grant(3, &request, &result) {
                    Granted::Late(late) => unspent.push(late),
                    granted => panic!("{granted:?} after a block"),
                }
            }
            for unspent in unspent {
                world.execute_owned(4, Op::Refund, &unspent.counters);
            }
            for at in (5..1_000 * MS).step_by(1_000) {
                let (admitted, request) = process.decide(&mut world, at, &[1]);
                assert!(!admitted && request.is_none(), "at {at}: {setting:?}");
                // Of another request, by which a lease would be due.
                process.record_response((at, at), &result);
            }
            // All of it is there again for others.
            assert_eq!(world.ask_all(1_000 * MS), burst, "{setting:?}");
        }
    }
}

/// The leases of both tiers are spent at their last moment.
#[test]
fn leases_of_tiers_that_share_a_key_are_charged_to_one_count() {
    let pairs = [
        // In time until the bucket is full again: the larger one's burst, less what refills in a TTL.
        (
            [20, 40].map(|n| Setting::gcra(10, 171 * MS, n, 50 * MS)),
            37,
        ),
        (
            [20, 40].map(|n| Setting::token_bucket(10, 171 * MS, n, 50 * MS)),
            37,
        ),
        (
            [20, 40].map(|n| Setting::fixed_window(n, 400 * MS, 50 * MS)),
            40,
        ),
        (
            [20, 40].map(|n| Setting::sliding_log(n, 5_000 * MS, 50 * MS)),
            40,
        ),
    ];
    for (tiers, most) in pairs {
        for order in [[0, 1], [1, 0]] {
            let mut worlds = World::tiers(&tiers);
            let mut processes = order.map(|tier| {
                let world = &mut worlds[tier];
                let process = Process::hoarding(world, (0, 0, 1), 99, Clocks::EXACT);
                (tier, process)
            });
            let mut spent = 0;
            for (tier, process) in &mut processes {
                spent += process.spend(&mut worlds[*tier], 50 * MS - 1);
            }
            assert_eq!(spent, most, "{order:?} of {tiers:?}");
            for world in &worlds {
                assert!(world.worst() <= 0.0, "{tiers:?}");
            }
        }
    }
}
