//! What handlers do with units of leases: refunds, charges, settlements, recorded callers; and requests that wait.

use std::{collections::HashMap, time::Duration};

use http::Request;
use testkit::Server;
use tollgate::{Admission, Decision, DecisionSource, Key, Limiter, extract};

use crate::leases::{
    support::{KEY, StrategyKind, hold_units, leased, leases, limiter, single, store, until, used},
    traffic::until_nothing_is_held,
};

/// An admission by a lease, and how many requests were admitted before.
async fn admitted_by_lease(limiter: &Limiter) -> (Admission, u64) {
    let mut before = hold_units(limiter, KEY).await;
    loop {
        let admission = limiter.admit(KEY).await.expect("room");
        let by_lease = |decision: &Decision| decision.source() == DecisionSource::Lease;
        if admission.decisions().iter().any(by_lease) {
            return (admission, before);
        }
        before += 1;
    }
}

async fn until_used(limiter: &Limiter, units: u64, what: &str) {
    until_nothing_is_held(std::slice::from_ref(limiter), "p").await;
    let mut last = 0;
    for _ in 0..1_000 {
        last = used(limiter, KEY).await;
        if last == units {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{what}: {last} in place of {units}");
}

/// Strategies that count exactly, without what refills.
const EXACT: [StrategyKind; 5] = [
    StrategyKind::Fixed,
    StrategyKind::Calendar,
    StrategyKind::List,
    StrategyKind::Log,
    StrategyKind::Sliding(10),
];

#[tokio::test]
async fn a_refund_of_a_leased_unit_gives_it_back_once() {
    for strategy in EXACT {
        let server = Server::start();
        let limiter = single(&server, strategy, "100000/month");
        let mut admitted = 0;
        for _ in 0..3 {
            let (admission, before) = admitted_by_lease(&limiter).await;
            let policy = admission.policy("p").expect("a policy");
            let refunds = policy.refund(9).await.expect("a response");
            let units: u64 = refunds.iter().map(|refund| refund.units()).sum();
            assert_eq!(units, 1, "{strategy:?}");
            let again = policy.refund(1).await.expect("a response");
            assert_eq!(again.iter().map(|refund| refund.units()).sum::<u64>(), 0);
            admitted += before;
            until_used(&limiter, admitted, &format!("{strategy:?}")).await;
        }
    }
}

#[tokio::test]
async fn a_leased_unit_is_settled_to_the_true_cost() {
    for strategy in EXACT {
        for cost in [0, 1, 5] {
            let server = Server::start();
            let limiter = single(&server, strategy, "100000/month");
            let (admission, before) = admitted_by_lease(&limiter).await;
            let policy = admission.policy("p").expect("a policy");
            policy.settle(cost).await.expect("a response");
            until_used(&limiter, before + cost, &format!("{strategy:?}")).await;
            policy.settle(2).await.expect("a response");
            until_used(&limiter, before + 2, &format!("{strategy:?}")).await;
            policy.charge(4).await.expect("a response");
            until_used(&limiter, before + 6, &format!("{strategy:?}")).await;
        }
    }
}

#[tokio::test]
async fn a_meter_settles_a_leased_unit() {
    for units in [0, 1, 7] {
        let server = Server::start();
        let limiter = single(&server, StrategyKind::Fixed, "100000/month");
        let (admission, before) = admitted_by_lease(&limiter).await;
        let mut meter = admission.policy("p").expect("a policy").meter();
        meter.set(units);
        meter.finish().await.expect("a response");
        until_used(&limiter, before + units, "a meter").await;
    }
}

/// A GCRA's refund lacks what time has refilled already.
#[tokio::test]
async fn a_refund_of_a_leased_unit_of_a_rate_is_no_more_than_what_time_has_left() {
    for strategy in [StrategyKind::Gcra, StrategyKind::Bucket] {
        let server = Server::start();
        let limiter = single(&server, strategy, "10000/month");
        let (admission, before) = admitted_by_lease(&limiter).await;
        let policy = admission.policy("p").expect("a policy");
        policy.refund(1).await.expect("a response");
        drop(admission);
        until_nothing_is_held(std::slice::from_ref(&limiter), "p").await;
        let used = used(&limiter, KEY).await;
        // A unit refills in four minutes: fractions are rounded up.
        assert!(
            (before..=before + 1).contains(&used),
            "{strategy:?}: {before} {used}"
        );
    }
}

#[tokio::test]
async fn callers_of_leased_units_are_recorded() {
    let server = Server::start();
    let policy = || {
        let policy = leased(StrategyKind::List, "p", "100000/month");
        policy.caller(extract::header("x-caller"))
    };
    let limiter = limiter(store(&server), [policy()]);
    let parts = |caller: &str| {
        let request = Request::get("/").header("x-caller", caller);
        request.body(()).expect("a request").into_parts().0
    };
    let mut admitted: HashMap<&str, u64> = HashMap::new();
    let mut by_lease: HashMap<&str, u64> = HashMap::new();
    for round in 0..1_500 {
        let caller = ["alice", "bob", "carol"][round / 25 % 3];
        let decision = limiter.check(KEY).parts(&parts(caller)).await;
        assert!(decision.is_admitted());
        *admitted.entry(caller).or_default() += 1;
        let leased = decision.source() == DecisionSource::Lease;
        *by_lease.entry(caller).or_default() += u64::from(leased);
    }
    assert!(by_lease.values().all(|units| *units > 0), "{by_lease:?}");
    until_nothing_is_held(std::slice::from_ref(&limiter), "p").await;
    until("what was left is refunded", async || {
        used(&limiter, KEY).await == 1_500
    })
    .await;
    let handle = limiter.policy("p").expect("a policy");
    let callers = handle.callers(KEY).await.expect("a response");
    let mut recorded: HashMap<&str, u64> = HashMap::new();
    for caller in &callers {
        let name = ["alice", "bob", "carol"]
            .into_iter()
            .find(|name| *caller == Key::new(name));
        *recorded.entry(name.expect("a caller")).or_default() += 1;
    }
    assert_eq!(recorded, admitted);
}

#[tokio::test]
async fn a_refund_by_a_handler_takes_its_own_caller_off() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::List, "100000/month");
    let (admission, before) = admitted_by_lease(&limiter).await;
    let policy = admission.policy("p").expect("a policy");
    policy.refund(1).await.expect("a response");
    until_used(&limiter, before, "a list").await;
    let callers = limiter.policy("p").expect("a policy").callers(KEY).await;
    assert_eq!(callers.expect("a response").len() as u64, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_are_admitted_by_leases_too_and_never_over() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Calendar, "3000/s");
    let mut by_lease = 0;
    let mut admitted = 0;
    // More than one second has.
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let (mut admitted, mut by_lease) = (0, 0);
                for _ in 0..500 {
                    let admission = limiter.wait(KEY, Duration::from_secs(20)).await;
                    let admission = admission.expect("its turn comes");
                    admitted += 1;
                    let leased = |decision: &Decision| decision.source() == DecisionSource::Lease;
                    by_lease += u64::from(admission.decisions().iter().any(leased));
                }
                (admitted, by_lease)
            })
        })
        .collect();
    for task in tasks {
        let (some, some_by_lease): (u64, u64) = task.await.expect("a task ends well");
        (admitted, by_lease) = (admitted + some, by_lease + some_by_lease);
    }
    assert_eq!(admitted, 4_000);
    assert!(by_lease > 0);
    let stats = leases(&limiter, "p").expect("leases");
    assert_eq!(stats.spent, by_lease, "{stats:?}");
}
