//! SIGHUP, where there is one.

use std::io;

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
