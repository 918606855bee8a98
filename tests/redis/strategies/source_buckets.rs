//! What the sources' token buckets get wrong.

use crate::strategies::{
    sources::{Client, passed, token},
    support::{KEY, StrategyKind, World, left, ms, send},
};

#[tokio::test]
async fn a_bucket_with_a_ttl_in_another_unit_than_its_rate_lives_a_thousand_times_too_long() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    // Ten tokens at 10 per second: full again after a second.
    assert!(token(&mut client, "10", "0.01", 0));
    assert_eq!(client.call(&["PTTL", "tokens"]).int(), 2_000_000);

    world.server().flush();
    let limiter = world.single(StrategyKind::Bucket, "10/s");
    for used in 1..=10 {
        assert_eq!(send(&limiter, KEY, 1).await, 1);
        let ttl = client.call(&["PTTL", &world.server().only_key()]).int();
        assert_eq!(ttl, 100 * used, "as long as what is missing");
    }
}

#[tokio::test]
async fn the_last_token_is_never_available() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(
        passed(20, || token(&mut client, "10", "0.01", 1_000_000)),
        9
    );
    world.server().flush();
    assert_eq!(passed(20, || token(&mut client, "1", "0.01", 1_000_000)), 0);

    for world in World::both() {
        let ten = world.limiter([StrategyKind::Bucket.policy("ten", "10/s")]);
        assert_eq!(send(&ten, KEY, 20).await, 10);
        assert_eq!(left(&ten, KEY).await, 0);
        let one = world.limiter([StrategyKind::Bucket.policy("one", "1/s")]);
        assert_eq!(send(&one, KEY, 20).await, 1);
    }
}

#[tokio::test]
async fn a_client_whose_clock_is_ahead_refills_the_bucket() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let now = world.now() / 1_000;
    let all =
        [now, now + 3_600_000].map(|now| passed(20, || token(&mut client, "10", "0.01", now)));
    assert_eq!(all, [9, 9]);

    // There is no clock to send: two clients have ten tokens between them.
    let clients =
        [World::single, World::single].map(|new| new(&world, StrategyKind::Bucket, "10/s"));
    assert_eq!(send(&clients[0], KEY, 20).await, 10);
    assert_eq!(send(&clients[1], KEY, 20).await, 0);
}

#[tokio::test]
async fn a_bucket_in_two_keys_is_full_again_when_one_expires() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let now = world.now() / 1_000;
    for lost in ["tokens", "time"] {
        world.server().flush();
        assert_eq!(passed(20, || token(&mut client, "10", "0.01", now)), 9);
        // Evicted, or ended first.
        client.call(&["DEL", lost]).ok();
        assert_eq!(
            passed(20, || token(&mut client, "10", "0.01", now)),
            9,
            "without {lost}"
        );
    }

    for strategy in StrategyKind::ALL {
        world.server().flush();
        let limiter = world.single(strategy, "10/s");
        assert_eq!(send(&limiter, KEY, 20).await, 10);
        // There is nothing that could part.
        world.server().only_key();
    }
}

#[tokio::test]
async fn fractions_of_tokens_add_up_to_less_than_a_token() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let mut now = world.now() / 1_000;
    // Two tokens, one of which can't be taken; 0.2 per ms, so that there's one more after 5 ms.
    assert!(token(&mut client, "2", "0.2", now));
    let mut passed = Vec::new();
    for _ in 0..5 {
        now += 1;
        passed.push(token(&mut client, "2", "0.2", now));
    }
    assert_eq!(passed, [false; 5], "on time, and rejected");
    assert_eq!(client.call(&["GET", "tokens"]).text(), "1.9999999999999998");

    for world in World::both() {
        for strategy in [StrategyKind::Bucket, StrategyKind::Gcra] {
            let limiter =
                world.limiter([strategy.policy(&format!("{strategy:?}"), "200/s burst 1")]);
            assert_eq!(send(&limiter, KEY, 1).await, 1);
            for on_time in [false, false, false, false, true] {
                world.advance(ms(1));
                assert_eq!(send(&limiter, KEY, 1).await == 1, on_time, "{strategy:?}");
            }
        }
    }
}

// Rows 8 to 10: the OCR service. Ten a minute, and a provider that takes its time.
