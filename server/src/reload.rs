//! Documents and certificates that change while the server runs.

use std::{convert::Infallible, future::Future, io, path::PathBuf, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info};

use crate::{
    document::{self, Options},
    engine::Engine,
    tls::Certificates,
};

/// A time after which no server looks: an instant that far away can still be computed.
const NEVER: Duration = Duration::from_secs(10 * 366 * 86_400);

const NOT_RELOADED: &str = "rules not reloaded, the previous ones stay in force";

/// Reads the documents again when they have changed, and on SIGHUP, and puts their rules in force. Documents with mistakes change
/// nothing, and are reported. `last` are the contents from which the rules in force were read. The same is done with certificates. From the
/// return on a SIGHUP is handled; the future never ends.
///
/// # Errors
///
/// If the signal can't be handled.
pub fn watch(
    engine: Engine,
    mut certificates: Option<Certificates>,
    paths: Vec<PathBuf>,
    options: Options,
    mut last: Contents,
    every: Duration,
) -> io::Result<impl Future<Output = Infallible> + Send> {
    let mut hangups = Hangups::new()?;
    Ok(async move {
        let mut ticks = interval(match every {
            Duration::ZERO => NEVER,
            every => every,
        });
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            let is_forced = tokio::select! {
                () = hangups.next() => true,
                _ = ticks.tick() => false,
            };
            let now = read(paths.clone()).await;
            if is_forced || now != last {
                load(engine.clone(), paths.clone(), options).await;
            }
            last = now;
            if let Some(certificates) = &mut certificates {
                certificates.reload(is_forced).await;
            }
        }
    })
}

/// Reads the documents, and puts their rules in force: on a thread that may block.
async fn load(engine: Engine, paths: Vec<PathBuf>, options: Options) {
    let loaded = tokio::task::spawn_blocking(move || match document::load(&paths, options) {
        Ok(rules) => match engine.reload(&rules) {
            Ok(()) => info!(domains = rules.domains.len(), "rules reloaded"),
            Err(error) => error!(%error, "{NOT_RELOADED}"),
        },
        Err(mistakes) => {
            engine.count_load_error();
            for error in mistakes.mistakes() {
                error!(%error, "{NOT_RELOADED}");
            }
        }
    });
    if let Err(error) = loaded.await {
        error!(%error, "{NOT_RELOADED}");
    }
}

/// The contents of the files of documents, or why they can't be read. They are compared with the last ones, since the times of files
/// can't be relied on. Of a file that is too large only as much is compared as is read.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents(Result<Vec<(PathBuf, Vec<u8>)>, String>);

impl Contents {
    /// Reads the files. To miss no change it is called before their rules are read.
    pub fn read(paths: &[PathBuf]) -> Self {
        let files = paths.iter().map(|path| document::files(path));
        let files = files.collect::<io::Result<Vec<_>>>();
        let read = |path: PathBuf| match document::read_bytes(&path) {
            Ok(content) => Ok((path, content)),
            Err(error) => Err(format!("{}: {error}", path.display())),
        };
        let files = files.map_err(|error| error.to_string());
        Self(files.and_then(|files| files.into_iter().flatten().map(read).collect()))
    }
}

async fn read(paths: Vec<PathBuf>) -> Contents {
    let read = tokio::task::spawn_blocking(move || Contents::read(&paths)).await;
    read.unwrap_or_else(|error| Contents(Err(error.to_string())))
}

/// SIGHUP, where there is such a signal.
struct Hangups {
    #[cfg(unix)]
    signals: tokio::signal::unix::Signal,
}

impl Hangups {
    fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signals: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        if self.signals.recv().await.is_some() {
            return;
        }
        std::future::pending().await
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn of_a_device_that_never_ends_nothing_is_read() {
        let contents = Contents::read(&["/dev/zero".into()]);
        let expected = "/dev/zero: no regular file; expected one";
        assert_eq!(contents, Contents(Err(expected.to_owned())));
    }
}
