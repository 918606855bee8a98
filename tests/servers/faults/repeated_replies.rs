//! A network that sends a reply twice: each that follows on the connection would be taken for the reply to another request.

use crate::faults::support::*;

/// The store's error in a rejection.
#[track_caller]
fn error(decision: &Decision) -> &StoreError {
    match decision.kind() {
        DecisionKind::StoreFailed(error) => error,
        _ => panic!("{decision:?}"),
    }
}

#[tokio::test]
async fn a_repeated_reply_decides_no_other_request() {
    for policy in [policy as fn(u64) -> Policy, permits] {
        let (server, network) = network();
        // The version of overrides is read over a connection of its own.
        let one = builder(url(network.addr())).max_overrides(0).connections(1);
        let one = one.built();
        let limiter = under(policy(1), one, OnStoreError::Reject);
        let other = under(policy(1), store(&server), OnStoreError::Reject);
        let check = async |limiter: &Limiter, key| limiter.check(Key::new(key)).await;
        let used = check(&other, "used").await;
        assert!(used.is_admitted());
        let free = check(&limiter, "free").await;
        assert!(free.is_admitted());
        network.repeat();
        let garbled = check(&limiter, "used").await;
        let StoreError::Server { code, message, .. } = error(&garbled) else {
            panic!("{garbled:?}");
        };
        assert_eq!(&**code, "GARBLED", "{message}");
        // Over a new connection.
        assert!(matches!(
            check(&limiter, "used").await.kind(),
            DecisionKind::Rejected
        ));
        assert!(check(&limiter, "new").await.is_admitted());
    }
}
