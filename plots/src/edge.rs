//! The double burst at a window's edge: what each strategy admits there, and within a minute.

use std::time::Duration;

use plotters::prelude::*;
use tollgate::{
    CalendarWindow, ConfigError, FixedWindow, Gcra, Limiter, ListWindow, ManualClock, MemoryStore,
    Policy, Quota, SlidingLog, SlidingWindow, TokenBucket, strategy::Strategy,
};

use crate::{
    Result,
    figure::{
        Canvas, Figure, Mark, Panels, steps,
        ticks::{Axis, count, time_of_day},
    },
};

const QUOTA: u64 = 100;

/// The first second of the burst, after 08:00:00. The window that was opened then ends a second later.
const FIRST: usize = 59;

/// What is drawn, in seconds after 08:00:00.
const FROM: f64 = 55.0;
const TO: f64 = (FIRST + 60) as f64;

/// What strategies admitted; those that admitted the same are one run.
#[derive(Debug)]
pub struct Run {
    /// The strategies' names.
    pub names: Vec<&'static str>,
    /// The requests that were admitted in each second, from 08:00:59 on, of as many as the quota allows.
    pub each_second: Vec<u64>,
}

impl Run {
    /// The requests that were admitted within one second around the edge.
    pub fn at_the_edge(&self) -> u64 {
        self.each_second.iter().take(2).sum()
    }

    /// The requests that were admitted within the minute from the burst on.
    pub fn in_a_minute(&self) -> u64 {
        self.each_second.iter().sum()
    }
}

/// Sends each strategy one request, which opens a window, and a minute later as many as pass, each second.
pub async fn run() -> Result<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    for (name, each_second) in [
        ("FixedWindow", admitted(FixedWindow).await?),
        ("ListWindow", admitted(ListWindow).await?),
        ("CalendarWindow", admitted(CalendarWindow::utc()).await?),
        ("Gcra", admitted(Gcra).await?),
        ("TokenBucket", admitted(TokenBucket).await?),
        (
            "SlidingWindow::new()",
            admitted(SlidingWindow::new()).await?,
        ),
        (
            "SlidingWindow::buckets(10)",
            admitted(SlidingWindow::buckets(10)).await?,
        ),
        ("SlidingLog", admitted(SlidingLog).await?),
    ] {
        match runs.iter_mut().find(|run| run.each_second == each_second) {
            Some(run) => run.names.push(name),
            None => runs.push(Run {
                names: vec![name],
                each_second,
            }),
        }
    }
    Ok(runs)
}

async fn admitted(strategy: impl Strategy) -> Result<Vec<u64>, ConfigError> {
    let clock = ManualClock::default();
    let api = Policy::new("api", Quota::requests(QUOTA).per_minute()).strategy(strategy);
    let limiter = Limiter::builder()
        .store(MemoryStore::builder().clock(clock.clone()).build())
        .policy(api)
        .build()?;
    let _ = limiter.check("alice").await;
    clock.advance(Duration::from_secs(FIRST as u64));
    let mut each_second = Vec::new();
    for _ in 0..60 {
        each_second.push(limiter.check("alice").times(1_000).await.admitted());
        clock.advance(Duration::from_secs(1));
    }
    Ok(each_second)
}

pub(crate) fn figure(runs: Vec<Run>) -> Figure {
    let sums = runs.iter().map(|run| {
        let (edge, minute) = (run.at_the_edge(), run.in_a_minute());
        let names = run.names.join(", ");
        format!("{names}: {edge} within one second around the edge, {minute} within a minute.")
    });
    Figure {
        name: "window-edge",
        title: "The double burst at a window's edge, by strategy",
        description: sums.collect::<Vec<_>>().join(" "),
        height: panels(&runs).bottom(),
        body: Box::new(move |canvas| draw(canvas, &runs)),
    }
}

fn panels(runs: &[Run]) -> Panels {
    let ticks = [60.0, 75.0, 90.0, 105.0];
    Panels::new(runs.len(), 80, Axis::new(FROM..TO, &ticks, time_of_day))
}

fn draw(canvas: &Canvas<'_, '_>, runs: &[Run]) -> Result<()> {
    let theme = canvas.theme;
    canvas.legend(&[
        (Mark::Filled(theme.admitted), "admitted since 08:00:59", 44),
        (Mark::Line(theme.rejected), "quota of a minute", 268),
        (Mark::Filled(theme.band), "the edge", 446),
    ])?;
    let (panels, y) = (
        panels(runs),
        Axis::new(0.0..205.0, &[0.0, 100.0, 200.0], count),
    );
    for (index, run) in runs.iter().enumerate() {
        let about = format!("edge {}, minute {}", run.at_the_edge(), run.in_a_minute());
        let mut chart = canvas.panel(&panels, index, (&run.names.join(", "), &about), &y)?;
        let band = [(FIRST as f64, 0.0), (FIRST as f64 + 2.0, 205.0)];
        chart.draw_series([Rectangle::new(band, theme.band.filled())])?;
        let mut total = 0;
        let totals = run
            .each_second
            .iter()
            .enumerate()
            .map(|(second, admitted)| {
                total += admitted;
                ((FIRST + second) as f64, total as f64)
            });
        let line = steps(totals, TO);
        chart.draw_series(AreaSeries::new(line, 0.0, theme.admitted))?;
        let quota = [(FROM, QUOTA as f64), (TO, QUOTA as f64)];
        let style = theme.rejected.stroke_width(2);
        chart.draw_series(DashedLineSeries::new(quota, 7, 5, style))?;
    }
    Ok(())
}
