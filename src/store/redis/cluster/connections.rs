//! The connections of one runtime to the nodes of a cluster.

use std::sync::{Arc, Mutex, PoisonError};

use super::{node::ClusterNode, slot_map::Cluster};
use crate::{
    error::StoreError,
    store::redis::connection::{ConnectionRef, SharedConnection},
};

/// The connections of one runtime to the nodes of a cluster.
#[derive(Debug)]
pub(crate) struct NodeConnections {
    cluster: Arc<Cluster>,
    roads: Mutex<Vec<Known>>,
}

/// A node, and the connections to it.
type Known = (Arc<ClusterNode>, Box<[Arc<SharedConnection>]>);

impl NodeConnections {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self {
            cluster,
            roads: Mutex::default(),
        }
    }

    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The connection to a node, for a tag's worker.
    pub(crate) async fn way(
        &self,
        tag: usize,
        node: &Arc<ClusterNode>,
    ) -> Result<ConnectionRef, StoreError> {
        self.road(tag, node).way().await
    }

    fn road(&self, tag: usize, node: &Arc<ClusterNode>) -> Arc<SharedConnection> {
        let mut roads = self.roads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = roads.iter().find(|(known, _)| Arc::ptr_eq(known, node)) {
            return known[tag % known.len()].clone();
        }
        // Nodes are added and removed.
        roads.retain(|(known, _)| self.cluster.knows(known));
        let road = |_| Arc::new(SharedConnection::new(node.source.clone()));
        let new: Box<[_]> = (0..self.cluster.connections()).map(road).collect();
        let road = new[tag % new.len()].clone();
        roads.push((node.clone(), new));
        road
    }
}
