//! Calls without await, in process: on plain threads, in async code, and where a quota is looked up.

use crate::http::support::*;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tokio::task::coop::has_budget_remaining;
use tollgate::{error::NotNow, limiter::Check};
use tollgate_tests::bare_thread::on_bare_thread;

/// More calls than the budget of a task.
const MANY: usize = 1_000;

fn hourly(quota: u64) -> Policy {
    Policy::new("p", Quota::requests(quota).per_hour())
}

/// A policy whose quota of 3 is looked up, which takes a while, and the number of look-ups.
fn looked_up() -> (Policy, Arc<AtomicUsize>) {
    let lookups = Arc::new(AtomicUsize::new(0));
    let begun = lookups.clone();
    let policy = hourly(1).quota_lookup(secs(60), move |_| {
        begun.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(ms(1)).await;
            Some(quota("3/h"))
        }
    });
    (policy, lookups)
}

#[test]
fn threads_without_a_runtime_and_a_pool_of_rayon_are_admitted_as_often_as_the_quota_allows() {
    type Call = fn(Check) -> Decision;
    let calls: [Call; 2] = [|check| check.now().expect("decided"), Check::blocking];
    for call in calls {
        // One policy, which is decided more directly, and two.
        let one = limiter([hourly(50)]);
        let two = limiter([hourly(50), Policy::new("q", quota("90/h"))]);
        for limiter in [one, two] {
            let admits = |_| {
                let decision = call(limiter.check("alice"));
                assert_eq!(decision.source(), DecisionSource::Store);
                decision.is_admitted()
            };
            let admitted = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let own = (0..25).filter(|_| admits(())).count();
                        admitted.fetch_add(own, Ordering::Relaxed);
                    });
                }
            });
            let rejected = (0..5_000).into_par_iter().filter(|_| !admits(()));
            assert_eq!((admitted.into_inner(), rejected.count()), (50, 5_000));
            let status = limiter.peek("alice").now().expect("in process");
            let status = status.expect("a status");
            // A rejection is charged under neither.
            assert!(status.policy("q").is_none_or(|q| q.remaining() == 40));
        }
        let limiter = limiter([hourly(500)]);
        let decided = (0..5_000)
            .into_par_iter()
            .map(|_| call(limiter.check("alice")));
        assert_eq!(decided.filter(Decision::is_admitted).count(), 500);
    }
}

#[test]
fn every_call_in_process_is_decided_at_once() {
    let limiter = limiter([hourly(9)]);
    let remaining = |limiter: &Limiter| {
        let status = limiter.peek("alice").now().expect("in process");
        let status = status.expect("a status");
        status.policy("p").map(|p| p.remaining())
    };
    let several = limiter.check("alice").times(4).now().expect("in process");
    assert_eq!(several.admitted(), 4);
    let admission = limiter.admit("alice").cost(2).now().expect("in process");
    assert_eq!(admission.expect("admitted").remaining("p"), Some(3));
    let charged = limiter.charge("alice", 3).now().expect("in process");
    assert!(charged.is_ok() && remaining(&limiter) == Some(0));
    let rejected = limiter.admit("alice").now().expect("in process");
    assert!(rejected.is_err());
    let reset = limiter.reset("alice").now().expect("in process");
    assert!(reset.is_ok() && remaining(&limiter) == Some(9));
}

#[tokio::test]
async fn neither_uses_nor_heeds_the_budget_of_a_task() {
    let limiter = limiter([hourly(1_000_000)]);
    let check = || limiter.check("alice");
    for _ in 0..MANY {
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

#[test]
fn a_quota_is_not_looked_up_unless_the_call_may_wait() {
    let (policy, lookups) = looked_up();
    let limiter = limiter([policy]);
    let check = || limiter.check("alice").parts(&head(Request::get("/")));
    let error = check().now().expect_err("a look-up");
    assert!(matches!(&error, NotNow::QuotaLookup { policy, .. } if &**policy == "p"));
    assert!(error.to_string().contains("`quota_for`"), "{error}");
    assert_eq!(lookups.load(Ordering::SeqCst), 0);
    // Nothing was charged, and the call's own quota needs no look-up.
    let own = check().quota_for("p", quota("2/h"));
    let decision = own.now().expect("no look-up");
    let policy = decision.policy("p").expect("a policy");
    assert_eq!([policy.limit(), policy.remaining()], [2, 1]);
    assert_eq!(lookups.load(Ordering::SeqCst), 0);
}

#[test]
fn a_blocking_call_waits_for_the_look_up_of_its_quota() {
    let limit = |limiter: &Limiter| {
        let decision = limiter
            .check("alice")
            .parts(&head(Request::get("/")))
            .blocking();
        decision.policy("p").map(|p| p.limit())
    };
    let (policy, lookups) = looked_up();
    let limiter = limiter([policy]);
    let on_thread = limiter.clone();
    assert_eq!(on_bare_thread(move || limit(&on_thread)), Some(3));
    // By mistake, in async code whose runtime stands still meanwhile, and has no timers.
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let by_mistake = runtime
        .expect("a runtime")
        .block_on(async { limit(&limiter) });
    assert_eq!(by_mistake, Some(3));
    assert_eq!(lookups.load(Ordering::SeqCst), 2);
}
