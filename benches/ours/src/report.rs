//! Formats of results: a table to read, JSON to work with.

use std::{fmt::Write, fs, io, path::Path, thread};

use serde_json::{Value, json};

use crate::{
    chart,
    outcome::{Outcome, Row, Target, Unit},
    plan::Plan,
};

/// Where and when it was measured.
#[derive(Clone, Debug)]
pub struct Setting {
    date: String,
    machine: String,
    plan: String,
}

impl Setting {
    /// Here and now.
    pub fn here(plan: &Plan) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let cpu = cpu.map_or("unknown processor", |(_, name)| name.trim());
        Self {
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            machine: format!("{cores} cores ({cpu}), {} on the same machine", redis()),
            plan: format!("{} rounds of {:?} each", plan.rounds, plan.time),
        }
    }
}

fn redis() -> String {
    let version = std::process::Command::new("redis-server")
        .arg("--version")
        .output();
    let text = version.map_or(String::new(), |output| {
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    let version = text.split_whitespace().find_map(|w| w.strip_prefix("v="));
    format!("Redis {}", version.unwrap_or("of an unknown version"))
}

/// The table, as Markdown that also reads well as it is.
pub fn table(setting: &Setting, outcomes: &[Outcome]) -> String {
    let head = [
        "case", "measure", "tollgate", "against", "result", "target", "met",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    for outcome in outcomes {
        for row in &outcome.rows {
            lines.push(cells(outcome, row));
        }
    }
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let widths = lines.iter().map(|line| line[column].chars().count());
            widths.max().unwrap_or(0)
        })
        .collect();
    let mut text = format!(
        "{}, {}, {}.\n\n",
        setting.date, setting.machine, setting.plan
    );
    for (place, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            // Writing to a string can't fail.
            let _ = write!(text, "| {cell:width$} ");
        }
        text += "|\n";
        if place == 0 {
            for width in &widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text += "|\n";
        }
    }
    text
}

fn cells(outcome: &Outcome, row: &Row) -> [String; 7] {
    let met = match row.met() {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    let shown = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    [
        format!("{} (`{}`)", outcome.title, outcome.case),
        row.measure.clone(),
        shown(&row.ours),
        shown(&row.theirs),
        row.amount().to_string(),
        row.target_text(),
        met.into(),
    ]
}

/// All of it, in nanoseconds and decisions per second.
pub fn json(setting: &Setting, outcomes: &[Outcome]) -> Value {
    let outcomes: Vec<Value> = outcomes.iter().map(outcome_json).collect();
    json!({
        "date": setting.date,
        "machine": setting.machine,
        "plan": setting.plan,
        "outcomes": outcomes,
    })
}

fn outcome_json(outcome: &Outcome) -> Value {
    let figures = outcome.figures.iter().map(|figure| {
        json!({
            "contender": figure.name,
            "decisions_per_second": figure.rate,
            "p50_ns": figure.p50.as_nanos() as u64,
            "p99_ns": figure.p99.as_nanos() as u64,
            "cpu_ns": figure.cpu.as_nanos() as u64,
            "admitted": figure.admitted,
        })
    });
    let rows = outcome.rows.iter().map(|row| {
        let unit = match row.unit {
            Unit::Ratio => "ratio",
            Unit::Bytes => "bytes",
            Unit::Nanoseconds => "ns",
            Unit::Count => "count",
            Unit::Fraction => "fraction",
        };
        let target = match row.target {
            Target::AtLeast(least) => json!({ "at_least": least }),
            Target::AtMost(most) => json!({ "at_most": most }),
            Target::Exactly(value) => json!({ "exactly": value }),
            Target::None => Value::Null,
        };
        json!({
            "measure": row.measure,
            "value": row.value,
            "unit": unit,
            "rounds": row.rounds,
            "target": target,
            "met": row.met(),
        })
    });
    json!({
        "case": outcome.case,
        "title": outcome.title,
        "contenders": figures.collect::<Vec<_>>(),
        "results": rows.collect::<Vec<_>>(),
    })
}

/// Writes `NAME.json`, `NAME.md` and `NAME.svg` into a folder, which is made if need be.
///
/// # Errors
///
/// If they can't be written.
pub fn write(folder: &Path, name: &str, setting: &Setting, outcomes: &[Outcome]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let file = |extension| folder.join(format!("{name}.{extension}"));
    let json = json(setting, outcomes);
    fs::write(file("json"), serde_json::to_vec_pretty(&json)?)?;
    fs::write(file("md"), table(setting, outcomes))?;
    let caption = format!("{}, {}", setting.date, setting.machine);
    fs::write(file("svg"), chart::draw(&caption, outcomes))
}
