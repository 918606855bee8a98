//! The figure of the throughput of rate limiters, and how much of a limit they exceed: drawn from what a benchmark measured.

use plotters::{prelude::*, style::text_anchor::HPos};

use crate::{
    Result,
    figure::{
        Canvas, Figure, Panels, Weight,
        ticks::{Axis, percent, power_of_ten},
    },
};

/// What `cargo xtask bench --peers --only over` has measured.
pub const FILE: &str = include_str!("../../benches/over-admission.csv");

/// The line that names the columns.
const COLUMNS: &str = "system,decisions_per_second,over_admission_percent";

/// The height of the plot, and of the two lines below it.
const PLOT: i32 = 300;
const BELOW: i32 = 44;

/// The distance of a label from its point, and the least from one label to the next.
const LABEL_GAP: i32 = 22;
const LABEL_STEP: i32 = 18;

/// The results of the benchmark.
#[derive(Debug, PartialEq)]
pub struct Measured {
    /// Where and when it was measured.
    pub setting: String,
    /// What was measured of each system.
    pub systems: Vec<System>,
}

/// The results of one system.
#[derive(Clone, Debug, PartialEq)]
pub struct System {
    /// Its name.
    pub name: String,
    /// Decisions per second, under a limit that is never reached.
    pub rate: f64,
    /// What is admitted above the limit, in percent of it.
    pub over: f64,
}

impl Measured {
    /// Reads the benchmark's file.
    pub fn read(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let setting = lines.next().and_then(|line| line.strip_prefix("# "));
        let setting = setting.ok_or("no line with the setting")?.to_owned();
        if lines.next() != Some(COLUMNS) {
            return Err(format!("no line with the columns {COLUMNS}").into());
        }
        let system = |line: &str| {
            let (name, numbers) = line.strip_prefix('"')?.split_once("\",")?;
            let (rate, over) = numbers.split_once(',')?;
            Some(System {
                name: name.to_owned(),
                rate: rate.parse().ok().filter(|rate| *rate >= 1.0)?,
                over: over.parse().ok().filter(|over| *over >= 0.0)?,
            })
        };
        let systems = lines.map(|line| system(line).ok_or(format!("not a system: {line}")));
        Ok(Self {
            setting,
            systems: systems.collect::<Result<_, _>>()?,
        })
    }
}

pub(crate) fn figure(measured: Measured) -> Figure {
    let texts = measured.systems.iter().map(|system| {
        let System { name, rate, over } = system;
        format!("{name}: {rate:.0} decisions per second, {over:.0} % above the limit")
    });
    Figure {
        name: "over-admission",
        title: "Throughput and over-admission of rate limiters",
        description: format!("{}.", texts.collect::<Vec<_>>().join("; ")),
        height: panels(&measured).bottom() + BELOW,
        body: Box::new(move |canvas| draw(canvas, &measured)),
    }
}

fn panels(measured: &Measured) -> Panels {
    let most = measured.systems.iter().map(|system| system.over);
    let most = most.fold(100.0, f64::max);
    let ticks: Vec<f64> = (0..20)
        .map(|hundreds| f64::from(hundreds) * 100.0)
        .filter(|tick| *tick <= most)
        .collect();
    let x = Axis::new(-10.0..most + 10.0, &ticks, percent);
    Panels::new(1, PLOT, x).below(0)
}

/// A logarithm, rounded so that its last bits do not matter.
fn logarithm(rate: f64) -> f64 {
    (rate.log10() * 1_000.0).round() / 1_000.0
}

