//! Which server has a worker's keys, and how its batches get there.

use std::sync::{Arc, Mutex};

use redis::{Cmd, FromRedisValue, RedisError, Value, aio::MultiplexedConnection};

use super::{
    cluster::{
        hash_tags::HashTags,
        node::{ClusterNode, Redirect},
        slot_map::Cluster,
    },
    connection::{
        ConnectionSource, RunError,
        shared::{ConnectionRef, SharedConnection},
    },
    error_class,
};
use crate::{error::StoreError, key::Key, sync::lock};

/// One server or a cluster.
#[derive(Clone, Debug)]
pub(crate) enum Topology {
    One(ConnectionSource),
    Cluster(Arc<Cluster>),
}

/// The route of a worker's batches to the server of its keys.
#[derive(Debug)]
pub(crate) enum Route {
    Single(Arc<SharedConnection>),
    /// To the node of a cluster that serves a tag's slot.
    HashTag(Arc<NodeConnections>, usize),
}

impl Topology {
    /// The routes of a runtime's workers.
    pub(crate) fn routes(&self, per_runtime: usize) -> Vec<Route> {
        match self {
            Self::One(source) => {
                let per_runtime = per_runtime.min(source.max_pooled);
                let connection = || Arc::new(SharedConnection::new(source.clone()));
                (0..per_runtime)
                    .map(|_| Route::Single(connection()))
                    .collect()
            }
            Self::Cluster(cluster) => {
                let nodes = Arc::new(NodeConnections::new(cluster.clone()));
                let route = |tag| Route::HashTag(nodes.clone(), tag);
                (0..cluster.tags().len()).map(route).collect()
            }
        }
    }

    /// The hash tags of keys, on a cluster.
    pub(crate) fn tags(&self) -> Option<&HashTags> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => Some(cluster.tags()),
        }
    }

    /// The hash tag of a key: zero, except on a cluster.
    pub(crate) fn tag_of(&self, key: &Key) -> usize {
        self.tags().map_or(0, |tags| tags.of(key))
    }

    /// Where the connections to the server of a hash tag's keys come from, if it is known.
    pub(crate) fn source(&self, tag: usize) -> Option<ConnectionSource> {
        match self {
            Self::One(source) => Some(source.clone()),
            Self::Cluster(cluster) => Some(cluster.cached_owner(tag)?.source.clone()),
        }
    }

    /// The name of the server of a hash tag's keys.
    pub(crate) fn server(&self, tag: usize) -> Arc<str> {
        let source = self.source(tag);
        source.map_or_else(|| "the cluster".into(), |source| source.server().clone())
    }

    /// Each server that has keys, once, with the first hash tag that it has, in the order of these.
    pub(crate) async fn servers(&self) -> Result<Vec<(usize, ConnectionSource)>, StoreError> {
        let cluster = match self {
            Self::One(source) => return Ok(vec![(0, source.clone())]),
            Self::Cluster(cluster) => cluster,
        };
        let mut servers = Vec::<(usize, ConnectionSource)>::new();
        for tag in 0..cluster.tags().len() {
            let source = &cluster.slot_owner(tag).await?.source;
            let is_same = |(_, known): &(_, ConnectionSource)| known.server() == source.server();
            if !servers.iter().any(is_same) {
                servers.push((tag, source.clone()));
            }
        }
        Ok(servers)
    }

    /// The hash tags that the same server has.
    pub(crate) fn tags_on_same_node(&self, tag: usize) -> Vec<usize> {
        match self {
            Self::One(_) => vec![tag],
            Self::Cluster(cluster) => cluster.tags_on_same_node(tag),
        }
    }

    /// Refreshes the slot map: a server may no longer serve its keys.
    pub(crate) fn schedule_refresh(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.schedule_refresh();
        }
    }

    /// Runs an idempotent command on a connection beside the workers'. On a cluster, `tag` is that of its key.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        tag: usize,
        cmd: &Cmd,
    ) -> Result<T, RunError> {
        match self {
            Self::One(source) => {
                let connection = source.checkout().await.map_err(RunError::NotConnected)?;
                let reply = connection.query(cmd, false).await;
                let reply = reply.and_then(|value| Ok(T::from_redis_value(value)?));
                reply.map_err(|error| RunError::Failed(error_class::to_store_error(&error)))
            }
            Self::Cluster(cluster) => cluster.run(tag, cmd).await,
        }
    }

    /// Opens a connection beside those of pools to the server of a hash tag's keys.
    pub(crate) async fn connect(&self, tag: usize) -> Result<MultiplexedConnection, StoreError> {
        match self {
            Self::One(source) => source.connect().await,
            Self::Cluster(cluster) => cluster.slot_owner(tag).await?.source.connect().await,
        }
    }

    /// Runs an idempotent command on a connection of its own, which ends with it. No redirect is followed.
    pub(crate) async fn run_on_new_connection(
        &self,
        tag: usize,
        cmd: &Cmd,
    ) -> Result<Value, RunError> {
        let connected = self.connect(tag).await;
        let mut connection = connected.map_err(RunError::NotConnected)?;
        let reply = cmd.query_async(&mut connection).await;
        reply.map_err(|error| RunError::Failed(error_class::to_store_error(&error)))
    }
}

