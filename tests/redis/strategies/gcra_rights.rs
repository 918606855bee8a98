//! GCRA's keys on Redis by users that may not run some of its commands.

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
async fn a_user_that_may_not_read_or_change_expiries_or_increment_still_counts() {
    let world = World::redis();
    let server = world.server();
    let reads = ["-pttl", "-pexpiretime"];
    let known = if server.version() < (7, 0) { 1 } else { 2 };
    let rows: [(&[&str], &[&str], u64); 5] = [
        (&["-incrby"], &["20/min"], 20),
        (&["-incrby"], &["10/min", "5/min"], 5),
        (&reads[..known], &["600/min"], 30),
        // Each takes a minute of its own.
        (&["-pexpireat"], &["1/min burst 1000"], 30),
        (&["-pexpireat"], &["1/min burst 900", "1/min burst 800"], 30),
    ];
    for (rights, quotas, admitted) in rows {
        let _case = Case(format!("{rights:?}, {quotas:?}"));
        server.flush();
        server.reset_stats();
        let limiter = without(server, rights, quotas);
        assert_eq!(send(&limiter, KEY, 30).await, admitted);
        assert!(
            used(&limiter, KEY)
                .await
                .iter()
                .all(|used| *used == admitted)
        );
        let lacks = |right| rights.contains(&right);
        assert_eq!(server.calls("incrby") == 0, lacks("-incrby"));
        for key in server.keys().iter().filter(|_| lacks("-pexpireat")) {
            assert_eq!(pttl(server, key), 30 * 60_000);
        }
    }
}

#[tokio::test]
async fn a_user_without_set_leaves_no_key_behind() {
    let world = World::redis();
    let server = world.server();
    for rights in [&["-set"][..], &["-set", "-del"]] {
        for quotas in [&["10/min"][..], &["10/min", "5/min"]] {
            let limiter = without(server, rights, quotas);
            server.reset_stats();
            for _ in 0..3 {
                store_error(&limiter.check(KEY).await);
            }
            assert!(server.calls("incrby") > 0, "{rights:?}, {quotas:?}");
            assert_eq!(server.keys(), [""; 0], "{rights:?}, {quotas:?}");
        }
    }
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
