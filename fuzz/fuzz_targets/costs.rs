//! What operations may be asked to charge and to give back, under each strategy.

#![no_main]

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use libfuzzer_sys::fuzz_target;
use tollgate::{
    CalendarWindow, FixedWindow, Gcra, Key, Limiter, ListWindow, ManualClock, MemoryStore, Policy,
    Quota, SlidingLog, SlidingWindow, TokenBucket, clock::Timestamp,
};

const KEY: Key = Key::global();

/// The clock stands still.
const NOON: Timestamp = Timestamp::from_micros(1_800_014_400_000_000);

/// The capacity.
const MOST: u64 = 100;

fuzz_target!(|input: (u8, Vec<(u8, u64, u64)>)| {
    let (strategy, steps) = input;
    let store = MemoryStore::builder().clock(ManualClock::at(NOON)).build();
    let limiter = Limiter::builder().store(store).policy(policy(strategy));
    let limiter = limiter.build().expect("a limiter");
    let (mut used, mut charged) = (0_u64, Vec::new());
    for (step, units, times) in steps.into_iter().take(50) {
        let room = MOST.saturating_sub(used);
        match step % 5 {
            0 => {
                let decision = now(limiter.check(KEY).cost(units).times(times));
                let cost = decision.admitted().checked_mul(units);
                assert!(cost.is_some_and(|cost| cost <= room), "{decision:?}");
                used += cost.unwrap_or(0);
            }
            1 => {
                let result = now(limiter.admit(KEY).cost(units));
                assert_eq!(result.is_ok(), units <= room, "{result:?}");
                if let Ok(admission) = result {
                    used += units;
                    charged.push(admission);
                }
            }
            2 => {
                now(limiter.charge(KEY, units)).expect("a charge");
                used += units.min(2 * MOST - used);
            }
            3 if !charged.is_empty() => {
                let place = times as usize % charged.len();
                let refunds = now(charged[place].refund(units)).expect("a refund");
                let given: u64 = refunds.iter().map(tollgate::limiter::Refund::units).sum();
                assert!(given <= units && given <= used, "{given}");
                used -= given;
            }
            _ => {
                let status = now(limiter.peek(KEY).cost(units)).expect("a status");
                assert_eq!(status.would_admit(), units <= room, "{status:?}");
            }
        }
        let status = now(limiter.peek(KEY)).expect("a status");
        let left = status.policies().next().expect("a policy").remaining();
        assert_eq!(left, MOST.saturating_sub(used), "{status:?}");
    }
});

fn policy(strategy: u8) -> Policy {
    let policy = Policy::new("p", Quota::requests(MOST).per_minute());
    match strategy % 7 {
        0 => policy.strategy(Gcra),
        1 => policy.strategy(TokenBucket),
        2 => policy.strategy(FixedWindow),
        3 => policy.strategy(CalendarWindow::utc()),
        4 => policy.strategy(ListWindow),
        5 => policy.strategy(SlidingLog),
        _ => policy.strategy(SlidingWindow::new()),
    }
}

/// In process all answers are there at once.
fn now<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a store in process answers at once"),
    }
}