impl Route {
    /// The hash tag of the keys: zero, except on a cluster.
    pub(crate) fn tag(&self) -> usize {
        match self {
            Self::Single(_) => 0,
            Self::HashTag(_, tag) => *tag,
        }
    }

    /// The connection to the server.
    pub(crate) async fn connect(&self) -> Result<ConnectionRef, StoreError> {
        match self {
            Self::Single(connection) => connection.acquire().await,
            Self::HashTag(nodes, tag) => {
                let node = nodes.cluster.slot_owner(*tag).await?;
                nodes.connection(*tag, &node).acquire().await
            }
        }
    }

    /// The connection to a certain node.
    pub(crate) async fn connect_to(
        &self,
        node: &Arc<ClusterNode>,
    ) -> Result<ConnectionRef, StoreError> {
        match self {
            Self::Single(connection) => connection.acquire().await,
            Self::HashTag(nodes, tag) => nodes.connection(*tag, node).acquire().await,
        }
    }

    /// The redirect in an error; `None` if it is none.
    pub(crate) fn redirect(&self, error: &RedisError) -> Option<Redirect> {
        match self {
            Self::Single(_) => None,
            Self::HashTag(nodes, tag) => nodes.cluster.redirect(*tag, error),
        }
    }

    /// Refreshes the slot map: the server may no longer serve the keys.
    pub(crate) fn schedule_refresh(&self) {
        if let Self::HashTag(nodes, _) = self {
            nodes.cluster.schedule_refresh();
        }
    }
}

/// The connections of one runtime to the nodes of a cluster.
#[derive(Debug)]
pub(crate) struct NodeConnections {
    cluster: Arc<Cluster>,
    nodes: Mutex<Vec<NodeEntry>>,
}

/// A node, and the connections to it.
type NodeEntry = (Arc<ClusterNode>, Box<[Arc<SharedConnection>]>);

impl NodeConnections {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self {
            cluster,
            nodes: Mutex::default(),
        }
    }

    /// The connection to a node, for a tag's worker.
    fn connection(&self, tag: usize, node: &Arc<ClusterNode>) -> Arc<SharedConnection> {
        let mut nodes = lock(&self.nodes);
        if let Some((_, connections)) = nodes.iter().find(|(known, _)| Arc::ptr_eq(known, node)) {
            return connections[tag % connections.len()].clone();
        }
        // Nodes are added and removed.
        nodes.retain(|(known, _)| self.cluster.has_node(known));
        let connection = |_| Arc::new(SharedConnection::new(node.source.clone()));
        let new: Box<[_]> = (0..self.cluster.connections()).map(connection).collect();
        let connection = new[tag % new.len()].clone();
        nodes.push((node.clone(), new));
        connection
    }
}
