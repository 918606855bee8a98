//! Rejections that count.

use tollgate_tests::prelude::*;

use crate::charging::support::*;

#[tokio::test]
async fn rejections_lengthen_the_wait_by_up_to_one_capacity_of_the_policy_that_rejects() {
    for world in World::both() {
        let limiter = world.limiter([
            even("counts", "5/min").charge_rejected(true),
            even("has room", "50/min").charge_rejected(true),
            even("is free", "5/min"),
        ]);
        assert_eq!(limiter.check(KEY).times(5).await.admitted(), 5);
        for wait in [24, 36, 48, 60, 72, 72, 72].map(secs) {
            let rejected = limiter.admit(KEY).await.expect_err("none is left");
            assert_eq!(rejected.retry_after(), RetryAfter::In(wait));
        }
        assert_eq!(waits(&limiter, "counts").await, (secs(72), secs(120)));
        assert_eq!(used(&limiter, "has room").await, 5);
        assert_eq!(waits(&limiter, "is free").await, (secs(12), secs(60)));
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn refunding_a_reserved_charge_does_not_refund_charged_rejections() {
    for world in World::both() {
        let policy = window("p", "2/min").refund_unless(outcome::success);
        let layer = world.layer([policy.charge_rejected(true)]);
        pass_all(&layer, [200]).await;
        let under_way = respond(&layer, text(500)).await;
        // Two units are charged, and one rejection counts.
        pass_all(&layer, [429]).await;
        read(under_way).await.expect("a body");
        pass_all(&layer, [429]).await;
        world.advance(secs(61));
        pass_all(&layer, [200]).await;
    }
}

#[test]
fn charged_rejections_of_permits_shadows_or_charges_on_response_are_a_config_error() {
    let permits = Policy::new("p", Quota::concurrent(2));
    let on_response = window("p", "2/min").charge_after(outcome::failure);
    for (policy, reason) in [
        (permits, "a rejected request is not in flight"),
        (on_response, "refund_unless"),
        (window("p", "1/h").shadow(), "without charge_rejected"),
    ] {
        let policy = policy.charge_rejected(true);
        let error = Limiter::builder().policy(policy).build();
        let error = error.expect_err(reason);
        assert_eq!(error.policy(), Some("p"));
        assert_contains(error, [reason]);
    }
}
