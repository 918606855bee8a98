//! What the tests share.

use std::sync::OnceLock;

use testkit::Builder;
use tollgate::{limiter::Keys, redis::RedisStoreBuilder};
pub(crate) use tollgate_tests::strategy_kind::StrategyKind::{Fixed, Gcra, List, Log};
pub(crate) use tollgate_tests::{
    clocks::StillTime,
    load::{hammer, limiter, used},
    prelude::*,
};

/// One for all tests that leave its nodes as they are. Their policies' names keep their keys apart.
pub(crate) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    // A node that is silent for seconds, as on a busy machine, is not replaced.
    let lasting = |node: Builder| node.arg("cluster-replica-no-failover", "yes");
    CLUSTER.get_or_init(|| Cluster::start_with(3, 1, lasting))
}

/// Each master serves its own slots, also when another is gone.
pub(crate) fn apart(node: Builder) -> Builder {
    node.arg("cluster-require-full-coverage", "no")
}

pub(crate) fn store(cluster: &Cluster) -> RedisStore {
    builder(cluster.urls()).built()
}

/// A store that calls Redis for each request, also for rejected keys, and waits for replies as long as it takes.
pub(crate) fn builder(urls: impl IntoIterator<Item = String>) -> RedisStoreBuilder {
    RedisStore::builder()
        .cluster(urls)
        .timeout(TEST_TIMEOUT)
        .rejection_cache_staleness(Duration::ZERO)
}

/// A limiter under one policy that no test uses up.
pub(crate) fn one_policy(store: RedisStore) -> Limiter {
    limiter(store, [Fixed.policy("p", "100000/month")])
}

/// The masters' keys whose names hold `part`, and the index of the master that each is on.
pub(crate) fn keys(cluster: &Cluster, part: &str) -> Vec<(String, usize)> {
    let masters = cluster.nodes()[..3].iter().enumerate();
    let keys = masters.flat_map(|(at, node)| node.keys().into_iter().map(move |key| (key, at)));
    keys.filter(|(key, _)| key.contains(part)).collect()
}

/// Keys of three masters, and the hash tag of each, such as `{a7}`.
#[derive(Clone, Debug)]
pub(crate) struct MasterKeys(pub(crate) [(Key, String); 3]);

impl MasterKeys {
    /// `name` distinguishes them from others.
    pub(crate) async fn find(cluster: &Cluster, name: &str) -> Self {
        let probe = limiter(store(cluster), [Gcra.policy("q", "9/month")]);
        let mut found: [Option<(Key, String)>; 3] = Default::default();
        for number in 0.. {
            let key = Key::new(format!("{name}{number}"));
            assert!(admitted_by_store(&probe.check(key).await));
            let name = format!(":q:{}", key.as_str());
            let mut found_here = keys(cluster, &name);
            found_here.retain(|(key, _)| key.ends_with(&name));
            let [(name, master)] = &found_here[..] else {
                panic!("one key is named {name}");
            };
            let tag = name.split_inclusive('}').next().expect("a tag");
            found[*master] = Some((key, tag.replace("tg:", "")));
            if let [Some(a), Some(b), Some(c)] = &found {
                return Self([a.clone(), b.clone(), c.clone()]);
            }
        }
        unreachable!()
    }

    pub(crate) fn key(&self, master: usize) -> Key {
        self.0[master].0
    }

    /// For policies `a`, `b` and `c`, a key of a master of its own.
    pub(crate) fn apart(&self) -> Keys {
        [("a", self.key(0)), ("b", self.key(1)), ("c", self.key(2))].into()
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, cluster: &Cluster, master: usize) -> i64 {
        let node = &cluster.nodes()[0];
        node.command(&["CLUSTER", "KEYSLOT", &self.0[master].1])
            .int()
    }
}

/// Whether a request is admitted.
pub(crate) async fn admits(limiter: &Limiter, keys: impl Into<Keys>) -> bool {
    admitted_by_store(&limiter.admit(keys.into()).await)
}

/// How often a script was called at a node.
pub(crate) fn calls(node: &Server) -> u64 {
    node.calls("evalsha") + node.calls("eval")
}
