//! A process that stands still most of the time, with all of its threads, finds out that its server is silent.

use crate::faults::support::*;

const URL: &str = "TOLLGATE_STOPPED_URL";

/// Runs as a process of its own, below, until its circuit breaker opens. It does nothing in a plain run of the tests.
#[tokio::test]
async fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    let store = builder(url).timeout(secs(1)).built();
    let limiter = rejecting(store, 1_000_000);
    opened(&limiter).await;
}

/// Each probe is late, and so is its repetition.
#[test]
fn a_silent_server_is_found_out_by_a_process_that_is_stopped_for_most_of_each_second() {
    let server = Server::start();
    let child = tollgate_tests::child::test(module_path!(), "child_process")
        .env(URL, server.url())
        .stdout(Stdio::null())
        .spawn();
    let (mut child, start) = (child.expect("a process"), Instant::now());
    while server.calls("evalsha") == 0 {
        assert!(start.elapsed() < TEST_TIMEOUT, "it does not connect");
        thread::sleep(ms(2));
    }
    server.pause();
    let ended = loop {
        if let Some(ended) = child.try_wait().expect("a process") {
            break ended;
        }
        if start.elapsed() >= TEST_TIMEOUT {
            let _ = child.kill();
            panic!("the breaker does not open");
        }
        testkit::signal(child.id(), "STOP");
        thread::sleep(ms(900));
        testkit::signal(child.id(), "CONT");
        thread::sleep(ms(100));
    };
    assert!(ended.success(), "{ended}");
}
