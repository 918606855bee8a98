//! Leases, as operators see them.

use tollgate_tests::{
    hot_key::until_leased,
    prelude::*,
    stores::{limiter, redis},
};

use crate::admin::support::*;

const LIMIT: u64 = 10_000_000;

#[tokio::test]
async fn policies_are_listed_with_the_settings_of_their_leases() {
    let policy = |name: &str| Policy::new(name, Quota::requests(LIMIT).per_hour());
    let lease = Lease::max_units(500).ttl(Duration::from_micros(7_125));
    let default = policy("default").lease(Lease::max_units(64));
    let policies = [default, policy("precise").lease(lease), policy("plain")];
    let api = Api::of(limiter(Limiter::builder(), policies));
    let default = json!({"name": "default", "lease": {"max_units": 64, "ttl_ms": 50.0}});
    let precise = json!({"name": "precise", "lease": {"max_units": 500, "ttl_ms": 7.125}});
    let plain = json!({"name": "plain", "lease": null});
    let expected = json!({"policies": [default, precise, plain]});
    assert_has(&api.get("/policies").await.json, expected);
}

#[tokio::test]
async fn activity_has_the_leases_of_each_policy_and_their_units_count_as_used() {
    let server = Server::start();
    let policy = |name: &str| {
        let policy = Policy::new(name, Quota::requests(LIMIT).per_day()).strategy(FixedWindow);
        policy.key(extract::header("x-api-key"))
    };
    // Units are held for several seconds.
    let lease = Lease::max_units(500).ttl(secs(10));
    let builder = Limiter::builder().store(redis(&server));
    let policies = [policy("tenant").lease(lease), policy("plain")];
    let (api, limiter) = Api::observing(builder, policies);
    let before = api.get("/activity").await.json;
    assert!(before["store"].get("leases").is_none(), "{before}");

    until_leased(&limiter, ("tenant", Key::secret("sk_1")), 1).await;
    // A lease may be requested or refunded meanwhile.
    until("the answers have the same leases", async || {
        let before = limiter.stats().store.leases;
        let activity = api.get("/activity").await.json;
        let peeked = api.done("/peek", about("tenant", "sk_1")).await;
        let after = limiter.stats().store.leases;
        let (leases, admitted) = (&after[0], activity["policies"][0]["units"].as_u64());
        let expected = json!([{
            "policy": "tenant", "granted": leases.granted, "spent": leases.spent,
            "refunded": leases.refunded, "lapsed": leases.lapsed, "held": leases.held,
        }]);
        let used = admitted.expect("units") + leases.lapsed + leases.held;
        leases.granted == leases.spent + leases.refunded + leases.lapsed + leases.held
            && format!("{before:?}") == format!("{after:?}")
            && activity["store"]["leases"] == expected
            && peeked["remaining"] == LIMIT - used
    })
    .await;
}
