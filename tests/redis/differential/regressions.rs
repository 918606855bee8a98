//! Histories that failed once, as they were printed: random ones meet them rarely.

use tollgate_tests::strategy_kind::StrategyKind::{Bucket, Fixed, Gcra, List, Log, Sliding};

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

#[test]
fn histories_that_failed_once_do_not_fail() {
    let mut stores = Stores::new();
    let mut play =
        |why: &str, (start, grain): (u64, u64), policies: &[PolicySpec], steps: &[(i64, Op)]| {
            let steps = steps.iter().map(|(wait, op)| Step {
                wait: *wait,
                after_wait: false,
                op: op.clone(),
                peek: false,
            });
            let history = History {
                start,
                grain,
                cache: why.contains("cached"),
                policies: policies.to_vec(),
                steps: steps.collect(),
            };
            if let Err(failure) = stores.run(&history) {
                panic!("{why}: step {}: {}", failure.step, failure.text);
            }
        };
    for (strategy, back) in [(Gcra, -2), (Bucket, -840_000_000)] {
        play(
            "a refund of refilled units changes nothing if the clock steps back",
            (1799929353577105, 1),
            &[policy(strategy, &[Burst(1200, 60000000, 26)])],
            &[
                (0, Check(of(0))),
                (0, Check(of(0))),
                (58000, refund(0)),
                (100000, refund(1)),
                (back, Check(of(0))),
            ],
        );
    }
    play(
        "a bucket that is used up refills as fast after a rejection and a step back",
        (1799999979755434, 1),
        &[policy(Bucket, &[Burst(16, 86400000000, 2)])],
        &[
            (0, Charge(of(0).cost(3))),
            (5400000000, Check(of(0))),
            (-13500000000, Check(of(0))),
        ],
    );
    play(
        "a refund of what has refilled leaves nothing to which the clock could step back",
        (1799999999040540, 1),
        &[policy(Gcra, &[Per(11, 1065082)])],
        &[
            (0, Check(of(0))),
            (232000, refund(0)),
            (-246000, Check(of(0))),
        ],
    );
    play(
        "a credit of what has refilled leaves nothing to which the clock could step back",
        (1799999999999968, 1),
        &[policy(Gcra, &[Burst(28, 2584212, 6)])],
        &[
            (0, Charge(of(0))),
            (238000, credit(of(0))),
            (-14000000, Check(of(0))),
        ],
    );
    let (quota, slow) = (Per(9, 1000000), Burst(2, 600000000, 40));
    play(
        "a refund of a charge before a reload keeps the debt of a tier that is new",
        (1800000000000000, 1),
        &[policy(Gcra, &[quota])],
        &[
            (0, Check(of(0))),
            (
                0,
                Reload {
                    policies: vec![policy(Gcra, &[quota, slow])],
                    pending: Vec::new(),
                },
            ),
            (0, Charge(of(0).tiers(&[1]))),
            (0, refund(0)),
            (0, Check(of(0))),
        ],
    );
    play(
        "a peek under a small tier of a sliding window refunds nothing to a large one",
        (1800000000000000, 1000),
        &[policy(Sliding(8), &[Per(9, HOUR), Per(2, HOUR)])],
        &[
            (0, Check(of(0).times(10))),
            (0, Peek(of(0).tiers(&[1]))),
            (0, Check(of(0))),
        ],
    );
    play(
        "a refund under a tier of another period sees the same state as a peek",
        (1799913600000028, 1),
        &[policy(Sliding(5), &[Per(12, 2499390000), Per(5, DAY)])],
        &[
            (0, Check(of(0).tiers(&[1]))),
            (0, Check(of(0))),
            (0, refund(0)),
            (0, refund(0)),
        ],
    );
    play(
        "a window that outlasts its period ends one period from a refund",
        (1746713721786000, 1000),
        &[policy(Fixed, &[Per(1, 60000000)])],
        &[
            (0, Check(of(0))),
            (-1080000000, refund(0)),
            (526000, Check(of(0))),
        ],
    );
    for strategy in [Fixed, List] {
        play(
            "a refunded window of a longer tier ends as one of this tier",
            (1799936984111000, 1000),
            &[policy(strategy, &[Per(7, 60000000), Per(16, DAY)])],
            &[
                (0, Check(of(0).tiers(&[1]))),
                (0, refund(0)),
                (0, Peek(of(0))),
            ],
        );
        play(
            "a window that outlasts a shorter period by a millisecond is cut",
            (1597033875488000, 1000),
            &[policy(strategy, &[Per(118, 1010000), Per(12, 1020000)])],
            &[(0, Check(of(0).tiers(&[1]))), (9000, Check(of(0)))],
        );
    }
    play(
        "a credit of a window of a longer tier gives as much as in process",
        (1800000000000000, 1000),
        &[policy(Fixed, &[Per(9, 60000000), Per(9, 1000000)])],
        &[
            (0, Check(of(0).cost(3))),
            (0, credit(of(0).tiers(&[1]))),
            (0, Check(of(0))),
        ],
    );
    play(
        "a sliding window whose key is repaired stays as it is",
        (1799913635580835, 1),
        &[policy(Sliding(4), &[Per(2, 1040000)])],
        &[
            (6900000000, Check(of(0))),
            (0, Persist { of: 0 }),
            (131000, Peek(of(0))),
            (-988000, Peek(of(0))),
        ],
    );
    let ms = 10618127;
    play(
        "a ban that was peeked at lasts as long if the clock steps back",
        (1800000000000000, 1),
        &[
            policy(Bucket, &[Per(168, 1000000)]),
            policy(Ban(21, 147), &[Per(3, 60000000)]),
        ],
        &[
            (0, Charge(of(3))),
            (0, Block { key: 1, ms }),
            (2000000, Check(of(1))),
            (1000000, refund(0)),
            (-1440000000, Peek(of(1))),
        ],
    );
    let mut ban = policy(Ban(8149, 73341), &[Per(1, HOUR)]);
    ban.declared = true;
    play(
        "a charge of a banned key extends no ban after the clock stepped back",
        (1800000000000000, 1),
        &[policy(Gcra, &[Per(15, 30 * DAY)]), ban],
        &[
            (0, Check(of(0).cost(21))),
            (-2880000000, Charge(of(5))),
            (8149000, Check(of(0))),
        ],
    );
    play(
        "a cached rejection does not name a policy whose own wait has passed",
        (1800000000000000, 1),
        &[
            policy(Gcra, &[Per(5, 1000536)]),
            policy(Gcra, &[Per(1, 230439293)]),
        ],
        &[
            (0, Charge(of(0).cost(5))),
            (0, Check(of(0))),
            (309000, Check(of(0))),
        ],
    );
    let week = [Per(12, 7 * DAY), Per(9, DAY)];
    play(
        "a window changed from a day to a week lasts a week if the clock steps back",
        // A Monday's first microsecond in New York.
        (1800248400000000, 1),
        &[policy(Zone("America/New_York"), &week)],
        &[
            (0, Check(of(0).tiers(&[1]))),
            (-721, Check(of(0).times(12))),
            (86400000000, Check(of(0))),
        ],
    );
    for (other, role) in [(Ban(86, 688), Live), (Plain(Fixed), Shadow)] {
        let mut other = policy(other, &[Per(4, 7734087000)]);
        other.role = role;
        play(
            "bans and shadows count all of many requests with callers",
            (1799917009129000, 1000),
            &[policy(List, &[Per(3, 60000000)]), other],
            &[
                (0, Check(of(0).times(4))),
                (0, Peek(of(0))),
                (0, Check(of(1).times(15798))),
                (0, Peek(of(1))),
            ],
        );
    }
    let give = |of, units| Refund { of, units };
    play(
        "a refund after a step back takes no units of a later bucket",
        (1800000000000000, 1),
        &[policy(Sliding(10), &[Per(10, 60000000)])],
        &[
            (0, Check(of(0).cost(5))),
            (6000000, Check(of(0).cost(3))),
            (-6000000, give(0, 5)),
        ],
    );
    play(
        "a refund goes to its bucket also after an operation with another width",
        (1800000000000000, 1),
        &[policy(Sliding(10), &[Per(10, 60000000), Per(10, HOUR)])],
        &[
            (0, Charge(of(0))),
            (0, Check(of(0).cost(2))),
            (0, Peek(of(0).tiers(&[1]))),
            (0, refund(1)),
            (0, Peek(of(0).tiers(&[1]))),
            (0, refund(1)),
            (0, Peek(of(0).tiers(&[1]))),
        ],
    );
    play(
        "a bucket that ends with one of another width counts in that one",
        (1800000010000000, 1),
        &[policy(Sliding(1), &[Per(10, 60000000), Per(10, 20000000)])],
        &[
            (0, Check(of(0).cost(5))),
            (70000000, Peek(of(0).tiers(&[1]))),
        ],
    );
    play(
        "a charge after a step back is refunded into the window that was charged",
        (1800057599999000, 1),
        &[policy(Calendar(0), &[Per(10, DAY)])],
        &[
            (0, Check(of(0).cost(6))),
            (1000, Check(of(0))),
            (-1000, give(0, 6)),
            (0, Check(of(0).cost(9))),
            (1000, give(2, 9)),
            (0, Check(of(0).times(20))),
        ],
    );
    for strategy in [Gcra, Bucket, Fixed, List, Log, Sliding(1)] {
        play(
            "a refund that is sent again, since another limit's window is over, refunds once",
            (1800000000000000, 1000),
            &[
                policy(strategy, &[Per(20, 30 * DAY)]),
                policy(Calendar(0), &[Per(10, DAY)]),
            ],
            &[
                (0, Check(of(0).cost(3))),
                (0, Check(of(0).cost(5))),
                (2 * DAY as i64, give(0, 3)),
                (0, Peek(of(0))),
            ],
        );
    }
    play(
        "an arrival time of now at the end of a round is counted like any other",
        (1799999940000000, 1),
        &[
            policy(Gcra, &[Per(1, 60000000)]),
            policy(Gcra, &[Per(2, 60000000)]),
        ],
        &[
            (0, Check(of(0).times(3))),
            (60000000, Check(of(0).times(3))),
            (60000000, Check(of(0).times(3))),
        ],
    );
    play(
        "a permit of another request lives for one TTL after a step back, if one of its key is renewed",
        (1800000000000000, 1),
        &[policy(Permits(5400000), &[Concurrent(7)])],
        &[
            (0, Charge(of(0))),
            (0, Check(of(0))),
            (-(DAY as i64), Peek(of(0))),
            (6 * HOUR as i64, Check(of(0))),
        ],
    );
    let mut ban = policy(Ban(5, 15), &[Per(6, 1000000)]);
    ban.declared = true;
    play(
        "a window of rejections that ends in this millisecond is over if the clock steps back",
        (1799913600075352, 1),
        &[policy(Permits(1800004), &[Concurrent(19)]), ban],
        &[
            (0, Check(of(0).cost(19))),
            (0, Check(of(0))),
            (1000000, Unblock { key: 2 }),
            (-163000, Check(of(0))),
            (0, Peek(of(0))),
        ],
    );
    play(
        "from a list's last instant on each admitted caller is listed",
        (1800000000000000, 1000),
        &[policy(List, &[Per(10, 1000000)])],
        &[
            (0, Check(of(0))),
            (999000, Check(of(0))),
            (1000, Check(of(0))),
            (1000, Check(of(0))),
            (0, Peek(of(0))),
        ],
    );
}

const HOUR: u64 = 3600000000;
const DAY: u64 = 24 * HOUR;

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

fn refund(of: usize) -> Op {
    Refund { of, units: 1 }
}

fn credit(request: Request) -> Op {
    Credit {
        place: 0,
        request,
        units: 2,
    }
}
