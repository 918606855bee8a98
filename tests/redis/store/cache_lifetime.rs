//! What ends a cached rejection: changes by this process, at once; all others, within the bound.

use std::os::unix::fs::FileExt;

use testkit::Clock as ServerClock;
use tollgate::observe::DecisionSource::{RejectionCache, Store};
use tollgate_tests::prelude::*;

use crate::store::{
    rejection_cache::{BOUND, key, source, store, three_a_minute, use_up},
    support::*,
};

#[tokio::test]
async fn changes_elsewhere_end_a_cached_rejection_within_the_bound() {
    for change in ["a reset", "a credit", "a flush", "a restart"] {
        let _case = Case(change.to_owned());
        let (clock, server) = on_a_clock();
        let [here, there] = [(); 2].map(|()| three_a_minute(store(&server, &clock)));
        let _ = use_up(&here).await;
        let policy = there.policy("p").expect("a policy");
        match change {
            "a reset" => drop(policy.reset(key()).await.expect("a response")),
            "a credit" => drop(policy.credit(key(), 1).await.expect("a response")),
            "a flush" => drop(server.command(&["FLUSHALL"]).ok()),
            _ => {
                server.kill();
                server.restart();
            }
        }
        assert_eq!(source(&here).await, RejectionCache);
        clock.advance(BOUND);
        // A restart breaks the connection.
        let is_admitted = async || {
            let decision = here.check(key()).await;
            decision.is_admitted() && decision.source() == Store
        };
        until("it is admitted", is_admitted).await;
    }
}

#[tokio::test]
async fn a_reset_ends_cached_rejections_under_every_quota_of_the_key() {
    let (clock, server) = on_a_clock();
    let policy = StrategyKind::Fixed.policy("p", "9/min");
    let limiter = limiter(store(&server, &clock), [policy]);
    let as_tier = || {
        let tier = limiter.check(key()).quota_for("p", quota("1/min"));
        tier.into_future()
    };
    assert!(as_tier().await.is_admitted());
    for source in [Store, RejectionCache] {
        let rejected = as_tier().await;
        assert_eq!((rejected.is_admitted(), rejected.source()), (false, source));
    }
    let _ = limiter.reset(key()).await.expect("a response");
    assert!(as_tier().await.is_admitted());
}

#[tokio::test]
async fn a_reset_or_refund_by_another_limiter_over_the_same_store_ends_a_cached_rejection_at_once()
{
    let (clock, server) = on_a_clock();
    let store = store(&server, &clock);
    let [here, there] = [0, 1].map(|_| three_a_minute(store.clone()));
    let _ = use_up(&here).await;
    assert_eq!(source(&here).await, RejectionCache);
    let _ = there.reset(key()).await.expect("a response");
    let paid = there.check(key()).await.into_result().expect("admitted");
    for _ in 0..2 {
        assert!(here.check(key()).await.is_admitted());
    }
    for source in [Store, RejectionCache] {
        assert_eq!(here.check(key()).await.source(), source);
    }
    let paid = paid.policy("p").expect("a policy");
    paid.refund(1).await.expect("a refund");
    assert!(here.check(key()).await.is_admitted());
}

const URL: &str = "TOLLGATE_TEST_WALL_CLOCK_URL";

/// Runs as a process of its own, below, whose wall clock is a file. It does nothing in a plain run of the tests.
#[tokio::test]
async fn child_process_whose_wall_clock_is_set_back() {
    let (Ok(url), Ok(clock)) = (env::var(URL), env::var("TESTKIT_CLOCK")) else {
        return;
    };
    let clock = fs::OpenOptions::new().write(true).open(clock);
    let clock = clock.expect("a clock");
    let store = RedisStore::builder().url(url).timeout(TEST_TIMEOUT);
    // Nothing but time ends a rejection meanwhile.
    let store = store.rejection_cache_staleness(secs(3_600)).built();
    let policy = Policy::new("p", Quota::requests(1).per_second());
    let limiter = limiter(store, [policy]);
    let is_rejected = async || !limiter.check(key()).await.is_admitted();
    until("it is rejected", is_rejected).await;
    let rejected = Instant::now();
    until("it is admitted", async || {
        let set = clock.write_all_at(&START.to_ne_bytes(), 0);
        set.expect("it is set");
        limiter.check(key()).await.is_admitted()
    })
    .await;
    println!("admitted after {:?}", rejected.elapsed());
}

#[test]
fn a_wall_clock_that_is_set_back_extends_no_cached_rejection() {
    let server = Server::start();
    let clock = ServerClock::at(START);
    let mut process =
        tollgate_tests::child::test(module_path!(), "child_process_whose_wall_clock_is_set_back");
    process.env(URL, server.url());
    clock.put_in(&mut process);
    let output = process.output().expect("a process");
    let [text, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let is_admitted = output.status.success() && text.contains("admitted after");
    assert!(is_admitted, "{text}{errors}");
}
