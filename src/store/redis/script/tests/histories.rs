//! Histories of any kind, judged with short cuts and without.

use std::{cell::RefCell, collections::HashSet, time::Duration};

use proptest::{
    prelude::*,
    sample::{Index, subsequence},
    test_runner::{Config, TestRunner},
};

use super::{KEYS, QUOTAS, START, Told, World, key};
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
struct CacheKey {
    policies: Vec<usize>,
    key: u64,
    cost: u64,
    ask: Op,
    /// Of the last policy.
    mode: CounterMode,
    /// Which of the decisions so far is given back, if one is.
    of: Index,
}

#[derive(Clone, Debug)]
enum Event {
    /// To a server that is full, or not.
    Trip(bool, Vec<CacheKey>),
    Wait(u64),
    Plant(usize, u64, usize),
    Remove(usize, u64),
    Persist,
}

fn asked() -> impl Strategy<Value = CacheKey> {
    // Near ones, as a rule.
    let near = || subsequence((0..4).collect::<Vec<_>>(), 1..=3).prop_shuffle();
    let policies = prop_oneof![
        6 => near(),
        1 => subsequence((0..QUOTAS.len()).collect::<Vec<_>>(), 1..=3).prop_shuffle(),
    ];
    let ask = prop_oneof![
        12 => (1..4_u32).prop_map(Op::Acquire),
        1 => Just(Op::Peek), 1 => Just(Op::ForceAcquire), 1 => Just(Op::Refund), 1 => Just(Op::Reset),
    ];
    let cost = prop_oneof![8 => Just(1), 2 => 0..5_u64, 1 => 10..45_u64];
    let mode = prop_oneof![
        12 => Just(CounterMode::Charge), 1 => Just(CounterMode::Check), 1 => Just(CounterMode::ChargeRejectedToo),
        1 => Just(CounterMode::Shadow { replaces: None, charges: true }),
    ];
    (policies, 0..KEYS, cost, ask, mode, any::<Index>()).prop_map(
        |(policies, key, cost, ask, mode, of)| CacheKey {
            policies,
            key,
            cost,
            ask,
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
        10 => (prop::bool::weighted(0.1), all).prop_map(|(full, all)| Event::Trip(full, all)),
        6 => wait.prop_map(Event::Wait),
        1 => (places.clone(), 0..FOREIGN.len() + 1)
            .prop_map(|((policy, key), what)| Event::Plant(policy, key, what)),
        1 => places.prop_map(|(policy, key)| Event::Remove(policy, key)),
        1 => Just(Event::Persist),
    ]
}

/// Where a history starts: shortly before a round ends, and a lap, and well within them.
fn starts() -> impl Strategy<Value = u64> {
    let round_end = START;
    prop_oneof![
        Just(START),
        Just(START + 70 * SECOND),
        (1..100_u64).prop_map(move |secs| round_end - secs * SECOND),
        (1..14_u64).prop_map(move |days| round_end - days * 86_400 * SECOND),
        (1..2_000_u64).prop_map(|millis| START + 600 * SECOND - millis * 1_000),
    ]
}

impl World {
    fn lines(&self, asked: &CacheKey) -> CounterOps {
        let last = asked.policies.len() - 1;
        let line = |(place, policy): (usize, &usize)| {
            let mut line = CounterOp::new(&self.limits[*policy], key(asked.key));
            line.units = Units::new(asked.cost);
            if place == last && matches!(asked.ask, Op::Acquire(_)) {
                line.mode = asked.mode;
            }
            OwnedCounterOp::of(&line)
        };
        asked.policies.iter().enumerate().map(line).collect()
    }
}

/// What was charged, as it is given back.
fn receipts(lines: &CounterOps, answer: &Told) -> Option<CounterOps> {
    let (admitted, at, _, snapshot) = answer.as_ref().ok()?;
    let mut lines = lines.clone();
    for (line, (units, snapshot)) in lines.iter_mut().zip(snapshot) {
        line.charged(*units, snapshot, Timestamp::from_micros(*at));
    }
    (*admitted > 0).then_some(lines)
}

#[test]
fn what_short_cuts_judge_is_what_the_halves_say() {
    let mut world = World::new();
    let mut runner = TestRunner::new(Config {
        cases: 150,
        failure_persistence: None,
        ..Config::default()
    });
    let histories = (starts(), prop::collection::vec(event(), 1..30));
    let world = RefCell::new(&mut world);
    let outcome = runner.run(&histories, |(start, events)| {
        let world = &mut **world.borrow_mut();
        world.clock.set(start);
        world.order(&["FLUSHDB"]);
        // Keys that were made immortal by hand, or are not ours.
        let (mut spared, mut charged) = (HashSet::new(), Vec::<CounterOps>::new());
        for (number, event) in events.iter().enumerate() {
            let context = format!("event {number}: {event:?}");
            match event {
                Event::Trip(full, all) => {
                    let ask = |asked: &CacheKey| match asked.ask {
                        Op::Refund if charged.is_empty() => (Op::Peek, world.lines(asked)),
                        Op::Refund => (Op::Refund, asked.of.get(&charged).clone()),
                        ask => (ask, world.lines(asked)),
                    };
                    let questions: Vec<_> = all.iter().map(ask).collect();
                    let most = if *full { "1" } else { "0" };
                    world.order(&["CONFIG", "SET", "maxmemory", most]);
                    let short = world.trip(0, 0, &questions);
                    let long = world.trip(1, 1, &questions);
                    world.order(&["CONFIG", "SET", "maxmemory", "0"]);
                    prop_assert_eq!(&short, &long, "{}", &context);
                    let takes = questions.iter().zip(&short);
                    let takes = takes.filter(|((ask, _), _)| matches!(ask, Op::Acquire(_)));
                    charged
                        .extend(takes.filter_map(|((_, lines), answer)| receipts(lines, answer)));
                }
                Event::Wait(micros) => world.clock.advance(Duration::from_micros(*micros)),
                Event::Plant(policy, key, what) => {
                    let name = world.name(*policy, *key);
                    world.order(&["DEL", &name]);
                    match FOREIGN.get(*what) {
                        Some(value) => world.order(&["SET", &name, value]),
                        None => world.order(&["RPUSH", &name, "1"]),
                    }
                    spared.insert(name);
                }
                Event::Remove(policy, key) => {
                    let name = world.name(*policy, *key);
                    world.order(&["DEL", &name]);
                    spared.remove(&name);
                }
                Event::Persist => {
                    for name in world.keys() {
                        world.order(&["PERSIST", &name]);
                        spared.insert(name);
                    }
                }
            }
            let (short, long) = (world.stand(0), world.stand(1));
            prop_assert_eq!(short, long, "{}", &context);
            let mut immortal = world.immortal();
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
    let calls = world.into_inner().server.calls("incrby");
    assert!(calls > 1_000, "no short cut was taken");
}
