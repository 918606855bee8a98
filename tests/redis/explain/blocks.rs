//! The keys that bans block are listed, and can be unblocked by what the list shows.

use testkit::Cluster;
use tollgate::{limiter::Block, store::Incomplete};
use tollgate_tests::{prelude::*, servers, stores::limiter};

const HOUR: Duration = secs(3_600);

const LIST: &str = "lo*[ck]ed:{a}";

/// A rate, a ban after two rejections, and a list of blocked keys with a name of special characters.
fn policies() -> [Policy; 3] {
    let hourly = |name, requests| Policy::new(name, Quota::requests(requests).per_hour());
    [
        hourly("rate", 1),
        hourly("abuse", 2).strategy(Ban::for_duration(HOUR)),
        Policy::block_list(LIST).key(extract::header("x-api-key")),
    ]
}

fn on(store: impl Store) -> Limiter {
    limiter(Limiter::builder().store(store), policies())
}

fn weird_keys() -> Vec<Key> {
    vec![
        Key::new("192.0.2.1"),
        Key::new("{a}"),
        Key::new("%7B%"),
        Key::new("x".repeat(1_024)),
        Key::new("caf\u{e9} \u{1f980}"),
        Key::new("hash:abc"),
        Key::new("key:abc"),
        Key::new("a:b:c"),
        Key::new("550e8400-e29b-41d4-a716-446655440000"),
        Key::new("550E8400-E29B-41D4-A716-446655440000"),
        Key::secret("sk_live_1"),
        Key::tuple([Key::new("tenant-7"), Key::new("/ocr")]),
        Key::tuple([Key::new("t"), Key::secret("s")]),
        Key::network([192, 0, 2, 0].into(), 24, 64),
        Key::ip("2001:db8::7".parse().expect("an address")),
        Key::missing(),
        KEY,
    ]
}

/// The policies and keys of a complete list.
async fn listed(limiter: &Limiter) -> Vec<(String, Key)> {
    let blocks = limiter.blocks(usize::MAX).await.expect("a list");
    assert!(blocks.is_complete());
    let pair = |block: &Block| (block.policy().to_owned(), block.key());
    blocks.iter().map(pair).collect()
}

/// Rejects so many keys once, bans `mallory` by rejections, and blocks all weird keys by hand.
async fn fill(limiter: &Limiter, others: u32) {
    let keys = |key: Key| [("rate", key), ("abuse", key)];
    let others = (0..others).map(|other| keys(Key::new(format!("other-{other}"))));
    join_all(others.map(|keys| limiter.check(keys).times(2).into_future())).await;
    for _ in 0..4 {
        let _ = limiter.check(keys(Key::new("mallory"))).await;
    }
    let list = limiter.policy(LIST).expect("a policy");
    for key in weird_keys() {
        list.block(key, 2 * HOUR).await.expect("a block");
    }
}

async fn all_are_listed_and_unblocked(limiter: &Limiter, others: u32) {
    fill(limiter, others).await;
    let weird = weird_keys().into_iter().map(|key| (LIST.to_owned(), key));
    let mut expected: Vec<_> = weird.collect();
    expected.push(("abuse".to_owned(), Key::new("mallory")));
    expected.sort();
    let mut found = listed(limiter).await;
    found.sort();
    assert_eq!(found, expected);

    let some = limiter.blocks(5).await.expect("a list");
    assert_eq!((some.len(), some.is_complete()), (5, false));
    assert_eq!(some.incomplete(), Some(Incomplete::Limit));
    let abuse = limiter.policy("abuse").expect("a policy");
    let own = abuse.blocks(9).await.expect("a list");
    assert_eq!((own.len(), own.is_complete()), (1, true));
    let rate = limiter.policy("rate").expect("a policy").blocks(9).await;
    assert!(matches!(rate, Err(CallError::NotABan { .. })), "{rate:?}");

    for block in limiter.blocks(usize::MAX).await.expect("a list") {
        let policy = limiter.policy(block.policy()).expect("a policy");
        let text = block.key_text();
        assert!(!text.contains("sk_live_1") && !text.contains('~'), "{text}");
        let key = policy.parse_key(&text).expect(&text);
        assert_eq!(key, block.key(), "{text}");
        policy.unblock(key).await.expect("no block");
    }
    assert_eq!(listed(limiter).await, []);
}

#[tokio::test]
async fn every_blocked_key_is_listed_on_both_stores_and_unblocked_by_its_text() {
    for world in World::both() {
        all_are_listed_and_unblocked(&world.limiter(policies()), 2_000).await;
    }
}

