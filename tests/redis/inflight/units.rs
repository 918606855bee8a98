//! Requests that take several permits each.

use tollgate_tests::prelude::*;

use crate::inflight::{
    script::play_each,
    support::{World, *},
};

#[tokio::test]
async fn each_request_acquires_what_it_costs_and_releases_that_and_no_others_permits() {
    let scripts = [
        "take a cost 3: true, take b cost 3: true, take c cost 3: true, take d cost 3: false, free: 1, \
         stored: 9, drop a, until free: 4, take d cost 3: true, drop b, drop c, drop d, until free: 10",
        // As many as there are do fit.
        "take a cost 11: never, take a cost 10: true, take b: false",
        // Several at once, which are released together, when the last clone is dropped.
        "take a cost 3 times 5: 3, free: 1, clone a b, drop a, free: 1, drop b, until free: 10",
        "take a: true, clone a b, drop a, free: 9, drop b, until free: 10",
        // A partial refund, and the release of the rest, once, also of a clone: not of others' permits. The release by a drop is sent
        // ahead of a peek, on the same connection.
        "take a cost 2 times 3: 3, take b cost 4: true, free: 0, refund a 1: 1, free: 1, refund a 2: 2, \
         free: 3, clone a c, refund a 99: 3, refund a 99: 0, refund c 99: 0, free: 6, \
         take d cost 6: true, drop a, drop c, free: 0, drop b, drop d, until free: 10",
        // A free request passes when all permits are taken, and holds none; nor does a rejected one.
        "fill a: 10, take b cost 0: true, take c: false, drop a, until free: 10",
        // Late releases after a reset free no others.
        "fill a: 10, reset, fill b: 10, drop a, free: 0, drop b, until free: 10",
    ];
    play_each(permit_policy(LONG_TTL), &scripts).await;
    // More than a script's stack holds: the names of two million requests alone would be some 50 MB on the wire.
    let script = "take a cost 10000: true, free: 0, drop a, until free: 10000, \
                  take a times 2000000: 10000, free: 0, drop a, until free: 10000";
    play_each(permit_policy_of(10_000, LONG_TTL), &[script]).await;
}

/// A handler that settles its request's true cost, such as its tokens, means what is counted.
#[tokio::test]
async fn a_handlers_charges_and_settlements_acquire_and_free_no_permits() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(LONG_TTL)]);
        let admission = limiter.admit(KEY).cost(2).await.expect("a permit");
        let permits = admission.policy("permits").expect("a policy");
        permits.charge(3).await.expect("a response");
        assert_eq!(free(&limiter).await, MAX_PERMITS - 2);
        for cost in [900, 0] {
            permits.settle(cost).await.expect("a response");
            assert_eq!(free(&limiter).await, MAX_PERMITS - 2);
        }
        permits.refund(1).await.expect("a response");
        assert_eq!(free(&limiter).await, MAX_PERMITS - 1);
        drop((permits, admission));
        until_free(&limiter, MAX_PERMITS).await;
    }
}
