//! Lines whose time is far after that of the lines around them, such as those of a server with a wrong clock.

use super::request::Entry;

/// By how much a line may be later than all before it, in microseconds, without being held back.
const MAX_GAP_US: i64 = 86_400_000_000;

/// After so many lines beyond a gap, the gap is one of the log.
const CONFIRMING_LINES: usize = 10;

/// Holds lines back that come after a gap in time, until the lines after them show whether the gap is one of the log.
#[derive(Debug, Default)]
pub(super) struct Jumps {
    /// The latest arrival of the lines that were accepted; `None` before the second line.
    newest: Option<i64>,
    held: Vec<Entry>,
}

/// What the next line of a log shows.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Requests before it whose time is wrong.
    pub(super) outliers: Vec<Entry>,
    /// Requests before it that were held back, in the order of their lines.
    pub(super) confirmed: Vec<Entry>,
    /// Its own request, unless it is held back.
    pub(super) entry: Option<Entry>,
}

impl Jumps {
    /// Adds the request of the next line.
    pub(super) fn push(&mut self, entry: Entry) -> Checked {
        let mut checked = Checked::default();
        let newest = match (self.newest, self.held.first()) {
            (Some(newest), _) => newest,
            // The first line is held back too: the second shows whether it is from the future.
            (None, Some(first)) if entry.at >= first.at.saturating_sub(MAX_GAP_US) => {
                let first_at = first.at;
                self.newest = Some(first_at);
                checked.confirmed = std::mem::take(&mut self.held);
                first_at
            }
            (None, _) => {
                checked.outliers = std::mem::replace(&mut self.held, vec![entry]);
                return checked;
            }
        };
        if entry.at > newest.saturating_add(MAX_GAP_US) {
            self.held.push(entry);
            if self.held.len() >= CONFIRMING_LINES {
                self.newest = self.held.iter().map(|held| held.at).max();
                checked.confirmed = std::mem::take(&mut self.held);
            }
            return checked;
        }
        // A line from long before does not show that those after the gap are wrong.
        if entry.at >= newest.saturating_sub(MAX_GAP_US) {
            self.newest = Some(newest.max(entry.at));
            checked.outliers = std::mem::take(&mut self.held);
        }
        checked.entry = Some(entry);
        checked
    }

    /// The requests that are held back when there are no more lines: nothing shows that they are wrong.
    pub(super) fn finish(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.held)
    }
}
