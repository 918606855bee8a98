//! Calls without await while the store fails.

use crate::faults::support::*;
use tollgate_tests::bare_thread::on_bare_thread;

#[tokio::test]
async fn a_blocking_call_of_a_silent_server_ends_by_its_timeout() {
    let server = Server::start();
    let limiter = rejecting(hasty(server.url()), 100);
    resumed(&limiter).await;
    server.pause();
    let on_thread = limiter.clone();
    let call = move || on_bare_thread(move || on_thread.check(KEY).blocking());
    // By mistake also on the only thread of a runtime, which has used the store before.
    for decision in [call(), limiter.check(KEY).blocking()] {
        assert_eq!(store_error(&decision).code(), "timeout");
    }
}

#[test]
fn while_the_circuit_breaker_is_open_calls_are_decided_at_once_by_the_share() {
    on_bare_thread(|| {
        let store = builder(NOWHERE).circuit_breaker_threshold(1).built();
        let fallback = LocalFallback::shared_by(2);
        let limiter = under(policy(20), store, fallback);
        let first = limiter.check(Key::new("first")).blocking();
        assert_eq!(first.source(), DecisionSource::Fallback);
        let mut admitted = 0;
        for _ in 0..30 {
            let decision = limiter.check(KEY).now().expect("the breaker is open");
            assert_eq!(decision.source(), DecisionSource::Fallback);
            admitted += u64::from(decision.is_admitted());
        }
        assert_eq!(admitted, 10);
    });
}
