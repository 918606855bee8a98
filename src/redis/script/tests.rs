//! Fast paths held against the functions of their strategies: both execute the same batches on one server, each in a database
//! of its own.

use std::{cell::RefCell, collections::HashSet, sync::Weak, time::Duration};

use futures_util::FutureExt as _;
use proptest::{
    prelude::*,
    sample::{Index, subsequence},
    test_runner::{Config, TestRunner},
};
use redis::{Client, Connection, Value, cmd};
use testkit::{Clock, Server};
use tokio::time::Instant;

use super::{Script, StrategyScript};
use crate::{
    clock::Timestamp,
    key::Key,
    quota::Quota,
    redis::{
        batch::{Batch, MAX_BATCH_KEYS, wire},
        io::ServerClock,
        key_names::KeyNames,
        request::{
            PendingRequest, RequestState,
            limit::RedisLimit,
            op::{CounterOps, OwnedCounterOp},
        },
    },
    store::{CounterMode, CounterOp, LimitHandle, Op, OpResult, PendingResponse, Units},
    strategy::{Gcra, Snapshot, Strategy as _, Terms, TokenBucket},
};

/// 2027-01-15 08:00:00 UTC, where a cycle of GCRA's ends and the next begins.
const START: u64 = 1_800_000_000_000_000;

/// The last is another strategy's.
const QUOTAS: [&str; 6] = [
    "10/min",
    "3/min burst 40",
    "1000/day",
    "2/s",
    "1000000/week",
    "7/min",
];
const KEYS: u64 = 3;

fn key(number: u64) -> Key {
    Key::new(number.to_string())
}

#[test]
fn the_worked_example_names_the_script_by_its_hash() {
    let quota: Quota = "10/min".parse().expect("a quota");
    let rule = Gcra.bind(&quota, &Terms::default()).expect("a rule");
    let script = rule.script().expect("a script");
    let Script { sha, .. } = Script::of(&[StrategyScript::from(&script)]);
    let docs = include_str!("mod.rs");
    assert!(docs.contains(&format!("\"EVALSHA\" \"{sha}\"")), "{sha}");
}

struct Scene {
    server: Server,
    clock: Clock,
    limits: Vec<LimitHandle>,
    /// With fast paths, and without.
    scripts: [Script; 2],
    databases: [Connection; 2],
}

impl Scene {
    fn new() -> Self {
        let clock = Clock::at(START);
        let server = Server::builder().clock(&clock);
        let server = server.arg("maxmemory-policy", "noeviction").start();
        let (mut strategies, mut limits) = (Vec::new(), Vec::new());
        for (index, quota) in QUOTAS.iter().enumerate() {
            let quota: Quota = quota.parse().expect("a quota");
            let rule = match index {
                5 => TokenBucket.bind(&quota, &Terms::default()),
                _ => Gcra.bind(&quota, &Terms::default()),
            };
            let rule = rule.expect("a rule");
            let script = rule.script().expect("a script");
            let strategy = StrategyScript::from(&script);
            if !strategies.contains(&strategy) {
                strategies.push(strategy);
            }
            let policy = format!("p{index}");
            let names = KeyNames::new("tg:", None, &*rule, &policy);
            let context = RedisLimit::new(names, strategies.len(), &*rule, &script, Weak::new());
            limits.push(LimitHandle::new(&policy, rule, context));
        }
        let without = |strategy: &StrategyScript| StrategyScript {
            fast_path: None,
            ..*strategy
        };
        let general: Vec<_> = strategies.iter().map(without).collect();
        let scripts = [Script::of(&strategies), Script::of(&general)];
        let client = Client::open(server.url()).expect("an address");
        let databases = [0, 1].map(|database| {
            let mut connection = client.get_connection().expect("a connection");
            command(&mut connection, &["SELECT", &database.to_string()]);
            connection
        });
        Self {
            server,
            clock,
            limits,
            scripts,
            databases,
        }
    }