fn draw(canvas: &Canvas<'_, '_>, measured: &Measured) -> Result<()> {
    let logarithms = measured.systems.iter().map(|system| logarithm(system.rate));
    let (least, most) = logarithms.fold((6.0_f64, 6.0_f64), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    let ticks: Vec<f64> = (3..10)
        .map(f64::from)
        .filter(|tick| (least - 0.15..=most + 0.15).contains(tick))
        .collect();
    let y = Axis::new(least - 0.2..most + 0.2, &ticks, power_of_ten);
    let panels = panels(measured);
    let headings = (
        "Decisions per second",
        "four limiters, one hot key, logarithmic scale",
    );
    let chart = canvas.panel(&panels, 0, headings, &y)?;
    let middle = middle(measured);
    // From the top, so that labels can be moved down.
    let mut points: Vec<_> = measured
        .systems
        .iter()
        .map(|system| {
            (
                chart.backend_coord(&(system.over, logarithm(system.rate))),
                system,
            )
        })
        .collect();
    points.sort_by_key(|((_, y), _)| *y);
    for is_left in [true, false] {
        let side: Vec<_> = points
            .iter()
            .filter(|(_, system)| (system.over < middle) == is_left)
            .collect();
        let labels = spread(side.iter().map(|((_, y), _)| *y));
        for (((x, y), system), label) in side.into_iter().zip(labels) {
            let (to, align) = match is_left {
                true => (x + LABEL_GAP, HPos::Left),
                false => (x - LABEL_GAP, HPos::Right),
            };
            let line = PathElement::new(vec![(*x, *y), (to, label)], canvas.theme.dim);
            canvas.area.draw(&line)?;
            let is_ours = system.name.starts_with("tollgate");
            let (colour, weight) = match is_ours {
                true => (canvas.theme.admitted, Weight::Bold),
                false => (canvas.theme.rejected, Weight::Normal),
            };
            canvas
                .area
                .draw(&Circle::new((*x, *y), 6, colour.filled()))?;
            let beside = if is_left { to + 4 } else { to - 4 };
            canvas.text(&system.name, (beside, label), align, weight)?;
        }
    }
    let bottom = panels.bottom();
    let about = "admitted above the limit in the worst second, when four limiters share it";
    canvas.text(about, (8, bottom + 6), HPos::Left, Weight::Normal)?;
    canvas.text(&measured.setting, (8, bottom + 28), HPos::Left, Weight::Dim)
}

/// Points right of it have their labels to the left.
fn middle(measured: &Measured) -> f64 {
    let most = measured.systems.iter().map(|system| system.over);
    most.fold(100.0, f64::max) / 2.0
}

/// Where labels are drawn that belong to these heights, which rise: as near as they fit below each other.
fn spread(heights: impl Iterator<Item = i32>) -> Vec<i32> {
    let heights: Vec<i32> = heights.collect();
    let mut labels = heights.clone();
    // Groups of labels that touch are centred on their points.
    let mut groups: Vec<(usize, usize)> = Vec::new();
    for index in 0..heights.len() {
        groups.push((index, index + 1));
        loop {
            let (from, to) = groups[groups.len() - 1];
            let sum: i32 = heights[from..to].iter().sum();
            let count = (to - from) as i32;
            let top = sum / count - (count - 1) * LABEL_STEP / 2;
            for (place, label) in labels[from..to].iter_mut().enumerate() {
                *label = top + place as i32 * LABEL_STEP;
            }
            if from == 0 || labels[from] - labels[from - 1] >= LABEL_STEP {
                break;
            }
            groups.pop();
            if let Some(before) = groups.last_mut() {
                before.1 = to;
            }
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_apart_and_near_their_points() {
        assert_eq!(spread([10, 100].into_iter()), [10, 100]);
        assert_eq!(spread([100, 102].into_iter()), [92, 110]);
        let labels = spread([10, 100, 101, 102, 130, 300].into_iter());
        assert!(
            labels.is_sorted_by(|a, b| b - a >= LABEL_STEP),
            "{labels:?}"
        );
        assert_eq!((labels[0], labels[5]), (10, 300));
    }

    #[test]
    fn a_file_that_is_not_of_the_benchmark_is_an_error() {
        let head = format!("# here.\n{COLUMNS}\n");
        let measured = Measured::read(&format!("{head}\"a, b\",12,3.5\n")).expect("a system");
        assert_eq!(measured.setting, "here.");
        assert_eq!(
            measured.systems,
            [System {
                name: "a, b".into(),
                rate: 12.0,
                over: 3.5
            }]
        );
        for wrong in [
            "",
            "# here.\n",
            &format!("{head}a,12,3.5\n"),
            &format!("{head}\"a\",12\n"),
        ] {
            assert!(Measured::read(wrong).is_err(), "{wrong}");
        }
    }
}
