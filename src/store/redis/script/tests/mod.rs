//! What short cuts judge, held against what the halves say of the same trips without them: both on one server, each in a
//! database of its own.

use std::{
    collections::HashSet,
    sync::Weak,
    task::{Context, Poll, Waker},
    time::Duration,
};

use redis::{Client, Connection, Value, cmd};
use testkit::{Clock, Server};
use tokio::time::Instant;

use super::{Script, StrategyScript};
use crate::{
    clock::Timestamp,
    key::Key,
    quota::Quota,
    store::{
        CounterOp, LimitHandle, Op, OpResult,
        redis::{
            batch::{Batch, MAX_BATCH_KEYS, decode},
            key_names::KeyNames,
            request::{
                PendingRequest, RequestState,
                limit::RedisLimit,
                op::{CounterOps, OwnedCounterOp},
                response_handle::ResponseHandle,
            },
            worker::pool::WorkerPool,
        },
    },
    strategy::{Gcra, Snapshot, Strategy as _, TokenBucket},
};

mod histories;

/// 2027-01-15 08:00:00 UTC, where a round of GCRA's ends and the next begins.
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

struct World {
    server: Server,
    clock: Clock,
    limits: Vec<LimitHandle>,
    /// With short cuts, and without.
    scripts: [Script; 2],
    sides: [Connection; 2],
}

impl World {
    fn new() -> Self {
        let clock = Clock::at(START);
        let server = Server::builder().clock(&clock);
        let server = server.arg("maxmemory-policy", "noeviction").start();
        let (mut halves, mut limits) = (Vec::new(), Vec::new());
        for (place, quota) in QUOTAS.iter().enumerate() {
            let quota: Quota = quota.parse().expect("a quota");
            let rule = match place {
                5 => TokenBucket.bind(&quota),
                _ => Gcra.bind(&quota),
            };
            let rule = rule.expect("a rule");
            let script = rule.script().expect("a half");
            let half = StrategyScript::from(&script);
            if !halves.contains(&half) {
                halves.push(half);
            }
            let policy = format!("p{place}");
            let names = KeyNames::new("tg:", None, &*rule, &policy);
            let known = RedisLimit::new(
                names,
                halves.len(),
                &*rule,
                &script,
                Weak::<WorkerPool>::new(),
            );
            limits.push(LimitHandle::new(&policy, rule, known));
        }
        let without = |half: &StrategyScript| StrategyScript {
            fast_path: None,
            ..*half
        };
        let long: Vec<_> = halves.iter().map(without).collect();
        let scripts = [Script::of(&halves), Script::of(&long)];
        let client = Client::open(server.url()).expect("an address");
        let sides = [0, 1].map(|side| {
            let mut connection = client.get_connection().expect("a connection");
            order(&mut connection, &["SELECT", &side.to_string()]);
            connection
        });
        Self {
            server,
            clock,
            limits,
            scripts,
            sides,
        }
    }

    /// Opens one more limit of the first quota, with so many parameters in all, and tells its place.
    fn open(&mut self, policy: &str, params: usize) -> usize {
        let rule = Gcra.bind(&QUOTAS[0].parse().expect("a quota"));
        let rule = rule.expect("a rule");
        let mut script = rule.script().expect("a half");
        // The fourth is the deepest debt.
        script.params.resize(params, 1 << 52);
        let names = KeyNames::new("tg:", None, &*rule, policy);
        let known = RedisLimit::new(names, 1, &*rule, &script, Weak::<WorkerPool>::new());
        self.limits.push(LimitHandle::new(policy, rule, known));
        self.limits.len() - 1
    }

