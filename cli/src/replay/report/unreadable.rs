//! The lines of logs that were left out.

use serde::Serialize;

/// How many of the lines that were left out are shown.
const SHOWN_LINES: usize = 5;

/// The lines that were left out.
#[derive(Debug, Default, Serialize)]
pub(in crate::replay) struct Unreadable {
    pub(in crate::replay) lines: u64,
    /// The first of them.
    pub(in crate::replay) first: Vec<UnreadableLine>,
}

#[derive(Debug, Serialize)]
pub(in crate::replay) struct UnreadableLine {
    pub(in crate::replay) log: String,
    pub(in crate::replay) line: u64,
    pub(in crate::replay) reason: &'static str,
}

impl Unreadable {
    pub(in crate::replay) fn add(&mut self, log: &str, line: u64, reason: &'static str) {
        self.lines += 1;
        if self.first.len() < SHOWN_LINES {
            self.first.push(UnreadableLine {
                log: log.to_owned(),
                line,
                reason,
            });
        }
    }
}
