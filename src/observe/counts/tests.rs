use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::*;
use crate::{
    clock::Timestamp,
    key::Key,
    observe::{
        DecisionOutcome, DecisionSource, EventStatus, PolicyEvent, PolicyEvents, PolicyKind,
        PolicyResult,
    },
    quota::Quota,
    strategy::{FixedWindow, LazyStatus, QuotaStatus, RetryAfter, Strategy, Terms},
};

/// Counts a decision under these policies, each of which has a limit of 10 units, 5 of them left.
fn decide(counts: &Counts, names: &[&str], requests: u64, admitted: u64) {
    let rule = FixedWindow.bind(&Quota::requests(10).per_second(), &Terms::default());
    let rule = rule.expect("a rule");
    let status = LazyStatus::Resolved(QuotaStatus::new(5, RetryAfter::Now, Duration::ZERO));
    const KEY: Key = Key::global();
    let of_policy = |(index, policy)| PolicyEvent {
        index,
        policy,
        kind: PolicyKind::Live,
        key: &KEY,
        cost: 1,
        charged: admitted,
        requests,
        over: requests - admitted,
        status: EventStatus {
            limit: 10,
            rule: &*rule,
            status: &status,
            decided_at: Timestamp::from_micros(0),
            units: 1,
        },
    };
    let policies = names.iter().copied().enumerate();
    let policies: Vec<_> = policies.map(of_policy).collect();
    counts.on_decision(&DecisionEvent {
        generation: 0,
        outcome: match admitted {
            0 => DecisionOutcome::Rejected,
            _ => DecisionOutcome::Admitted,
        },
        source: DecisionSource::Store,
        requests,
        admitted,
        uncounted: false,
        waits: false,
        elapsed: None,
        error: None,
        policies: PolicyEvents::new(&policies),
    });
}

fn requests(counts: &Counts, outcome: DecisionOutcome) -> u64 {
    let totals = counts.totals();
    let mut of_outcome = totals
        .requests()
        .filter(|(of, source, _)| *of == outcome && *source == DecisionSource::Store);
    of_outcome.next().map_or(0, |(.., requests)| requests)
}

/// The requests with a result under the policy of a name, and the units charged.
fn policy(counts: &Counts, name: &str, result: PolicyResult) -> (u64, u64) {
    let totals = counts.totals();
    let mut policies = totals.policies().iter();
    let policy = policies
        .find(|policy| **policy.name() == *name)
        .expect("a policy");
    let mut requests = policy.requests().filter(|(of, _)| *of == result);
    let mut units = policy
        .units()
        .filter(|(kind, _)| *kind == UnitsKind::Charged);
    (
        requests.next().expect("a result").1,
        units.next().expect("units").1,
    )
}

#[test]
fn sums_that_are_read_while_threads_count_and_end_never_fall() {
    let counts = Counts::default();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let sum = requests(&counts, DecisionOutcome::Admitted);
                assert!(sum >= last, "{sum} after {last}");
                last = sum;
            }
        });
        for round in 0..50 {
            let name = format!("policy {}", round % 7);
            let count = || (0..200).for_each(|_| decide(&counts, &["all", &name], 3, 2));
            thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(count))));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(requests(&counts, DecisionOutcome::Admitted), 2 * 50 * 400);
    assert_eq!(requests(&counts, DecisionOutcome::Rejected), 50 * 400);
    for (result, requests) in [(PolicyResult::Within, 40_000), (PolicyResult::Over, 20_000)] {
        assert_eq!(policy(&counts, "all", result), (requests, 40_000));
    }
}

#[test]
fn counts_follow_the_name_of_a_policy_to_another_index() {
    let counts = Counts::default();
    decide(&counts, &["one", "two"], 1, 1);
    decide(&counts, &["two", "three"], 1, 1);
    decide(&counts, &["three", "one", "two"], 1, 1);
    // In turns, as while the policies are replaced.
    for _ in 0..10 {
        decide(&counts, &["one", "two"], 1, 1);
        decide(&counts, &["two", "one"], 1, 1);
    }
    for (name, times) in [("one", 22), ("two", 23), ("three", 2)] {
        assert_eq!(
            policy(&counts, name, PolicyResult::Within),
            (times, times),
            "{name}"
        );
    }
    let totals = counts.totals();
    let names: Vec<&str> = totals
        .policies()
        .iter()
        .map(|policy| &**policy.name())
        .collect();
    assert_eq!(names, ["one", "two", "three"]);
}

#[test]
fn a_thread_keeps_two_sets_of_counts_apart() {
    let (one, other) = (Counts::default(), Counts::default());
    for _ in 0..100 {
        decide(&other, &["a"], 1, 1);
        decide(&one, &["a"], 1, 1);
    }
    decide(&one, &["a"], 1, 1);
    assert_eq!(requests(&other, DecisionOutcome::Admitted), 100);
    assert_eq!(requests(&one, DecisionOutcome::Admitted), 101);
}
