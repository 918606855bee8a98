//! The background thread: one per process, for what may not wait for the threads of the application.

use std::{
    future::pending,
    io, process,
    sync::{Mutex, mpsc},
    thread,
};

use tokio::runtime::{Builder, Handle};

use crate::{log::LogThrottle, sync::lock};

/// The process that started the thread, and the thread's runtime. A forked process has no thread.
static THREAD: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// The runtime of the background thread, which is started when it is first needed and never ends. `None` if it can't be started;
/// the next call tries again.
///
/// Its tasks hold no store and no limiter across an await.
pub(crate) fn background_runtime() -> Option<Handle> {
    let mut thread = lock(&THREAD);
    let process = process::id();
    if let Some((_, runtime)) = thread.as_ref().filter(|(starter, _)| *starter == process) {
        return Some(runtime.clone());
    }
    match start() {
        Ok(runtime) => {
            *thread = Some((process, runtime.clone()));
            Some(runtime)
        }
        Err(error) => {
            drop(thread);
            log_failure(&error);
            None
        }
    }
}

/// Starts the thread. The runtime is built there: one that is dropped in a task panics.
fn start() -> io::Result<Handle> {
    let (started, runtime) = mpsc::channel();
    let run = move || {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build();
        let handle = runtime.as_ref().map(|runtime| runtime.handle().clone());
        let error = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        let _ = started.send(handle.map_err(error));
        if let Ok(runtime) = runtime {
            runtime.block_on(pending::<()>());
        }
    };
    thread::Builder::new().name("tollgate".into()).spawn(run)?;
    let runtime = runtime.recv();
    // A future that is polled here, by a thread that parks in between, may have been woken while `recv` was parked.
    thread::current().unpark();
    runtime.map_err(io::Error::other)?
}

#[cold]
fn log_failure(error: &io::Error) {
    static FAILED: LogThrottle = LogThrottle::new();
    let remedy = "raise the limits of threads and open files of this process";
    FAILED.log_with(|suppressed| {
        tracing::error!(
            %error,
            remedy,
            suppressed,
            "background thread could not be started; the store is probed by the application's own runtime, and there are no leases"
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_thread_serves_all_and_does_not_end() {
        let ids: Vec<_> = (0..8)
            .map(|_| thread::spawn(|| background_runtime().expect("a thread").id()))
            .map(|thread| thread.join().expect("an id"))
            .collect();
        assert!(ids.iter().all(|id| *id == ids[0]));
        let there = background_runtime()
            .expect("a thread")
            .spawn(async { thread::current().name().map(str::to_owned) });
        assert_eq!(there.await.expect("it ran").as_deref(), Some("tollgate"));
    }
}
