//! Who asks, and how much each may: the same for all contenders.

use tollgate::Key;

/// Units a key may take: so slowly given back that keys live on, and more at once than any contender manages, so that
/// every decision admits and writes.
pub const PER_WEEK: u64 = 1_000_000;
/// See [`PER_WEEK`].
pub const BURST: u64 = 100_000_000;

/// What a caller is called.
pub fn name(key: usize) -> String {
    format!("user:{key}")
}

/// So many callers.
pub fn keys(keys: usize) -> Vec<Key> {
    (0..keys).map(|key| Key::new(name(key))).collect()
}
