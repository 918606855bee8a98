//! A process that is forked before its first request.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process,
};

use fork::{Fork, fork, waitpid};
use testkit::Server;
use tollgate_tests::child;

use super::no_threads::{limiter, outage};

const URL: &str = "TOLLGATE_FORKED_URL";
const SERVER: &str = "TOLLGATE_FORKED_SERVER";

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[test]
fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    let server = env::var(SERVER).expect("a variable");
    let limiter = limiter(url);
    match fork().expect("another process") {
        Fork::Child => {
            // The harness of the tests is the parent's.
            let outage = catch_unwind(AssertUnwindSafe(|| outage(&limiter, &server)));
            process::exit(outage.is_err().into());
        }
        Fork::Parent(child) => assert_eq!(waitpid(child).expect("its status"), 0),
    }
}

#[test]
fn in_a_process_that_was_forked_before_its_first_request_the_breaker_opens_and_closes() {
    let server = Server::start();
    let pid = server.pid().expect("it runs");
    let child = child::test(module_path!(), "child_process")
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
