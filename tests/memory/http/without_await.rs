//! Calls without await, in process: on plain threads, and in async code.

use crate::http::support::*;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tokio::task::coop::has_budget_remaining;
use tollgate::limiter::Check;

fn hourly(quota: u64) -> Policy {
    Policy::new("p", Quota::requests(quota).per_hour())
}

#[test]
fn threads_without_a_runtime_and_a_pool_of_rayon_are_admitted_as_often_as_the_quota_allows() {
    type Call = fn(Check) -> Decision;
    let calls: [Call; 2] = [|check| check.now().expect("decided"), Check::blocking];
    for call in calls {
        // One policy, which is decided more directly, and two.
        let one = limiter([hourly(500)]);
        let two = limiter([hourly(500), Policy::new("q", quota("900/h"))]);
        for limiter in [one, two] {
            let admits = || {
                let decision = call(limiter.check("alice"));
                assert_eq!(decision.source(), DecisionSource::Store);
                decision.is_admitted()
            };
            let admitted = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let own = (0..100).filter(|_| admits()).count();
                        admitted.fetch_add(own, Ordering::Relaxed);
                    });
                }
            });
            let more = (0..5_000).into_par_iter().filter(|_| admits());
            assert_eq!((admitted.into_inner(), more.count()), (400, 100));
            let status = limiter.peek("alice").now().expect("in process");
            let status = status.expect("a status");
            // A rejection is charged under neither.
            assert!(status.policy("q").is_none_or(|q| q.remaining() == 400));
        }
    }
}

#[test]
fn every_call_in_process_is_decided_at_once() {
    let limiter = limiter([hourly(9)]);
    let remaining = || {
        let status = limiter.peek("alice").now().expect("in process");
        status.expect("a status").left("p")
    };
    let several = limiter.check("alice").times(4).now().expect("in process");
    assert_eq!(several.admitted(), 4);
    let admission = limiter.admit("alice").cost(2).now().expect("in process");
    assert_eq!(admission.expect("admitted").remaining("p"), Some(3));
    let charged = limiter.charge("alice", 3).now().expect("in process");
    assert!(charged.is_ok() && remaining() == 0);
    let rejected = limiter.admit("alice").now().expect("in process");
    assert!(rejected.is_err());
    let reset = limiter.reset("alice").now().expect("in process");
    assert!(reset.is_ok() && remaining() == 9);
}

#[tokio::test]
async fn neither_uses_nor_heeds_the_budget_of_a_task() {
    let limiter = limiter([hourly(1_000_000)]);
    let check = || limiter.check("alice");
    // More calls than the budget of a task.
    for _ in 0..1_000 {
        assert!(check().now().is_ok());
        assert!(check().blocking().is_admitted());
    }
    assert!(has_budget_remaining());
    while let Some(decision) = check().into_future().now_or_never() {
        assert!(decision.is_admitted());
    }
    assert!(!has_budget_remaining());
    assert!(check().now().is_ok());
    assert!(check().blocking().is_admitted());
}
