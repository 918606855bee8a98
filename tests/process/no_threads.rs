//! A process that can start no thread: the store is probed by the application's own runtime.

use std::{env, process::Command};

use tollgate_tests::{child, prelude::*};

const URL: &str = "TOLLGATE_OUTAGE_URL";
const SERVER: &str = "TOLLGATE_OUTAGE_SERVER";

/// More than the addresses of a process, so that no thread gets its stack.
const STACK: u64 = 1 << 47;

/// In a process that [`assert_passes`] has started: a limiter on its server, and the number of that server's process.
pub(super) fn scene() -> Option<(Limiter, String)> {
    let (url, server) = (env::var(URL).ok()?, env::var(SERVER).ok()?);
    let policy = Policy::new("p", quota("1000000/day")).strategy(FixedWindow);
    let store = RedisStore::builder().url(url).timeout(ms(500));
    let store = store.rejection_cache_staleness(Duration::ZERO);
    let limiter = Limiter::builder().store(store.built());
    let limiter = limiter.policy(policy).on_store_error(OnStoreError::Reject);
    Some((limiter.built(), server))
}

fn is_open(decision: &Decision) -> bool {
    store_error(decision).code() == "circuit_open"
}

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[test]
fn child_process() {
    let Some((limiter, server)) = scene() else {
        return;
    };
    assert!(thread::Builder::new().spawn(|| {}).is_err(), "it can");
    let (log, start) = (Log::default(), Instant::now());
    let _guard = log.errors();
    outage(&limiter, &server);
    log.throttled("background thread could not be started", start);
}

/// Sends requests from a current-thread runtime, while the server is stopped, and after it goes on.
pub(super) fn outage(limiter: &Limiter, server: &str) {
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, server]).status();
        assert!(sent.expect("kill").success(), "{name}");
    };
    let runtime = current_thread();
    runtime.block_on(async {
        let counts = async || {
            let decision = limiter.check(Key::global()).await;
            decision.source() == DecisionSource::Store
        };
        until("the store counts", counts).await;
        signal("-STOP");
        until("the breaker opens", async || {
            let decision = limiter.check(Key::global()).await;
            assert!(!decision.is_admitted(), "{decision:?}");
            is_open(&decision)
        })
        .await;
        signal("-CONT");
        until("the store counts again", counts).await;
    });
}

#[test]
fn without_a_background_thread_a_silent_server_opens_the_breaker_and_one_that_answers_closes_it() {
    let mut child = child::test(module_path!(), "child_process");
    assert_passes(child.env("RUST_MIN_STACK", STACK.to_string()));
}

/// Asserts that a test passes, in a process of its own that has a server to stop.
pub(super) fn assert_passes(child: &mut Command) {
    let server = Server::start();
    let pid = server.pid().expect("it runs");
    let child = child
        .arg("--test-threads=1")
        .env(URL, server.url())
        .env(SERVER, pid.to_string())
        .output();
    let child = child.expect("a process");
    // The child may have failed before.
    server.resume();
    let [text, errors] = [&child.stdout, &child.stderr].map(|it| String::from_utf8_lossy(it));
    let has_passed = child.status.success() && text.contains("1 passed");
    assert!(has_passed, "{}\n{text}{errors}", child.status);
}