    /// Sends a trip to a side, to be judged by one of the scripts.
    fn trip(&mut self, side: usize, script: usize, questions: &[(Op, CounterOps)]) -> Vec<Told> {
        let mut batch = Batch::default();
        let mut answers = Vec::new();
        for (ask, lines) in questions {
            let deadline = Instant::now() + Duration::from_secs(60);
            let state = RequestState::new(*ask, lines.clone(), deadline, 0);
            let (mut question, answer) = PendingRequest::with_response(state, None);
            question.time_synced = true;
            let pushed = batch.push(question);
            pushed.expect("room on the trip");
            answers.push(answer);
        }
        let call = batch.call(&self.scripts[script], true, Timestamp::default(), None);
        let reply: Value = call.query(&mut self.sides[side]).expect("an answer");
        assert!(
            decode::decode_and_complete(&mut batch, reply).is_ok(),
            "a whole answer"
        );
        let tell = |mut answer: ResponseHandle| {
            let answered = answer.poll_response(&Context::from_waker(Waker::noop()));
            let Poll::Ready(answer) = answered else {
                panic!("no answer");
            };
            let answer = answer.map_err(|error| error.to_string());
            answer.map(|answer| told(&answer))
        };
        answers.into_iter().map(tell).collect()
    }

    /// How all keys under all policies stand on a side.
    fn stand(&mut self, side: usize) -> Vec<Told> {
        let all = (0..QUOTAS.len()).flat_map(|policy| (0..KEYS).map(move |key| (policy, key)));
        let look = |(policy, number)| {
            let line = CounterOp::new(&self.limits[policy], key(number));
            (Op::Peek, CounterOps::from_iter([OwnedCounterOp::of(&line)]))
        };
        let looks: Vec<_> = all.map(look).collect();
        self.trip(side, 1, &looks)
    }

    /// Orders the same on both sides.
    fn order(&mut self, words: &[&str]) {
        for side in &mut self.sides {
            order(side, words);
        }
    }

    fn name(&self, policy: usize, number: u64) -> String {
        let known = self.limits[policy].context::<RedisLimit>();
        known.expect("our own").names.of(&key(number))
    }

    fn keys(&mut self) -> Vec<String> {
        let mut list = cmd("KEYS");
        list.arg("*");
        let sides = self.sides.iter_mut();
        sides
            .flat_map(|side| list.query::<Vec<String>>(side).expect("keys"))
            .collect()
    }

    /// Our keys that never end, with short cuts.
    fn immortal(&mut self) -> Vec<String> {
        let side = &mut self.sides[0];
        let mut keys: Vec<String> = cmd("KEYS").arg("*").query(side).expect("keys");
        keys.retain(|key| cmd("PTTL").arg(key).query::<i64>(side).expect("a time") == -1);
        keys
    }
}

/// How many were admitted, at this time and after it, and what moved and was seen.
type Told = Result<(u64, i64, u64, Vec<(u64, Snapshot)>), String>;

fn told(answer: &OpResult) -> (u64, i64, u64, Vec<(u64, Snapshot)>) {
    let lines = answer
        .counters
        .iter()
        .map(|line| (line.units, line.snapshot));
    let at = answer.at.as_micros();
    (answer.admitted, at, answer.admitted_after, lines.collect())
}

fn order(connection: &mut Connection, words: &[&str]) -> Value {
    let order = cmd(words[0]).arg(&words[1..]).query(connection);
    order.expect("an answer")
}

#[test]
fn parameters_that_are_too_many_to_stand_alone_are_read_all_the_same() {
    let mut world = World::new();
    let many = world.open("many", 48);
    let ask = |world: &mut World, policies: [usize; 2], number| {
        let line =
            |policy: usize| OwnedCounterOp::of(&CounterOp::new(&world.limits[policy], key(number)));
        let question = |policies: &[usize]| policies.iter().map(|policy| line(*policy)).collect();
        let questions = [
            (Op::Acquire(3), question(&policies)),
            (Op::Acquire(1), question(&policies[..1])),
            (Op::Peek, question(&policies[1..])),
        ];
        world.trip(0, 0, &questions)
    };
    for _ in 0..5 {
        // The one with many parameters stands first and last, and the other alone in its place.
        assert_eq!(ask(&mut world, [many, 1], 0), ask(&mut world, [0, 1], 1));
        assert_eq!(ask(&mut world, [1, many], 2), ask(&mut world, [1, 0], 3));
    }
}

