//! Redis Cluster: which node serves which slot.

pub(crate) mod node;
pub(crate) mod slot_map;
