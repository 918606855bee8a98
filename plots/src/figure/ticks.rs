//! The axes of panels: their ends and their labelled values.

use std::ops::Range;

use plotters::coord::{
    ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter},
    types::RangedCoordf64,
};

/// An axis. Its labelled values are listed, not computed: a logarithm may differ in its last bit between machines.
#[derive(Clone)]
pub(crate) struct Axis {
    range: Range<f64>,
    ticks: Vec<f64>,
    label: fn(f64) -> String,
}

impl Axis {
    /// An axis labelled at `ticks`.
    pub(crate) fn new(range: Range<f64>, ticks: &[f64], label: fn(f64) -> String) -> Self {
        Self {
            range,
            ticks: ticks.to_vec(),
            label,
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range.clone()).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // The bold points are the first that are asked for, and the only ones.
        match hint.bold_points() {
            0 => Vec::new(),
            _ => self.ticks.clone(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        count(*value)
    }

    fn format_ext(&self, value: &f64) -> String {
        (self.label)(*value)
    }
}

/// A number of requests; below the axis as well.
pub(crate) fn count(value: f64) -> String {
    format!("{:.0}", value.abs())
}

/// Seconds after 08:00, as the time of day.
pub(crate) fn time_of_day(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (hours, minutes, seconds) = (8 + seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}")
}

/// Seconds.
pub(crate) fn seconds(seconds: f64) -> String {
    format!("{seconds:.0} s")
}

/// Microseconds, in milliseconds.
pub(crate) fn milliseconds(micros: f64) -> String {
    format!("{:.0} ms", micros / 1_000.0)
}

/// Minutes.
pub(crate) fn minutes(minutes: f64) -> String {
    format!("{minutes:.0} min")
}

/// Parts of a hundred.
pub(crate) fn percent(percent: f64) -> String {
    format!("{percent:.0} %")
}

/// A decimal logarithm from 0 to 9, as a power of ten.
pub(crate) fn power_of_ten(logarithm: f64) -> String {
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let raised = RAISED.get(logarithm.round() as usize);
    raised.map_or(String::new(), |raised| format!("10{raised}"))
}
