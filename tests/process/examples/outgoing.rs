//! The example that limits what goes out.

use std::sync::mpsc;

use tollgate_tests::{
    example::{Example, Stage},
    prelude::*,
};

/// What the example logs for each of the upstream's 429 responses.
const PAUSED: &str = "the upstream answers 429";

/// Twelve requests at once, at an upstream that answers 429 to some of the first. All are served.
#[test]
fn outgoing_pauses_all_calls_when_its_upstream_responds_429_and_loses_none() {
    let stage = Stage::in_process();
    // A day, so that none waits for too long however much time passes before the program sees it.
    let example = stage.start("outgoing", &[("BUSY", "4"), ("TIMEOUT", "86400")]);
    let start = stage.clock.micros();
    let call = || {
        let response = example.get("/", &[]);
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(response.body, "the upstream says hello\n");
    };
    thread::scope(|scope| {
        let calls = [(); 12].map(|()| scope.spawn(call));
        while !calls.iter().all(|call| call.is_finished()) {
            stage.clock.advance(ms(10));
            example.wake();
            thread::sleep(ms(1));
        }
    });
    let elapsed = Duration::from_micros(stage.clock.micros() - start);
    // Nothing is sent for a second after each.
    assert!(elapsed >= secs(3), "{elapsed:?}");
    let start = Instant::now();
    while example.output().matches(PAUSED).count() < 3 {
        assert!(start.elapsed() < TEST_TIMEOUT, "{}", example.output());
        thread::sleep(ms(5));
    }
    let pauses = example.output().matches(PAUSED).count();
    assert!((3..=4).contains(&pauses), "of 15 or 16 calls: {pauses}");
}

#[test]
fn outgoing_shares_its_five_calls_with_another_process_and_rejects_what_would_wait_for_too_long() {
    let stage = Stage::on_redis();
    let examples = [(); 2].map(|()| stage.start("outgoing", &[("TIMEOUT", "0")]));
    let (sender, responses) = mpsc::channel();
    thread::scope(|scope| {
        for example in &examples {
            let sender = sender.clone();
            scope.spawn(move || sender.send(example.get("/", &[])));
        }
        // The upstream takes 300 ms, and no time passes: the call that is admitted has no response yet.
        let rejected = responses.recv_timeout(TEST_TIMEOUT).expect("a response");
        assert_eq!(rejected.status, 503);
        assert_eq!(rejected.field("retry-after"), Some("1"));
        let text = r#"quota exceeded: "upstream""#;
        assert!(rejected.body.starts_with(text), "{rejected:?}");
        let served = loop {
            stage.clock.advance(ms(300));
            examples.iter().for_each(Example::wake);
            if let Ok(served) = responses.recv_timeout(ms(10)) {
                break served;
            }
        };
        assert_eq!(served.status, 200, "{served:?}");
    });
    assert_eq!(stage.server().immortal_keys(), [""; 0]);
}
