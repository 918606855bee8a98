//! The slot map of a Redis Cluster: which node serves each hash tag's slot.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, RedisError, ServerErrorKind};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    hash_tags::HashTags,
    node::{ClusterNode, Redirect, SlotRange, redirect_kind},
};
use crate::{
    error::{ConfigError, StoreError},
    redis::{
        connection::{ConnectionSource, RunError, sentinel},
        error_class,
    },
    runtime::{background_or_current, run_in_background},
    sync::lock,
};

/// Nodes queried at a time for the slot map. The first reply counts.
const REFRESH_FANOUT: usize = 6;

/// Timeout of a refresh.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// Redirects that a command of its own follows.
const MAX_REDIRECTS: usize = 5;

/// The nodes of a cluster.
///
/// Workers call them directly: while redis-rs's own cluster connection looks for a node that is gone, it delays the requests to the
/// others. With retries it would also charge twice after a truncated reply, and without them it follows no redirects.
pub(crate) struct Cluster {
    /// The first configured node, whose URL is the template for all connections.
    template: ConnectionInfo,
    open: fn(ConnectionInfo) -> Result<ConnectionSource, ConfigError>,
    /// The configured nodes.
    seeds: Vec<Arc<ClusterNode>>,
    tags: HashTags,
    /// Pooled connections to each node, in each runtime.
    connections: usize,
    map: ArcSwap<SlotMap>,
    refreshing: tokio::sync::Mutex<()>,
    /// The node to query first.
    next_start: AtomicUsize,
    /// The last refresh: when it began, and its error.
    last: Mutex<Option<(Instant, Option<StoreError>)>>,
}

/// The nodes, and the owner of each tag's slot.
#[derive(Clone, Debug, Default)]
struct SlotMap {
    nodes: Vec<Arc<ClusterNode>>,
    /// The owner of each tag's slot.
    owners: Vec<Option<Arc<ClusterNode>>>,
}

impl SlotMap {
    fn add(&mut self, node: &Arc<ClusterNode>) {
        if !self.nodes.iter().any(|known| Arc::ptr_eq(known, node)) {
            self.nodes.push(node.clone());
        }
    }
}

impl Cluster {
    /// A cluster that is found through any of the configured nodes. Nothing is connected yet.
    pub(crate) fn new(
        seeds: Vec<ConnectionInfo>,
        tags: HashTags,
        connections: usize,
        open: fn(ConnectionInfo) -> Result<ConnectionSource, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let none = || ConfigError::new("a cluster without a node", "at least one URL of a node");
        let template = seeds.first().cloned().ok_or_else(none)?;
        if let Some(seed) = seeds.iter().find(|seed| seed.redis_settings().db() != 0) {
            let db = seed.redis_settings().db();
            return Err(ConfigError::new(
                format!("database {db} of a cluster"),
                "database 0, the only one of a cluster",
            ));
        }
        let seeds = seeds.into_iter().map(|seed| {
            let (host, port) = match seed.addr() {
                ConnectionAddr::Tcp(host, port) => (host.clone(), *port),
                ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
                _ => {
                    return Err(ConfigError::new(
                        "a cluster node without a host and port",
                        "a URL such as redis://10.0.0.1:6379",
                    ));
                }
            };
            let source = open(seed)?;
            Ok(Arc::new(ClusterNode::new(host, port, source)))
        });
        Ok(Self {
            seeds: seeds.collect::<Result<_, _>>()?,
            template,
            open,
            connections,
            map: ArcSwap::from_pointee(SlotMap {
                nodes: Vec::new(),
                owners: vec![None; tags.len()],
            }),
            tags,
            refreshing: Default::default(),
            next_start: AtomicUsize::new(0),
            last: Mutex::default(),
        })
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections
    }

    pub(crate) fn tags(&self) -> &HashTags {
        &self.tags
    }

    /// The owner of a tag's slot.
    pub(crate) async fn slot_owner(
        self: &Arc<Self>,
        tag: usize,
    ) -> Result<Arc<ClusterNode>, StoreError> {
        if let Some(owner) = self.cached_owner(tag) {
            return Ok(owner);
        }
        Box::pin(self.refresh()).await?;
        self.cached_owner(tag).ok_or_else(|| StoreError::Server {
            code: "CLUSTERDOWN".into(),
            message: "no node serves the slot".into(),
        })
    }

    /// Whether a node serves slots.
    pub(crate) fn has_node(&self, node: &Arc<ClusterNode>) -> bool {
        let nodes = &self.map.load().nodes;
        nodes.iter().any(|known| Arc::ptr_eq(known, node))
    }

