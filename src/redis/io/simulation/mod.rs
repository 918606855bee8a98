//! A store on a server that the test scripts, in simulated time: each call is answered by a rule of the test, or by hand.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    future::poll_fn,
    io,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use redis::{Cmd, RedisError, Value, parse_redis_value};
use rmp::{Marker, decode};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::{JoinHandle, yield_now},
    time::{Instant, sleep},
};

use super::{
    actor::Actor,
    server::Server,
    wire::{CallError, Wire},
};
use crate::{
    clock::Timestamp,
    error::StoreError,
    key::Key,
    redis::{RedisStore, builder::RedisStoreBuilder, script::msgpack::MsgPackWriter},
    store::{CounterOp, LimitHandle, Op, OpResult, Store as _, StoreResponse},
    strategy::{ChargeReceipt, Gcra, Strategy, Terms},
    sync::lock,
};

mod breaker;
mod connections;
mod histories;
mod kept;
mod lanes;
mod permits;
mod requests;

/// The timeout of a scene's store.
const TIMEOUT: Duration = Duration::from_millis(100);

/// More polls of the actor than a test needs at one instant.
const MAX_POLLS: usize = 10_000;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How a connection is opened.
#[derive(Clone, Copy, Debug)]
enum Connect {
    Opens,
    OpensAfter(Duration),
    Refused,
    Hangs,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// It is executed, and has its reply after a time.
    Reply(Duration),
    /// It is executed, and has no reply until the test [releases](Scene::release) it.
    Hold,
    /// It is not executed, and has an error reply after a time.
    Error(&'static str, Duration),
    /// The call is executed, and each of its requests fails with an error.
    EntryErrors(&'static str),
    /// It is executed, but the connection breaks after a time.
    Break(Duration),
    /// The connection was closed before it took the call.
    NotTaken,
    /// The client panics.
    Panic,
}

/// A call that a connection has taken.
#[derive(Clone, Debug)]
struct SentCall {
    at: Instant,
    connection: usize,
    /// The command, or `PROBE`.
    name: String,
    entries: Vec<Entry>,
    fate: Fate,
}

/// What the store knows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing: it may have been executed.
    Unknown,
    Executed,
    /// It was not executed.
    Refused,
}

/// A merged request of a batch.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    op: i64,
    keys: Vec<String>,
    count: i64,
    /// The units of one request under each policy.
    units: Vec<i64>,
    is_refund: bool,
    capacities: Vec<i64>,
    snapshot_lens: Vec<usize>,
}

const ACQUIRE: i64 = 1;
const ADJUST: i64 = 2;
const RESET: i64 = 4;

/// What the test has set, and what has happened.
struct Script {
    connect: Connect,
    answer: Box<dyn FnMut(&SentCall) -> Answer + Send>,
    /// When each connection was begun.
    connects: Vec<Instant>,
    calls: Vec<SentCall>,
    /// The calls without a reply, by their position in `calls`.
    pending: BTreeMap<usize, PendingCall>,
    /// Connections that broke.
    broken: HashSet<usize>,
    /// The units in use, by key.
    used: HashMap<String, i64>,
}

struct PendingCall {
    connection: usize,
    reply: Result<Value, RedisError>,
    fate: Fate,
    sender: oneshot::Sender<Reply>,
}

/// A reply on its way, and what it says of the call.
type Reply = (Result<Value, CallError>, Fate);

