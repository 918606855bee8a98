//! The report as text.

use std::fmt::{self, Display, Write};

use super::{Highest, Instant, Numbers, Report, Role};

/// The most rows of counts over time.
const MAX_ROWS: usize = 24;

/// The longest bar.
const BAR: u64 = 30;

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(from), Some(to)) = (self.from, self.to) {
            writeln!(f, "from {from} to {to} UTC\n")?;
        }
        let percent = |part| percent(part, self.requests);
        let mut rows = vec![row(["requests", &grouped(self.requests), ""])];
        for (name, count, is_printed) in [
            ("admitted", self.admitted, true),
            ("  to which no policy applies", self.exempt, self.exempt > 0),
            ("rejected", self.rejected, true),
            ("  on a deny list", self.deny_listed, self.deny_listed > 0),
            ("  without a key", self.missing_key, self.missing_key > 0),
        ] {
            if is_printed {
                rows.push(row([name, &grouped(count), &percent(count)]));
            }
        }
        let (seen, rejected) = self.clients.texts();
        rows.push(row(["clients", &seen, ""]));
        let share = super::tally::share(self.clients.rejected, self.clients.seen);
        rows.push(row([
            "  rejected at least once",
            &rejected,
            &format!("{:.1} %", share * 100.0),
        ]));
        rows.push(row([
            "unreadable lines",
            &grouped(self.unreadable.lines),
            "",
        ]));
        table(f, &rows, &[false, true, true])?;
        for line in &self.unreadable.first {
            writeln!(f, "  {}:{}: {}", line.log, line.line, line.reason)?;
        }
        for (what, highest) in [
            ("requests", &self.most_requests),
            ("rejections", &self.most_rejected),
        ] {
            if let Some(Highest { at, count, .. }) = highest {
                writeln!(f, "most {what} in a second: {} at {at}", grouped(*count))?;
            }
        }
        self.policies(f)?;
        self.top(f)?;
        self.over_time(f)?;
        if !self.notes.is_empty() {
            writeln!(f, "\nNotes")?;
        }
        for note in &self.notes {
            writeln!(f, "- {note}")?;
        }
        Ok(())
    }
}

impl Report {
    fn policies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        let mut rows = vec![row([
            "policy",
            "quota",
            "applied",
            "rejected",
            "share",
            "keys",
            "rejected keys",
            "first rejection",
            "last rejection",
            "most in a minute",
        ])];
        for policy in &self.policies {
            let name = match policy.role {
                Role::Live => policy.policy.clone(),
                Role::Ban => format!("{} (ban)", policy.policy),
                Role::Shadow => format!("{} (shadow)", policy.policy),
            };
            let (seen, rejected) = policy.keys.texts();
            let instant =
                |instant: Option<Instant>| instant.map_or("-".to_owned(), |at| at.to_string());
            let most = policy.most_rejected.as_ref();
            rows.push(row([
                &name,
                &policy.quota,
                &grouped(policy.applied),
                &grouped(policy.rejected),
                &percent(policy.rejected, policy.applied),
                &seen,
                &rejected,
                &instant(policy.first),
                &instant(policy.last),
                &most.map_or("-".to_owned(), |most| grouped(most.count)),
            ]));
        }
        let right = [
            false, false, true, true, true, true, true, false, false, true,
        ];
        table(f, &rows, &right)
    }

    fn top(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![row([
            "policy",
            "most rejected keys",
            "rejected",
            "first",
            "last",
        ])];
        for policy in &self.policies {
            for top in &policy.top {
                let over = match top.at_most_over {
                    0 => String::new(),
                    over => format!(" (up to {} too many)", grouped(over)),
                };
                rows.push(row([
                    &policy.policy,
                    &top.key,
                    &format!("{}{over}", grouped(top.rejected)),
                    &top.first.to_string(),
                    &top.last.to_string(),
                ]));
            }
        }
        if rows.len() == 1 {
            return Ok(());
        }
        writeln!(f)?;
        table(f, &rows, &[false, false, true, false, false])
    }

    fn over_time(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Several buckets in a row, so that there are not too many rows.
        let per_row = self.buckets.len().div_ceil(MAX_ROWS).max(1);
        let sums: Vec<_> = self
            .buckets
            .chunks(per_row)
            .map(|buckets| {
                let admitted: u64 = buckets.iter().map(|bucket| bucket.admitted).sum();
                let rejected: u64 = buckets.iter().map(|bucket| bucket.rejected).sum();
                (buckets.first().map(|bucket| bucket.at), admitted, rejected)
            })
            .collect();
        let most = sums
            .iter()
            .map(|(_, _, rejected)| *rejected)
            .max()
            .unwrap_or(0);
        if most == 0 {
            return Ok(());
        }
        let mut rows = vec![row(["from", "requests", "rejected", ""])];
        for (at, admitted, rejected) in sums {
            let length = (rejected * BAR).div_ceil(most) as usize;
            rows.push(row([
                &at.map(|at| at.to_string()).unwrap_or_default(),
                &grouped(admitted + rejected),
                &grouped(rejected),
                &"#".repeat(length),
            ]));
        }
        writeln!(f)?;
        table(f, &rows, &[false, true, true, false])
    }
}

impl Numbers {
    /// Both numbers as text; estimated ones after a `~`.
    fn texts(&self) -> (String, String) {
        let about = if self.exact { "" } else { "~" };
        let text = |number| format!("{about}{}", grouped(number));
        (text(self.seen), text(self.rejected))
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Writes rows of cells in columns, which are as wide as their longest cell.
fn table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>], right: &[bool]) -> fmt::Result {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..right.len()).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for ((cell, width), right) in row.iter().zip(&widths).zip(right) {
            match right {
                true => write!(line, "{cell:>width$}  ")?,
                false => write!(line, "{cell:<width$}  ")?,
            }
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", super::tally::share(part, whole) * 100.0)
}

/// The number with commas between thousands.
pub(in crate::replay) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
