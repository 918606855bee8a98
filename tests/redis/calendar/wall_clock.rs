//! A store in process, and the machine's wall clock, which steps: rates don't follow it, and calendar windows do.

use std::{fs::OpenOptions, num::NonZeroUsize, os::unix::fs::FileExt};

use tollgate::clock::Clock;
use tollgate_tests::{clocks::TwoClocks, prelude::*};

use super::exhaust as exhaust_micros;

const QUOTA: u64 = 10;
const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
/// 2026-09-01 00:20:00 UTC.
const START: i64 = 1_788_222_000 * SECOND;
/// By how much the wall clock steps, or is ahead from the start.
const STEPS: [i64; 6] = [HOUR, -HOUR, DAY, -DAY, -START, 60 * 365 * DAY];

fn limiter(clock: &TwoClocks, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let store = MemoryStore::builder().clock(clock.clone()).build();
    stores::limiter(Limiter::builder().store(store), policies)
}

fn policy() -> Policy {
    Policy::new("p", quota("10/h"))
}

fn calendar() -> Policy {
    Policy::new("calendar", quota("10/h")).strategy(CalendarWindow::utc())
}

fn rates() -> [Policy; 6] {
    [
        policy(),
        policy().strategy(TokenBucket),
        policy().strategy(FixedWindow),
        policy().strategy(ListWindow),
        policy().strategy(SlidingLog),
        policy().strategy(SlidingWindow::new()),
    ]
}

async fn exhaust(limiter: &Limiter) -> (u64, i64) {
    let (admitted, wait) = exhaust_micros(limiter, KEY, QUOTA).await;
    (admitted, wait as i64)
}

#[tokio::test]
async fn a_step_of_the_wall_clock_refills_no_rate_and_delays_no_caller() {
    for step in STEPS {
        for policy in rates() {
            let _case = Case(format!("{policy:?} {step}"));
            let clock = TwoClocks::at(START);
            let limiter = limiter(&clock, [policy]);
            let (admitted, expected) = exhaust(&limiter).await;
            assert_eq!(admitted, QUOTA);
            clock.step(step);
            assert_eq!(exhaust(&limiter).await, (0, expected));
            clock.pass(expected - 1);
            assert!(!admitted_by_store(&limiter.check(KEY).await));
            clock.pass(1);
            assert!(admitted_by_store(&limiter.check(KEY).await));
        }
    }
}

#[tokio::test]
async fn calendar_windows_follow_only_the_wall_clock() {
    let clock = TwoClocks::at(START);
    let limiter = limiter(&clock, [calendar()]);
    let left = 40 * 60 * SECOND;
    assert_eq!(exhaust(&limiter).await, (QUOTA, left));
    // The wall clock is frozen while days pass.
    clock.pass(3 * DAY);
    clock.step(-3 * DAY);
    assert_eq!(exhaust(&limiter).await, (0, left));
    clock.step(left - 1);
    assert_eq!(exhaust(&limiter).await, (0, 1));
    clock.step(1);
    assert_eq!(exhaust(&limiter).await, (QUOTA, HOUR));
    clock.step(60 * 365 * DAY);
    assert_eq!(exhaust(&limiter).await, (QUOTA, HOUR));
}

#[tokio::test]
async fn in_one_decision_each_policy_has_its_own_clock() {
    for step in STEPS {
        // The wall clock has stepped before anything is counted.
        let clock = TwoClocks::at(START);
        clock.step(step);
        let rate = policy().strategy(FixedWindow);
        let limiter = limiter(&clock, [rate, calendar()]);
        let admission = limiter.admit(KEY).cost(QUOTA).await.expect("room");
        let decision = admission.decision();
        let reset = |name| decision.count(name).reset_after().as_micros() as i64;
        assert_eq!(reset("p"), HOUR, "{step}");
        let left = HOUR - clock.wall().as_micros() % HOUR;
        assert_eq!(reset("calendar"), left, "{step}");

        clock.pass(SECOND);
        let _ = admission.refund(4).await.expect("a response");
        let remaining = async || {
            let seen = limiter.peek(KEY).await.expect("a response");
            (seen.left("p"), seen.left("calendar"))
        };
        assert_eq!(remaining().await, (4, 4), "{step}");
        // One has begun anew, and the other not yet.
        clock.pass(left - SECOND);
        let rate = if left == HOUR { QUOTA } else { 4 };
        assert_eq!(remaining().await, (rate, QUOTA), "{step}");
    }
}

/// A full store drops the keys that are nearest to their full quota, by the clock that each is counted by.
#[tokio::test]
async fn a_full_store_evicts_no_window_by_the_time_of_the_other_clock() {
    for step in STEPS {
        let clock = TwoClocks::at(START);
        clock.step(step);
        let store = MemoryStore::builder()
            .clock(clock.clone())
            .max_keys(NonZeroUsize::new(64).expect("a number"))
            .build();
        let limiter = |policy| stores::limiter(Limiter::builder().store(store.clone()), [policy]);
        // Used up for up to two hours by the calendar, and by a window of an hour.
        let calendar = limiter(calendar());
        let window = limiter(policy().strategy(FixedWindow));
        let short = limiter(Policy::new("short", Quota::requests(9).per_second()));
        for limiter in [&calendar, &window] {
            assert!(admitted_by_store(&limiter.check(KEY).cost(QUOTA).await));
        }
        for key in 0..500 {
            let admitted = short.check(Key::new(key.to_string())).await;
            assert!(admitted_by_store(&admitted));
        }
        assert!(store.keys() <= 64 && store.dropped() > 0);
        for limiter in [&calendar, &window] {
            assert!(!admitted_by_store(&limiter.check(KEY).await), "{step}");
        }
    }
}

const CHILD: &str = "TOLLGATE_TEST_WALL_CLOCK";

/// Sets what this process's wall clock shows.
fn set_wall(micros: i64) {
    let file = env::var_os("TESTKIT_CLOCK").expect("a clock");
    let file = OpenOptions::new().write(true).open(file);
    let written = file.expect("the clock's file");
    let written = written.write_all_at(&micros.to_ne_bytes(), 0);
    written.expect("a write");
}

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[tokio::test]
async fn child_process_with_a_stepping_wall_clock() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let started = 1_000 * SECOND;
    let limiter = |policy| stores::limiter(Limiter::builder(), [policy]);
    let rates: Vec<_> = rates().into_iter().map(limiter).collect();
    let calendar = limiter(calendar());
    for limiter in &rates {
        assert_eq!(exhaust(limiter).await.0, QUOTA);
    }
    assert_eq!(exhaust(&calendar).await, (QUOTA, HOUR - started));
    // A machine without a clock of its own learns the time from the network.
    for wall in [START, START + DAY, START - HOUR] {
        set_wall(wall);
        for limiter in &rates {
            let (admitted, wait) = exhaust(limiter).await;
            assert_eq!(admitted, 0);
            assert!(wait <= 2 * HOUR, "{wait}");
        }
    }
    set_wall(START);
    assert_eq!(exhaust(&calendar).await, (QUOTA, 40 * 60 * SECOND));
    println!("as it should be");
}

#[test]
fn the_system_clock_counts_rates_by_monotonic_time_and_calendar_windows_by_the_wall_clock() {
    let clock = testkit::Clock::at(1_000 * SECOND as u64);
    let name = "child_process_with_a_stepping_wall_clock";
    let mut child = tollgate_tests::child::test(module_path!(), name);
    clock.put_in(child.env(CHILD, "1"));
    let output = child.output().expect("a process");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let passed = output.status.success() && text.contains("as it should be");
    assert!(passed, "{text}");
}
