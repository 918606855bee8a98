//! Random histories of requests, executed with fast paths and without.

use std::{cell::RefCell, collections::HashSet, time::Duration};

use proptest::{
    prelude::*,
    sample::{Index, subsequence},
    test_runner::{Config, TestRunner},
};

use super::{KEYS, Outcome, QUOTAS, START, Scene, key};
use crate::{
    clock::Timestamp,
    store::{
        CounterMode, CounterOp, Op, Units,
        redis::request::op::{CounterOps, OwnedCounterOp},
    },
};

const SECOND: u64 = 1_000_000;

/// What others may leave under a key.
const FOREIGN: [&str; 6] = [
    "nan",
    "-5",
    "12345678901234567",
    "9223372036854775807",
    "5.0",
    "",
];

#[derive(Clone, Debug)]
struct Asked {
    policies: Vec<usize>,
    key: u64,
    cost: u64,
    op: Op,
    /// Of the last policy.
    mode: CounterMode,
    /// Which of the decisions so far is refunded, if one is.
    of: Index,
}

#[derive(Clone, Debug)]
enum Event {
    /// Whether the server is full, and requests.
    Batch(bool, Vec<Asked>),
    Wait(u64),
    Plant(usize, u64, usize),
    Remove(usize, u64),
    Persist,
}

