use std::{path::Path, sync::Arc, time::Duration};

use tokio::{runtime::Handle, task::AbortHandle};

use super::{
    hangup::Hangup,
    reloader::{Reloader, Trigger},
    status::WatchStatus,
    task,
};
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
        let task = runtime.spawn(task::watch(reloader.clone(), interval, hangup));
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
