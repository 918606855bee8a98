//! Random numbers.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// A random number: the hash of nothing under a new key of the standard library's hasher, which an attacker cannot predict.
/// Not for secrets.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}