impl Script {
    /// Takes a call on a connection. Returns where its reply arrives.
    fn take(
        &mut self,
        own: &Arc<Mutex<Self>>,
        connection: usize,
        cmd: &Cmd,
    ) -> Result<(usize, oneshot::Receiver<Reply>), CallError> {
        let (mut call, number) = SentCall::read(connection, cmd);
        call.at = Instant::now();
        let answer = (self.answer)(&call);
        if matches!(answer, Answer::NotTaken) || self.broken.contains(&connection) {
            return Err(CallError::NotTaken);
        }
        let position = self.calls.len();
        self.calls.push(call.clone());
        assert!(!matches!(answer, Answer::Panic), "a panic of the client");
        let (reply, fate) = match answer {
            Answer::Error(text, _) => (Err(server_error(text)), Fate::Refused),
            Answer::EntryErrors(text) => {
                (Ok(failed_reply(number, &call.entries, text)), Fate::Refused)
            }
            _ if number.is_some() => (Ok(self.execute(number, &call.entries)), Fate::Executed),
            _ => (Ok(Value::Okay), Fate::Executed),
        };
        let (sender, receiver) = oneshot::channel();
        let pending = PendingCall {
            connection,
            reply,
            fate,
            sender,
        };
        self.pending.insert(position, pending);
        let own = own.clone();
        // By a task, as the driver of a connection hands over replies.
        match answer {
            Answer::Reply(after) | Answer::Error(_, after) => {
                tokio::spawn(async move {
                    pass(after).await;
                    lock(&own).release(position);
                });
            }
            Answer::EntryErrors(_) => {
                tokio::spawn(async move { lock(&own).release(position) });
            }
            Answer::Break(after) => {
                tokio::spawn(async move {
                    pass(after).await;
                    lock(&own).break_connection(connection);
                });
            }
            Answer::Hold | Answer::NotTaken | Answer::Panic => {}
        }
        Ok((position, receiver))
    }

    fn release(&mut self, position: usize) {
        if let Some(call) = self.pending.remove(&position) {
            let reply = call.reply.map_err(CallError::Failed);
            let _ = call.sender.send((reply, call.fate));
        }
    }

    fn break_connection(&mut self, connection: usize) {
        self.broken.insert(connection);
        let broken = |_: &usize, call: &mut PendingCall| call.connection == connection;
        for (_, call) in self.pending.extract_if(.., broken) {
            let broken = RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe));
            let reply = Err(CallError::Failed(broken));
            let _ = call.sender.send((reply, Fate::Unknown));
        }
    }

    /// Executes a batch: counts the units of each key, which never refill.
    fn execute(&mut self, number: Option<i64>, entries: &[Entry]) -> Value {
        let mut reply = Vec::new();
        for entry in entries {
            let counters = entry.keys.iter().zip(&entry.units);
            let mut admitted = 1;
            if entry.op == ACQUIRE {
                let free = counters.clone().zip(&entry.capacities);
                let free = free.map(|((key, units), capacity)| {
                    (capacity - self.used.get(key).unwrap_or(&0)) / (*units).max(1)
                });
                admitted = free.fold(entry.count, i64::min).max(0);
            }
            reply.push(admitted);
            for ((key, units), snapshot_len) in counters.zip(&entry.snapshot_lens) {
                let used = self.used.entry(key.clone()).or_default();
                match entry.op {
                    ACQUIRE => *used += admitted * units,
                    ADJUST if entry.is_refund => *used -= units,
                    ADJUST => *used += units,
                    RESET => *used = 0,
                    _ => {}
                }
                reply.extend((entry.op != ACQUIRE).then_some(*units));
                reply.extend(vec![0; *snapshot_len]);
            }
        }
        let mut packed = begin_reply(number, reply.len());
        reply.iter().for_each(|number| packed.int(*number));
        Value::BulkString(packed.as_bytes().to_vec())
    }
}

async fn pass(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
        // A runtime fires timers before it reads what has arrived.
        yield_now().await;
    }
}

fn begin_reply(number: Option<i64>, len: usize) -> MsgPackWriter {
    let mut packed = MsgPackWriter::default();
    packed.list(2 + len);
    packed.int(number.unwrap_or(0));
    packed.int(1_790_000_000_000_000);
    packed
}

fn failed_reply(number: Option<i64>, entries: &[Entry], text: &str) -> Value {
    let mut packed = begin_reply(number, 2 * entries.len());
    for _ in entries {
        packed.int(-1);
        packed.text(text);
    }
    Value::BulkString(packed.as_bytes().to_vec())
}

