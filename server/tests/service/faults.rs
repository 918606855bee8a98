//! Two servers on one Redis and eight clients, while Redis or a server fails: never more than the quota is admitted, and the store has
//! all that was.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use testkit::Clock;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tollgate_server::proto::RateLimitResponse;
use tonic::Status;

use crate::{
    client::{Client, cost, descriptor, is_over, request},
    program::Program,
    scene::{self, START, TEST_TIMEOUT, until},
};

const CLIENTS: usize = 8;

/// After how long clients give up: servers may be stopped.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(250);

/// What each user may use in an hour: more than is asked for while something fails.
const QUOTA: u64 = 100_000;

/// What each tenant may use: more than is asked for.
const TENANT_QUOTA: u64 = 1_000_000_000;

/// Each request is charged to its user and its tenant, or to none.
fn document() -> String {
    format!(
        "
format: tollgate/v1
domain: test
descriptors:
  - key: user
    limits: [{{ quota: {QUOTA}/hour, strategy: calendar_window from_epoch }}]
  - key: tenant
    limits: [{{ quota: {TENANT_QUOTA}/hour, strategy: calendar_window from_epoch }}]
"
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Killed, and restarted with what it had.
    RedisKilled,
    /// Killed, and restarted with nothing.
    RedisEmptied,
    /// Stopped, and continued.
    RedisStopped,
    ServerKilled,
    ServerStopped,
    ServerTerminated,
}

struct Scene {
    redis: testkit::Server,
    servers: [Program; 2],
    /// Clients of the servers; of one that is restarted a new one.
    clients: Arc<[watch::Sender<Client>; 2]>,
}

/// What an answer says of the units that were asked for.
enum Answer {
    Admitted,
    Rejected,
    /// The store was not asked.
    Unsent,
    /// They may have been charged.
    Unknown,
}

/// What became of the units of one user.
#[derive(Default)]
struct Ledger {
    admitted: AtomicU64,
    unknown: AtomicU64,
    /// Requests that were not decided by the store.
    failures: AtomicU64,
    /// Whether what has failed works again.
    is_repaired: AtomicBool,
}

/// An append-only file: what has been answered outlives the process.
fn redis() -> testkit::Server {
    let redis = testkit::Server::builder().clock(&Clock::at(START));
    redis.arg("appendonly", "yes").start()
}

fn program(redis: &testkit::Server) -> Program {
    Program::start_as(
        scene::program(),
        &document(),
        redis,
        &["--redis-timeout", "100"],
    )
}

impl Scene {
    fn new() -> Self {
        let redis = redis();
        let servers = [program(&redis), program(&redis)];
        let clients = servers.each_ref().map(Program::client);
        Self {
            clients: Arc::new(clients.map(watch::Sender::new)),
            servers,
            redis,
        }
    }

    fn fail(&mut self, fault: Fault) {
        match fault {
            Fault::RedisKilled | Fault::RedisEmptied => self.redis.kill(),
            Fault::RedisStopped => self.redis.pause(),
            Fault::ServerKilled => self.servers[0].signal("KILL"),
            Fault::ServerStopped => self.servers[0].signal("STOP"),
            Fault::ServerTerminated => self.servers[0].signal("TERM"),
        }
    }

    fn repair(&mut self, fault: Fault) {
        match fault {
            Fault::RedisKilled => self.redis.restart(),
            Fault::RedisEmptied => {
                let file = self.redis.folder().join("appendonlydir");
                fs::remove_dir_all(file).expect("what it wrote is removed");
                self.redis.restart();
            }
            Fault::RedisStopped => self.redis.resume(),
            Fault::ServerStopped => self.servers[0].signal("CONT"),
            Fault::ServerKilled | Fault::ServerTerminated => {
                let restarted = program(&self.redis);
                self.clients[0].send_replace(restarted.client());
                self.servers[0] = restarted;
            }
        }
    }

    /// Clients use up the quota of a user while something fails and is repaired; then what they were answered is compared with the store.
    async fn survive(&mut self, fault: Fault) {
        let (name, ledger) = (format!("{fault:?}"), Arc::<Ledger>::default());
        let mut load = JoinSet::new();
        for client in 0..CLIENTS {
            let user = User {
                name: name.clone(),
                clients: self.clients.clone(),
                server: client % 2,
                ledger: ledger.clone(),
            };
            load.spawn(user.use_up());
        }
        let reached = |count: &AtomicU64, n| (count.load(SeqCst) >= n).then_some(());
        until("some are admitted", || reached(&ledger.admitted, 50)).await;
        self.fail(fault);
        until("requests fail", || reached(&ledger.failures, 8)).await;
        self.repair(fault);
        ledger.is_repaired.store(true, SeqCst);
        let used_up = timeout(TEST_TIMEOUT, load.join_all()).await;
        used_up.expect("all units are used up");

        let (admitted, unknown) = (ledger.admitted.load(SeqCst), ledger.unknown.load(SeqCst));
        let losses = u64::from(fault == Fault::RedisEmptied);
        assert!(
            admitted <= QUOTA * (1 + losses),
            "{name}: {admitted} admitted"
        );
        assert!(
            QUOTA <= admitted + unknown,
            "{name}: {admitted} + {unknown}"
        );
        let mut used = Vec::new();
        for client in &*self.clients {
            let client = client.borrow().clone();
            assert_eq!(self.left(&client, "user", &name).await, 0, "{name}");
            used.push(TENANT_QUOTA - self.left(&client, "tenant", &name).await);
        }
        // Since the loss; whatever was charged to one was charged to the other.
        assert_eq!(used, [QUOTA; 2], "{name}");
    }

    /// The units that are left, once the store answers.
    async fn left(&self, client: &Client, key: &str, name: &str) -> u64 {
        let left = async {
            loop {
                let peek = request([cost(descriptor([(key, name)]), 0)]);
                let answered = timeout(CLIENT_TIMEOUT, client.send(peek)).await;
                if let Ok(Ok(response)) = answered
                    && !is_over(&response)
                    && response.statuses[0].current_limit.is_some()
                {
                    return response.statuses[0].limit_remaining.into();
                }
            }
        };
        timeout(TEST_TIMEOUT, left).await.expect("an answer")
    }
}

/// A client that asks for units of a user.
struct User {
    name: String,
    clients: Arc<[watch::Sender<Client>; 2]>,
    server: usize,
    ledger: Arc<Ledger>,
}

impl User {
    /// Asks until all units are used and nothing fails any more.
    async fn use_up(self) {
        while !self.ledger.is_repaired.load(SeqCst) {
            self.ask(1).await;
        }
        for units in [997, 1] {
            while !self.ask(units).await {}
        }
    }

    /// Whether the units are rejected.
    async fn ask(&self, units: u64) -> bool {
        let descriptor = |key| cost(descriptor([(key, self.name.as_str())]), units);
        let request = request(["user", "tenant"].map(descriptor));
        let client = self.clients[self.server].borrow().clone();
        let answer = answer(timeout(CLIENT_TIMEOUT, client.send(request)).await);
        let ledger = &self.ledger;
        match answer {
            Answer::Admitted => drop(ledger.admitted.fetch_add(units, SeqCst)),
            Answer::Unknown => drop(ledger.unknown.fetch_add(units, SeqCst)),
            Answer::Rejected | Answer::Unsent => {}
        }
        if matches!(answer, Answer::Unknown | Answer::Unsent) {
            ledger.failures.fetch_add(1, SeqCst);
        }
        matches!(answer, Answer::Rejected)
    }
}

fn answer(
    result: Result<Result<RateLimitResponse, Status>, tokio::time::error::Elapsed>,
) -> Answer {
    match result {
        Ok(Ok(response)) if is_over(&response) => Answer::Rejected,
        Ok(Ok(_)) => Answer::Admitted,
        Ok(Err(status)) if status.message().contains("circuit breaker is open") => Answer::Unsent,
        // Of a server that is gone.
        Ok(Err(status)) if status.message().contains("connect error") => Answer::Unsent,
        Ok(Err(_)) | Err(_) => Answer::Unknown,
    }
}

#[tokio::test]
async fn while_a_server_or_redis_fails_no_more_than_the_quota_is_admitted_and_the_store_has_all_that_was()
 {
    let mut scene = Scene::new();
    for fault in [
        Fault::ServerKilled,
        Fault::ServerStopped,
        Fault::RedisKilled,
        Fault::ServerTerminated,
        Fault::RedisStopped,
        Fault::RedisEmptied,
    ] {
        scene.survive(fault).await;
    }
}
