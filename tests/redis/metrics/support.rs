//! What the tests share.

use tollgate::Key;

pub(crate) use crate::metrics::exposition::{Exposition, Observed, metric_of};

/// A number as random as a test needs, the same in each run.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

pub(crate) fn random_key(state: &mut u64) -> Key {
    Key::new(format!("{:016x}", random(state)))
}

/// A file of the repository.
pub(crate) fn file(path: &str) -> String {
    std::fs::read_to_string(tollgate_tests::repository(path)).expect(path)
}
