//! Worst cases that random runs do not find: each admits more than is promised if one rule of leases is left out.

use super::{
    bounds::Setting,
    fleet::{Clocks, MS, Process, World},
};
use crate::{redis::lease::leased_key::Granted, store::Op, strategy::RetryAfter};

/// Clocks of all speeds that leases allow for.
const SPEEDS: [i64; 3] = [999, 1_000, 1_001];

fn clocks(speed: i64) -> Clocks {
    Clocks {
        speed,
        ..Clocks::EXACT
    }
}

/// Asks the store, at each instant, for as many single requests as it admits.
fn ask_at(world: &mut World, instants: impl IntoIterator<Item = i64>) -> i64 {
    instants.into_iter().map(|at| world.ask_all(at)).sum()
}

/// Asks the store from an instant on, at each microsecond at which a unit may come, and the two before it.
fn ask_from(world: &mut World, from: i64, to: i64) {
    let mut at = from;
    while at < to {
        ask_at(world, [at]);
        let RetryAfter::In(wait) = world.status(at, 0).retry_after else {
            panic!("a unit is left at {at}");
        };
        at = (at + wait.as_micros() as i64 - 2).max(at + 1);
    }
}

/// Spends what a process holds, one unit at each instant, from the latest on; returns the last instant at which it was admitted.
fn last_spent(
    world: &mut World,
    process: &mut Process,
    instants: impl IntoIterator<Item = i64>,
) -> i64 {
    let costs = vec![1; world.limits.len()];
    let mut last = None;
    for at in instants {
        if process.decide(world, at, &costs).0 {
            last = Some(at);
        }
    }
    last.expect("a unit that is spent")
}

fn assert_tight(world: &World, slack: f64) {
    let worst = world.worst();
    assert!(worst <= 0.0, "{worst} units too many: {:?}", world.settings);
    assert!(
        worst >= -slack,
        "{worst}: not the worst case of {:?}",
        world.settings
    );
}

/// 10 per 171 ms: three units refill within a TTL of 50 ms, its allowance for clocks, and 0.25 ms.
fn rates() -> [Setting; 2] {
    [
        Setting::gcra(10, 171 * MS, 20, 50 * MS),
        Setting::token_bucket(10, 171 * MS, 20, 50 * MS),
    ]
}

#[test]
fn a_burst_that_is_spent_at_the_last_instant_leaves_what_refills_for_all_later_ones() {
    for (setting, speed) in rates()
        .into_iter()
        .flat_map(|s| SPEEDS.map(|speed| (s.clone(), speed)))
    {
        let mut world = World::new(&[setting]);
        let mut process = Process::hoarding(&mut world, (0, 0, 1), 99, clocks(speed));
        // The first instant at which its clock shows the end of the lease.
        let end = process.clocks.true_time(50 * MS);
        assert_eq!(
            process.spend(&mut world, end - 1),
            17,
            "by a clock of {speed}"
        );
        // What is charged meanwhile is spent at the same instant.
        assert_eq!(ask_at(&mut world, [end - 1]), 2);
        ask_from(&mut world, end, 400 * MS);
        assert_tight(&world, 1.0);
    }
}

#[test]
fn a_clock_that_runs_slow_by_a_thousandth_is_allowed_for() {
    // Two units refill within a TTL by the clock of the process, and a part of a third within a TTL by the store's.
    for setting in [
        Setting::gcra(100, 2_501 * MS, 20, 50 * MS),
        Setting::token_bucket(100, 2_501 * MS, 20, 50 * MS),
    ] {
        let mut world = World::new(&[setting]);
        let mut process = Process::hoarding(&mut world, (0, 0, 1), 99, clocks(999));
        let last = process.clocks.true_time(50 * MS) - 1;
        assert_eq!(process.spend(&mut world, last), 17);
        ask_at(&mut world, [last]);
        ask_from(&mut world, last, 400 * MS);
        assert_tight(&world, 1.0);
    }
}

#[test]
fn a_lease_ends_a_ttl_after_it_was_requested_however_late_it_is_charged_and_received() {
    for (setting, speed) in rates()
        .into_iter()
        .flat_map(|s| SPEEDS.map(|speed| (s.clone(), speed)))
    {
        for (charged, received) in [(0, 45 * MS), (20 * MS, 45 * MS), (45 * MS, 45 * MS)] {
            let times = (0, charged, received);
            let life = clocks(speed).true_time(50 * MS);
            for (at, admitted) in [
                (life - 1, 17),
                (life, 0),
                (charged + life - 1, if charged == 0 { 17 } else { 0 }),
                (received + life - 1, 0),
            ] {
                let mut world = World::new(std::slice::from_ref(&setting));
                let mut process = Process::hoarding(&mut world, times, 99, clocks(speed));
                let spent = process.spend(&mut world, at);
                assert_eq!(spent, admitted, "at {at}, leased at {times:?}");
            }
        }
        // One that is received after its end is refunded.
        let mut world = World::new(&[setting]);
        let mut process = Process::new(&world, 0, clocks(speed));
        let request = process.request(&world, 0, 2);
        let result = world.execute_owned(10, Op::Acquire(1), &request.counters);
        let end = process.clocks.true_time(50 * MS);
        let Granted::Late(unspent) = process.grant(end, &request, &result) else {
            panic!("a lease is spent after its end");
        };
        assert_eq!(unspent.counters[0].units.get(), 2);
        assert_eq!(process.spend(&mut world, end), 0);
    }
}

