//! Throttled logging. Every event on a request path goes through [`LogThrottle`].

use std::{
    cell::Cell,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The shortest time between two events of a throttle, unless set otherwise.
const INTERVAL: Duration = Duration::from_secs(10);

/// Lets the first event through, and then at most one an interval: ten seconds, unless set otherwise.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    /// In milliseconds since this process first logged, plus one; zero before the first event.
    last_logged_ms: AtomicU64,
    suppressed: AtomicU64,
    interval_ms: u64,
}

impl Default for LogThrottle {
    fn default() -> Self {
        Self::new()
    }
}

impl LogThrottle {
    pub(crate) const fn new() -> Self {
        Self::every(INTERVAL)
    }

    /// Lets one event through an interval.
    pub(crate) const fn every(interval: Duration) -> Self {
        Self {
            last_logged_ms: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
            interval_ms: interval.as_millis() as u64,
        }
    }

    /// Calls `log` with the number of events suppressed since the last one, unless this one has to be suppressed too.
    pub(crate) fn log_with(&self, log: impl FnOnce(u64)) {
        if IS_SILENT.get() {
            return;
        }
        static START: OnceLock<Instant> = OnceLock::new();
        let now_ms = START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1;
        let last_ms = self.last_logged_ms.load(Ordering::Relaxed);
        let is_due = last_ms == 0 || now_ms - last_ms.min(now_ms) >= self.interval_ms;
        let logs = is_due
            && self
                .last_logged_ms
                .compare_exchange(last_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if logs {
            log(self.suppressed.swap(0, Ordering::Relaxed));
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// Whether throttles neither log nor count events of this thread.
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work`, whose events are neither logged nor counted as suppressed: an explanation of a request that was not made.
pub(crate) fn without_events<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);

    impl Drop for Restore {
        fn drop(&mut self) {
            IS_SILENT.set(self.0);
        }
    }

    let _restore = Restore(IS_SILENT.replace(true));
    work()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use super::*;

    #[test]
    fn an_event_is_logged_once_an_interval() {
        let throttle = LogThrottle::new();
        let mut logged = Vec::new();
        for _ in 0..1_000 {
            throttle.log_with(|suppressed| logged.push(suppressed));
        }
        assert_eq!(logged, [0]);
        assert_eq!(throttle.suppressed.load(Ordering::Relaxed), 999);
    }

    #[test]
    fn events_of_a_silent_call_are_neither_logged_nor_counted() {
        let throttle = LogThrottle::new();
        let mut logged = Vec::new();
        without_events(|| {
            without_events(|| throttle.log_with(|_| logged.push(1)));
            throttle.log_with(|_| logged.push(2));
        });
        let panicked = std::panic::catch_unwind(|| without_events(|| panic!("a condition panics")));
        assert!(panicked.is_err());
        throttle.log_with(|suppressed| logged.push(suppressed));
        assert_eq!(logged, [0]);
    }

    /// The files of source code below a folder.
    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder");
        let files = entries.flat_map(|entry| {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => sources(&path),
                false => vec![path],
            }
        });
        let is_code = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "rs");
        files.filter(is_code).collect()
    }

    /// An event that is logged once per episode stands behind `if begins`, one that is logged once behind a flag. Reloads of a
    /// configuration file are no events of requests: `src/config/watch/reloader.rs` logs each, and each failure once. Rejections are
    /// logged each, at level debug, and so are changes by the admin API: `src/admin/audit.rs`.
    const THROTTLES: [&str; 9] = [
        "log_with(|suppressed|",
        "if begins {",
        ".swap(true,",
        "fn log_reload(",
        "fn log_recovery(",
        "fn log_failure(",
        "fn log(&self, before:",
        "fn log_override(&self, before:",
        "let outcome = decision.kind.outcome(",
    ];

    #[test]
    fn every_event_is_throttled_and_listed_on_the_operations_page() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let page = fs::read_to_string(root.join("docs/operations.md")).expect("the page");
        let levels = ["error", "warn", "info", "debug", "trace"];
        let events = levels.map(|level| format!("tracing::{level}!("));
        let (mut found, mut unthrottled, mut missing) = (0, Vec::new(), Vec::new());
        for path in sources(&root.join("src")) {
            if path.ends_with("log.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source");
            let starts = events
                .iter()
                .flat_map(|event| text.match_indices(event.as_str()));
            for (start, event) in starts {
                found += 1;
                let lines: Vec<_> = text[..start].lines().collect();
                let before = &lines[lines.len().saturating_sub(9)..];
                let is_throttled = |line: &&str| THROTTLES.iter().any(|by| line.contains(by));
                if !before.iter().any(is_throttled) {
                    unthrottled.push(format!("{}: {before:?}", path.display()));
                }
                // The message is the first text of several words.
                let mut texts = text[start + event.len()..].split('"').skip(1).step_by(2);
                let message = texts.find(|text| text.contains(' ')).unwrap_or_default();
                let begin = message
                    .split([':', ';', '{', '\\'])
                    .next()
                    .unwrap_or_default();
                let begin = begin.split(", which").next().unwrap_or_default().trim();
                if !page.contains(begin) {
                    missing.push(format!("{}: {begin}", path.display()));
                }
            }
        }
        assert!(found > 20, "{found} events");
        assert_eq!((unthrottled, missing), (vec![], vec![]));
    }
}