fn asked() -> impl Strategy<Value = Asked> {
    // Near ones, as a rule.
    let near = || subsequence((0..4).collect::<Vec<_>>(), 1..=3).prop_shuffle();
    let policies = prop_oneof![
        6 => near(),
        1 => subsequence((0..QUOTAS.len()).collect::<Vec<_>>(), 1..=3).prop_shuffle(),
    ];
    let op = prop_oneof![
        12 => (1..4_u32).prop_map(Op::Acquire),
        1 => Just(Op::Peek), 1 => Just(Op::ForceAcquire),
        1 => Just(Op::Lower { window_ends_within: None }), 1 => Just(Op::Refund), 1 => Just(Op::Reset),
    ];
    let cost = prop_oneof![8 => Just(1), 2 => 0..5_u64, 1 => 10..45_u64];
    let mode = prop_oneof![
        12 => Just(CounterMode::Charge), 1 => Just(CounterMode::Check), 1 => Just(CounterMode::ChargeRejectedToo),
        1 => Just(CounterMode::Shadow { replaces: None, charges: true }),
    ];
    (policies, 0..KEYS, cost, op, mode, any::<Index>()).prop_map(
        |(policies, key, cost, op, mode, of)| Asked {
            policies,
            key,
            cost,
            op,
            mode,
            of,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let wait = prop_oneof![
        3 => 1..3_000_000_u64, 2 => Just(21 * SECOND), 2 => Just(60 * SECOND), 1 => Just(3_600 * SECOND),
    ];
    let all = prop::collection::vec(asked(), 1..12);
    let places = (0..QUOTAS.len(), 0..KEYS);
    prop_oneof![
        10 => (prop::bool::weighted(0.1), all).prop_map(|(full, all)| Event::Batch(full, all)),
        6 => wait.prop_map(Event::Wait),
        1 => (places.clone(), 0..FOREIGN.len() + 1)
            .prop_map(|((policy, key), what)| Event::Plant(policy, key, what)),
        1 => places.prop_map(|(policy, key)| Event::Remove(policy, key)),
        1 => Just(Event::Persist),
    ]
}

/// Where a history starts: shortly before a cycle ends, and a minute, and well within them.
fn starts() -> impl Strategy<Value = u64> {
    let cycle_end = START;
    prop_oneof![
        Just(START),
        Just(START + 70 * SECOND),
        (1..100_u64).prop_map(move |secs| cycle_end - secs * SECOND),
        (1..14_u64).prop_map(move |days| cycle_end - days * 86_400 * SECOND),
        (1..2_000_u64).prop_map(|millis| START + 600 * SECOND - millis * 1_000),
    ]
}

impl Scene {
    fn counters(&self, asked: &Asked) -> CounterOps {
        let last = asked.policies.len() - 1;
        let counter = |(index, policy): (usize, &usize)| {
            let mut counter = CounterOp::new(&self.limits[*policy], key(asked.key));
            counter.units = Units::new(asked.cost);
            if index == last && matches!(asked.op, Op::Acquire(_)) {
                counter.mode = asked.mode;
            }
            OwnedCounterOp::of(&counter)
        };
        asked.policies.iter().enumerate().map(counter).collect()
    }
}

/// What was charged, with receipts to refund it.
fn receipts(counters: &CounterOps, answer: &Outcome) -> Option<CounterOps> {
    let (admitted, at, _, snapshot) = answer.as_ref().ok()?;
    let mut counters = counters.clone();
    for (counter, (units, snapshot)) in counters.iter_mut().zip(snapshot) {
        counter.set_refund(*units, snapshot, Timestamp::from_micros(*at));
    }
    (*admitted > 0).then_some(counters)
}

#[test]
fn fast_paths_decide_as_the_functions_of_the_strategies_do() {
    let mut scene = Scene::new();
    let mut runner = TestRunner::new(Config {
        cases: 75,
        failure_persistence: None,
        ..Config::default()
    });
    let histories = (starts(), prop::collection::vec(event(), 1..30));
    let scene = RefCell::new(&mut scene);
    let outcome = runner.run(&histories, |(start, events)| {
        let scene = &mut **scene.borrow_mut();
        scene.clock.set(start);
        scene.command(&["FLUSHDB"]);
        // Keys without a TTL that a `PERSIST` left, or that are foreign.
        let (mut spared, mut charged) = (HashSet::new(), Vec::<CounterOps>::new());
        for (number, event) in events.iter().enumerate() {
            let context = format!("event {number}: {event:?}");
            match event {
                Event::Batch(full, all) => {
                    let op = |asked: &Asked| match asked.op {
                        Op::Refund if charged.is_empty() => (Op::Peek, scene.counters(asked)),
                        Op::Refund => (Op::Refund, asked.of.get(&charged).clone()),
                        op => (op, scene.counters(asked)),
                    };
                    let requests: Vec<_> = all.iter().map(op).collect();
                    let most = if *full { "1" } else { "0" };
                    scene.command(&["CONFIG", "SET", "maxmemory", most]);
                    let fast = scene.send(0, 0, &requests);
                    let general = scene.send(1, 1, &requests);
                    scene.command(&["CONFIG", "SET", "maxmemory", "0"]);
                    prop_assert_eq!(&fast, &general, "{}", &context);
                    let acquisitions = requests.iter().zip(&fast);
                    let acquisitions =
                        acquisitions.filter(|((op, _), _)| matches!(op, Op::Acquire(_)));
                    charged.extend(
                        acquisitions
                            .filter_map(|((_, counters), answer)| receipts(counters, answer)),
                    );
                }
                Event::Wait(micros) => scene.clock.advance(Duration::from_micros(*micros)),
                Event::Plant(policy, key, what) => {
                    let name = scene.name(*policy, *key);
                    scene.command(&["DEL", &name]);
                    match FOREIGN.get(*what) {
                        Some(value) => scene.command(&["SET", &name, value]),
                        None => scene.command(&["RPUSH", &name, "1"]),
                    }
                    spared.insert(name);
                }
                Event::Remove(policy, key) => {
                    let name = scene.name(*policy, *key);
                    scene.command(&["DEL", &name]);
                    spared.remove(&name);
                }
                Event::Persist => {
                    for name in scene.keys() {
                        scene.command(&["PERSIST", &name]);
                        spared.insert(name);
                    }
                }
            }
            let (fast, general) = (scene.states(0), scene.states(1));
            prop_assert_eq!(fast, general, "{}", &context);
            let mut immortal = scene.immortal();
            immortal.retain(|key| !spared.contains(key));
            prop_assert!(
                immortal.is_empty(),
                "{}: {:?} never end",
                &context,
                immortal
            );
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let calls = scene.into_inner().server.calls("incrby");
    assert!(calls > 500, "no fast path was taken");
}
