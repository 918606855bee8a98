//! Exact across processes.

use tollgate_tests::{prelude::*, until::TEST_TIMEOUT};

use crate::outgoing::support::*;

const URL: &str = "TOLLGATE_TEST_URL";

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[tokio::test]
async fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    let store = RedisStore::builder().url(url).timeout(TEST_TIMEOUT);
    let quota = [window("often", "40/50ms"), window("seldom", "100/month")];
    let limiter = limiter_on(store.built(), quota);
    let mut waiting = JoinSet::new();
    for _ in 0..80 {
        let limiter = limiter.clone();
        waiting.spawn(async move {
            // Longer than the one period, and shorter than the other.
            limiter.wait(KEY, TEST_TIMEOUT).await.is_ok()
        });
    }
    let turns = waiting.join_all().await;
    let admitted = turns.into_iter().filter(|admitted| *admitted).count();
    println!("admitted={admitted}.");
}

#[test]
fn two_waiting_processes_are_admitted_exactly_the_quota_together() {
    let server = Server::start();
    let processes = [0, 1].map(|_| {
        tollgate_tests::child::test(module_path!(), "child_process")
            .env(URL, server.url())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process")
    });
    let admitted = processes.map(|process| {
        let output = process.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let (_, rest) = text.split_once("admitted=").expect("a count");
        let (count, _) = rest.split_once('.').expect("its end");
        count.parse::<u64>().expect("a number")
    });
    assert_eq!(admitted.iter().sum::<u64>(), 100, "{admitted:?}");
    assert_eq!(server.immortal_keys(), [""; 0]);
}
