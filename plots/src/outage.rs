//! An outage of Redis: what two processes admit before, during and after it, by what each does when the store fails.

use std::time::Duration;

use plotters::prelude::*;
use testkit::Proxy;
use tollgate::{
    Decision, FixedWindow, Limiter, LocalFallback, OnStoreError, Policy, Quota, RedisStore,
    limiter::DecisionKind, observe::DecisionSource,
};

use crate::{
    Result,
    figure::{
        Bars, Canvas, Figure, Mark, Panels,
        ticks::{Axis, count, minutes},
    },
    redis::{Redis, TIMEOUT, until},
};

/// The length of the run: one window, from its first request on.
const MINUTES: usize = 60;

/// The minutes in which Redis cannot be reached.
const OUTAGE: std::ops::Range<usize> = 10..40;

/// The minutes of a bar.
const BAR: usize = 2;

const PROCESSES: u32 = 2;

/// The requests that each process gets in each minute.
const REQUESTS: usize = 2;

const QUOTA: u64 = 100;

/// What became of the requests of a bar.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bar {
    /// Admitted by Redis.
    pub by_redis: u64,
    /// Admitted in process.
    pub in_process: u64,
    /// Rejected, since the quota or the share of it was used up.
    pub rejected: u64,
    /// Rejected, since the store failed.
    pub failed: u64,
}

/// What two processes did.
#[derive(Debug)]
pub struct Run {
    /// What they do when the store fails.
    pub action: &'static str,
    /// What became of their requests.
    pub bars: Vec<Bar>,
}

impl Run {
    /// All requests that were admitted.
    pub fn admitted(&self) -> u64 {
        let bars = self.bars.iter();
        bars.map(|bar| bar.by_redis + bar.in_process).sum()
    }
}

/// Sends the same requests to each pair of processes. The window lasts an hour, and the run takes seconds: what a process
/// counts by its own clock does not come back meanwhile, nor would it in the hour that Redis sees.
pub async fn run() -> Result<Vec<Run>> {
    let actions: [(&str, OnStoreError); 4] = [
        ("OnStoreError::Admit", OnStoreError::Admit),
        ("OnStoreError::Reject", OnStoreError::Reject),
        (
            "LocalFallback::shared_by(2)",
            LocalFallback::shared_by(PROCESSES).into(),
        ),
        (
            "LocalFallback::shared_by(2)",
            LocalFallback::shared_by(PROCESSES).into(),
        ),
    ];
    let mut runs = Vec::new();
    for (action, on_store_error) in actions {
        let bars = run_one(on_store_error).await?;
        runs.push(Run { action, bars });
    }
    Ok(runs)
}

async fn run_one(on_store_error: OnStoreError) -> Result<Vec<Bar>> {
    let redis = Redis::start();
    let network = Proxy::to(redis.server.addr());
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let store = RedisStore::builder()
            .url(format!("redis://{}", network.addr()))
            .timeout(TIMEOUT)
            .max_overrides(0)
            .rejection_cache_staleness(Duration::ZERO);
        let policy = Policy::new("api", Quota::requests(QUOTA).per_hour()).strategy(FixedWindow);
        let limiter = Limiter::builder()
            .store(store.build()?)
            .policy(policy)
            .on_store_error(on_store_error);
        processes.push(limiter.build()?);
    }
    let mut bars = vec![Bar::default(); MINUTES / BAR];
    for minute in 0..MINUTES {
        redis.set(Duration::from_secs(60) * minute as u32);
        if minute == OUTAGE.start {
            network.cut();
        }
        if minute == OUTAGE.end {
            network.pass();
            let charged = bars.iter().map(|bar| bar.by_redis + bar.in_process).sum();
            resume(&processes, on_store_error, charged).await?;
        }
        for process in &processes {
            for _ in 0..REQUESTS {
                let decision = process.check("alice").await;
                let source = match OUTAGE.contains(&minute) {
                    true => DecisionSource::Fallback,
                    false => DecisionSource::Store,
                };
                if decision.source() != source {
                    return Err(format!("not by {source:?}: {decision:?}").into());
                }
                add(&mut bars[minute / BAR], &decision);
            }
        }
    }
    Ok(bars)
}

