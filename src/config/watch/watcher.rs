//! A watch that runs: the task that polls, and SIGHUP.

use std::{io, path::Path, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinError, spawn_blocking},
    time::sleep,
};

use super::reloader::{Reloader, Trigger, WatchStatus};
use crate::{changes::Changes, config::LoadError};

/// A [`Watch`](super::Watch) that was started. Dropping it ends the watch: a document that is being put in force at that moment
/// still is, and none afterwards.
#[derive(Debug)]
#[must_use = "dropping a watcher ends the watch"]
pub struct Watcher {
    reloader: Arc<Reloader>,
    runtime: Handle,
    task: AbortHandle,
}

impl Watcher {
    pub(super) fn spawn(
        runtime: Handle,
        reloader: Arc<Reloader>,
        interval: Duration,
        hangup: Option<Hangup>,
    ) -> Self {
        let task = runtime.spawn(watch(reloader.clone(), interval, hangup));
        Self {
            reloader,
            runtime,
            task: task.abort_handle(),
        }
    }

    /// Reads the file now and puts its document in force, also if it has not changed.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the document cannot be loaded, or the runtime that the watch was started in has ended; the last good
    /// document stays in force.
    ///
    /// # Cancellation
    ///
    /// A reload whose future is dropped is completed.
    pub async fn reload(&self) -> Result<Changes, LoadError> {
        let reloader = self.reloader.clone();
        let reload = self
            .runtime
            .spawn_blocking(move || reloader.reload(Trigger::Demand));
        self.reloader.demanded(reload.await)
    }

    /// The file, as [`Watch::new`](super::Watch::new) got it.
    pub fn path(&self) -> &Path {
        self.reloader.path()
    }

    /// What is in force, and what could not be loaded.
    pub fn status(&self) -> WatchStatus {
        self.reloader.status()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.reloader.stop();
        self.task.abort();
    }
}

/// Reloads at each poll and each signal, until the task is aborted or its runtime ends.
async fn watch(reloader: Arc<Reloader>, interval: Duration, mut hangup: Option<Hangup>) {
    let mut trigger = Trigger::Poll;
    loop {
        let reloader = reloader.clone();
        // The result is in the status and in the log.
        let reload = spawn_blocking(move || reloader.reload(trigger)).await;
        if reload.is_err_and(|error: JoinError| error.is_cancelled()) {
            return;
        }
        trigger = tokio::select! {
            () = sleep(interval) => Trigger::Poll,
            () = received(&mut hangup) => Trigger::Demand,
        };
    }
}

async fn received(hangup: &mut Option<Hangup>) {
    match hangup {
        Some(hangup) => hangup.received().await,
        None => std::future::pending().await,
    }
}

/// The SIGHUPs that the process receives.
#[derive(Debug)]
pub(super) struct Hangup {
    #[cfg(unix)]
    signals: tokio::signal::unix::Signal,
}

impl Hangup {
    /// Receives the signals from now on.
    #[cfg(unix)]
    pub(super) fn listen() -> io::Result<Self> {
        use std::panic::catch_unwind;
        use tokio::signal::unix::{SignalKind, signal};

        // tokio panics where the runtime's I/O is not enabled, and has no call that says whether it is.
        let signals = catch_unwind(|| signal(SignalKind::hangup()));
        let no_io = || io::Error::other("the tokio runtime was built without enable_io");
        let signals = signals.map_err(|_| no_io())??;
        Ok(Self { signals })
    }

    #[cfg(not(unix))]
    pub(super) fn listen() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits for the next signal, for ever if there is none.
    pub(super) async fn received(&mut self) {
        #[cfg(unix)]
        if self.signals.recv().await.is_some() {
            return;
        }
        std::future::pending().await
    }
}
