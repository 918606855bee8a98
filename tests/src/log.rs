//! What is logged, kept for a test to read.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, OnceLock},
    time::Instant,
};

use tracing::{
    Dispatch, Level,
    subscriber::{DefaultGuard, NoSubscriber},
};
use tracing_subscriber::fmt::MakeWriter;

/// Keeps what is logged.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the log").extend_from_slice(bytes);
        Ok(bytes.len())
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

#[allow(dead_code, reason = "a test target uses some of the levels")]
impl Log {
    /// What this thread logs at level error until the guard is dropped.
    pub fn of_errors() -> (Self, DefaultGuard) {
        Self::of(Level::ERROR)
    }

    /// What this thread logs at level warn and above until the guard is dropped.
    pub fn of_warnings() -> (Self, DefaultGuard) {
        Self::of(Level::WARN)
    }

    /// What this thread logs at level info and above until the guard is dropped.
    pub fn of_info() -> (Self, DefaultGuard) {
        Self::of(Level::INFO)
    }

    fn of(level: Level) -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = log.at(level);
        (log, guard)
    }

    /// Keeps what this thread logs at level error until the guard is dropped.
    pub fn errors(&self) -> DefaultGuard {
        self.at(Level::ERROR)
    }

    /// Keeps what this thread logs at level warn and above until the guard is dropped.
    pub fn warnings(&self) -> DefaultGuard {
        self.at(Level::WARN)
    }

    /// Keeps what this thread logs at level info and above until the guard is dropped.
    pub fn info(&self) -> DefaultGuard {
        self.at(Level::INFO)
    }

    /// Keeps what this thread logs at this level and above until the guard is dropped.
    pub fn at(&self, level: Level) -> DefaultGuard {
        // While only one subscriber exists, tracing disables an event for all threads if the thread that logs it first has none.
        static SECOND: OnceLock<Dispatch> = OnceLock::new();
        SECOND.get_or_init(|| Dispatch::new(NoSubscriber::default()));
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(self.clone());
        let subscriber = subscriber.with_max_level(level);
        tracing::subscriber::set_default(subscriber.finish())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("the log")).into_owned()
    }

    /// The lines that contain `text`.
    pub fn lines(&self, text: &str) -> Vec<String> {
        let log = self.text();
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }

    /// The first line that contains `text`, of an event that is logged at most every ten seconds. There are as many as this allows
    /// since `start`, and so one on most machines.
    #[track_caller]
    pub fn throttled(&self, text: &str, start: Instant) -> String {
        let (mut lines, seconds) = (self.lines(text), start.elapsed().as_secs());
        let expected = 1..=1 + seconds as usize / 10;
        assert!(expected.contains(&lines.len()), "{text}: {}", self.text());
        lines.remove(0)
    }
}

#[test]
fn an_event_that_another_thread_logged_first_without_a_log_is_kept() {
    fn event() {
        tracing::error!("logged in a test of the log");
    }
    let log = Log::default();
    let _guard = log.errors();
    std::thread::spawn(event).join().expect("no panic");
    event();
    assert_eq!(log.lines("logged in a test of the log").len(), 1);
}
