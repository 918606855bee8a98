//! A Redis Cluster: requests with keys in one slot are leased, others are not.

use std::slice;

use crate::{
    cluster::support::{MasterKeys, builder, store},
    leases::support::*,
};

#[test]
fn keys_in_one_slot_are_leased_and_keys_in_several_are_not() {
    scene(async |scene| {
        let cluster = Cluster::start(3, 0);
        let policies = || ["p", "q"].map(|name| leased(Fixed, name, "1000/month"));
        let send = async |limiter: &Limiter, [p, q]: [Key; 2]| {
            let mut by_lease = 0;
            for _ in 0..400 {
                let decision = limiter.check([("p", p), ("q", q)]).await;
                assert!(decision.is_admitted());
                by_lease += u64::from(decision.source() == DecisionSource::Lease);
            }
            by_lease
        };
        let one_tag = builder(cluster.urls()).hash_tags(1).built();
        let (together, [p, q]) = (limiter(one_tag, policies()), ["x", "y"].map(Key::new));
        assert!(send(&together, [p, q]).await > 0);
        scene.refund_leases(slice::from_ref(&together)).await;
        until("what was left is refunded", async || {
            let seen = together.peek([("p", p), ("q", q)]).await;
            let seen = seen.expect("a response");
            [seen.used("p"), seen.used("q")] == [400, 400]
        })
        .await;
        let master_keys = MasterKeys::find(&cluster, "apart").await;
        let apart = limiter(store(&cluster), policies());
        let keys = [0, 1].map(|master| master_keys.key(master));
        assert_eq!(send(&apart, keys).await, 0);
        assert!(leases(&apart, "p").is_none());
    });
}
