//! What the tests share.

use tollgate_tests::prelude::*;

pub(crate) use tollgate_tests::{
    exposition::{Exposition, Observed, metric_of},
    stores::redis,
};

/// A limiter that counts in process on a clock that stands still, and these metrics of it.
pub(crate) fn in_process(
    observed: &Observed,
    policies: impl IntoIterator<Item = Policy>,
) -> Limiter {
    let (store, _) = stores::frozen();
    stores::limiter(observed.limiter().store(store), policies)
}

/// A limiter on a server, and these metrics of it.
pub(crate) fn on(
    server: &testkit::Server,
    observed: &Observed,
    policies: impl IntoIterator<Item = Policy>,
) -> Limiter {
    stores::limiter(observed.limiter().store(redis(server)), policies)
}

pub(crate) fn random_key(rng: &mut Rng) -> Key {
    Key::new(format!("{:016x}", rng.any()))
}

/// A file of the repository.
pub(crate) fn file(path: &str) -> String {
    std::fs::read_to_string(tollgate_tests::repository(path)).expect(path)
}