    /// Opens one more limit of the first quota, with so many parameters in all, and returns its index.
    fn open(&mut self, policy: &str, params: usize) -> usize {
        let rule = Gcra.bind(&QUOTAS[0].parse().expect("a quota"), &Terms::default());
        let rule = rule.expect("a rule");
        let mut script = rule.script().expect("a script");
        // The fourth is the deepest debt.
        script.params.resize(params, 1 << 52);
        let names = KeyNames::new("tg:", None, &*rule, policy);
        let context = RedisLimit::new(names, 1, &*rule, &script, Weak::new());
        self.limits.push(LimitHandle::new(policy, rule, context));
        self.limits.len() - 1
    }

    /// Sends a batch to a database, to be executed by one of the scripts.
    fn send(
        &mut self,
        database: usize,
        script: usize,
        requests: &[(Op, CounterOps)],
    ) -> Vec<Outcome> {
        let mut batch = Batch::default();
        let mut responses = Vec::new();
        for (op, counters) in requests {
            let deadline = Instant::now() + Duration::from_secs(60);
            let state = RequestState::new(*op, counters.clone(), deadline, 0);
            let (mut request, answer) = PendingRequest::with_response(state);
            request.time_synced = true;
            let pushed = batch.push(request);
            pushed.expect("room in the batch");
            responses.push(answer);
        }
        let call = batch.call(&self.scripts[script], true, Timestamp::default());
        let reply: Value = call
            .query(&mut self.databases[database])
            .expect("an answer");
        assert!(
            wire::decode_and_complete(&mut batch, reply, &ServerClock::default()).is_ok(),
            "a whole answer"
        );
        let tell = |answer: PendingResponse| {
            let answer = answer.now_or_never().expect("an answer");
            let answer = answer.map_err(|error| error.to_string());
            answer.map(|answer| executed(&answer))
        };
        responses.into_iter().map(tell).collect()
    }

    /// The states of all keys under all policies in a database.
    fn states(&mut self, database: usize) -> Vec<Outcome> {
        let all = (0..QUOTAS.len()).flat_map(|policy| (0..KEYS).map(move |key| (policy, key)));
        let peek = |(policy, number)| {
            let counter = CounterOp::new(&self.limits[policy], key(number));
            (
                Op::Peek,
                CounterOps::from_iter([OwnedCounterOp::of(&counter)]),
            )
        };
        let peeks: Vec<_> = all.map(peek).collect();
        self.send(database, 1, &peeks)
    }

    /// Runs a command in both databases.
    fn command(&mut self, words: &[&str]) {
        for database in &mut self.databases {
            command(database, words);
        }
    }

    fn name(&self, policy: usize, number: u64) -> String {
        let context = self.limits[policy].context::<RedisLimit>();
        context.expect("our own").names.of(&key(number))
    }

    fn keys(&mut self) -> Vec<String> {
        let mut list = cmd("KEYS");
        list.arg("*");
        let databases = self.databases.iter_mut();
        databases
            .flat_map(|database| list.query::<Vec<String>>(database).expect("keys"))
            .collect()
    }

    /// Keys without a TTL that fast paths left.
    fn immortal(&mut self) -> Vec<String> {
        let database = &mut self.databases[0];
        let mut keys: Vec<String> = cmd("KEYS").arg("*").query(database).expect("keys");
        keys.retain(|key| cmd("PTTL").arg(key).query::<i64>(database).expect("a time") == -1);
        keys
    }
}

/// How many were admitted, at this time and after it, and what moved and was seen.
type Outcome = Result<(u64, i64, u64, Vec<(u64, Snapshot)>), String>;

fn executed(answer: &OpResult) -> (u64, i64, u64, Vec<(u64, Snapshot)>) {
    let counters = answer
        .counters
        .iter()
        .map(|counter| (counter.units, counter.snapshot));
    let at = answer.at.as_micros();
    (
        answer.admitted,
        at,
        answer.admitted_after,
        counters.collect(),
    )
}

fn command(connection: &mut Connection, words: &[&str]) -> Value {
    let command = cmd(words[0]).arg(&words[1..]).query(connection);
    command.expect("an answer")
}