fn add(bar: &mut Bar, decision: &Decision) {
    let count = match (decision.kind(), decision.source()) {
        (DecisionKind::StoreFailed(_), _) => &mut bar.failed,
        _ if !decision.is_admitted() => &mut bar.rejected,
        (_, DecisionSource::Store) => &mut bar.by_redis,
        _ => &mut bar.in_process,
    };
    *count += 1;
}

/// Waits until all processes call Redis again, and until what they write back is charged there.
async fn resume(processes: &[Limiter], on_store_error: OnStoreError, charged: u64) -> Result<()> {
    for process in processes {
        // It has the cost 0, and a key of its own.
        let is_back = async || {
            let decision = process.check("probe").cost(0).await;
            decision.source() == DecisionSource::Store
        };
        until("Redis is called again", is_back).await?;
    }
    if let OnStoreError::LocalFallback(fallback) = on_store_error
        && fallback == LocalFallback::shared_by(PROCESSES)
    {
        let left = QUOTA.saturating_sub(charged);
        let is_written = async || match processes[0].peek("alice").await {
            Ok(status) => status.policy("api").map(|api| api.remaining()) == Some(left),
            Err(_) => false,
        };
        until("it is written back", is_written).await?;
    }
    Ok(())
}

pub(crate) fn figure(runs: Vec<Run>) -> Figure {
    let sums = runs.iter().map(|run| {
        let sum = |of: fn(&Bar) -> u64| run.bars.iter().map(of).sum::<u64>();
        format!(
            "{}: {} admitted by Redis, {} in process, {} rejected with 429, {} with 503.",
            run.action,
            sum(|bar| bar.by_redis),
            sum(|bar| bar.in_process),
            sum(|bar| bar.rejected),
            sum(|bar| bar.failed),
        )
    });
    Figure {
        name: "outage",
        title: "An outage of Redis, by what two processes do when the store fails",
        description: sums.collect::<Vec<_>>().join(" "),
        height: panels(&runs).bottom(),
        body: Box::new(move |canvas| draw(canvas, &runs)),
    }
}

fn panels(runs: &[Run]) -> Panels {
    let ticks = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0];
    Panels::new(
        runs.len(),
        90,
        Axis::new(0.0..MINUTES as f64, &ticks, minutes),
    )
}

fn draw(canvas: &Canvas<'_, '_>, runs: &[Run]) -> Result<()> {
    let theme = canvas.theme;
    canvas.legend(&[
        (Mark::Filled(theme.admitted), "admitted", 44),
        (Mark::Hollow(theme.admitted), "in process", 152),
        (Mark::Filled(theme.rejected), "429", 272),
        (Mark::Hollow(theme.rejected), "503", 344),
        (Mark::Filled(theme.band), "Redis unreachable", 416),
    ])?;
    let y = Axis::new(-9.0..9.0, &[-8.0, 0.0, 8.0], count);
    for (index, run) in runs.iter().enumerate() {
        let about = format!("{} admitted", run.admitted());
        let mut chart = canvas.panel(&panels(runs), index, (run.action, &about), &y)?;
        let band = [(OUTAGE.start as f64, -9.0), (OUTAGE.end as f64, 9.0)];
        chart.draw_series([Rectangle::new(band, theme.band.filled())])?;
        let mut draw = |mark, of: fn(&Bar) -> (u64, u64), sign: i64| {
            let values = run.bars.iter().map(of);
            let values = values.map(|(from, to)| (sign * from as i64, sign * to as i64));
            Bars(0.0, BAR as f64, 0.2).draw(&mut chart, mark, values)
        };
        let (admitted, rejected) = (theme.admitted, theme.rejected);
        draw(Mark::Filled(admitted), |bar| (0, bar.by_redis), 1)?;
        let in_process = |bar: &Bar| (bar.by_redis, bar.by_redis + bar.in_process);
        draw(Mark::Hollow(admitted), in_process, 1)?;
        draw(Mark::Filled(rejected), |bar| (0, bar.rejected), -1)?;
        let failed = |bar: &Bar| (bar.rejected, bar.rejected + bar.failed);
        draw(Mark::Hollow(rejected), failed, -1)?;
    }
    Ok(())
}
