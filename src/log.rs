//! Throttled logging. Every event on a request path goes through [`Seldom`].

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How long it stays silent after it has spoken.
const SILENCE: Duration = Duration::from_secs(10);

/// Speaks the first time, and then at most every ten seconds.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    /// Milliseconds since this process first logged, plus one; zero: not yet.
    spoke: AtomicU64,
    suppressed: AtomicU64,
}

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self {
            spoke: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Calls `say` with how often it was silent since the last time, unless it is to be silent now.
    pub(crate) fn then(&self, say: impl FnOnce(u64)) {
        static START: OnceLock<Instant> = OnceLock::new();
        let now = START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1;
        let spoke = self.spoke.load(Ordering::Relaxed);
        let due = spoke == 0 || now - spoke.min(now) >= SILENCE.as_millis() as u64;
        let speaks = due
            && self
                .spoke
                .compare_exchange(spoke, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if speaks {
            say(self.suppressed.swap(0, Ordering::Relaxed));
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn an_event_is_logged_once_an_interval() {
        let seldom = Seldom::new();
        let mut said = Vec::new();
        for _ in 0..1_000 {
            seldom.then(|suppressed| said.push(suppressed));
        }
        assert_eq!(said, [0]);
        assert_eq!(seldom.suppressed.load(Ordering::Relaxed), 999);
    }

    /// Calls `each` with the name and the text of every source file.
    fn sources(folder: &Path, each: &mut impl FnMut(&str, &str)) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, each);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                each(&path.to_string_lossy(), &text);
            }
        }
    }

    /// What is logged once an episode stands behind `if begins`, and what is logged once behind a flag.
    #[test]
    fn every_event_is_throttled_and_says_how_many_were_suppressed() {
        let levels = ["error", "warn", "info", "debug", "trace", "event"];
        let events = levels.map(|level| format!("tracing::{level}!("));
        let (mut found, mut unthrottled) = (0, Vec::new());
        sources(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            &mut |name, text| {
                let lines: Vec<_> = text.lines().collect();
                for (at, line) in lines.iter().enumerate() {
                    if !events.iter().any(|event| line.contains(event)) {
                        continue;
                    }
                    found += 1;
                    let before = &lines[at.saturating_sub(8)..=at];
                    let throttles = [
                        "then(|suppressed|",
                        "if begins {",
                        ".swap(true,",
                        "is_suspect()",
                    ];
                    let throttles = |line: &&str| throttles.iter().any(|by| line.contains(by));
                    if !before.iter().any(throttles) {
                        unthrottled.push(format!("{name}:{}: {}", at + 1, line.trim()));
                    }
                }
            },
        );
        assert!(found > 10, "{found} events");
        assert_eq!(unthrottled, [""; 0]);
    }
}
