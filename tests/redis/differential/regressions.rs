//! Histories that failed once, as they were printed.

use tollgate_tests::strategy_kind::StrategyKind::{Bucket, Fixed, Gcra, List, Sliding};

use crate::differential::{
    history::{
        History,
        Op::{self, *},
        PolicySpec,
        Rate::{self, *},
        Request,
        Role::*,
        Step,
        StrategyKind::{self, *},
    },
    run::Stores,
};

/// Plays a history without cached rejections, which must not fail: it begins at an instant, in steps of some
/// microseconds, and each step comes after its wait.
#[track_caller]
fn run(begin: (u64, u64), policies: Vec<PolicySpec>, steps: &[(i64, Op)]) {
    play(false, begin, policies, steps);
}

#[track_caller]
fn run_cached(begin: (u64, u64), policies: Vec<PolicySpec>, steps: &[(i64, Op)]) {
    play(true, begin, policies, steps);
}

#[track_caller]
fn play(cache: bool, (start, grain): (u64, u64), policies: Vec<PolicySpec>, steps: &[(i64, Op)]) {
    let steps = steps.iter().map(|(wait, op)| Step {
        wait: *wait,
        after_wait: false,
        op: op.clone(),
        peek: false,
    });
    let history = History {
        start,
        grain,
        cache,
        policies,
        steps: steps.collect(),
    };
    if let Err(failure) = Stores::new().run(&history) {
        panic!("step {}: {}", failure.step, failure.text);
    }
}

#[test]
fn a_refund_of_refilled_units_changes_nothing_if_the_clock_steps_back() {
    for (strategy, back) in [(Gcra, -2), (Bucket, -840_000_000)] {
        run(
            (1799929353577105, 1),
            vec![policy(strategy, &[Burst(1200, 60000000, 26)])],
            &[
                (0, Check(of(0))),
                (0, Check(of(0))),
                (58000, Refund { of: 0, units: 1 }),
                (100000, Refund { of: 1, units: 1 }),
                (back, Check(of(0))),
            ],
        );
    }
}

#[test]
fn a_bucket_that_is_used_up_refills_as_fast_after_a_rejection_and_a_step_back() {
    run(
        (1799999979755434, 1),
        vec![policy(Bucket, &[Burst(16, 86400000000, 2)])],
        &[
            (0, Charge(of(0).cost(3))),
            (5400000000, Check(of(0))),
            (-13500000000, Check(of(0))),
        ],
    );
}

#[test]
fn a_refund_of_what_has_refilled_leaves_nothing_to_which_the_clock_could_step_back() {
    run(
        (1799999999040540, 1),
        vec![policy(Gcra, &[Per(11, 1065082)])],
        &[
            (0, Check(of(0))),
            (232000, Refund { of: 0, units: 1 }),
            (-246000, Check(of(0))),
        ],
    );
}

#[test]
fn a_peek_under_a_small_tier_of_a_sliding_window_refunds_nothing_to_a_large_one() {
    run(
        (1800000000000000, 1000),
        vec![policy(
            Sliding(8),
            &[Per(9, 3600000000), Per(2, 3600000000)],
        )],
        &[
            (0, Check(of(0).times(10))),
            (0, Peek(of(0).tiers(&[1]))),
            (0, Check(of(0))),
        ],
    );
}

#[test]
fn a_refund_under_a_tier_of_another_period_sees_the_same_state_as_a_peek() {
    run(
        (1799913600000028, 1),
        vec![policy(
            Sliding(5),
            &[Per(12, 2499390000), Per(5, 86400000000)],
        )],
        &[
            (0, Check(of(0).tiers(&[1]))),
            (0, Check(of(0))),
            (0, Refund { of: 0, units: 1 }),
            (0, Refund { of: 0, units: 1 }),
        ],
    );
    // Windows that outlast the period end one period from then.
    run(
        (1746713721786000, 1000),
        vec![policy(Fixed, &[Per(1, 60000000)])],
        &[
            (0, Check(of(0))),
            (-1080000000, Refund { of: 0, units: 1 }),
            (526000, Check(of(0))),
        ],
    );
}

#[test]
fn a_refunded_window_of_a_longer_tier_ends_as_one_of_this_tier() {
    for strategy in [Fixed, List] {
        run(
            (1799936984111000, 1000),
            vec![policy(strategy, &[Per(7, 60000000), Per(16, 86400000000)])],
            &[
                (0, Check(of(0).tiers(&[1]))),
                (0, Refund { of: 0, units: 1 }),
                (0, Peek(of(0))),
            ],
        );
    }
}

