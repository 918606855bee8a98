//! GCRA's keys on Redis: what a command takes, and what a failed one leaves.

use tollgate_tests::prelude::*;

use super::support::*;

/// A limiter whose user lacks some rights.
fn without(server: &Server, rights: &[&str], quotas: &[&str]) -> Limiter {
    let rules = format!("~* +@all {}", rights.join(" "));
    server.acl("gate", "any", &rules);
    let store = RedisStore::builder()
        .url(server.url_as("gate", "any"))
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO);
    let builder = Limiter::builder().store(store.built());
    let policies = quotas
        .iter()
        .map(|text| StrategyKind::Gcra.policy(text, text));
    stores::limiter(builder.on_store_error(OnStoreError::Reject), policies)
}

#[tokio::test]
async fn a_user_without_the_right_to_delete_leaves_no_key_without_a_ttl() {
    let world = World::redis();
    let server = world.server();
    let narrow = without(server, &["-del"], &["2/min"]);
    assert_eq!(send(&narrow, KEY, 2).await, 2);
    let both = without(server, &["-del"], &["100/h", "2/min"]);
    assert_eq!(send(&both, KEY, 1).await, 0);
    assert_eq!(server.immortal_keys(), [""; 0]);
    assert_eq!(server.keys().len(), 1);
}

/// The first key stays in its minute, and the second, which moves on, has room for two; or the second is two and a half hours
/// ahead, where four minutes and a half are a full burst, and would have to be cut.
#[tokio::test]
async fn a_charge_that_fails_at_the_second_policy_leaves_both_keys_as_they_were() {
    let moving = ["1000/min", "1/min burst 5"];
    let far = ["1/min burst 4", "2/min burst 9"];
    for (quotas, requests, is_far, rights) in [
        (moving, 3, false, "-set -pexpireat"),
        (far, 2, true, "-set"),
    ] {
        let world = World::redis();
        world.set(START + 1_000_000);
        let server = world.server();
        let all = without(server, &[], &quotas);
        assert_eq!(all.check(KEY).times(requests).await.admitted(), requests);
        if is_far {
            let key = server.keys().into_iter().max().expect("two keys");
            server.command(&["SET", &key, "180020000000"]).ok();
        }
        let before = values(server);
        let limiter = without(server, &[rights], &quotas);
        let decision = limiter.check(KEY).times(3).await;
        let has_failed = matches!(decision.kind(), DecisionKind::StoreFailed(_));
        assert!(!decision.is_admitted(), "{decision:?}");
        assert!(has_failed || is_far, "{decision:?}");
        assert_eq!(values(server), before, "without {rights}");
    }
}

#[tokio::test]
async fn a_repeated_request_is_counted_by_one_command_under_each_policy() {
    let world = World::redis();
    world.set(START + 1_000_000);
    let server = world.server();
    let calls = || ["incrby", "set", "pexpireat", "get"].map(|command| server.calls(command));
    for (quotas, crossed) in [
        (&["600/min"][..], 0),
        (&["600/min", "1000/min burst 2000"], 0),
    ] {
        server.flush();
        let policies = quotas.iter();
        let limiter = world.limiter(policies.map(|text| {
            let name = text.replace(['/', ' '], "-");
            StrategyKind::Gcra.policy(&name, text)
        }));
        // It comes, and comes again.
        assert_eq!(send(&limiter, KEY, 2).await, 2);
        server.reset_stats();
        assert_eq!(send(&limiter, KEY, 400).await, 400);
        assert_eq!(calls(), [400 * quotas.len() as u64, 0, crossed, 0]);
        // Rejections leave all as it was.
        assert_eq!(send(&limiter, KEY, 198).await, 198);
        let before = values(server);
        assert_eq!(send(&limiter, KEY, 1).await, 0);
        assert_eq!(values(server), before);
    }
}