#[test]
fn parameters_too_many_to_be_sent_without_a_list_are_read() {
    let mut scene = Scene::new();
    let many = scene.open("many", 48);
    let execute = |scene: &mut Scene, policies: [usize; 2], number| {
        let counter =
            |policy: usize| OwnedCounterOp::of(&CounterOp::new(&scene.limits[policy], key(number)));
        let request = |policies: &[usize]| policies.iter().map(|policy| counter(*policy)).collect();
        let requests = [
            (Op::Acquire(3), request(&policies)),
            (Op::Acquire(1), request(&policies[..1])),
            (Op::Peek, request(&policies[1..])),
        ];
        scene.send(0, 0, &requests)
    };
    for _ in 0..5 {
        // The limit with many parameters comes first and last, and the other limit takes its place.
        assert_eq!(
            execute(&mut scene, [many, 1], 0),
            execute(&mut scene, [0, 1], 1)
        );
        assert_eq!(
            execute(&mut scene, [1, many], 2),
            execute(&mut scene, [1, 0], 3)
        );
    }
}

#[test]
fn a_batch_may_have_as_many_policies_as_keys() {
    let mut scene = Scene::new();
    for params in [8, 24, 25] {
        let policies =
            (0..MAX_BATCH_KEYS).map(|policy| scene.open(&format!("p{params}-{policy}"), params));
        let policies: Vec<_> = policies.collect();
        let acquire = |policy: &usize| {
            let counter = CounterOp::new(&scene.limits[*policy], key(0));
            (
                Op::Acquire(11),
                CounterOps::from_iter([OwnedCounterOp::of(&counter)]),
            )
        };
        let requests: Vec<_> = policies.iter().map(acquire).collect();
        for (database, admitted) in [(0, 10), (0, 0), (1, 10), (1, 0)] {
            let responses = scene.send(database, database, &requests);
            let right =
                |answer: &Outcome| answer.as_ref().is_ok_and(|executed| executed.0 == admitted);
            assert!(
                responses.iter().all(right),
                "{params} parameters: {responses:?}"
            );
        }
    }
}

#[test]
fn a_key_that_a_free_request_finds_without_a_ttl_gets_one_also_if_a_later_request_charges_it() {
    let mut scene = Scene::new();
    let request = |scene: &Scene, units, number| {
        let counter = CounterOp::new(&scene.limits[0], key(number)).with_units(units);
        let counters = CounterOps::from_iter([OwnedCounterOp::of(&counter)]);
        (Op::Acquire(1), counters)
    };
    for others in [1, 5] {
        scene.command(&["FLUSHDB"]);
        let acquire = |scene: &Scene, number| request(scene, Units::ONE, number);
        let free = request(&scene, Units::ZERO, 0);
        let (first, second) = (acquire(&scene, 0), acquire(&scene, 0));
        scene.send(0, 0, &[first]);
        scene.send(0, 0, &[second]);
        let name = scene.name(0, 0);
        scene.command(&["PERSIST", &name]);
        assert_eq!(scene.immortal(), [name]);
        let acquisitions = (0..=others).map(|number| acquire(&scene, number));
        let batch: Vec<_> = [free].into_iter().chain(acquisitions).collect();
        scene.send(0, 0, &batch);
        assert_eq!(scene.immortal(), [""; 0]);
    }
}

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
        1 => Just(Op::Peek), 2 => Just(Op::Adjust), 1 => Just(Op::Reset),
    ];
    let cost = prop_oneof![8 => Just(1), 2 => 0..5_u64, 1 => 10..45_u64];
    let mode = prop_oneof![
        12 => Just(CounterMode::Charge), 1 => Just(CounterMode::Check), 1 => Just(CounterMode::ChargeRejectedToo),
        1 => Just(CounterMode::Shadow { charges: true }),
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
                        // A refund, a charge, or both.
                        Op::Adjust if !charged.is_empty() && asked.cost != 1 => {
                            let mut counters = asked.of.get(&charged).clone();
                            counters.truncate(asked.cost as usize + 1);
                            if asked.cost > 1 {
                                counters.extend(scene.counters(asked));
                            }
                            (Op::Adjust, counters)
                        }
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
