//! Runtimes of tests that start and end them.

use tokio::runtime::{Builder, Runtime};

/// A runtime of this thread.
pub fn current_thread() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}
