//! What the tests share.

pub(crate) use tollgate_tests::{
    charges::charge,
    results::{admitted_by_store, store_error},
    scene::{
        Case, Scene, each, each_in, each_of, fresh_key, left, refund, send, send_concurrently,
    },
    strategy_kind::StrategyKind,
    world::{KEY, START, TEST_TIMEOUT, World, ms, secs},
};
