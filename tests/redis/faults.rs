//! A server that is gone, silent, full or unwilling: nobody hangs, nothing is half charged, and service resumes.

use std::{
    collections::BTreeSet,
    future::IntoFuture,
    time::{Duration, Instant},
};

use http::{Request, StatusCode};
use testkit::Server;
use tollgate::{
    Key, Limiter, OnStoreError, RateLimitLayer, RedisStore, Ruling, Source, StoreError, extract,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{
    By, EACH, PAIRS, contents, counted, fault, hello, limiter, pair, single, store, store_at,
    until, used,
};

const DEADLINE: Duration = Duration::from_millis(200);

/// On a busy machine. What hangs, hangs for longer.
const SLACK: Duration = Duration::from_secs(5);

/// Without a breaker: each request finds out for itself.
fn impatient(server: &Server, answer: OnStoreError) -> Limiter {
    let store = RedisStore::builder().url(server.url()).deadline(DEADLINE);
    let store = store.no_breaker();
    Limiter::builder()
        .store(store.build().expect("a store"))
        .policy(By::Gcra.policy("p", "1000000/month"))
        .on_store_error(answer)
        .build()
        .expect("a limiter")
}

async fn resumed(limiter: &Limiter) {
    // Each lane may have to find out for itself.
    for key in 0..16 {
        resumed_on(limiter, &key.to_string()).await;
    }
}

async fn resumed_on(limiter: &Limiter, key: &str) {
    until("the store counts again", async || {
        limiter.check(Key::new(key)).await.source() == Source::Store
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_redis_is_answered_for_as_told_and_taken_up_again_when_it_is_back() {
    let server = Server::start();
    let admitting = impatient(&server, OnStoreError::Admit);
    let refusing = impatient(&server, OnStoreError::Refuse);
    for _ in 0..2 {
        resumed(&admitting).await;
        resumed(&refusing).await;
        server.kill();
        for key in 0..16 {
            let key = Key::new(key.to_string());
            let decision = admitting.check(key).await;
            assert!(decision.is_admitted(), "{decision:?}");
            assert_eq!(decision.source(), Source::Fallback);
            assert_eq!(decision.verdicts().len(), 0);

            let decision = refusing.check(key).await;
            assert_eq!(decision.source(), Source::Fallback);
            let error = fault(&decision);
            assert!(matches!(error, StoreError::Connection(_)), "{error:?}");
        }
        server.restart();
    }
    resumed(&admitting).await;
    resumed(&refusing).await;
    // What was admitted without being counted was charged nowhere: the second restart emptied the server.
    assert_eq!(server.immortal_keys(), [""; 0]);
}

/// One failed request is what it takes to see that a connection is dead; the next one has a new connection.
#[tokio::test]
async fn a_restarted_redis_costs_a_key_one_request_at_most() {
    let server = Server::start();
    let limiter = single(&server, By::Gcra, "100/h");
    for _ in 0..3 {
        assert!(counted(&limiter.check(Key::new("key")).await));
        server.restart();
        let first = limiter.check(Key::new("key")).await;
        if first.source() != Source::Store {
            assert!(matches!(fault(&first), StoreError::Connection(_)));
        }
        assert!(counted(&limiter.check(Key::new("key")).await));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_dies_amid_traffic_leaves_no_request_without_an_answer() {
    let server = Server::start();
    let limiter = impatient(&server, OnStoreError::Refuse);
    resumed(&limiter).await;
    let tasks: Vec<_> = (0..32)
        .map(|task: u64| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut slowest = Duration::ZERO;
                let (mut counted, mut faults) = (0, 0);
                while counted < 100 || faults == 0 {
                    let start = Instant::now();
                    let decision = limiter.check(Key::new(task.to_string())).await;
                    slowest = slowest.max(start.elapsed());
                    match decision.source() {
                        Source::Store => counted += 1,
                        _ => faults += 1,
                    }
                }
                slowest
            })
        })
        .collect();
    tokio::task::block_in_place(|| {
        server.kill();
        // Long enough for each task to meet it: they go on until they did.
        while tasks.iter().any(|task| task.is_finished()) {
            std::thread::yield_now();
        }
    });
    tokio::time::sleep(DEADLINE).await;
    server.restart();
    for task in tasks {
        let slowest = task.await.expect("a task ends well");
        assert!(slowest < DEADLINE + SLACK, "{slowest:?}");
    }
}

/// A charge whose answer was lost stays charged; nothing else goes missing, and nobody gets more than the quota.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_amid_traffic_admit_nobody_past_the_quota() {
    let server = Server::start();
    let limiters = [0, 1].map(|_| single(&server, By::Gcra, "1000/month"));
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let limiter = limiters[task % 2].clone();
            tokio::spawn(async move {
                let (mut admitted, mut faults) = (0, 0);
                for _ in 0..200 {
                    let decision = limiter.check(Key::new("key")).await;
                    match decision.source() {
                        Source::Store => admitted += u64::from(decision.is_admitted()),
                        _ => faults += 1,
                    }
                }
                (admitted, faults)
            })
        })
        .collect();
    for _ in 0..20 {
        tokio::task::block_in_place(|| {
            server
                .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
                .ok();
        });
    }
    let (mut admitted, mut faults) = (0, 0);
    for task in tasks {
        let (more, failed) = task.await.expect("an answer");
        (admitted, faults) = (admitted + more, faults + failed);
    }
    resumed_on(&limiters[0], "key").await;
    let [used] = used(&limiters[0], Key::new("key")).await[..] else {
        panic!("one policy")
    };
    assert!(
        admitted <= used && used <= 1_000,
        "{admitted} admitted, {used} used"
    );
    assert!(
        used <= admitted + faults,
        "{admitted} admitted, {faults} failed, {used} used"
    );
}

