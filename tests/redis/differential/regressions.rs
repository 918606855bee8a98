//! Histories that failed once, as they were printed.

use crate::differential::{
    history::{
        History, Op, Op::*, PolicySpec, Rate, Rate::*, Request, Role::*, Step, StrategyKind,
        StrategyKind::*,
    },
    run::Stores,
};

/// Plays a history, which must not fail.
#[track_caller]
fn run(history: &History) {
    if let Err(failure) = Stores::new().run(history) {
        panic!("step {}: {}", failure.step, failure.text);
    }
}

#[test]
fn a_refund_of_refilled_units_changes_nothing_if_the_clock_steps_back() {
    for (strategy, back) in [(Gcra, -2), (Bucket, -840_000_000)] {
        run(&History {
            start: 1799929353577105,
            grain: 1,
            cache: false,
            policies: vec![PolicySpec {
                strategy,
                quotas: vec![Burst(1200, 60000000, 26)],
                declared: false,
                role: Live,
                lease: None,
            }],
            steps: vec![
                step(0, Check(Request::of(0))),
                step(0, Check(Request::of(0))),
                step(58000, Refund { of: 0, units: 1 }),
                step(100000, Refund { of: 1, units: 1 }),
                step(back, Check(Request::of(0))),
            ],
        });
    }
}

#[test]
fn a_bucket_that_is_used_up_refills_as_fast_after_a_rejection_and_a_step_back() {
    run(&History {
        start: 1799999979755434,
        grain: 1,
        cache: false,
        policies: vec![policy_spec(Bucket, vec![Burst(16, 86400000000, 2)])],
        steps: vec![
            step(
                0,
                Charge(Request {
                    cost: Some(3),
                    ..Request::of(0)
                }),
            ),
            step(5400000000, Check(Request::of(0))),
            step(-13500000000, Check(Request::of(0))),
        ],
    });
}

#[test]
fn a_peek_under_a_small_tier_of_a_sliding_window_refunds_nothing_to_a_large_one() {
    run(&History {
        start: 1800000000000000,
        grain: 1000,
        cache: false,
        policies: vec![policy_spec(
            Sliding(8),
            vec![Per(9, 3600000000), Per(2, 3600000000)],
        )],
        steps: vec![
            step(
                0,
                Check(Request {
                    times: 10,
                    ..Request::of(0)
                }),
            ),
            step(
                0,
                Peek(Request {
                    tiers: vec![1],
                    ..Request::of(0)
                }),
            ),
            step(0, Check(Request::of(0))),
        ],
    });
}

#[test]
fn a_refund_under_a_tier_of_another_period_sees_the_same_state_as_a_peek() {
    run(&History {
        start: 1799913600000028,
        grain: 1,
        cache: false,
        policies: vec![policy_spec(
            Sliding(5),
            vec![Per(12, 2499390000), Per(5, 86400000000)],
        )],
        steps: vec![
            step(
                0,
                Check(Request {
                    tiers: vec![1],
                    ..Request::of(0)
                }),
            ),
            step(0, Check(Request::of(0))),
            step(0, Refund { of: 0, units: 1 }),
            step(0, Refund { of: 0, units: 1 }),
        ],
    });
    // Windows that outlast the period end one period from then.
    run(&History {
        start: 1746713721786000,
        grain: 1000,
        cache: false,
        policies: vec![policy_spec(Fixed, vec![Per(1, 60000000)])],
        steps: vec![
            step(0, Check(Request::of(0))),
            step(-1080000000, Refund { of: 0, units: 1 }),
            step(526000, Check(Request::of(0))),
        ],
    });
}

#[test]
fn a_refunded_window_of_a_longer_tier_ends_as_one_of_this_tier() {
    for strategy in [Fixed, List] {
        run(&History {
            start: 1799936984111000,
            grain: 1000,
            cache: false,
            policies: vec![policy_spec(
                strategy,
                vec![Per(7, 60000000), Per(16, 86400000000)],
            )],
            steps: vec![
                step(
                    0,
                    Check(Request {
                        tiers: vec![1],
                        ..Request::of(0)
                    }),
                ),
                step(0, Refund { of: 0, units: 1 }),
                step(0, Peek(Request::of(0))),
            ],
        });
    }
}

#[test]
fn a_sliding_window_whose_key_is_repaired_stays_as_it_is() {
    run(&History {
        start: 1799913635580835,
        grain: 1,
        cache: false,
        policies: vec![policy_spec(Sliding(4), vec![Per(2, 1040000)])],
        steps: vec![
            step(6900000000, Check(Request::of(0))),
            step(0, Persist { of: 0 }),
            step(131000, Peek(Request::of(0))),
            step(-988000, Peek(Request::of(0))),
        ],
    });
}

