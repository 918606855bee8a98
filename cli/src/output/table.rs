//! Tables of aligned columns.

use serde_json::Value;

use super::printable::printable;

/// A table with a line of titles.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Self {
        let titles = titles.iter().map(|title| (*title).to_owned()).collect();
        Self { rows: vec![titles] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter();
        self.rows
            .push(cells.map(|cell| printable(&cell).into_owned()).collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The table as text, or `otherwise` if it has no row.
    pub(crate) fn or(&self, otherwise: &str) -> String {
        if self.is_empty() {
            return otherwise.to_owned();
        }
        self.to_text()
    }

    pub(crate) fn to_text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.rows[0].len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let line: Vec<_> = row
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{cell:width$}"))
                .collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// A field of an answer as [printable] text; empty if it is not there.
pub(crate) fn text(value: &Value, field: &str) -> String {
    match value.get(field) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => printable(text).into_owned(),
        Some(other) => printable(&other.to_string()).into_owned(),
    }
}

/// A field of an answer that is a whole number; 0 if it is not there.
pub(crate) fn number(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or_default()
}

/// A field of an answer that is true or false.
pub(crate) fn flag(value: &Value, field: &str) -> bool {
    value
        .get(field)
        .and_then(Value::as_bool)
        .unwrap_or_default()
}

/// A field of an answer that is a list; empty if it is not there.
pub(crate) fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    let list = value.get(field).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

/// A field of an answer in milliseconds, as a wait: `1.5 s`, `2 h 5 min`.
pub(crate) fn wait(value: &Value, field: &str) -> String {
    match value.get(field).and_then(Value::as_u64) {
        Some(millis) => duration(millis),
        None => "never".to_owned(),
    }
}

fn duration(millis: u64) -> String {
    let seconds = millis.div_ceil(1_000);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if millis == 0 => "0".to_owned(),
        (0, 0, 0) if millis < 1_000 => format!("{millis} ms"),
        (0, 0, 0) => format!("{} s", millis.div_ceil(100) as f64 / 10.0),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// `yes` or `no`.
pub(crate) fn yes(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_control_characters_escaped() {
        let mut table = Table::new(&["KEY", "LEFT"]);
        table.row(["alice".to_owned(), "1".to_owned()]);
        table.row(["\u{1b}[2Jé".to_owned(), String::new()]);
        assert_eq!(
            table.to_text(),
            "KEY         LEFT\nalice       1\n\\u{1b}[2Jé\n"
        );
    }

    #[test]
    fn waits_are_shown_in_two_units_at_most() {
        for (millis, shown) in [
            (0, "0"),
            (999, "999 ms"),
            (1_001, "1.1 s"),
            (59_000, "59 s"),
            (61_000, "1 min 1 s"),
            (3_660_000, "1 h 1 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(millis), shown);
        }
    }
}