#[test]
fn a_sliding_window_whose_key_is_repaired_stays_as_it_is() {
    run(
        (1799913635580835, 1),
        vec![policy(Sliding(4), &[Per(2, 1040000)])],
        &[
            (6900000000, Check(of(0))),
            (0, Persist { of: 0 }),
            (131000, Peek(of(0))),
            (-988000, Peek(of(0))),
        ],
    );
}

#[test]
fn a_ban_that_was_peeked_at_lasts_as_long_if_the_clock_steps_back() {
    run(
        (1800000000000000, 1),
        vec![
            policy(Bucket, &[Per(168, 1000000)]),
            policy(Ban(21, 147), &[Per(3, 60000000)]),
        ],
        &[
            (0, Charge(of(3))),
            (
                0,
                Block {
                    key: 1,
                    ms: 10618127,
                },
            ),
            (2000000, Check(of(1))),
            (1000000, Refund { of: 0, units: 1 }),
            (-1440000000, Peek(of(1))),
        ],
    );
}

#[test]
fn a_charge_of_a_banned_key_extends_no_ban_after_the_clock_stepped_back() {
    run(
        (1800000000000000, 1),
        vec![
            policy(Gcra, &[Per(15, 2592000000000)]),
            PolicySpec {
                declared: true,
                ..policy(Ban(8149, 73341), &[Per(1, 3600000000)])
            },
        ],
        &[
            (0, Check(of(0).cost(21))),
            (-2880000000, Charge(of(5))),
            (8149000, Check(of(0))),
        ],
    );
}

#[test]
fn a_cached_rejection_does_not_name_a_policy_whose_own_wait_has_passed() {
    run_cached(
        (1800000000000000, 1),
        vec![
            policy(Gcra, &[Per(5, 1000536)]),
            policy(Gcra, &[Per(1, 230439293)]),
        ],
        &[
            (0, Charge(of(0).cost(5))),
            (0, Check(of(0))),
            (309000, Check(of(0))),
        ],
    );
}

#[test]
fn a_refund_releases_no_permits_of_a_rejected_request() {
    run(
        (2550328346080000, 1000),
        vec![
            policy(Fixed, &[Per(4, 10000000)]),
            policy(Permits(1800473), &[Concurrent(5)]),
        ],
        &[
            (0, Check(of(0).cost(2).times(12))),
            (0, Refund { of: 0, units: 1 }),
            (0, Drop { of: 0 }),
            (0, Peek(of(0))),
        ],
    );
}

#[test]
fn a_window_that_outlasts_a_shorter_period_by_a_millisecond_is_cut() {
    for strategy in [Fixed, List] {
        run(
            (1597033875488000, 1000),
            vec![policy(strategy, &[Per(118, 1010000), Per(12, 1020000)])],
            &[(0, Check(of(0).tiers(&[1]))), (9000, Check(of(0)))],
        );
    }
}

#[test]
fn a_window_changed_from_a_day_to_a_week_lasts_a_week_if_the_clock_steps_back() {
    // A Monday's first microsecond in New York.
    let week = [Per(12, 604800000000), Per(9, 86400000000)];
    run(
        (1800248400000000, 1),
        vec![policy(Zone("America/New_York"), &week)],
        &[
            (0, Check(of(0).tiers(&[1]))),
            (-721, Check(of(0).times(12))),
            (86400000000, Check(of(0))),
        ],
    );
}

#[test]
fn bans_and_shadows_count_all_of_many_requests_with_callers() {
    for (other, role) in [(Ban(86, 688), Live), (Plain(Fixed), Shadow)] {
        for signed in [Permits(1918218), Plain(List)] {
            let quota = match signed {
                Plain(List) => Per(3, 60000000),
                _ => Concurrent(3),
            };
            run(
                (1799917009129000, 1000),
                vec![
                    policy(signed, &[quota]),
                    PolicySpec {
                        role,
                        ..policy(other, &[Per(4, 7734087000)])
                    },
                ],
                &[
                    (0, Check(of(0).times(4))),
                    (0, Peek(of(0))),
                    (0, Check(of(1).times(15798))),
                    (0, Peek(of(1))),
                ],
            );
        }
    }
}

fn policy(strategy: impl Into<StrategyKind>, quotas: &[Rate]) -> PolicySpec {
    PolicySpec {
        strategy: strategy.into(),
        quotas: quotas.to_vec(),
        declared: false,
        role: Live,
        lease: None,
    }
}

fn of(key: usize) -> Request {
    Request::of(key)
}
