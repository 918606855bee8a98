//! A process that is forked before its first request.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process,
};

use fork::{Fork, fork, waitpid};
use tollgate_tests::child;

use super::no_threads::{assert_passes, outage, scene};

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[test]
fn child_process() {
    let Some((limiter, server)) = scene() else {
        return;
    };
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
    assert_passes(&mut child::test(module_path!(), "child_process"));
}
