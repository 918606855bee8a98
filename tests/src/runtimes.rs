//! Runtimes with timers and sockets.

use tokio::runtime::{Builder, Runtime};

/// A runtime that runs on the thread that blocks on it.
pub fn current_thread() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// A runtime with so many threads.
pub fn multi_thread(many: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(many).enable_all();
    builder.build().expect("a runtime")
}