#[test]
fn nothing_is_spent_after_a_sleep_or_while_the_wall_clock_is_set_back() {
    let mut world = World::new(&[rates()[0].clone()]);
    let mut process = Process::hoarding(&mut world, (0, 0, 1), 99, Clocks::EXACT);
    // The monotonic clock stood still for all but a millisecond.
    process.clocks.slept = 999 * MS;
    assert_eq!(process.spend(&mut world, 1_000 * MS), 0);
    ask_at(&mut world, [1_000 * MS]);
    assert_tight(&world, 20.0);

    let mut world = World::new(&[rates()[0].clone()]);
    let mut process = Process::hoarding(&mut world, (0, 0, 1), 99, Clocks::EXACT);
    // The machine slept for an hour, and the wall clock was set back by two.
    process.clocks.slept = 3_600_000 * MS;
    process.clocks.ahead.1 = -7_200_000 * MS;
    assert_eq!(process.spend(&mut world, 3_600_001 * MS), 0);

    let mut world = World::new(&[rates()[0].clone()]);
    // The response came 45 ms after the request, and the wall clock was then set back by 30 ms.
    let mut process = Process::hoarding(&mut world, (0, 0, 45 * MS), 99, Clocks::EXACT);
    process.clocks.ahead.1 = -30 * MS;
    assert_eq!(process.spend(&mut world, 60 * MS), 0);
}

#[test]
fn a_refund_takes_back_what_has_not_refilled_of_the_whole_lease_to_the_fraction() {
    const T: i64 = 17_100;
    for setting in rates() {
        for (spent, refunded_at, expected) in [
            // min(6 T, 10 T - 60 ms), beside 5 T of another process.
            (4, 60 * MS, 15 * T - 60 * MS - 6 * T),
            (4, 100 * MS, 5 * T),
            (0, 100 * MS, 5 * T),
            (9, 100 * MS, 15 * T - 100 * MS - T),
            (0, 170 * MS, 5 * T),
            (0, 172 * MS, 15 * T - 172 * MS),
        ] {
            let mut world = World::new(std::slice::from_ref(&setting));
            let mut process = Process::hoarding(&mut world, (0, 0, 1), 10, Clocks::EXACT);
            let _other = Process::hoarding(&mut world, (0, 0, 1), 5, Clocks::EXACT);
            for _ in 0..spent {
                // Later than a unit takes to refill, so that no request can be refunded.
                assert!(process.decide(&mut world, 20 * MS, &[1]).0);
            }
            let unspent = process.reclaim().expect("unspent units");
            assert_eq!(
                process.spend(&mut world, 20 * MS),
                0,
                "units that were reclaimed"
            );
            assert!(process.reclaim().is_none(), "units are reclaimed twice");
            world.execute_owned(refunded_at, Op::Adjust, &unspent.counters);
            let reset = world.status(refunded_at, 0).reset_after;
            assert_eq!(
                reset.as_micros() as i64,
                expected,
                "{spent} spent, refunded at {refunded_at}"
            );
        }
    }
}

#[test]
fn a_refund_after_most_has_drained_frees_what_is_left() {
    for setting in rates() {
        let mut world = World::new(&[setting]);
        // All of the lease is refunded when all but half a unit of it has drained.
        let mut process = Process::hoarding(&mut world, (0, 0, 1), 99, Clocks::EXACT);
        let unspent = process.reclaim().expect("unspent units");
        let at = 17 * 17_100 - 8_550;
        // Another process leases the rest before, and one more after it, and spends both at the last instant.
        let mut other = Process::hoarding(&mut world, (at - 1, at - 1, at - 1), 99, Clocks::EXACT);
        world.execute_owned(at, Op::Adjust, &unspent.counters);
        let mut third = Process::hoarding(&mut world, (at, at, at), 99, Clocks::EXACT);
        let last = at + 50 * MS - 2;
        assert_eq!(other.spend(&mut world, last), 16);
        assert_eq!(third.spend(&mut world, last), 1);
        ask_from(&mut world, last, last + 100 * MS);
        assert_tight(&world, 1.0);
    }
}

