//! What the sources' lists and scripts get wrong.

use tollgate::Key;

use crate::strategies::{
    sources::{COUNT_LIMIT, Client, count_limit, passed},
    support::{KEY, StrategyKind, World, admitted_by_store, ms, send},
};

/// The list variant, up to where it writes: whether the caller passes, and whether the list is there.
fn list_look(client: &mut Client) -> (bool, bool) {
    let passes = client.call(&["LLEN", "list"]).int() <= 10;
    (passes, client.call(&["EXISTS", "list"]).int() == 1)
}

fn list_push(client: &mut Client, exists: bool, who: &str) -> i64 {
    if exists {
        return client.call(&["RPUSHX", "list", who]).int();
    }
    client.call(&["MULTI"]).ok();
    client.call(&["RPUSH", "list", who]).ok();
    client.call(&["EXPIRE", "list", "1"]).ok();
    client.call(&["EXEC"]).list().remove(0).int()
}

#[tokio::test]
async fn a_list_that_expires_between_check_and_push_loses_the_call() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let (_, exists) = list_look(&mut client);
    assert_eq!(list_push(&mut client, exists, "alice"), 1);
    let (passes, exists) = list_look(&mut client);
    world.advance(ms(1_001));
    assert!(passes && exists);
    assert_eq!(
        list_push(&mut client, exists, "bob"),
        0,
        "bob passed, and nothing says so"
    );
    assert!(world.server().keys().is_empty());

    for world in World::both() {
        let limiter = world.single(StrategyKind::List, "10/s");
        assert_eq!(send(&limiter, KEY, 1).await, 1);
        // From the last instant of the window on, each caller that passes is listed.
        for step in [999, 1, 1, 1] {
            world.advance(ms(step));
            let before = limiter
                .policy("p")
                .expect("a policy")
                .callers(KEY)
                .await
                .expect("callers")
                .len();
            assert_eq!(send(&limiter, KEY, 1).await, 1);
            let after = limiter
                .policy("p")
                .expect("a policy")
                .callers(KEY)
                .await
                .expect("callers")
                .len();
            assert_eq!(after, before + 1, "{} at {}", world.name(), world.now());
        }
    }
}

#[tokio::test]
async fn a_list_holds_one_caller_more_than_the_quota_and_list_window_exactly_the_quota() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let mut article = || {
        let (passes, exists) = list_look(&mut client);
        passes && list_push(&mut client, exists, "alice") > 0
    };
    assert_eq!(passed(20, &mut article), 11);

    for world in World::both() {
        let limiter = world.single(StrategyKind::List, "10/s");
        let names: Vec<_> = (0..20).map(|n| Key::new(format!("caller-{n}"))).collect();
        for (n, name) in names.iter().enumerate() {
            let decision = limiter.check(tollgate::Keys::from(KEY).caller(*name)).await;
            assert_eq!(admitted_by_store(&decision), n < 10);
        }
        assert_eq!(
            limiter
                .policy("p")
                .expect("a policy")
                .callers(KEY)
                .await
                .expect("callers"),
            names[..10]
        );
        world.advance(ms(1_001));
        assert!(
            limiter
                .policy("p")
                .expect("a policy")
                .callers(KEY)
                .await
                .expect("callers")
                .is_empty()
        );
    }
}

// Row 5: count_limit.lua.

#[tokio::test]
async fn rejected_calls_are_counted() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(passed(110, || count_limit(&mut client, "10", "60000")), 10);
    assert_eq!(client.get("count"), 110);
    // Two callers give their calls back, and still no caller passes.
    client.call(&["DECRBY", "count", "2"]).ok();
    assert!(!count_limit(&mut client, "10", "60000"));

    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/min")]);
            let mut charged = limiter.check(KEY).cost(10).await;
            assert!(admitted_by_store(&charged));
            assert_eq!(send(&limiter, KEY, 100).await, 0);
            assert_eq!(
                charged.refund(2).await.expect("a refund")[0].units(),
                2,
                "{strategy:?}"
            );
            assert_eq!(
                send(&limiter, KEY, 10).await,
                2,
                "{strategy:?} on {}",
                world.name()
            );
        }
    }
}

#[tokio::test]
async fn a_server_that_lost_the_script_fails_every_call() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let sha = client.call(&["SCRIPT", "LOAD", COUNT_LIMIT]).text();
    let call = ["EVALSHA", &sha, "1", "count", "10", "1000"];
    assert_eq!(client.call(&call).int(), 1);
    client.call(&["SCRIPT", "FLUSH"]).ok();
    assert!(client.call(&call).error().starts_with("NOSCRIPT"));

    let limiter = world.single(StrategyKind::Fixed, "10/min");
    assert_eq!(send(&limiter, KEY, 5).await, 5);
    client.call(&["SCRIPT", "FLUSH"]).ok();
    assert_eq!(send(&limiter, KEY, 10).await, 5);
    // The whole script once, and its name from then on.
    world.server().reset_stats();
    assert_eq!(send(&limiter, Key::new("other"), 10).await, 10);
    assert_eq!(
        (
            world.server().calls("eval"),
            world.server().calls("evalsha")
        ),
        (0, 10)
    );
}

#[tokio::test]
async fn a_period_below_a_second_is_no_argument_for_expire() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["INCR", "count"]).ok();
    assert!(
        client
            .call(&["EXPIRE", "count", "0.25"])
            .error()
            .contains("not an integer")
    );
    // Rounded down it ends the key at once, and all callers pass.
    let mut rounded = || {
        let count = client.call(&["INCR", "count"]).int();
        client.call(&["EXPIRE", "count", "0"]).ok();
        count <= 10
    };
    assert_eq!(passed(50, &mut rounded), 50);

    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/250ms")]);
            assert_eq!(send(&limiter, KEY, 50).await, 10, "{strategy:?}");
            world.advance(ms(501));
            assert_eq!(
                send(&limiter, KEY, 50).await,
                10,
                "{strategy:?} on {}",
                world.name()
            );
        }
    }
}

// Row 6: finer granularity.

#[tokio::test]
async fn a_thousand_a_second_as_a_hundred_per_tenth_rejects_an_allowed_burst() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(passed(250, || count_limit(&mut client, "100", "100")), 100);

    for world in World::both() {
        let limiter = world.single(StrategyKind::Sliding(10), "1000/s");
        assert_eq!(limiter.check(KEY).times(250).await.admitted(), 250);
        // And yet it is a thousand a second: whatever is requested in the following 900 ms.
        let mut all = 250;
        for _ in 0..9 {
            world.advance(ms(100));
            all += limiter.check(KEY).times(250).await.admitted();
        }
        assert_eq!(all, 1_000, "{}", world.name());
        // The strict tenth is available as a second policy.
        let policies = [
            StrategyKind::Sliding(10).policy("a", "1000/s"),
            StrategyKind::Fixed.policy("b", "100/100ms"),
        ];
        let strict = world.limiter(policies);
        assert_eq!(strict.check(KEY).times(250).await.admitted(), 100);
    }
}

// Row 7: the token bucket.
