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

const ACTIONS: [OnStoreError; 3] = [
    OnStoreError::Admit,
    OnStoreError::Reject,
    OnStoreError::LocalFallback(LocalFallback::shared_by(1)),
];

/// Others are among those of `memory http::entry_points::decisions`.
#[tokio::test]
async fn no_block_is_lifted_and_no_caller_listed_while_the_store_is_down() {
    for response in ACTIONS {
        let limiter = limiter(nowhere(), response);
        let [list, ban] = ["list", "ban"].map(|name| limiter.policy(name).expect(name));
        for (call, outcome) in [
            ("unblock", limiter.unblock(KEY).await.map(drop)),
            ("a policy's unblock", ban.unblock(KEY).await.map(drop)),
            ("callers", list.callers(KEY).await.map(drop)),
        ] {
            let has_failed = matches!(outcome, Err(CallError::Store(_)));
            assert!(has_failed, "{call} with {response:?}: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn charges_refunds_and_settlements_report_that_the_store_is_down() {
    for response in ACTIONS {
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