#[test]
fn refunds_of_requests_are_not_refunded_with_the_rest_of_their_lease() {
    for setting in rates() {
        let mut world = World::new(&[setting]);
        let mut process = Process::hoarding(&mut world, (0, 0, 1), 4, Clocks::EXACT);
        for _ in 0..2 {
            assert!(process.decide(&mut world, 2, &[1]).0);
        }
        // Both come back, so that the key is free again after two intervals.
        world.refund(3, 0);
        world.refund(3, 1);
        let unspent = process.reclaim().expect("unspent units");
        let at = 2 * 17_100 + 6;
        let mut other = Process::hoarding(&mut world, (at, at, at), 99, Clocks::EXACT);
        world.execute_owned(at + 1, Op::Adjust, &unspent.counters);
        let mut third = Process::hoarding(&mut world, (at + 1, at + 1, at + 1), 99, Clocks::EXACT);
        let last = at + 50 * MS - 1;
        let admitted = other.spend(&mut world, last) + third.spend(&mut world, last);
        assert_eq!(admitted, 17, "more than the burst that is left for leases");
        ask_from(&mut world, last, last + 100 * MS);
        assert_tight(&world, 1.0);
    }
}

#[test]
fn a_log_counts_units_for_a_period_after_they_were_spent() {
    for speed in SPEEDS {
        let mut world = World::new(&[Setting::sliding_log(40, 5_000 * MS, 50 * MS)]);
        let mut process = Process::hoarding(&mut world, (0, 0, 1), 99, clocks(speed));
        let last = process.clocks.true_time(50 * MS) - 1;
        assert_eq!(process.spend(&mut world, last), 40);
        // The unit counts from its charge.
        assert_eq!(
            ask_at(&mut world, [5_000 * MS, 5_051 * MS, last + 5_000 * MS - 1]),
            0
        );
        assert_eq!(ask_at(&mut world, [5_000 * MS + 51_050]), 40);
        assert_tight(&world, 0.0);
    }
}

/// Settings whose window, or bucket, ends 400 ms after the start.
fn windows() -> [Setting; 4] {
    [
        Setting::fixed_window(40, 400 * MS, 50 * MS),
        Setting::list_window(40, 400 * MS, 50 * MS),
        Setting::calendar_window(40, 400 * MS, 50 * MS),
        Setting::sliding_window(40, 800 * MS, 2, 50 * MS),
    ]
}

const END: i64 = 400 * MS;

#[test]
fn a_lease_ends_with_its_window() {
    for (setting, speed) in windows()
        .into_iter()
        .flat_map(|s| SPEEDS.map(|speed| (s.clone(), speed)))
    {
        for (sent, charged) in [(1_000, 1_000), (40_000, 1_000), (60, 50), (2, 2)] {
            let mut world = World::new(std::slice::from_ref(&setting));
            // The window begins at 0.
            assert!(world.ask(0, &[1]));
            let times = (END - sent, END - charged, END - charged);
            let mut process = Process::hoarding(&mut world, times, 99, clocks(speed));
            // The next window is used up first.
            ask_at(&mut world, [END]);
            assert_eq!(
                process.spend(&mut world, END),
                0,
                "{setting:?} by {times:?}"
            );
            ask_at(&mut world, (0..40).map(|step| END + step * 20 * MS));
            assert_tight(&world, 40.0);
        }
        // Until then it is spent.
        let mut world = World::new(std::slice::from_ref(&setting));
        assert!(world.ask(0, &[1]));
        let times = (END - 20 * MS, END - 20 * MS, END - 20 * MS);
        let mut process = Process::hoarding(&mut world, times, 99, clocks(speed));
        let last = last_spent(&mut world, &mut process, (END - 60..END + 60).step_by(4));
        assert!(
            (END - 60..END).contains(&last),
            "the last unit at {last}, {setting:?}"
        );
        ask_at(&mut world, [END]);
        assert_tight(&world, 40.0);
    }
}

#[test]
fn a_refund_goes_into_the_window_of_its_charge() {
    for setting in windows() {
        let mut world = World::new(std::slice::from_ref(&setting));
        assert!(world.ask(0, &[1]));
        let at = END - 10 * MS;
        let mut process = Process::hoarding(&mut world, (at, at, at), 20, Clocks::EXACT);
        // A lease of the next window, before the rest of the old one is refunded.
        let next = END + 60 * MS;
        let mut other = Process::hoarding(&mut world, (next, next, next), 4, Clocks::EXACT);
        let unspent = process.reclaim().expect("unspent units");
        assert!(other.spend(&mut world, next) > 0);
        ask_at(&mut world, [next]);
        world.execute_owned(next, Op::Adjust, &unspent.counters);
        assert_eq!(ask_at(&mut world, [next]), 0, "{setting:?}");
        // Into its own window it goes.
        let mut world = World::new(std::slice::from_ref(&setting));
        let mut process = Process::hoarding(&mut world, (0, 0, 0), 20, Clocks::EXACT);
        assert_eq!(ask_at(&mut world, [1]), 20);
        let unspent = process.reclaim().expect("unspent units");
        world.execute_owned(2, Op::Adjust, &unspent.counters);
        assert_eq!(ask_at(&mut world, [3]), 20, "{setting:?}");
        assert_tight(&world, 0.0);
    }
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
                world.execute_owned(4, Op::Adjust, &unspent.counters);
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
