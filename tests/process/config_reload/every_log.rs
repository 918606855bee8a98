//! What all threads log, kept for tests to read: files are loaded on threads of their own.

use std::{
    io::{self, Write},
    path::Path,
    sync::{Mutex, Once},
};

use tracing::Level;

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().expect("the log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps what is logged from now on.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_ansi(false);
        let subscriber = subscriber
            .with_max_level(Level::INFO)
            .with_writer(|| Writer);
        tracing::subscriber::set_global_default(subscriber.finish()).expect("the only one");
    });
}

/// The lines so far that contain `message` and the name of a file.
pub(crate) fn lines(file: &Path, message: &str) -> Vec<String> {
    let log = LOG.lock().expect("the log");
    let file = file.display().to_string();
    let log = String::from_utf8_lossy(&log);
    let lines = log.lines();
    let lines = lines.filter(|line| line.contains(message) && line.contains(&file));
    lines.map(str::to_owned).collect()
}