fn server_error(text: &str) -> RedisError {
    let reply = parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("a reply");
    reply.extract_error().expect_err("an error")
}

impl SentCall {
    /// Reads a command, and the number of the call if it is of a batch.
    fn read(connection: usize, cmd: &Cmd) -> (Self, Option<i64>) {
        let texts = cmd.args_iter().map(|arg| match arg {
            redis::Arg::Simple(text) => text.to_vec(),
            _ => Vec::new(),
        });
        let texts: Vec<_> = texts.collect();
        let text = |index: usize| String::from_utf8_lossy(&texts[index]).into_owned();
        let mut call = Self {
            at: Instant::now(),
            connection,
            name: text(0),
            entries: Vec::new(),
            fate: Fate::Unknown,
        };
        let is_script = call.name == "EVALSHA" || call.name == "EVAL";
        let keys = is_script.then(|| text(2).parse::<usize>().expect("the number of keys"));
        let Some(keys) = keys.filter(|keys| texts.len() == 4 + keys) else {
            if is_script {
                call.name = "PROBE".to_owned();
            }
            return (call, None);
        };
        let keys = texts[3..3 + keys].iter();
        let keys = keys.map(|key| String::from_utf8_lossy(key).into_owned());
        let mut packed = &texts[texts.len() - 1][..];
        let mut values = Vec::new();
        while !packed.is_empty() {
            values.push(Packed::read(&mut packed));
        }
        call.entries = Packed::entries(&values, keys);
        (call, Some(values[2].int()))
    }

    fn is_batch(&self) -> bool {
        !self.entries.is_empty()
    }
}

/// A value of MessagePack.
#[derive(Debug)]
enum Packed {
    Int(i64),
    Nil,
    Text,
    List(Vec<Packed>),
}

impl Packed {
    fn read(bytes: &mut &[u8]) -> Self {
        match Marker::from_u8(bytes[0]) {
            Marker::Null => {
                decode::read_nil(bytes).expect("nil");
                Self::Nil
            }
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                let len = decode::read_array_len(bytes).expect("a length");
                Self::List((0..len).map(|_| Self::read(bytes)).collect())
            }
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                let len = decode::read_str_len(bytes).expect("a length");
                *bytes = &bytes[len as usize..];
                Self::Text
            }
            _ => Self::Int(decode::read_int(bytes).expect("a number")),
        }
    }

    fn int(&self) -> i64 {
        match self {
            Self::Int(int) => *int,
            other => panic!("{other:?} in place of a number"),
        }
    }

    /// Reads the segments: `script` describes them.
    fn entries(values: &[Self], mut keys: impl Iterator<Item = String>) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut segments = values[values[1].int() as usize - 1..].iter();
        while let Some(op) = segments.next() {
            let mut int = || segments.next().expect("a number").int();
            let (count, policies) = (int(), int());
            let policies: Vec<_> = (0..policies).map(|_| [int(), int(), int()]).collect();
            let has_counts = int() != 0;
            let own = match segments.next() {
                Some(Self::List(own)) => own,
                _ => &Vec::new(),
            };
            let mut own = own.iter().peekable();
            let param = |place: i64, offset: i64| values[(place - 1 + offset) as usize].int();
            let refunds = policies
                .iter()
                .filter(|[.., mode]| op.int() == ADJUST && *mode == 1);
            for _ in 0..count {
                let count = has_counts.then(|| own.next().expect("a count").int());
                own.by_ref()
                    .take(3 * refunds.clone().count())
                    .for_each(drop);
                while own.next_if(|own| matches!(own, Self::Text)).is_some() {}
                entries.push(Entry {
                    op: op.int(),
                    keys: keys.by_ref().take(policies.len()).collect(),
                    count: count.unwrap_or(1),
                    units: policies.iter().map(|[_, units, _]| *units).collect(),
                    is_refund: refunds.clone().count() > 0,
                    capacities: policies
                        .iter()
                        .map(|[place, ..]| param(*place, 4))
                        .collect(),
                    snapshot_lens: policies
                        .iter()
                        .map(|[place, ..]| param(*place, 2) as usize)
                        .collect(),
                });
            }
        }
        entries
    }
}

