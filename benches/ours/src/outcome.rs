//! What was measured, beside what is to be reached.

use std::{fmt, time::Duration};

use crate::runner::{Comparison, Figure, Measure, median};

/// What came of one comparison.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The case's name.
    pub case: &'static str,
    /// What the contenders did.
    pub title: String,
    /// How each of them did.
    pub figures: Vec<Figure>,
    /// What is read from it.
    pub rows: Vec<Row>,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is measured.
    pub measure: String,
    /// What we reached.
    pub ours: String,
    /// What the other reached.
    pub theirs: String,
    /// What is held against the target: the median of the rounds.
    pub value: f64,
    /// What it is counted in.
    pub unit: Unit,
    /// What is to be reached.
    pub target: Target,
    /// Of each round.
    pub rounds: Vec<f64>,
}

/// What a value is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// So many times the other.
    Ratio,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// So many.
    Count,
    /// So many of something for each of something else, mostly less than one.
    Fraction,
}

/// What is to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// No less.
    AtLeast(f64),
    /// No more.
    AtMost(f64),
    /// Just that.
    Exactly(f64),
    /// Nothing: it is only shown.
    None,
}

impl Outcome {
    /// Of a bout, without any lines yet.
    pub fn of(case: &'static str, title: impl Into<String>, run_comparison: &Comparison) -> Self {
        Self {
            case,
            title: title.into(),
            figures: run_comparison.figures(),
            rows: Vec::new(),
        }
    }

    /// Of something that isn't a bout.
    pub fn alone(case: &'static str, title: impl Into<String>, row: Row) -> Self {
        Self {
            case,
            title: title.into(),
            figures: Vec::new(),
            rows: vec![row],
        }
    }

    /// Compares the bout's first contender with the one at `with`.
    #[must_use]
    pub fn compare(
        self,
        run_comparison: &Comparison,
        measure: Measure,
        with: usize,
        target: Target,
    ) -> Self {
        self.compare_two(run_comparison, measure, [0, with], target)
    }

    /// Compares two of the bout's contenders.
    #[must_use]
    pub fn compare_two(
        mut self,
        run_comparison: &Comparison,
        measure: Measure,
        two: [usize; 2],
        target: Target,
    ) -> Self {
        self.rows
            .push(Row::compare(run_comparison, measure, two, target));
        self
    }

    /// Says more of the last line.
    #[must_use]
    pub fn noting(mut self, note: &str) -> Self {
        if let Some(row) = self.rows.last_mut() {
            row.measure = format!("{}, {note}", row.measure);
        }
        self
    }

    /// One more line.
    #[must_use]
    pub fn row(mut self, row: Row) -> Self {
        self.rows.push(row);
        self
    }
}

impl Row {
    fn compare(
        run_comparison: &Comparison,
        measure: Measure,
        two: [usize; 2],
        target: Target,
    ) -> Self {
        let rounds = run_comparison.ratios(measure, two[0], two[1]);
        let [ours, theirs] = two.map(|place| run_comparison.figure(place));
        Self {
            measure: match measure {
                Measure::Rate => "decisions/s",
                Measure::P50 => "p50",
                Measure::P99 => "p99",
            }
            .into(),
            ours: cell(&ours, measure),
            theirs: format!("{} {}", theirs.name, cell(&theirs, measure)),
            value: median(rounds.iter().copied()),
            unit: Unit::Ratio,
            target,
            rounds,
        }
    }

    /// A number by itself.
    pub fn number(measure: impl Into<String>, value: f64, unit: Unit, target: Target) -> Self {
        Self {
            measure: measure.into(),
            ours: Amount(value, unit).to_string(),
            theirs: String::new(),
            value,
            unit,
            target,
            rounds: vec![value],
        }
    }

    /// Whether the target was met, if there is one.
    pub fn met(&self) -> Option<bool> {
        match self.target {
            Target::AtLeast(least) => Some(self.value >= least),
            Target::AtMost(most) => Some(self.value <= most),
            Target::Exactly(value) => Some(self.value == value),
            Target::None => None,
        }
    }

    /// The value, in its unit.
    pub fn amount(&self) -> Amount {
        Amount(self.value, self.unit)
    }

    /// The target, in the value's unit.
    pub fn target_text(&self) -> String {
        match self.target {
            Target::AtLeast(least) => format!("≥ {}", Amount(least, self.unit)),
            Target::AtMost(most) => format!("≤ {}", Amount(most, self.unit)),
            Target::Exactly(value) => Amount(value, self.unit).to_string(),
            Target::None => "-".into(),
        }
    }
}

/// A value in its unit, as one reads it.
#[derive(Clone, Copy, Debug)]
pub struct Amount(pub f64, pub Unit);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value, unit) = *self;
        match unit {
            Unit::Ratio => write!(f, "{value:.2} x"),
            Unit::Bytes => write!(f, "{value:.0} bytes"),
            Unit::Nanoseconds => write!(f, "{value:.0} ns"),
            Unit::Count => write!(f, "{}", grouped(value)),
            Unit::Fraction => write!(f, "{value:.5}"),
        }
    }
}

/// A contender's cell of a row that compares `measure`.
fn cell(figure: &Figure, measure: Measure) -> String {
    let rate = format!("{}/s", grouped(figure.rate));
    let (p50, p99) = (wait(figure.p50), wait(figure.p99));
    match measure {
        Measure::Rate => format!("{rate} (p50 {p50}, p99 {p99}{})", part(figure.admitted)),
        Measure::P50 => p50,
        Measure::P99 => p99,
    }
}

/// How many were admitted, where it isn't all or none as in every other line.
fn part(admitted: f64) -> String {
    if admitted > 0.0 && admitted < 1.0 {
        format!(", {:.0} % admitted", (admitted * 100.0).floor())
    } else {
        String::new()
    }
}

/// A wait, as exactly as it is known.
pub fn wait(wait: Duration) -> String {
    let nanos = wait.as_nanos() as f64;
    match nanos {
        ..1e3 => format!("{nanos:.0} ns"),
        ..1e5 => format!("{:.1} µs", nanos / 1e3),
        ..1e6 => format!("{:.0} µs", nanos / 1e3),
        _ => format!("{:.2} ms", nanos / 1e6),
    }
}

/// A whole number with its thousands apart; three digits of it, for no more are known.
pub fn grouped(value: f64) -> String {
    let scale = if value < 10_000.0 {
        1.0
    } else {
        10_f64.powf(value.log10().floor() - 2.0)
    };
    let digits = format!("{:.0}", (value / scale).round() * scale);
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_are_known() {
        let texts = [0.0, 999.0, 1_027.0, 15_449.0, 2_345_678.0].map(grouped);
        assert_eq!(texts, ["0", "999", "1,027", "15,400", "2,350,000"]);
        let waits = [90, 1_234, 153_400, 18_000_000].map(|ns| wait(Duration::from_nanos(ns)));
        assert_eq!(waits, ["90 ns", "1.2 µs", "153 µs", "18.00 ms"]);
    }

    #[test]
    fn a_target_is_met_at_exactly_its_bound() {
        let row = |target| Row::number("", 2.0, Unit::Ratio, target).met();
        assert_eq!(row(Target::AtLeast(2.0)), Some(true));
        assert_eq!(row(Target::AtLeast(2.1)), Some(false));
        assert_eq!(row(Target::AtMost(2.0)), Some(true));
        assert_eq!(row(Target::AtMost(1.9)), Some(false));
        assert_eq!(row(Target::Exactly(2.0)), Some(true));
        assert_eq!(row(Target::None), None);
    }
}