#[tokio::test]
async fn a_ban_is_listed_until_it_ends() {
    for world in World::both() {
        let limiter = world.limiter(policies());
        fill(&limiter, 3).await;
        let abuse = limiter.policy("abuse").expect("a policy");
        world.advance(HOUR - Duration::from_micros(1));
        let blocks: Vec<_> = abuse.blocks(9).await.expect("a list").into_iter().collect();
        let [mallory] = &blocks[..] else {
            panic!("one is banned: {blocks:?}");
        };
        assert_eq!(mallory.ends_in(), Duration::from_micros(1));
        // Requests are banned by address, so no text of a request makes it.
        assert_eq!(mallory.key_text(), "key:mallory");
        world.advance(Duration::from_micros(1));
        assert!(abuse.blocks(9).await.expect("a list").is_empty());
        assert_eq!(listed(&limiter).await.len(), weird_keys().len());
    }
}

#[tokio::test]
async fn other_keys_with_similar_names_are_not_listed() {
    let world = World::redis();
    let (server, limiter) = (world.server(), world.limiter(policies()));
    fill(&limiter, 3).await;
    let names = server.keys();
    let mut names = names.iter();
    let ban = names.find(|name| name.contains("x1:abuse:mallory"));
    let ban = ban.expect("a ban");
    for name in [
        "tg:x1:abuse:no key",
        "tg:x1:abuse:",
        "tg:x1:abuse:#short",
        "tg:x1:abused:mallory",
        "eu:tg:x1:abuse:mallory",
        "tg:x1:abuse:a-key-that-is-too-long-to-be-one",
    ] {
        let copied = server.command(&["COPY", ban, name]).int();
        assert_eq!(copied, 1, "{name}");
    }
    // Nothing that this library wrote.
    let set = ["SET", "tg:x1:abuse:foreign", "a value"];
    server.command(&set).ok();
    let push = ["RPUSH", "tg:x1:abuse:list", "a value"];
    server.command(&push).int();
    let abuse = limiter.policy("abuse").expect("a policy").blocks(99).await;
    let abuse = abuse.expect("a list");
    assert_eq!((abuse.len(), abuse.is_complete()), (1, true));
}

#[tokio::test]
async fn a_user_without_the_permission_to_scan_is_named_by_the_health_check() {
    let server = Server::start();
    let commands = servers::of_a_limiter(&server);
    for (user, rules) in [("lists", format!("{commands} +scan")), ("counts", commands)] {
        server.acl(user, "secret", &rules);
        let store = RedisStore::builder().url(server.url_as(user, "secret"));
        let limiter = on(store.timeout(TEST_TIMEOUT).build().expect("a store"));
        let blocks = limiter.blocks(9).await;
        match blocks {
            Ok(blocks) => assert!(user == "lists" && blocks.is_empty()),
            Err(CallError::Store(StoreError::Server { code, .. })) if user == "counts" => {
                assert_eq!(&*code, "NOPERM");
            }
            Err(other) => panic!("{user}: {other}"),
        }
        let health = limiter.health_check().await;
        assert!(health.is_healthy(), "{health:?}");
        let lists = !health.unchecked().contains(&"blocks");
        assert_eq!(lists, user == "lists", "{health:?}");
    }
}

#[tokio::test]
async fn all_nodes_of_a_cluster_are_searched() {
    let cluster = Cluster::start(3, 0);
    let store = RedisStore::builder()
        .cluster(cluster.urls())
        .timeout(TEST_TIMEOUT);
    let store = store.rejection_cache_staleness(Duration::ZERO);
    let limiter = on(store.build().expect("a store"));
    all_are_listed_and_unblocked(&limiter, 1_000).await;
}

#[tokio::test]
async fn a_store_that_cannot_list_keys_or_callers_says_so() {
    let without = on(StubStore::without_admin());
    let callers = without.policy("abuse").expect("a ban").callers(KEY).await;
    let cannot_list = on(StubStore::default()).blocks(9).await;
    let errors = [
        callers.err(),
        cannot_list.err(),
        without.blocks(9).await.err(),
    ];
    for error in errors {
        let is_typed = matches!(error, Some(CallError::Store(StoreError::Unsupported(_))));
        assert!(is_typed, "{error:?}");
    }
    assert!(without.health_check().await.is_healthy());
    // Without a ban there is nothing to list.
    let policy = Policy::new("p", Quota::requests(1).per_hour());
    let limiter = limiter(Limiter::builder().store(StubStore::default()), [policy]);
    let blocks = limiter.blocks(9).await.expect("a list");
    assert!(blocks.is_complete() && blocks.is_empty());
}
