//! New limits hold at once, and invalid settings change nothing.

use tollgate::changes::PolicyChangeKind;
use tollgate_tests::prelude::*;

use crate::reconfigure::support::*;

#[tokio::test]
async fn new_limits_hold_at_once_for_clones_handles_and_layers_made_before() {
    for world in World::both() {
        let limiter = world.limiter([window("p", "10/h")]);
        let (clone, layer) = (limiter.clone(), RateLimitLayer::new(limiter.clone()));
        let handle = limiter.policy("p").expect("its policy");
        let service = layer.layer(service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
        let served = async || {
            let response = service.clone().oneshot(Request::new(String::new())).await;
            response.expect("a response").status()
        };
        assert_eq!(served().await, StatusCode::OK);
        assert!(clone.check(KEY).await.is_admitted());
        let changes = replace(&clone, [window("p", "4/h")]);
        assert_eq!(kind(&changes, "p"), PolicyChangeKind::Altered);
        assert_eq!(used(&limiter, "p").await, 2);
        assert_eq!(handle.policy().expect("its policy").quota().amount(), 4);
        assert!(limiter.check(KEY).await.is_admitted());
        assert_eq!(served().await, StatusCode::OK);
        assert_eq!(served().await, StatusCode::TOO_MANY_REQUESTS);
        assert!(!clone.check(KEY).await.is_admitted());
        let status = handle.peek(KEY).await.expect("a response");
        assert_eq!(status.left("p"), 0);
        assert_eq!(layer.limiter().policies()[0].quota().amount(), 4);
    }
}

#[tokio::test]
async fn a_removed_policy_is_unknown_and_finds_its_counts_when_it_returns() {
    for world in World::both() {
        let [p, q] = [policy("p", "10/h"), policy("q", "10/h")];
        let limiter = world.limiter([p.clone(), q.clone()]);
        let handle = limiter.policy("q").expect("its policy");
        assert!(limiter.check(KEY).cost(3).await.is_admitted());
        let changes = replace(&limiter, [p.clone()]);
        assert_eq!(kind(&changes, "p"), PolicyChangeKind::Kept);
        assert_eq!(kind(&changes, "q"), PolicyChangeKind::Removed);
        assert!(limiter.check(KEY).await.is_admitted());
        assert!(handle.policy().is_err() && handle.peek(KEY).await.is_err());
        assert!(limiter.check([("q", KEY)]).await.into_result().is_err());
        let changes = replace(&limiter, [q, p]);
        assert_eq!(kind(&changes, "q"), PolicyChangeKind::Added);
        assert_eq!(used(&limiter, "q").await, 3);
        assert_eq!(used(&limiter, "p").await, 4);
        assert!(handle.policy().is_ok());
    }
}

/// Each invalid set, and words of its error.
fn invalid_sets() -> Vec<(LimiterBuilder, &'static str)> {
    let one = || Limiter::builder().policy(policy("p", "10/h"));
    let and = |policy| one().policy(policy);
    vec![
        (Limiter::builder(), "without a policy"),
        (and(policy("p", "5/h")), "second policy of this name"),
        (one().allow(KeyList::new("unknown", [KEY])), "unknown"),
        (and(policy("dear", "5/h").cost(6)), "cost of 6"),
        (and(window("w", "5/h burst 9")), "burst"),
        (and(policy("", "5/h")), "name"),
        (one().skip_path("no-slash"), "no-slash"),
        (one().on_store_error(LocalFallback::shared_by(0)), "0"),
        (one().store(MemoryStore::new()), "another store"),
    ]
}

#[tokio::test]
async fn invalid_settings_change_nothing_and_are_the_error_of_build() {
    for world in World::both() {
        let limiter = world.limiter([policy("p", "10/h"), policy("q", "9/h")]);
        let layer = RateLimitLayer::new(limiter.clone());
        assert!(limiter.check(KEY).cost(3).await.is_admitted());
        let before = format!("{:?}", limiter.policies());
        for ((builder, words), (same, _)) in invalid_sets().into_iter().zip(invalid_sets()) {
            let error = limiter.reconfigure(builder).expect_err(words).to_string();
            assert!(error.contains(words), "{error}, not {words}");
            assert_eq!(format!("{:?}", limiter.policies()), before, "{words}");
            let built = same.build().err().map(|built| built.to_string());
            let is_same = words == "another store" || built == Some(error);
            assert!(is_same, "{built:?}");
        }
        let error = layer.reconfigure(RateLimitLayer::builder(), |layer| layer.enabled(false));
        assert_contains(error.expect_err("no policy"), ["without a policy"]);
        assert_eq!(used(&limiter, "p").await, 3);
        assert_eq!(used(&limiter, "q").await, 3);
        assert!(limiter.check(KEY).cost(6).await.is_admitted());
        assert!(!limiter.check(KEY).await.is_admitted());
    }
}

/// What requests brought is no part of the settings.
#[tokio::test]
async fn a_cost_that_only_a_requests_own_quota_admits_is_an_error_here_as_in_build() {
    for world in World::both() {
        let limiter = world.limiter([policy("p", "10/h")]);
        let large = stores::quota("1000/h");
        assert!(limiter.check(KEY).quota_for("p", large).await.is_admitted());
        let dear = || settings([policy("p", "10/h").cost(500)]);
        let error = dear().build().expect_err("too high").to_string();
        let reconfigured = limiter.reconfigure(dear());
        assert_eq!(reconfigured.expect_err("too high").to_string(), error);
    }
}

#[tokio::test]
async fn a_clone_of_the_limiters_store_is_no_other_store() {
    for world in World::both() {
        let limiter = world.limiter([policy("p", "10/h")]);
        assert!(limiter.check(KEY).cost(3).await.is_admitted());
        let same = world.builder().policy(policy("p", "20/h burst 10"));
        let changes = limiter.reconfigure(same).expect("its own store");
        assert_eq!(kind(&changes, "p"), PolicyChangeKind::Altered);
        let other = World::memory().builder().policy(policy("p", "10/h"));
        let error = limiter.reconfigure(other).expect_err("another store");
        assert_contains(error, ["another store"]);
        assert_eq!(limiter.policies()[0].quota().amount(), 20);
    }
    // Without a store of its own, a limiter has one that no other has.
    let own = settings([policy("p", "10/h")]).build().expect("a limiter");
    assert!(own.reconfigure(settings([policy("p", "9/h")])).is_ok());
}

#[tokio::test]
async fn access_lists_and_skip_rules_are_replaced_too() {
    let limiter = World::memory().limiter([policy("p", "10/h").key(extract::peer())]);
    let mallory: IpAddr = "192.0.2.1".parse().expect("an address");
    let check = || limiter.check(Key::ip(mallory)).address(mallory);
    let one = || settings([policy("p", "10/h").key(extract::peer())]);
    let listed = || AddressList::new(["192.0.2.0/24"]).expect("a list");
    assert!(check().await.is_admitted());
    let changes = limiter.reconfigure(one().deny(listed())).expect("valid");
    assert_eq!(changes.settings().len(), 1, "{changes}");
    assert!(!check().await.is_admitted());
    limiter.reconfigure(one().allow(listed())).expect("valid");
    assert!(check().cost(11).await.is_admitted());
    limiter.reconfigure(one()).expect("valid");
    assert_eq!(used_by(&limiter, "p", Key::ip(mallory)).await, 1);

    let request = Request::get("/health").body(()).expect("a request");
    let parts = request.into_parts().0;
    let check = || limiter.check(KEY).parts(&parts);
    assert!(check().await.is_admitted());
    let skipping = one().skip_path("/health");
    limiter.reconfigure(skipping).expect("valid");
    assert!(check().cost(11).await.is_admitted());
    assert_eq!(used(&limiter, "p").await, 1);
}

#[tokio::test]
async fn bans_stay_when_their_policy_is_kept_altered_or_returns() {
    for world in World::both() {
        let quota = Quota::requests(3).per_minute();
        let ban = |time| Policy::new("ban", quota).strategy(Ban::for_duration(secs(time)));
        let limiter = world.limiter([policy("p", "10/h"), ban(600)]);
        let mallory = Key::new("mallory");
        let block = async |time| limiter.block(mallory, secs(time)).await;
        block(1_000).await.expect("a response");
        let rejected = async || !limiter.check([("ban", mallory)]).await.is_admitted();
        assert!(rejected().await);
        replace(&limiter, [policy("p", "20/h"), ban(600)]);
        assert!(rejected().await, "kept");
        replace(&limiter, [policy("p", "20/h"), ban(60)]);
        assert!(rejected().await, "altered");
        replace(&limiter, [policy("p", "20/h")]);
        assert!(block(9).await.is_err(), "there is no ban");
        replace(&limiter, [policy("p", "20/h"), ban(60)]);
        assert!(rejected().await, "returned");
        limiter.unblock(mallory).await.expect("a response");
        assert!(!rejected().await);
    }
}
