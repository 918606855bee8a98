//! The scenes of the fixture: policies, calls that leave keys, and calls that go on from them.

use tollgate::{store::RedisStoreBuilder, strategy::Strategy};
use tollgate_tests::prelude::*;

use super::calls::Call;

mod requests;
mod strategies;

pub(crate) struct Scene {
    /// As written in the fixture.
    pub(crate) name: &'static str,
    pub(crate) cluster: bool,
    pub(crate) store: fn(RedisStoreBuilder) -> RedisStoreBuilder,
    pub(crate) policies: fn() -> Vec<Policy>,
    pub(crate) calls: Vec<Call>,
    pub(crate) later: Vec<Call>,
}

pub(crate) fn all() -> Vec<Scene> {
    let mut all = Vec::new();
    all.extend(strategies::all());
    all.extend(requests::all());
    all
}

fn scene(
    name: &'static str,
    policies: fn() -> Vec<Policy>,
    calls: impl Into<Vec<Call>>,
    later: impl Into<Vec<Call>>,
) -> Scene {
    Scene {
        name,
        cluster: false,
        // Rejections are cached by this process's clock, and the server's is frozen.
        store: |store| store.rejection_cache_staleness(Duration::ZERO),
        policies,
        calls: calls.into(),
        later: later.into(),
    }
}

#[track_caller]
fn policy(name: &str, quota: &str, strategy: impl Strategy) -> Policy {
    Policy::new(name, quota.parse::<Quota>().expect(quota)).strategy(strategy)
}
