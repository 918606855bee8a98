//! Reloading a document while requests are served.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinError, spawn_blocking},
    time::sleep,
};

use self::reloader::{Reloader, Trigger};
use super::{Document, LoadError, Registry};
use crate::{
    changes::Changes,
    layer::{LimiterOrLayer, from_limiter_or_layer},
    observe::Event,
    runtime::runtime_with_timers,
};

mod reloader;

pub use self::reloader::WatchStatus;

/// How often a file is read unless said otherwise.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);

/// Reloads a document whenever its file changes, while requests are served.
///
/// The file is polled, every two seconds by default, and compared by what it holds: symbolic links are followed anew each time.
/// So a change is seen however it is made (in place, by an editor, by `mv`, by Kubernetes as it swaps a `ConfigMap`), and on every
/// file system. The files that the document names (address lists, key lists, secrets) are compared as well.
///
/// A document that can be loaded is put in force at once, as [`Limiter::reconfigure`](crate::Limiter::reconfigure) does it:
/// requests in progress end under the policies they began with, and counts are kept as
/// [described](crate::strategy#changing-a-live-policy).
///
/// A file that is missing, empty, unreadable or invalid, or that names such a file, changes nothing: the last good document stays
/// in force. The error is logged once for each content of the file, and is in the [`WatchStatus`] until the file can be loaded
/// again. At each poll the file is read again, and loaded if it, or a file that it names, has changed since; [`Watcher::reload`]
/// and SIGHUP load it in any case.
///
/// ```no_run
/// use tollgate::config::{Document, Registry, Watch};
///
/// # async fn serve(_: tollgate::RateLimitLayer) {}
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let registry = Registry::new();
/// let layer = Document::load("limits.toml")?.layer(&registry)?;
/// let watcher = Watch::new("limits.toml").registry(registry).start(&layer)?;
/// // Serves until the process ends. Dropping the watcher ends the watch.
/// serve(layer).await;
/// println!("{:?}", watcher.status());
/// # Ok(())
/// # }
/// ```
///
/// Replace the file as a whole (write another one beside it, and rename it): what is read in the middle of a write in place may
/// be a valid document that lacks its end, and is in force until the next poll.
#[derive(Debug)]
#[must_use = "a watch does nothing until it is started"]
pub struct Watch {
    path: PathBuf,
    registry: Registry,
    interval: Duration,
    on_hangup: bool,
}

/// Why a [`Watch`] was not started.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// [`Watch::every`] was set to zero.
    #[error("the interval of a watch is zero: set another one, such as 2 s, by Watch::every")]
    ZeroInterval,
    /// There is no tokio runtime, or it has no timers.
    #[error(
        "a watch needs a tokio runtime with timers: call Watch::start in a task of a runtime that was built with enable_all"
    )]
    NoTimers,
    /// The document that the layer was built of and code have given different values to a setting of the layer.
    #[error(
        "{setting} of the layer is set by its document and by code: leave it out of one of them, since a watch could keep only one"
    )]
    SetTwice {
        /// The setting's name in the document.
        setting: &'static str,
    },
    /// SIGHUP cannot be received.
    #[error("a watch cannot receive SIGHUP: {0}")]
    Hangup(Arc<io::Error>),
}

impl Watch {
    /// A watch of the file at `path`, whose format its extension says.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            registry: Registry::new(),
            interval: DEFAULT_INTERVAL,
            on_hangup: false,
        }
    }

    /// Sets what the document may refer to by name. Default: nothing.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Sets the time between two polls. Default: 2 s.
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Reloads on SIGHUP too, also if the file has not changed. From then on the signal does not end the process, even when the
    /// watch has ended.
    #[cfg(unix)]
    pub fn on_hangup(mut self) -> Self {
        self.on_hangup = true;
        self
    }

    /// Starts to watch for `target`: a [`Limiter`](crate::Limiter) or a [`RateLimitLayer`](crate::RateLimitLayer). The file is
    /// read at once, so that no change since the target was built is missed. To wait until it is in force, await
    /// [`Watcher::reload`].
    ///
    /// What code has set on a layer that a document has built stays, such as
    /// [`enabled(false)`](crate::RateLimitLayer::enabled). A document that later sets it to another value is not put in force.
    ///
    /// # Errors
    ///
    /// [`WatchError`] outside of a tokio runtime with timers, if the interval is zero, if SIGHUP cannot be received, or if the document
    /// that the layer was built of and code have given different values to a setting.
    pub fn start(self, target: impl Into<WatchTarget>) -> Result<Watcher, WatchError> {
        if self.interval.is_zero() {
            return Err(WatchError::ZeroInterval);
        }
        let target = target.into();
        if let Some(setting) = target.set_twice() {
            return Err(WatchError::SetTwice { setting });
        }
        let runtime = runtime_with_timers().ok_or(WatchError::NoTimers)?;
        let hangup = self.on_hangup.then(Hangup::listen).transpose();
        let hangup = hangup.map_err(|error| WatchError::Hangup(Arc::new(error)))?;
        let reloader = Reloader::new(self.path, self.registry, target);
        Ok(Watcher::spawn(
            runtime,
            Arc::new(reloader),
            self.interval,
            hangup,
        ))
    }
}

/// What a [`Watch`](super::Watch) reconfigures: a [`Limiter`](crate::Limiter) or a [`RateLimitLayer`](crate::RateLimitLayer), of which it keeps a clone.
#[derive(Clone, Debug)]
pub struct WatchTarget(LimiterOrLayer);

from_limiter_or_layer!(WatchTarget);

impl WatchTarget {
    fn limiter(&self) -> &crate::Limiter {
        self.0.limiter()
    }

    /// A setting of a layer to which its document and code have given different values.
    fn set_twice(&self) -> Option<&'static str> {
        let LimiterOrLayer::Layer(layer) = &self.0 else {
            return None;
        };
        let settings = layer.settings();
        let document = settings.of_document.as_ref()?;
        document.conflicts(&settings.set_by_code()).next()
    }

    /// Puts a document in force.
    fn reconfigure(&self, document: &Document, registry: &Registry) -> Result<Changes, LoadError> {
        match &self.0 {
            LimiterOrLayer::Limiter(limiter) => document.reconfigure(limiter, registry),
            LimiterOrLayer::Layer(layer) => document.reconfigure_layer(layer, registry),
        }
    }

    /// Reports that the document with this hash is in force, or that one could not be loaded.
    fn report_load(&self, hash: Option<&str>) {
        self.limiter().report_event(&Event::ConfigLoaded {
            applied: hash.is_some(),
            hash,
        });
    }
}

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
    fn spawn(
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
struct Hangup {
    #[cfg(unix)]
    signals: tokio::signal::unix::Signal,
}

impl Hangup {
    /// Receives the signals from now on.
    #[cfg(unix)]
    fn listen() -> io::Result<Self> {
        use std::panic::catch_unwind;
        use tokio::signal::unix::{SignalKind, signal};

        // tokio panics where the runtime's I/O is not enabled, and has no call that says whether it is.
        let signals = catch_unwind(|| signal(SignalKind::hangup()));
        let no_io = || io::Error::other("the tokio runtime was built without enable_io");
        let signals = signals.map_err(|_| no_io())??;
        Ok(Self { signals })
    }

    #[cfg(not(unix))]
    fn listen() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits for the next signal, for ever if there is none.
    async fn received(&mut self) {
        #[cfg(unix)]
        if self.signals.recv().await.is_some() {
            return;
        }
        std::future::pending().await
    }
}