    pub(crate) fn cached_owner(&self, tag: usize) -> Option<Arc<ClusterNode>> {
        self.map.load().owners.get(tag)?.clone()
    }

    /// The redirect in an error; `None` if it is none. In any case nothing ran.
    pub(crate) fn redirect(self: &Arc<Self>, tag: usize, error: &RedisError) -> Option<Redirect> {
        let kind = redirect_kind(error)?;
        let node = || {
            let (address, _) = error.redirect_node()?;
            let (host, port) = address.rsplit_once(':')?;
            // Without a host it is the node that replied.
            let same = self.cached_owner(tag).filter(|_| host.is_empty());
            let host = same.as_ref().map_or(host, |node| &node.host);
            self.node(&self.map.load(), host, port.parse().ok()?)
        };
        match kind {
            ServerErrorKind::Moved => {
                let node = node()?;
                self.map.rcu(|map| {
                    let mut map = SlotMap::clone(map);
                    map.add(&node);
                    map.owners[tag] = Some(node.clone());
                    map
                });
                self.schedule_refresh();
                Some(Redirect::Moved)
            }
            ServerErrorKind::Ask => {
                let node = node()?;
                if !self.has_node(&node) {
                    // It may be importing its first slots. Keep it, so that the next redirect finds
                    // it and its connections.
                    self.map.rcu(|map| {
                        let mut map = SlotMap::clone(map);
                        map.add(&node);
                        map
                    });
                }
                Some(Redirect::Ask(node))
            }
            ServerErrorKind::TryAgain => Some(Redirect::TryAgain),
            _ => None,
        }
    }

    /// The tags that the same node serves.
    pub(crate) fn tags_on_same_node(&self, tag: usize) -> Vec<usize> {
        let map = self.map.load();
        let Some(Some(own)) = map.owners.get(tag) else {
            return vec![tag];
        };
        let owners = map.owners.iter().enumerate();
        let same = owners.filter(|(_, owner)| owner.as_ref().is_some_and(|o| Arc::ptr_eq(o, own)));
        same.map(|(tag, _)| tag).collect()
    }

    /// Refreshes the slot map in the background.
    pub(crate) fn schedule_refresh(self: &Arc<Self>) {
        if self.refreshing.try_lock().is_ok()
            && self.last_refresh().is_none()
            && let Some(runtime) = background_or_current()
        {
            let cluster = self.clone();
            drop(runtime.spawn(async move { cluster.refresh_here().await }));
        }
    }

    /// The result of the last refresh, if it is recent.
    fn last_refresh(&self) -> Option<Result<(), StoreError>> {
        let last = lock(&self.last);
        let (_, error) = last
            .as_ref()
            .filter(|(at, _)| at.elapsed() < REFRESH_INTERVAL)?;
        Some(error.clone().map_or(Ok(()), Err))
    }

    /// Refreshes the slot map, by the background thread: callers on other runtimes wait for it.
    pub(crate) async fn refresh(self: &Arc<Self>) -> Result<(), StoreError> {
        const NO_RUNTIME: StoreError = StoreError::NoRuntime("the slot map is read from the nodes");
        let cluster = self.clone();
        let refresh = run_in_background(async move { cluster.refresh_here().await });
        refresh.await.unwrap_or(Err(NO_RUNTIME))
    }

    /// Refreshes the slot map on this runtime. Concurrent callers await one refresh.
    async fn refresh_here(&self) -> Result<(), StoreError> {
        let _refreshing = self.refreshing.lock().await;
        if let Some(read) = self.last_refresh() {
            return read;
        }
        let begun = Instant::now();
        let slots = timeout(REFRESH_TIMEOUT, self.query_nodes()).await;
        let slots = slots.unwrap_or(Err(StoreError::timeout()));
        let error = slots.as_ref().err().cloned();
        *lock(&self.last) = Some((begun, error));
        self.apply_slots(&slots?);
        Ok(())
    }

    async fn query_nodes(&self) -> Result<Vec<SlotRange>, StoreError> {
        let map = self.map.load_full();
        let seeds = self.seeds.iter();
        let seeds = seeds.filter(|seed| {
            !map.nodes
                .iter()
                .any(|node| node.has_address(&seed.host, seed.port))
        });
        let mut nodes: Vec<_> = map.nodes.iter().chain(seeds).cloned().collect();
        // Others each time, so that unreachable nodes do not block a refresh for ever.
        let next_start = self.next_start.fetch_add(1, Ordering::Relaxed);
        let first = next_start % nodes.len().max(1);
        nodes.rotate_left(first);
        let mut queries = JoinSet::new();
        let mut nodes = nodes.into_iter();
        for node in nodes.by_ref().take(REFRESH_FANOUT) {
            queries.spawn(async move { node.slots().await });
        }
        let mut error = StoreError::connection("no node of the cluster answers");
        while let Some(reply) = queries.join_next().await {
            match reply {
                Ok(Ok(slots)) => return Ok(slots),
                Ok(Err(failed)) => error = failed,
                Err(_) => {}
            }
            if let Some(node) = nodes.next() {
                queries.spawn(async move { node.slots().await });
            }
        }
        Err(error)
    }

