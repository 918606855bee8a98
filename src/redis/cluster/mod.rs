//! Redis Cluster: the slots of keys, and which node serves them.

pub(crate) mod hash_tags;
pub(crate) mod node;
pub(crate) mod slot_map;
