//! Keys of one slot are counted as on a single server.

use crate::cluster::support::*;
use std::collections::{BTreeMap, HashSet};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tasks_over_two_stores_are_admitted_exactly_the_quota() {
    for strategy in StrategyKind::ALL {
        let name = format!("exact{strategy:?}");
        let limiters =
            [0, 1].map(|_| limiter(store(cluster()), [strategy.policy(&name, "500/month")]));
        let admitted = hammer(&limiters, Key::new("hot"), 64, 1_500).await;
        assert_eq!(admitted, 500, "{strategy:?}");
        let used = used(&limiters[0], Key::new("hot")).await;
        assert_eq!(used, [500], "{strategy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_on_one_key_share_its_slot_and_are_evaluated_in_one_call() {
    let one = || Gcra.policy("whole-1", "200/month");
    let other = || Log.policy("whole-2", "100/month");
    let limiters = [0, 1].map(|_| limiter(store(cluster()), [one(), other()]));
    let admitted = hammer(&limiters, Key::new("one"), 64, 400).await;
    assert_eq!(admitted, 100);
    assert_eq!(used(&limiters[1], Key::new("one")).await, [100, 100]);
    let found = keys(cluster(), ":whole-");
    let tags: HashSet<_> = found.iter().map(|(key, _)| key.split('}').next()).collect();
    assert_eq!((found.len(), tags.len()), (2, 1), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_keys_spread_over_all_masters_and_each_has_its_own_quota() {
    let cluster = Cluster::start(3, 0);
    let limiters = [0, 1].map(|_| limiter(store(&cluster), [Gcra.policy("p", "3/month")]));
    let pending = (0..5_000).map(|n| {
        let (limiter, key) = (&limiters[n % 2], n / 5);
        async move { (key, admits(limiter, Key::new(format!("{key}"))).await) }
    });
    let mut admitted = BTreeMap::<_, usize>::new();
    for (key, passed) in join_all(pending).await {
        *admitted.entry(key).or_default() += usize::from(passed);
    }
    assert_eq!(admitted.len(), 1_000);
    let is_exact = admitted.values().all(|admitted| *admitted == 3);
    assert!(is_exact, "{admitted:?}");
    for node in cluster.nodes() {
        let keys = node.keys().len();
        assert!((250..450).contains(&keys), "{keys} keys");
        assert_eq!(node.immortal_keys(), [""; 0]);
        node.command(&["SCRIPT", "FLUSH"]).ok();
    }
    // Scripts are sent again to nodes that lost them.
    for key in 1_000..1_050 {
        assert!(admits(&limiters[0], Key::new(format!("{key}"))).await);
    }
}

#[tokio::test]
async fn callers_are_listed_from_any_node() {
    let limiter = limiter(store(cluster()), [List.policy("list", "9/month")]);
    for key in ["one", "two", "three", "four"] {
        let key = Key::new(key);
        for caller in ["alice", "bob"] {
            let keys = tollgate::limiter::Keys::from(key).caller(Key::new(caller));
            assert!(admits(&limiter, keys).await);
        }
        let handle = limiter.policy("list").expect("a policy");
        let callers = handle.callers(key).await.expect("callers");
        assert_eq!(callers, ["alice", "bob"].map(Key::new));
    }
}

#[test]
fn config_errors_are_found_when_a_store_is_built() {
    let build = |urls: &[&str], tags| {
        let store = RedisStore::builder().cluster(urls.iter().copied());
        store.hash_tags(tags).build().map(drop)
    };
    let wrong = |urls: &[&str], tags| -> ConfigError { build(urls, tags).expect_err("a mistake") };
    let url = "redis://127.0.0.1:6379";
    assert!(build(&[url], 64).is_ok());
    for (urls, tags, part) in [
        (&[][..], 64, "without a node"),
        (&["redis://127.0.0.1/3"], 64, "database 3"),
        (&["redis+unix:///run/s"], 64, "port"),
        (&[url], 100, "power of two"),
    ] {
        assert_contains(wrong(urls, tags).to_string(), [part]);
    }
    let text = wrong(&["http://:hunter2@127.0.0.1"], 64).to_string();
    assert!(!text.contains("hunter2"), "{text}");
}