/// A server that was made a replica behind its clients' backs refuses to write, until they ask elsewhere or it is a
/// master again.
#[tokio::test]
async fn a_master_that_was_made_a_replica_charges_nothing_and_serves_again_as_a_master() {
    let server = Server::start();
    for order in PAIRS {
        let both = pair(&server, order, "10/h");
        server.flush();
        assert!(counted(&both.check(Key::new("key")).await));
        let nowhere = testkit::free_port().to_string();
        server.command(&["REPLICAOF", "127.0.0.1", &nowhere]).ok();
        let error = fault(&both.check(Key::new("key")).await);
        assert!(
            matches!(&error, StoreError::Server { code, .. } if &**code == "READONLY"),
            "{order:?}: {error:?}"
        );
        assert_eq!(used(&both, Key::new("key")).await, [1, 1]);
        server.command(&["REPLICAOF", "NO", "ONE"]).ok();
        assert!(counted(&both.check(Key::new("key")).await));
        assert_eq!(used(&both, Key::new("key")).await, [2, 2]);
    }
}

#[tokio::test]
async fn behind_a_layer_a_fault_is_a_503_or_no_matter_as_told() {
    let server = Server::start();
    server.kill();
    for (answer, status) in [
        (OnStoreError::Refuse, StatusCode::SERVICE_UNAVAILABLE),
        (OnStoreError::Admit, StatusCode::OK),
    ] {
        let policy = By::Gcra.policy("p", "10/h").key(extract::global());
        let layer = RateLimitLayer::builder()
            .store(store(&server))
            .policy(policy)
            .on_store_error(answer);
        let service = layer.build().expect("a layer").layer(service_fn(hello));
        let Ok(response) = service.oneshot(Request::new(())).await;
        assert_eq!(response.status(), status);
    }
}

