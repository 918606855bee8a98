//! Redis Cluster: which node serves which slot.

pub(crate) mod connections;
pub(crate) mod node;
pub(crate) mod slot_map;
