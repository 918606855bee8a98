//! Exact across processes.

use tollgate_tests::prelude::*;

use crate::store::support::*;

const URL: &str = "TOLLGATE_TEST_URL";
const REQUESTS: u64 = 5_000;

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[test]
fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for strategy in TWO {
        let policy = strategy.policy("p", "1000/month");
        let limiters = [limiter(store_at(url.clone()), [policy])];
        let admitted = runtime.block_on(hammer(&limiters, "key", 32, REQUESTS));
        println!("admitted={admitted}");
    }
}

#[test]
fn two_processes_admit_exactly_the_quota_together() {
    let server = Server::start();
    let processes = [0, 1].map(|_| {
        tollgate_tests::child::test(module_path!(), "child_process")
            .env(URL, server.url())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process")
    });
    let admitted: Vec<Vec<u64>> = processes
        .map(|process| {
            let output = process.wait_with_output().expect("its output");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}");
            let counts = text.split("admitted=").skip(1).map(|rest| {
                let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
                digits.unwrap_or_default().parse().expect("a number")
            });
            counts.collect()
        })
        .into();
    for (index, strategy) in TWO.into_iter().enumerate() {
        let counts: Vec<_> = admitted.iter().map(|counts| counts[index]).collect();
        let sum: u64 = counts.iter().sum();
        assert_eq!(sum, 1_000, "{strategy:?}: {counts:?}");
    }
    assert_eq!(server.immortal_keys(), [""; 0]);
}