/// Two hundred requests, while the server says nothing.
async fn all_answered(limiter: &Limiter) {
    let start = Instant::now();
    let tasks: Vec<_> = (0..200)
        .map(|task: u64| {
            let key = Key::new((task % 50).to_string());
            tokio::spawn(limiter.check(key).into_future())
        })
        .collect();
    for task in tasks {
        let decision = task.await.expect("an answer");
        assert_eq!(decision.source(), Source::Fallback, "{decision:?}");
        assert!(matches!(fault(&decision), StoreError::Timeout));
    }
    let took = start.elapsed();
    assert!((DEADLINE..DEADLINE + SLACK).contains(&took), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_accepts_and_never_answers_holds_nobody_past_the_deadline() {
    let server = Server::start();
    let limiter = impatient(&server, OnStoreError::Refuse);
    // First it hangs before there is a connection, then with all connections made.
    for _ in 0..2 {
        server.pause();
        all_answered(&limiter).await;
        all_answered(&limiter).await;
        server.resume();
        resumed(&limiter).await;
    }
}

/// Each request's deadline counts from its own arrival, not from its trip's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_later_waits_no_longer_for_a_silent_redis() {
    let server = Server::start();
    let limiter = impatient(&server, OnStoreError::Refuse);
    resumed(&limiter).await;
    server.pause();
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let limiter = limiter.clone();
        tasks.push(tokio::spawn(async move {
            let start = Instant::now();
            let decision = limiter.check(Key::new("key")).await;
            assert!(matches!(fault(&decision), StoreError::Timeout));
            start.elapsed()
        }));
        tokio::time::sleep(DEADLINE / 20).await;
    }
    for task in tasks {
        let took = task.await.expect("an answer");
        assert!((DEADLINE..DEADLINE + SLACK).contains(&took), "{took:?}");
    }
    server.resume();
}

/// Fills a server to well beyond what it may use, so that no buffer that is freed makes room.
fn fill(server: &Server) {
    let filler = "x".repeat(1_000_000);
    server.command(&["SET", "filler", &filler]).ok();
    let used = server.info("memory", "used_memory").expect("a field");
    let most = used.parse::<u64>().expect("bytes") - 500_000;
    server
        .command(&["CONFIG", "SET", "maxmemory", &most.to_string()])
        .ok();
    let error = server.command(&["SET", "more", "1"]).error();
    assert!(error.starts_with("OOM"), "{error}");
}

fn free(server: &Server) {
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).ok();
    server.command(&["DEL", "filler"]).ok();
}

#[tokio::test]
async fn a_full_redis_charges_no_policy_for_a_decision_that_failed() {
    let server = Server::builder()
        .arg("maxmemory-policy", "noeviction")
        .start();
    for order in PAIRS {
        server.flush();
        let both = pair(&server, order, "10/h");
        let alone = single(&server, order[0], "10/h");
        for key in ["begun", "gone"] {
            assert!(counted(&both.check(Key::new(key)).cost(3).await));
        }
        assert!(counted(&alone.check(Key::new("spent")).cost(10).await));
        let begun: Vec<_> = server.keys();
        let before: Vec<_> = begun.iter().map(|key| contents(&server, key)).collect();
        fill(&server);

        let (begins, goes_on, other, spent, seen) = tokio::join!(
            both.check(Key::new("new")),
            both.check(Key::new("begun")).cost(2),
            alone.check(Key::new("another")),
            alone.check(Key::new("spent")),
            both.peek(Key::new("begun")),
        );
        for decision in [begins, goes_on, other] {
            let error = fault(&decision);
            assert!(
                matches!(&error, StoreError::Server { code, .. } if &**code == "OOM"),
                "{error:?}"
            );
        }
        // No memory is needed to refuse or to look.
        assert!(!counted(&spent) && counted(&seen));
        assert!(both.charge(Key::new("begun"), 1).await.source() == Source::Fallback);
        let after: Vec<_> = begun.iter().map(|key| contents(&server, key)).collect();
        assert_eq!(after, before, "{order:?}");

        // Whatever a trip frees, those after it may have; what they say is what was charged.
        let (reset, charged) = tokio::join!(
            both.reset(Key::new("gone")),
            both.check(Key::new("begun")).cost(2)
        );
        assert!(counted(&reset));
        let more = 2 * u64::from(charged.source() == Source::Store && charged.is_admitted());

        free(&server);
        assert_eq!(
            used(&both, Key::new("begun")).await,
            [3 + more; 2],
            "{order:?}"
        );
        assert_eq!(used(&both, Key::new("new")).await, [0, 0], "{order:?}");
        assert_eq!(used(&alone, Key::new("another")).await, [0], "{order:?}");
        assert!(
            counted(&both.check(Key::new("new")).await),
            "service goes on"
        );
        assert_eq!(server.immortal_keys(), [""; 0]);
    }
}

