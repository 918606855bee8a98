//! The example that limits what goes out.

use std::{
    thread,
    time::{Duration, Instant},
};

use testkit::Server;

use crate::examples::process::Example;

/// Sends twelve requests at once, to one after the other; all are served, and in no less time than the quota takes.
fn twelve_at_once(examples: &[Example]) {
    let start = Instant::now();
    thread::scope(|scope| {
        let pending: Vec<_> = (0..12)
            .map(|n| scope.spawn(move || examples[n % examples.len()].get("/", &[])))
            .collect();
        for sent in pending {
            let response = sent.join().expect("a response");
            assert_eq!(response.status, 200, "{response:?}");
            assert_eq!(response.body, "the upstream says hello\n");
        }
    });
    // The first at once, and one every 200 ms; the last takes 300 ms. However busy the machine, it can't be quicker.
    let least = Duration::from_millis(11 * 200 + 300);
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}

const QUIET: (&str, &str) = ("BUSY", "0");

#[test]
fn outgoing_pauses_all_calls_when_its_upstream_responds_429_and_loses_none() {
    let server = Server::start();
    let url = server.url();
    let in_process = [("BUSY", "4"), ("TIMEOUT", "60")];
    let on_redis = [("BUSY", "4"), ("TIMEOUT", "60"), ("REDIS_URL", &url)];
    for variables in [&in_process[..], &on_redis] {
        let example = Example::start("outgoing", variables);
        let start = Instant::now();
        twelve_at_once(std::slice::from_ref(&example));
        let output = example.output();
        let pauses = output.matches("the upstream answers 429").count();
        assert!(
            (3..=4).contains(&pauses),
            "{pauses} of 15 or 16 calls: {output}"
        );
        // Nothing is sent for a second after each.
        assert!(
            start.elapsed() >= Duration::from_secs(3),
            "{:?}",
            start.elapsed()
        );
    }
}

#[test]
fn outgoing_calls_its_upstream_five_times_a_second_and_rejects_no_request_that_can_wait() {
    let example = Example::start("outgoing", &[QUIET]);
    twelve_at_once(&[example]);
}

#[test]
fn outgoing_shares_the_five_with_another_process_on_redis() {
    let server = Server::start();
    let url = server.url();
    let examples = [(); 2].map(|()| Example::start("outgoing", &[QUIET, ("REDIS_URL", &url)]));
    twelve_at_once(&examples);
    assert_eq!(server.immortal_keys(), [""; 0]);
}

#[test]
fn outgoing_rejects_requests_that_would_wait_for_too_long_with_a_retry_after() {
    let example = Example::start("outgoing", &[QUIET, ("TIMEOUT", "0")]);
    let responses: Vec<_> = thread::scope(|scope| {
        let pending: Vec<_> = (0..12)
            .map(|_| scope.spawn(|| example.get("/", &[])))
            .collect();
        let responses = pending.into_iter().map(|sent| sent.join());
        responses
            .map(|response| response.expect("a response"))
            .collect()
    });
    let (served, rejected): (Vec<_>, Vec<_>) = responses.iter().partition(|a| a.status == 200);
    assert!(!served.is_empty() && !rejected.is_empty(), "{responses:?}");
    for response in rejected {
        assert_eq!(response.status, 503);
        assert_eq!(response.field("retry-after"), Some("1"));
        assert!(
            response.body.starts_with(r#"quota exceeded: "upstream""#),
            "{response:?}"
        );
    }
}
