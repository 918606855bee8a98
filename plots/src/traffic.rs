//! The same traffic through all strategies: what each admits and rejects, and what remains.

use std::{collections::VecDeque, time::Duration};

use plotters::prelude::*;
use tollgate::{
    Ban, CalendarWindow, FixedWindow, Gcra, Limiter, ListWindow, ManualClock, MemoryStore, Policy,
    Quota, SlidingLog, SlidingWindow, TokenBucket, limiter::LimiterBuilder, strategy::Strategy,
};

use crate::{
    Result,
    figure::{
        Bars, Canvas, Figure, Mark, Panels, steps,
        ticks::{Axis, count, time_of_day},
    },
};

/// The length of the run, from 08:00:00.
const SECONDS: usize = 180;

/// The clock is set four times a second.
const TICKS_PER_SECOND: usize = 4;

/// The seconds of a bar.
const BAR: usize = 5;

/// When requests come: from second, to second, and one each so many ticks.
const TRAFFIC: [(usize, usize, usize); 5] = [
    (20, 30, 4),
    (50, 58, 1),
    (62, 70, 2),
    (85, 95, 2),
    (110, 170, 8),
];

/// How long each request runs.
const RUNS_FOR: usize = 3 * TICKS_PER_SECOND;

const QUOTA: u64 = 20;

/// What strategies did; those that did the same are one run.
#[derive(Debug, PartialEq)]
pub struct Run {
    /// The strategies' names.
    pub names: Vec<&'static str>,
    /// The requests that were admitted in each bar.
    pub admitted: Vec<u64>,
    /// The requests that were rejected in each bar.
    pub rejected: Vec<u64>,
    /// What remained of the quota at the beginning of each second.
    pub remaining: Vec<u64>,
}

/// Sends the traffic through each strategy.
pub async fn run() -> Result<Vec<Run>> {
    fn counted(strategy: impl Strategy) -> Vec<Policy> {
        vec![Policy::new("api", Quota::requests(QUOTA).per_minute()).strategy(strategy)]
    }
    let ban = Ban::for_duration(Duration::from_secs(45));
    let banned = Policy::new("abuse", Quota::requests(10).per_minute()).strategy(ban);
    let mut strategies = vec![
        ("Gcra", counted(Gcra)),
        ("TokenBucket", counted(TokenBucket)),
        ("FixedWindow", counted(FixedWindow)),
        ("ListWindow", counted(ListWindow)),
        ("CalendarWindow", counted(CalendarWindow::utc())),
        ("SlidingWindow::new()", counted(SlidingWindow::new())),
        (
            "SlidingWindow::buckets(10)",
            counted(SlidingWindow::buckets(10)),
        ),
        ("SlidingLog", counted(SlidingLog)),
        ("Gcra and Ban", [counted(Gcra), vec![banned]].concat()),
    ];
    let in_flight = Policy::new("api", Quota::concurrent(5));
    strategies.push(("Concurrency", vec![in_flight]));
    let mut runs: Vec<Run> = Vec::new();
    for (name, policies) in strategies {
        let run = run_one(name, policies).await?;
        let same = |other: &&mut Run| {
            (&other.admitted, &other.rejected, &other.remaining)
                == (&run.admitted, &run.rejected, &run.remaining)
        };
        match runs.iter_mut().find(same) {
            Some(other) => other.names.push(name),
            None => runs.push(run),
        }
    }
    Ok(runs)
}

async fn run_one(name: &'static str, policies: Vec<Policy>) -> Result<Run> {
    let clock = ManualClock::default();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = Limiter::builder().store(store);
    let limiter = policies.into_iter().fold(limiter, LimiterBuilder::policy);
    let limiter = limiter.build()?;
    let mut run = Run {
        names: vec![name],
        admitted: vec![0; SECONDS / BAR],
        rejected: vec![0; SECONDS / BAR],
        remaining: Vec::new(),
    };
    let mut running = VecDeque::new();
    for tick in 0..SECONDS * TICKS_PER_SECOND {
        let second = tick / TICKS_PER_SECOND;
        while running.front().is_some_and(|(end, _)| *end <= tick) {
            running.pop_front();
        }
        if tick % TICKS_PER_SECOND == 0 {
            let status = limiter.peek("alice").await?;
            let api = status.policy("api").ok_or("no policy `api`")?;
            run.remaining.push(api.remaining());
        }
        if comes(tick) {
            match limiter.admit("alice").await {
                Ok(admission) => {
                    running.push_back((tick + RUNS_FOR, admission));
                    run.admitted[second / BAR] += 1;
                }
                Err(_) => run.rejected[second / BAR] += 1,
            }
        }
        clock.advance(Duration::from_secs(1) / TICKS_PER_SECOND as u32);
    }
    Ok(run)
}

/// Whether a request comes at a tick.
fn comes(tick: usize) -> bool {
    TRAFFIC.iter().any(|(from, to, each)| {
        let (from, to) = (from * TICKS_PER_SECOND, to * TICKS_PER_SECOND);
        (from..to).contains(&tick) && (tick - from).is_multiple_of(*each)
    })
}

pub(crate) fn figure(runs: Vec<Run>) -> Figure {
    let sums = runs.iter().map(|run| {
        let (admitted, rejected) = sums(run);
        let names = run.names.join(", ");
        format!("{names}: {admitted} admitted, {rejected} rejected.")
    });
    Figure {
        name: "strategies",
        title: "The same traffic through all strategies",
        description: sums.collect::<Vec<_>>().join(" "),
        height: panels(&runs).bottom(),
        body: Box::new(move |canvas| draw(canvas, &runs)),
    }
}

fn sums(run: &Run) -> (u64, u64) {
    (run.admitted.iter().sum(), run.rejected.iter().sum())
}

fn panels(runs: &[Run]) -> Panels {
    let x = Axis::new(0.0..SECONDS as f64, &[0.0, 60.0, 120.0, 180.0], time_of_day);
    Panels::new(runs.len(), 84, x)
}

fn draw(canvas: &Canvas<'_, '_>, runs: &[Run]) -> Result<()> {
    let theme = canvas.theme;
    canvas.legend(&[
        (Mark::Filled(theme.admitted), "admitted", 44),
        (Mark::Filled(theme.rejected), "rejected", 152),
        (Mark::Line(theme.text), "remaining of the quota", 256),
    ])?;
    let (panels, y) = (
        panels(runs),
        Axis::new(-14.0..21.0, &[-10.0, 0.0, 10.0, 20.0], count),
    );
    for (index, run) in runs.iter().enumerate() {
        let (admitted, rejected) = sums(run);
        let about = format!("{admitted} admitted, {rejected} rejected");
        let mut chart = canvas.panel(&panels, index, (&run.names.join(", "), &about), &y)?;
        let bars = Bars(0.0, BAR as f64, 0.4);
        let admitted = run.admitted.iter().map(|count| (0, *count as i64));
        bars.draw(&mut chart, Mark::Filled(theme.admitted), admitted)?;
        let rejected = run.rejected.iter().map(|count| (0, -(*count as i64)));
        bars.draw(&mut chart, Mark::Filled(theme.rejected), rejected)?;
        let remaining = run.remaining.iter().enumerate();
        let remaining = remaining.map(|(second, count)| (second as f64, *count as f64));
        let line = steps(remaining, SECONDS as f64);
        chart.draw_series(LineSeries::new(line, theme.text.stroke_width(2)))?;
    }
    Ok(())
}
