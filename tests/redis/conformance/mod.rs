//! Every trace of the reference model (`model.py`), on both stores, through the public API.
//!
//! Runs the traces in `traces/`, and those in the folder that `TOLLGATE_TRACES` names. `README.md` describes their format.

mod run;
mod trace;

use testkit::{Clock as ServerClock, Server};
use tollgate::{ManualClock, MemoryStore, RedisStore, clock::Timestamp};

use tollgate_tests::until::TEST_TIMEOUT;

use run::{Manner, Time};
use trace::Trace;

use crate::shared::SameTime;

/// Runs all traces, and shows every one that failed.
async fn run_all(
    manner: Manner,
    mut on: impl FnMut(&Trace) -> (tollgate::limiter::LimiterBuilder, Time),
) {
    let traces = trace::all();
    let mut failures = Vec::new();
    for trace in &traces {
        let (limiter, time) = on(trace);
        if let Err(failure) = run::run(trace, limiter, &time, manner).await {
            failures.push(format!("{}: {failure}", trace.name));
        }
    }
    println!("{} traces, {} failed", traces.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

async fn in_process(manner: Manner) {
    run_all(manner, |trace| {
        let clock = ManualClock::at(Timestamp::from_micros(trace.starts_at()));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        (trace.limiter(store), Time::Local(clock))
    })
    .await;
}

async fn on_redis(manner: Manner) {
    let clock = ServerClock::at(trace::EARLIEST as u64);
    let server = Server::builder().clock(&clock).start();
    let store = RedisStore::builder()
        .rejection_cache_clock(SameTime(clock.clone()))
        .url(server.url())
        .timeout(TEST_TIMEOUT)
        .build()
        .expect("a store");
    run_all(manner, |trace| {
        server.flush();
        clock.set(trace.starts_at() as u64);
        (trace.limiter(store.clone()), Time::Server(clock.clone()))
    })
    .await;
}

/// 16:00 UTC is midnight in UTC+8.
#[tokio::test]
async fn a_week_that_begins_on_sunday_at_16_utc_is_read_from_its_offset() {
    const HOUR: i64 = 3_600_000_000;
    // Friday, 2027-01-15 08:00 UTC
    let (friday, sunday) = (trace::EARLIEST, trace::EARLIEST + 56 * HOUR);
    let trace = Trace::of(serde_json::json!({
        "name": "weeks", "strategy": "calendar_window",
        "quota": { "requests": 1, "period_us": 7 * 24 * HOUR, "burst": 1 },
        "options": { "offset": 3 * 24 * HOUR + 16 * HOUR },
        "ops": [
            { "at_us": friday, "op": "take", "admitted": 1, "remaining": 0,
              "retry_after_us": 56 * HOUR, "reset_after_us": 56 * HOUR },
            { "at_us": sunday - 1, "op": "take", "admitted": 0, "remaining": 0,
              "retry_after_us": 1, "reset_after_us": 1 },
            { "at_us": sunday, "op": "take", "admitted": 1, "remaining": 0,
              "retry_after_us": 7 * 24 * HOUR, "reset_after_us": 7 * 24 * HOUR },
        ],
    }));
    let clock = ManualClock::at(Timestamp::from_micros(friday));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let time = Time::Local(clock);
    let run = run::run(&trace, trace.limiter(store), &time, Manner::Singly);
    assert_eq!(run.await, Ok(()));
}

#[tokio::test]
async fn every_trace_holds_in_process_one_request_at_a_time() {
    in_process(Manner::Singly).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_trace_holds_in_process_under_concurrency() {
    in_process(Manner::Concurrently).await;
}

#[tokio::test]
async fn every_trace_holds_on_redis_one_request_at_a_time() {
    on_redis(Manner::Singly).await;
}

#[tokio::test]
async fn every_trace_holds_on_redis_under_concurrency() {
    on_redis(Manner::Concurrently).await;
}