#[derive(Clone)]
struct ScriptedWire(Arc<Mutex<Script>>);

impl Wire for ScriptedWire {
    type Connection = usize;

    fn connect(
        &self,
        _: &Server,
        within: Duration,
    ) -> impl Future<Output = Result<usize, StoreError>> + Send + use<> {
        let script = self.0.clone();
        async move {
            let (connect, connection) = {
                let mut script = lock(&script);
                script.connects.push(Instant::now());
                (script.connect, script.connects.len())
            };
            match connect {
                Connect::Opens => Ok(connection),
                Connect::OpensAfter(time) => {
                    sleep(time).await;
                    Ok(connection)
                }
                Connect::Refused => Err(StoreError::connection("refused").sent(false)),
                Connect::Hangs => {
                    sleep(within).await;
                    Err(StoreError::timeout().sent(false))
                }
            }
        }
    }

    fn call(
        &self,
        connection: &usize,
        cmd: Cmd,
        _: bool,
    ) -> impl Future<Output = Result<Value, CallError>> + Send + use<> {
        let (script, connection) = (self.0.clone(), *connection);
        async move {
            let (position, reply) = lock(&script).take(&script, connection, &cmd)?;
            let (reply, fate) = reply.await.map_err(|_| CallError::Aborted)?;
            lock(&script).calls[position].fate = fate;
            reply
        }
    }
}

/// A store on a scripted server, with a policy.
struct Scene {
    store: RedisStore,
    limit: LimitHandle,
    script: Arc<Mutex<Script>>,
    /// Most polls of the actor at one instant.
    polls: Arc<AtomicUsize>,
}

/// Runs the actor, and ends it by a panic if it is polled without end at one instant.
async fn count_polls(actor: impl Future<Output = ()>, polls: Arc<AtomicUsize>) {
    let mut actor = pin!(actor);
    let (mut last, mut count) = (Instant::now(), 0);
    poll_fn(|cx| {
        let now = Instant::now();
        count = if now == last { count + 1 } else { 1 };
        last = now;
        polls.fetch_max(count, Ordering::Relaxed);
        assert!(count < MAX_POLLS, "the actor does not wait");
        actor.as_mut().poll(cx)
    })
    .await;
}

impl Drop for Scene {
    fn drop(&mut self) {
        let polls = self.polls.load(Ordering::Relaxed);
        assert!(
            polls < MAX_POLLS || thread::panicking(),
            "the actor did not wait"
        );
    }
}

impl Scene {
    /// A server that replies at once.
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(set: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder) -> Self {
        let builder = RedisStore::builder()
            .url("redis://127.0.0.1:1")
            .timeout(TIMEOUT)
            .overrides(false)
            .rejection_cache_staleness(Duration::ZERO)
            .runtime(Handle::current());
        let store = set(builder).build().expect("a store");
        let script = Arc::new(Mutex::new(Script {
            connect: Connect::Opens,
            answer: Box::new(|_| Answer::Reply(Duration::ZERO)),
            connects: Vec::new(),
            calls: Vec::new(),
            pending: BTreeMap::new(),
            broken: HashSet::new(),
            used: HashMap::new(),
        }));
        let io = &store.inner.io;
        let servers = lock(&io.servers).take().expect("not started yet");
        let actor = Actor::new(io.clone(), servers, ScriptedWire(script.clone()));
        let polls = Arc::<AtomicUsize>::default();
        tokio::spawn(count_polls(actor.run(), polls.clone()));
        io.is_started.store(true, Ordering::Release);
        let limit = register(&store, "requests", Gcra, "1000000/day");
        Self {
            store,
            limit,
            script,
            polls,
        }
    }