#[test]
fn a_ban_that_was_peeked_at_lasts_as_long_if_the_clock_steps_back() {
    run(&History {
        start: 1800000000000000,
        grain: 1,
        cache: false,
        policies: vec![
            policy_spec(Bucket, vec![Per(168, 1000000)]),
            policy_spec(Ban(21, 147), vec![Per(3, 60000000)]),
        ],
        steps: vec![
            step(0, Charge(Request::of(3))),
            step(
                0,
                Block {
                    key: 1,
                    ms: 10618127,
                },
            ),
            step(2000000, Check(Request::of(1))),
            step(1000000, Refund { of: 0, units: 1 }),
            step(-1440000000, Peek(Request::of(1))),
        ],
    });
}

#[test]
fn a_charge_of_a_banned_key_extends_no_ban_after_the_clock_stepped_back() {
    run(&History {
        start: 1800000000000000,
        grain: 1,
        cache: false,
        policies: vec![
            policy_spec(Gcra, vec![Per(15, 2592000000000)]),
            PolicySpec {
                declared: true,
                ..policy_spec(Ban(8149, 73341), vec![Per(1, 3600000000)])
            },
        ],
        steps: vec![
            step(
                0,
                Check(Request {
                    cost: Some(21),
                    ..Request::of(0)
                }),
            ),
            step(-2880000000, Charge(Request::of(5))),
            step(8149000, Check(Request::of(0))),
        ],
    });
}

#[test]
fn a_cached_rejection_does_not_name_a_policy_whose_own_wait_has_passed() {
    run(&History {
        start: 1800000000000000,
        grain: 1,
        cache: true,
        policies: vec![
            policy_spec(Gcra, vec![Per(5, 1000536)]),
            policy_spec(Gcra, vec![Per(1, 230439293)]),
        ],
        steps: vec![
            step(
                0,
                Charge(Request {
                    cost: Some(5),
                    ..Request::of(0)
                }),
            ),
            step(0, Check(Request::of(0))),
            step(309000, Check(Request::of(0))),
        ],
    });
}

#[test]
fn a_refund_releases_no_permits_of_a_rejected_request() {
    run(&History {
        start: 2550328346080000,
        grain: 1000,
        cache: false,
        policies: vec![
            policy_spec(Fixed, vec![Per(4, 10000000)]),
            policy_spec(Permits(1800473), vec![Concurrent(5)]),
        ],
        steps: vec![
            step(
                0,
                Check(Request {
                    cost: Some(2),
                    times: 12,
                    ..Request::of(0)
                }),
            ),
            step(0, Refund { of: 0, units: 1 }),
            step(0, Drop { of: 0 }),
            step(0, Peek(Request::of(0))),
        ],
    });
}

#[test]
fn a_window_that_outlasts_a_shorter_period_by_a_millisecond_is_cut() {
    for strategy in [Fixed, List] {
        run(&History {
            start: 1597033875488000,
            grain: 1000,
            cache: false,
            policies: vec![policy_spec(
                strategy,
                vec![Per(118, 1010000), Per(12, 1020000)],
            )],
            steps: vec![
                step(
                    0,
                    Check(Request {
                        tiers: vec![1],
                        ..Request::of(0)
                    }),
                ),
                step(9000, Check(Request::of(0))),
            ],
        });
    }
}

#[test]
fn a_window_changed_from_a_day_to_a_week_lasts_a_week_if_the_clock_steps_back() {
    // A Monday's first microsecond in New York.
    let week = vec![Per(12, 604800000000), Per(9, 86400000000)];
    run(&History {
        start: 1800248400000000,
        grain: 1,
        cache: false,
        policies: vec![policy_spec(Zone("America/New_York"), week)],
        steps: vec![
            step(
                0,
                Check(Request {
                    tiers: vec![1],
                    ..Request::of(0)
                }),
            ),
            step(
                -721,
                Check(Request {
                    times: 12,
                    ..Request::of(0)
                }),
            ),
            step(86400000000, Check(Request::of(0))),
        ],
    });
}

#[test]
fn bans_and_shadows_count_all_of_many_requests_with_callers() {
    for (other, role) in [(Ban(86, 688), Live), (Fixed, ShadowOf(0))] {
        for signed in [Permits(1918218), List] {
            let quota = match signed {
                List => Per(3, 60000000),
                _ => Concurrent(3),
            };
            run(&History {
                start: 1799917009129000,
                grain: 1000,
                cache: false,
                policies: vec![
                    policy_spec(signed, vec![quota]),
                    PolicySpec {
                        role,
                        ..policy_spec(other, vec![Per(4, 7734087000)])
                    },
                ],
                steps: vec![
                    step(
                        0,
                        Check(Request {
                            times: 4,
                            ..Request::of(0)
                        }),
                    ),
                    step(0, Peek(Request::of(0))),
                    step(
                        0,
                        Check(Request {
                            times: 15798,
                            ..Request::of(1)
                        }),
                    ),
                    step(0, Peek(Request::of(1))),
                ],
            });
        }
    }
}

fn policy_spec(strategy: StrategyKind, quotas: Vec<Rate>) -> PolicySpec {
    PolicySpec {
        strategy,
        quotas,
        declared: false,
        role: Live,
        lease: None,
    }
}

fn step(wait: i64, op: Op) -> Step {
    Step {
        wait,
        after_wait: false,
        op,
        peek: false,
    }
}
