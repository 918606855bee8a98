//! A process that was forked before its first request.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process,
};

use fork::{Fork, fork, waitpid};
use tollgate_tests::{child, prelude::*};

const URL: &str = "TOLLGATE_FORKED_URL";
const SERVER: &str = "TOLLGATE_FORKED_SERVER";

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[test]
fn child_process() {
    let (Ok(url), Ok(server)) = (env::var(URL), env::var(SERVER)) else {
        return;
    };
    let policy = Policy::new("p", quota("1000000/day")).strategy(FixedWindow);
    let store = RedisStore::builder().url(url).timeout(ms(500));
    let store = store.rejection_cache_staleness(Duration::ZERO);
    let limiter = Limiter::builder().store(store.built());
    let limiter = limiter.policy(policy).on_store_error(OnStoreError::Reject);
    let limiter = limiter.built();
    match fork().expect("another process") {
        Fork::Child => {
            // The harness of the tests is the parent's.
            let outage = catch_unwind(AssertUnwindSafe(|| outage(&limiter, &server)));
            process::exit(outage.is_err().into());
        }
        Fork::Parent(child) => assert_eq!(waitpid(child).expect("its status"), 0),
    }
}

/// Sends requests from a current-thread runtime, while the server is stopped, and after it goes on.
fn outage(limiter: &Limiter, server: &str) {
    let signal = |name: &str| testkit::signal(server.parse().expect("a process"), name);
    current_thread().block_on(async {
        let counts = async || {
            let decision = limiter.check(Key::global()).await;
            decision.source() == DecisionSource::Store
        };
        until("the store counts", counts).await;
        signal("STOP");
        until("the breaker opens", async || {
            let decision = limiter.check(Key::global()).await;
            assert!(!decision.is_admitted(), "{decision:?}");
            store_error(&decision).code() == "circuit_open"
        })
        .await;
        signal("CONT");
        until("the store counts again", counts).await;
    });
}

#[test]
fn in_a_process_that_was_forked_before_its_first_request_the_breaker_opens_and_closes() {
    let server = Server::start();
    let child = child::test(module_path!(), "child_process")
        .arg("--test-threads=1")
        .env(URL, server.url())
        .env(SERVER, server.pid().expect("it runs").to_string())
        .output();
    let child = child.expect("a process");
    // The child may have failed before.
    server.resume();
    let [text, errors] = [&child.stdout, &child.stderr].map(|it| String::from_utf8_lossy(it));
    let has_passed = child.status.success() && text.contains("1 passed");
    assert!(has_passed, "{}\n{text}{errors}", child.status);
}