    /// Has all further calls answered by a rule.
    fn answer(&self, rule: impl FnMut(&SentCall) -> Answer + Send + 'static) {
        lock(&self.script).answer = Box::new(rule);
    }

    /// Has all further calls answered so.
    fn answer_all(&self, answer: Answer) {
        self.answer(move |_| answer);
    }

    fn connect(&self, connect: Connect) {
        lock(&self.script).connect = connect;
    }

    /// Hands over the reply to a call.
    fn release(&self, position: usize) {
        lock(&self.script).release(position);
    }

    fn break_connection(&self, connection: usize) {
        lock(&self.script).break_connection(connection);
    }

    /// The calls so far.
    fn calls(&self) -> Vec<SentCall> {
        lock(&self.script).calls.clone()
    }

    /// The calls so far that were batches.
    fn batches(&self) -> Vec<SentCall> {
        let mut calls = self.calls();
        calls.retain(SentCall::is_batch);
        calls
    }

    /// The calls without a reply that the store still waits for.
    fn waiting_calls(&self) -> Vec<usize> {
        let script = lock(&self.script);
        let pending = script.pending.iter();
        let waiting = pending.filter(|(_, call)| !call.sender.is_closed());
        waiting.map(|(position, _)| *position).collect()
    }

    /// When each connection was begun.
    fn connects(&self) -> Vec<Instant> {
        lock(&self.script).connects.clone()
    }

    /// The units in use, of all keys.
    fn used(&self) -> i64 {
        lock(&self.script).used.values().sum()
    }

    fn counter(&self, key: u32) -> CounterOp<'_> {
        CounterOp::new(&self.limit, key_of(key))
    }

    /// Pushes a request for a unit.
    fn push(&self, key: u32) -> StoreResponse {
        self.store.execute(Op::Acquire(1), &[self.counter(key)])
    }

    /// Sends a request for a unit, and awaits the result.
    async fn request(&self, key: u32) -> Result<OpResult, StoreError> {
        self.push(key).result().await
    }

    /// Has a task await the response to a request, and how long that takes.
    fn spawn(&self, key: u32) -> JoinHandle<(Duration, Result<OpResult, StoreError>)> {
        timed(self.push(key))
    }

    /// Refunds a unit, without a waiter.
    fn refund(&self, key: u32) {
        let counter = self.counter(key).with_receipt(receipt());
        self.store.execute_detached(Op::Adjust, &[counter], None);
    }

    /// Has the circuit breaker opened.
    async fn open_breaker(&self) {
        self.answer_all(Answer::Error("BUSY a script runs", Duration::ZERO));
        for key in 0..3 {
            self.request(key).await.expect_err("busy");
        }
        assert!(self.is_open(), "the circuit breaker is closed");
    }

    fn is_open(&self) -> bool {
        self.store.inner.io.check_breaker(0).is_err()
    }
}

fn timed(response: StoreResponse) -> JoinHandle<(Duration, Result<OpResult, StoreError>)> {
    let begun = Instant::now();
    tokio::spawn(async move {
        let result = response.result().await;
        (begun.elapsed(), result)
    })
}

fn register(store: &RedisStore, policy: &str, strategy: impl Strategy, quota: &str) -> LimitHandle {
    let quota = quota.parse().expect("a quota");
    let rule = strategy.bind(&quota, &Terms::default()).expect("a rule");
    store.register(policy, rule).expect("a limit")
}

fn key_of(key: u32) -> Key {
    Key::new(format!("k{key}"))
}

fn receipt() -> ChargeReceipt {
    ChargeReceipt::new(Timestamp::from_micros(1_790_000_000_000_000), 1)
}

/// Has the store do all that it can do by now.
async fn settle() {
    for _ in 0..64 {
        yield_now().await;
    }
}
