//! A network that sends a reply twice: each that follows on the connection would be taken for the reply to another request.

use crate::faults::support::*;

#[tokio::test]
async fn a_repeated_reply_decides_no_other_request() {
    for policy in [policy as fn(u64) -> Policy, permits] {
        let (server, network) = network();
        // The version of overrides is read over a connection of its own.
        let one = builder(url(network.addr())).max_overrides(0).connections(1);
        let limiter = under(policy(1), one.built(), OnStoreError::Reject);
        let other = under(policy(1), store(&server), OnStoreError::Reject);
        let check = async |limiter: &Limiter, key| limiter.check(Key::new(key)).await;
        let used = check(&other, "used").await;
        let free = check(&limiter, "free").await;
        assert!(used.is_admitted() && free.is_admitted());
        network.repeat();
        let garbled = check(&limiter, "used").await;
        assert_eq!(store_error(&garbled).code(), "garbled");
        // Over a new connection.
        assert!(!admitted_by_store(&check(&limiter, "used").await));
        assert!(check(&limiter, "new").await.is_admitted());
    }
}
