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

use tollgate_tests::clocks::SameTime;

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
