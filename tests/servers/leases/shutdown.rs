//! What is held is refunded by a shutdown.

use tokio::task::coop::unconstrained;

use crate::leases::support::*;

/// The limiter is in use until then: a lease may be on its way.
#[test]
fn a_shutdown_after_traffic_refunds_what_is_held_and_leaves_what_was_admitted() {
    scene(async |scene| {
        let strategies = EXACT.iter().cycle();
        for (requests, strategy) in [10, 11, 12, 13, 20, 40, 80, 160]
            .into_iter()
            .zip(strategies)
        {
            let [limiter, other] = [0, 1].map(|_| scene.single(*strategy, "100000/month"));
            let key = Key::new(format!("{requests}"));
            let decisions = join_all((0..requests).map(|_| limiter.check(key).into_future())).await;
            assert!(decisions.iter().all(|decision| decision.is_admitted()));
            scene.shut_down(&limiter).await;
            let stats = leases(&limiter, "p");
            assert_eq!(held(&limiter), 0, "{strategy:?} {stats:?}");
            assert_eq!(used(&other, key).await, requests, "{strategy:?} {stats:?}");
        }
    });
}

/// The reply to its request is late, and refunds wait behind that.
#[test]
fn a_shutdown_with_less_time_than_a_lease_takes_refunds_what_is_held() {
    scene(async |scene| {
        let proxy = Proxy::to(scene.server.addr());
        let store = builder(format!("redis://{}", proxy.addr())).no_circuit_breaker();
        let own = limiter(store.built(), [leased(Fixed, "p", "100000/month")]);
        let other = scene.single(Fixed, "100000/month");
        let admitted = hold(&own, KEY).await;
        proxy.hold_open();
        // With this request another lease is due.
        let decision = own.check(KEY).await;
        assert_eq!(decision.source(), DecisionSource::Lease);
        let _ = scene.wait(own.shutdown(ms(50))).await;
        let at_once = unconstrained(own.check(KEY).into_future()).now_or_never();
        assert!(at_once.is_none(), "nothing is held: {at_once:?}");
        proxy.pass();
        scene.shut_down(&own).await;
        assert_eq!(held(&own), 0);
        assert_eq!(used(&other, KEY).await, admitted + 1);
    });
}