/// The commands that scripts use, and those that bring them to the server.
const COMMANDS: [&str; 16] = [
    "evalsha",
    "eval",
    "time",
    "get",
    "set",
    "pexpiretime",
    "pexpireat",
    "del",
    "exists",
    "lindex",
    "llen",
    "lrange",
    "lrem",
    "lset",
    "ltrim",
    "rpush",
];

/// Without these nothing can be counted by one strategy or another; without the others it can't always be given back,
/// mended or tidied up.
const NEEDED: [&str; 11] = [
    "eval",
    "evalsha",
    "exists",
    "get",
    "lindex",
    "llen",
    "pexpireat",
    "pexpiretime",
    "rpush",
    "set",
    "time",
];

/// Before 7.0 the end of a key is had by its time to live.
fn known_to<const N: usize>(server: &Server, commands: [&'static str; N]) -> [&'static str; N] {
    let old = server.version() < (7, 0);
    commands.map(|command| match command {
        "pexpiretime" if old => "pttl",
        other => other,
    })
}

#[tokio::test]
async fn a_user_without_one_of_the_commands_charges_nothing_by_a_decision_that_failed() {
    let server = Server::start();
    let mut needed = BTreeSet::new();
    for command in known_to(&server, COMMANDS) {
        for order in PAIRS {
            server.flush();
            server.command(&["SCRIPT", "FLUSH"]).ok();
            let all = pair(&server, order, "10/h");
            server.acl("gate", "secret", &format!("~* +@all -{command}"));
            let policies = [
                order[0].policy("first", "10/h"),
                order[1].policy("second", "10/h"),
            ];
            let lacking = limiter(store_at(server.url_as("gate", "secret")), policies);

            // One key is new, one has been charged before, by somebody who may.
            let mut expected = [0, 4];
            if command != "eval" {
                assert!(counted(&all.check(Key::new("begun")).cost(4).await));
            } else {
                // Elsewhere the script would be in the server's cache already.
                expected[1] = 0;
            }
            for _ in 0..3 {
                let (new, begun) = tokio::join!(
                    lacking.check(Key::new("new")),
                    lacking.check(Key::new("begun"))
                );
                for (decision, charged) in [new, begun].into_iter().zip(&mut expected) {
                    match decision.ruling() {
                        Ruling::Admitted => *charged += 1,
                        Ruling::Fault(StoreError::Server { code, message }) => {
                            needed.insert(command);
                            assert_eq!(&**code, "NOPERM", "without {command}: {message}");
                        }
                        other => panic!("without {command}: {other:?}"),
                    }
                }
            }
            for (key, expected) in ["new", "begun"].into_iter().zip(expected) {
                let used = used(&all, Key::new(key)).await;
                assert_eq!(used, [expected; 2], "{key} without {command}, {order:?}");
            }
            assert_eq!(server.immortal_keys(), [""; 0], "without {command}");

            server.acl("gate", "secret", "~* +@all");
            assert!(
                counted(&lacking.check(Key::new("new")).await),
                "service goes on"
            );
        }
    }
    assert_eq!(needed, known_to(&server, NEEDED).into());
}

/// The name stands in a user's rights: what isn't under the prefix is none of the layer's business.
#[tokio::test]
async fn a_user_needs_no_other_keys_than_those_under_the_prefix() {
    let server = Server::start();
    let commands = known_to(&server, COMMANDS)
        .map(|command| format!("+{command}"))
        .join(" ");
    server.acl(
        "gate",
        "secret",
        &format!("~tg:* +ping +unwatch +client {commands}"),
    );
    let store = store_at(server.url_as("gate", "secret"));
    let limiter = limiter(store, EACH.map(|by| by.policy(&format!("{by:?}"), "2/h")));
    for admitted in [true, true, false] {
        assert_eq!(counted(&limiter.check(Key::new("key")).await), admitted);
    }
    assert!(counted(&limiter.reset(Key::new("key")).await));
    assert!(counted(&limiter.check(Key::new("key")).await));
}
