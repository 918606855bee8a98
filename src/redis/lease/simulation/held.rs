//! What a process holds for requests of unequal costs, under several policies: no more than they use in 5/8 of a TTL, and what one
//! request costs.

use std::ops::Range;

use super::{
    bounds::Setting,
    fleet::{Agenda, Clocks, MS, Process, START, World},
};
use crate::{
    clock::Timestamp,
    redis::lease::{held_lease::LeaseRequest, leased_key::Granted},
    store::{Op, OpResult},
};

const SECOND: i64 = 1_000 * MS;
const TTL: i64 = 50 * MS;

/// A large request after so many small ones: 47 among 1,700 a second.
const SMALL: i64 = 36;

/// The requests of a second, at even intervals.
const PER_SECOND: i64 = 47 * (SMALL + 1);

/// The time of a request on its way and back.
const ROUND_TRIP: i64 = MS;

enum Event {
    Request(i64),
    Answer(i64, OpResult),
    Grant(LeaseRequest, OpResult),
    /// A task looks for what is due to be refunded at this instant.
    Reclaim(Timestamp),
}

/// What a process did in the time that is looked at.
#[derive(Debug, Default)]
struct Done {
    /// Under each policy: the units that were held at each request, in ascending order.
    held: Vec<Vec<u64>>,
    /// The units that were used in 5/8 of a TTL, on average.
    used: Vec<u64>,
    by_lease: u64,
    admitted: u64,
}

impl Done {
    fn most(&self, policy: usize) -> u64 {
        self.held[policy].last().copied().unwrap_or(0)
    }
}

/// A process whose requests have these costs, by their number, in its second second.
fn run(settings: &[Setting], costs: impl Fn(i64) -> Vec<u64>) -> Done {
    run_within(SECOND..2 * SECOND, PER_SECOND, settings, costs)
}

/// A process with so many requests per second, from the first one on; what it does in `time`.
fn run_within(
    time: Range<i64>,
    per_second: i64,
    settings: &[Setting],
    costs: impl Fn(i64) -> Vec<u64>,
) -> Done {
    let mut world = World::new(settings);
    let mut process = Process::new(&world, 0, Clocks::EXACT);
    let mut agenda = Agenda::default();
    agenda.add(0, Event::Request(0));
    let mut done = Done {
        held: vec![Vec::new(); settings.len()],
        used: vec![0; settings.len()],
        ..Done::default()
    };
    while let Some((at, event)) = agenda.next() {
        match event {
            Event::Request(number) => {
                let costs = costs(number);
                let (by_lease, due) = process.decide(&mut world, at, &costs);
                let mut is_admitted = by_lease;
                if !by_lease {
                    let result = world.response(at, &costs);
                    is_admitted = result.admitted == 1;
                    agenda.add(at + ROUND_TRIP, Event::Answer(at, result));
                }
                if let Some(request) = due {
                    let result = world.execute_owned(at, Op::Acquire(1), &request.counters);
                    agenda.add(at + ROUND_TRIP, Event::Grant(request, result));
                }
                if time.contains(&at) {
                    done.by_lease += u64::from(by_lease);
                    done.admitted += u64::from(is_admitted);
                    for (policy, cost) in costs.iter().enumerate() {
                        done.held[policy].push(process.key.held(policy));
                        done.used[policy] += cost * u64::from(is_admitted);
                    }
                }
                if at < time.end {
                    let next = (number + 1) * SECOND / per_second;
                    agenda.add(next, Event::Request(number + 1));
                }
            }
            Event::Answer(sent, result) => process.record_response((sent, at), &result),
            Event::Grant(request, result) => {
                let granted = process.grant(at, &request, &result);
                if let Granted::Held {
                    refund_at: Some(due),
                } = granted
                {
                    agenda.add(due.as_micros() - START, Event::Reclaim(due));
                }
            }
            Event::Reclaim(due) => {
                for unspent in process.key.reclaim_due(due, due) {
                    world.execute_owned(at, Op::Adjust, &unspent.counters);
                }
                if let Some(due) = process.key.schedule_refund() {
                    agenda.add(due.as_micros() - START, Event::Reclaim(due));
                }
            }
        }
    }
    for (held, used) in done.held.iter_mut().zip(&mut done.used) {
        held.sort_unstable();
        *used = *used * (TTL as u64 * 5 / 8) / (time.end - time.start) as u64;
    }
    done
}

fn is_large(number: i64) -> bool {
    number % (SMALL + 1) == SMALL
}

fn of_window(requests: i64) -> Setting {
    Setting::fixed_window(requests, 3_600 * SECOND, TTL)
}

/// Asserts that no more is held than is used in 5/8 of a TTL, and what one request costs.
fn assert_held(done: &Done, costs: &[u64]) {
    for (policy, cost) in costs.iter().enumerate() {
        let (most, used) = (done.most(policy), done.used[policy]);
        assert!(most <= used + cost, "{policy}: {most} held, {used} used");
    }
}

#[test]
fn no_more_is_held_under_any_policy_than_its_requests_use_within_a_ttl() {
    let policies = [of_window(100_000), of_window(1_000_000_000_000)];
    // The second policy is by size: 100 bytes, or 20 MB.
    for large in [200_000, 20_000_000] {
        let done = run(&policies, |number| {
            if is_large(number) {
                vec![1, large]
            } else {
                vec![1, 1]
            }
        });
        assert_held(&done, &[1, large]);
        assert!(done.by_lease * 100 >= done.admitted * 90, "{done:?}");
    }
}

#[test]
fn no_more_is_held_under_one_policy_than_requests_of_unequal_costs_use_within_a_ttl() {
    for setting in [
        of_window(1_000_000_000),
        Setting::gcra(10_000_000, 3_600 * SECOND, 10_000_000, TTL),
        Setting::token_bucket(10_000_000, 3_600 * SECOND, 10_000_000, TTL),
        Setting::sliding_window(100_000_000, 3_600 * SECOND, 10, TTL),
    ] {
        let cost = |number| if is_large(number) { 20_000 } else { 50 };
        let done = run(&[setting], |number| vec![cost(number)]);
        assert_held(&done, &[20_000]);
        assert!(
            done.by_lease * 100 >= done.admitted * 90,
            "{}",
            done.by_lease
        );
    }
}

/// Leases grow with each response, and don't wait for the end of an interval. No more is held than later.
#[test]
fn a_key_is_leased_soon_after_its_first_requests() {
    for setting in [
        of_window(1_000_000_000),
        Setting::gcra(1_000_000, SECOND, 1_000_000, TTL),
    ] {
        let one = |_| vec![1];
        let done = run_within(0..40 * MS, 100_000, &[setting], one);
        assert_held(&done, &[1]);
        assert!(
            done.by_lease * 100 >= done.admitted * 60,
            "{} of {}",
            done.by_lease,
            done.admitted
        );
    }
}
