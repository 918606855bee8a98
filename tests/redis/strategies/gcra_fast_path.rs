//! GCRA's fast path on Redis where arrival times, rounds and rights end.

use tollgate_tests::prelude::*;

use super::{gcra_expiry::without, support::*};

#[tokio::test]
async fn an_arrival_time_of_now_at_the_end_of_a_round_is_counted_like_any_other() {
    // A round ends at START. The keys are called in this very microsecond, and a minute later.
    for world in World::both() {
        let (one, two) = (
            StrategyKind::Gcra.policy("one", "1/min"),
            StrategyKind::Gcra.policy("two", "2/min"),
        );
        let limiter = world.limiter([one, two]);
        world.set(START - 60_000_000);
        for minute in 0..3 {
            let name = format!("{}, minute {minute}", world.name());
            assert_eq!(send(&limiter, KEY, 3).await, 1, "{name}");
            assert_eq!(left(&limiter, KEY).await, 0, "{name}");
            world.advance(secs(60));
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

#[tokio::test]
async fn a_value_just_past_a_round_is_left_alone() {
    let world = World::redis();
    // Where arrival times are small, it would be one that is over.
    world.set(START + 600_000_000);
    let limiter = world.single(StrategyKind::Gcra, "10/min");
    assert_eq!(send(&limiter, KEY, 1).await, 1);
    let key = world.server().only_key();
    let value = "4500000000000001";
    world.server().command(&["SET", &key, value]).ok();
    let decision = limiter.check(KEY).await;
    let found = matches!(store_error(&decision), StoreError::CorruptKey { .. });
    assert!(found, "{decision:?}");
    assert_eq!(world.server().command(&["GET", &key]).text(), value);
}

#[tokio::test]
async fn a_charge_that_fails_at_the_second_policy_leaves_both_keys_as_they_were() {
    let world = World::redis();
    world.set(START + 1_000_000);
    let server = world.server();
    // The first key stays in its minute; the second moves on, and has room for two.
    let quotas = ["1000/min", "1/min burst 5"];
    let all = without(server, &[], &quotas);
    assert_eq!(all.check(KEY).times(3).await.admitted(), 3);
    let before = values(server);
    let limiter = without(server, &["-set", "-pexpireat"], &quotas);
    let decision = limiter.check(KEY).times(3).await;
    assert!(
        matches!(decision.kind(), DecisionKind::StoreFailed(_)),
        "{decision:?}"
    );
    assert_eq!(values(server), before);
}