    fn apply_slots(&self, slots: &[SlotRange]) {
        self.map.rcu(|old| {
            let mut map = SlotMap {
                nodes: Vec::new(),
                owners: vec![None; self.tags.len()],
            };
            for (first, last, host, port) in slots {
                let Some(node) = self.node(old, host, *port) else {
                    continue;
                };
                for (tag, owner) in map.owners.iter_mut().enumerate() {
                    if (*first..=*last).contains(&self.tags.slot(tag)) {
                        *owner = Some(node.clone());
                    }
                }
                map.add(&node);
            }
            map
        });
    }

    /// The node at an address, which may be new.
    fn node(&self, map: &SlotMap, host: &str, port: u16) -> Option<Arc<ClusterNode>> {
        let mut known = map.nodes.iter().chain(&self.seeds);
        if let Some(node) = known.find(|node| node.has_address(host, port)) {
            return Some(node.clone());
        }
        let address = sentinel::with_address(self.template.addr(), host, port);
        let source = (self.open)(self.template.clone().set_addr(address)).ok()?;
        Some(Arc::new(ClusterNode::new(host.to_owned(), port, source)))
    }

    /// Runs an idempotent command on the node of a tag's keys.
    pub(crate) async fn run<T: FromRedisValue>(
        self: &Arc<Self>,
        tag: usize,
        cmd: &Cmd,
    ) -> Result<T, RunError> {
        let owner = async || self.slot_owner(tag).await.map_err(RunError::NotConnected);
        let (mut node, mut asking) = (owner().await?, false);
        for left in (0..MAX_REDIRECTS).rev() {
            let connection = node.source.checkout().await;
            let connection = connection.inspect_err(|_| self.schedule_refresh());
            let connection = connection.map_err(RunError::NotConnected)?;
            let reply = connection.query(cmd, asking).await;
            let error = match reply.and_then(|value| Ok(T::from_redis_value(value)?)) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            match self.redirect(tag, &error).filter(|_| left > 0) {
                Some(Redirect::Ask(to)) => (node, asking) = (to, true),
                Some(redirect) => {
                    if matches!(redirect, Redirect::TryAgain) {
                        sleep(Duration::from_millis(5)).await;
                    }
                    (node, asking) = (owner().await?, false);
                }
                None => {
                    self.schedule_refresh();
                    return Err(RunError::Failed(error_class::to_store_error(&error)));
                }
            }
        }
        Err(RunError::Failed(StoreError::timeout()))
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let map = self.map.load();
        let addresses = map
            .nodes
            .iter()
            .map(|node| format!("{}:{}", node.host, node.port));
        f.debug_struct("Cluster")
            .field("tags", &self.tags)
            .field("nodes", &addresses.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing connects to it.
    fn open(node: ConnectionInfo) -> Result<ConnectionSource, ConfigError> {
        let config = deadpool_redis::Config::from_connection_info(node);
        let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1));
        Ok(ConnectionSource::new(pool.expect("a pool"), 1))
    }

    #[tokio::test]
    async fn a_redirect_without_a_host_is_to_the_host_of_the_tags_owner() {
        let seeds = ["redis://10.0.0.1:7000", "redis://10.0.0.2:7000"];
        let seeds = seeds.map(redis::IntoConnectionInfo::into_connection_info);
        let seeds = seeds.map(|seed| seed.expect("an address"));
        let tags = HashTags::new(2).expect("tags");
        let cluster = Arc::new(Cluster::new(seeds.into(), tags, 1, open).expect("a cluster"));
        cluster.map.store(Arc::new(SlotMap {
            nodes: cluster.seeds.clone(),
            owners: cluster.seeds.iter().cloned().map(Some).collect(),
        }));
        let kind = redis::ErrorKind::Server(ServerErrorKind::Ask);
        let error = RedisError::from((kind, "ASK", "1 :7001".to_owned()));
        for (tag, host) in ["10.0.0.1", "10.0.0.2"].into_iter().enumerate() {
            let Some(Redirect::Ask(node)) = cluster.redirect(tag, &error) else {
                panic!("it is a redirect");
            };
            assert_eq!((&*node.host, node.port), (host, 7001));
        }
    }
}
