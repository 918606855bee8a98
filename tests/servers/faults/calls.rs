//! Calls other than a request's check report that the store is down, whatever is configured for requests.

use crate::faults::support::*;
use tollgate::limiter::SettleError;

/// A limiter of every kind of policy that a call may be about.
fn limiter(store: RedisStore, response: OnStoreError) -> Limiter {
    let minute = Quota::requests(5).per_minute();
    let limiter = Limiter::builder().store(store);
    let limiter = limiter
        .policy(policy(100))
        .policy(Policy::new("list", minute).strategy(ListWindow))
        .policy(Policy::new("ban", minute).strategy(Ban::for_duration(secs(60))));
    limiter.on_store_error(response).built()
}

fn actions() -> [OnStoreError; 3] {
    [
        OnStoreError::Admit,
        OnStoreError::Reject,
        LocalFallback::shared_by(1).into(),
    ]
}

#[tokio::test]
async fn no_direct_call_succeeds_while_the_store_is_down() {
    for response in actions() {
        let limiter = limiter(nowhere(), response);
        let [p, list, ban] = ["p", "list", "ban"].map(|name| limiter.policy(name).expect(name));
        let minute = secs(60);
        let calls = [
            ("peek", limiter.peek(KEY).await.map(drop)),
            ("reset", limiter.reset(KEY).await.map(drop)),
            ("charge", limiter.charge(KEY, 1).await.map(drop)),
            ("block", limiter.block(KEY, minute).await),
            ("unblock", limiter.unblock(KEY).await.map(drop)),
            ("a policy's peek", p.peek(KEY).await.map(drop)),
            ("a policy's reset", p.reset(KEY).await.map(drop)),
            ("a policy's charge", p.charge(KEY, 1).await.map(drop)),
            ("credit", p.credit(KEY, 1).await.map(drop)),
            ("a policy's block", ban.block(KEY, minute).await),
            ("a policy's unblock", ban.unblock(KEY).await.map(drop)),
            ("callers", list.callers(KEY).await.map(drop)),
        ];
        for (call, outcome) in calls {
            assert!(
                matches!(outcome, Err(CallError::Store(_))),
                "{call} with {response:?}: {outcome:?}"
            );
        }
        let admitted = limiter.check(KEY).await.is_admitted();
        assert_eq!(admitted, response != OnStoreError::Reject, "{response:?}");
    }
}

#[tokio::test]
async fn charges_refunds_and_settlements_report_that_the_store_is_down() {
    for response in actions() {
        let server = Server::start();
        let limiter = limiter(store(&server), response);
        let admission = limiter.admit(KEY).cost(3).await.expect("admitted");
        assert_eq!(admission.remaining("p"), Some(97));
        server.kill();
        let p = admission.policy("p").expect("a policy");
        let down = |error: StoreError| !error.is_misconfiguration();
        assert!(down(p.charge(1).await.expect_err("it is down")));
        assert!(down(p.refund(1).await.expect_err("it is down")));
        assert!(down(p.settle(9).await.expect_err("it is down")));
        let settled = admission.settle_each([("p", 20), ("list", 2)]).await;
        match settled.expect_err("it is down") {
            SettleError::Store { settled, error, .. } => assert!(settled.is_empty() && down(error)),
            other => panic!("{other}"),
        }
        let mut decisions = admission.decisions();
        assert!(down(decisions[0].refund(1).await.expect_err("it is down")));
    }
}
