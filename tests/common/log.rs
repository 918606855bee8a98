//! What a thread logs.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use tracing::{Level, subscriber::DefaultGuard};
use tracing_subscriber::fmt::MakeWriter;

/// The lines that a thread logs.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Keeps what this thread logs at level error until the guard is dropped.
    pub(crate) fn errors() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(log.clone())
            .with_max_level(Level::ERROR);
        let guard = tracing::subscriber::set_default(subscriber.finish());
        (log, guard)
    }

    /// The lines that contain `text`.
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        let bytes = self.0.lock().expect("the log");
        let log = String::from_utf8_lossy(&bytes);
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the log").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
