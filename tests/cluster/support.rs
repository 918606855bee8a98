//! What the tests share.

use std::{
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use testkit::{Cluster, Server};
use tollgate::{
    CalendarWindow, Decision, FixedWindow, Gcra, Key, Keys, Limiter, ListWindow, OnStoreError,
    Policy, RedisStore, SlidingLog, SlidingWindow, Source, TokenBucket,
};

/// The machine may be busy; where counting is tested, time is not.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One for all tests that leave its nodes as they are. Their policies' names tell their keys apart.
pub(crate) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(3, 1))
}

pub(crate) fn store(cluster: &Cluster) -> RedisStore {
    store_by(cluster, PATIENCE)
}

/// A store whose requests wait so long at most.
pub(crate) fn store_by(cluster: &Cluster, deadline: Duration) -> RedisStore {
    let store = RedisStore::builder()
        .cluster(cluster.urls())
        .deadline(deadline)
        .denials(Duration::ZERO);
    store.build().expect("a store")
}

/// A limiter that shows faults.
pub(crate) fn limiter(store: RedisStore, policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let builder = Limiter::builder().store(store);
    let builder = policies
        .into_iter()
        .fold(builder, |builder, policy| builder.policy(policy));
    let limiter = builder.on_store_error(OnStoreError::Refuse);
    limiter.build().expect("a limiter")
}

/// How a policy is counted: whatever is promised holds for each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Gcra,
    Bucket,
    Window,
    Calendar,
    List,
    Log,
    Sliding,
}

impl By {
    pub(crate) const ALL: [Self; 7] = [
        Self::Gcra,
        Self::Bucket,
        Self::Window,
        Self::Calendar,
        Self::List,
        Self::Log,
        Self::Sliding,
    ];

    pub(crate) fn policy(self, name: &str, quota: &str) -> Policy {
        let policy = Policy::new(name, quota.parse().expect(quota));
        match self {
            Self::Gcra => policy.strategy(Gcra),
            Self::Bucket => policy.strategy(TokenBucket),
            Self::Window => policy.strategy(FixedWindow),
            Self::Calendar => policy.strategy(CalendarWindow::utc()),
            Self::List => policy.strategy(ListWindow),
            Self::Log => policy.strategy(SlidingLog),
            Self::Sliding => policy.strategy(SlidingWindow::new()),
        }
    }
}

/// Whether it was admitted, by the store itself.
#[track_caller]
pub(crate) fn counted(decision: &Decision) -> bool {
    assert_eq!(decision.source(), Source::Store, "{decision:?}");
    decision.is_admitted()
}

/// What is used of each policy's quota.
pub(crate) async fn used(limiter: &Limiter, keys: impl Into<Keys>) -> Vec<u64> {
    let seen = limiter.peek(keys).await;
    assert_eq!(seen.source(), Source::Store, "{seen:?}");
    let verdicts = seen.verdicts().chain(seen.shadows());
    verdicts
        .map(|verdict| verdict.limit() - verdict.remaining())
        .collect()
}

/// Sends `requests` requests from `tasks` tasks, each over one of the limiters in turn; returns how many were admitted.
pub(crate) async fn hammer(limiters: &[Limiter], keys: Keys, tasks: usize, requests: u64) -> u64 {
    let tickets = Arc::new(AtomicU64::new(requests));
    let limiters = limiters.iter().cycle().take(tasks).cloned();
    let tasks: Vec<_> = limiters
        .map(|limiter| {
            let (keys, tickets) = (keys.clone(), tickets.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                let next = |left: u64| left.checked_sub(1);
                while tickets
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
                    .is_ok()
                {
                    admitted += u64::from(counted(&limiter.check(keys.clone()).await));
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("a task ends well");
    }
    admitted
}

/// Asks until it is so, for as long as [`PATIENCE`] lasts.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut probe: impl FnMut() -> F) {
    let start = Instant::now();
    while !probe().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The masters' keys whose names hold `part`, and the index of the master that each is on.
pub(crate) fn keys(cluster: &Cluster, part: &str) -> Vec<(String, usize)> {
    let masters = cluster.nodes()[..3].iter().enumerate();
    let keys = masters.flat_map(|(at, node)| node.keys().into_iter().map(move |key| (key, at)));
    keys.filter(|(key, _)| key.contains(part)).collect()
}

/// Keys of three masters, and the hash tag of each, such as `{a7}`.
#[derive(Clone, Debug)]
pub(crate) struct Places(pub(crate) [(Key, String); 3]);

impl Places {
    /// `name` tells them from others.
    pub(crate) async fn find(cluster: &Cluster, name: &str) -> Self {
        let probe = limiter(store(cluster), [By::Gcra.policy("q", "9/month")]);
        let mut found: [Option<(Key, String)>; 3] = Default::default();
        for number in 0.. {
            let key = Key::new(format!("{name}{number}"));
            assert!(counted(&probe.check(key).await));
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

/// How often a script was called at a node.
pub(crate) fn calls(node: &Server) -> u64 {
    node.calls("evalsha") + node.calls("eval")
}