#[test]
fn a_trip_may_be_under_as_many_policies_as_it_has_keys() {
    let mut world = World::new();
    for params in [8, 24, 25] {
        let policies =
            (0..MAX_BATCH_KEYS).map(|policy| world.open(&format!("p{params}-{policy}"), params));
        let policies: Vec<_> = policies.collect();
        let ask = |policy: &usize| {
            let line = CounterOp::new(&world.limits[*policy], key(0));
            (
                Op::Acquire(11),
                CounterOps::from_iter([OwnedCounterOp::of(&line)]),
            )
        };
        let questions: Vec<_> = policies.iter().map(ask).collect();
        for (side, admitted) in [(0, 10), (0, 0), (1, 10), (1, 0)] {
            let answers = world.trip(side, side, &questions);
            let right = |answer: &Told| answer.as_ref().is_ok_and(|told| told.0 == admitted);
            assert!(
                answers.iter().all(right),
                "{params} parameters: {answers:?}"
            );
        }
    }
}

#[test]
fn what_a_look_found_without_end_has_one_also_if_it_is_charged_before_the_trip_is_over() {
    let mut world = World::new();
    let question = |world: &World, ask, number| {
        let line = CounterOp::new(&world.limits[0], key(number));
        (ask, CounterOps::from_iter([OwnedCounterOp::of(&line)]))
    };
    for others in [1, 5] {
        world.order(&["FLUSHDB"]);
        let take = |world: &World, number| question(world, Op::Acquire(1), number);
        let look = question(&world, Op::Peek, 0);
        let (first, second) = (take(&world, 0), take(&world, 0));
        world.trip(0, 0, &[first]);
        world.trip(0, 0, &[second]);
        let name = world.name(0, 0);
        world.order(&["PERSIST", &name]);
        assert_eq!(world.immortal(), [name]);
        let takes = (0..=others).map(|number| take(&world, number));
        let trip: Vec<_> = [look].into_iter().chain(takes).collect();
        world.trip(0, 0, &trip);
        assert_eq!(world.immortal(), [""; 0]);
    }
}

/// The Lua files that go into slots.
const FRAGMENTS: [&str; 12] = [
    super::GENERAL,
    super::OPERATIONS,
    include_str!("../../../../strategy/ban.lua"),
    include_str!("../../../../strategy/calendar_window.lua"),
    include_str!("../../../../strategy/concurrency.lua"),
    include_str!("../../../../strategy/fixed_window.lua"),
    include_str!("../../../../strategy/gcra.lua"),
    include_str!("../../../../strategy/gcra_short.lua"),
    include_str!("../../../../strategy/list_window.lua"),
    include_str!("../../../../strategy/sliding_log.lua"),
    include_str!("../../../../strategy/sliding_window.lua"),
    include_str!("../../../../strategy/token_bucket.lua"),
];

/// What a chunk declares as local.
fn locals(chunk: &str) -> HashSet<&str> {
    let statements = chunk
        .lines()
        .filter_map(|line| line.trim().strip_prefix("local "));
    let names = statements.flat_map(|statement| match statement.strip_prefix("function ") {
        Some(function) => function.split("(").take(1),
        None => statement.split(" = ").take(1),
    });
    names.flat_map(|names| names.split(", ")).collect()
}

#[test]
fn the_locals_that_a_fragment_uses_are_those_of_the_files_it_goes_into() {
    let known = &locals(super::MAIN) | &locals(super::GENERAL);
    for fragment in FRAGMENTS {
        let first = fragment.lines().next().unwrap_or_default();
        let listed = fragment
            .lines()
            .find_map(|line| line.split_once("globals "));
        let (_, listed) = listed.unwrap_or_else(|| panic!("{first}: lists no locals"));
        for name in listed.split(' ') {
            assert!(known.contains(name), "{first}: no local {name}");
        }
    }
}
