//! Contenders that take turns.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::{
    runtime::{Builder, Runtime},
    task::spawn_blocking,
};

use crate::{
    load::{Contender, Load, Sample, run_load},
    plan::Plan,
};

/// A contender under a name.
pub struct Entrant {
    name: &'static str,
    run: Run,
}

type Run = Box<dyn Fn(Load) -> Pin<Box<dyn Future<Output = Sample> + Send>> + Send + Sync>;

impl Entrant {
    /// A contender under a name.
    pub fn new<C: Contender>(name: &'static str, contender: C) -> Self {
        let contender = Arc::new(contender);
        Self {
            name,
            run: Box::new(move |load| Box::pin(run_load(contender.clone(), load))),
        }
    }

    /// A contender that is loaded on a current-thread runtime of its own.
    ///
    /// # Panics
    ///
    /// If there can be no such runtime.
    pub fn on_one_thread<C: Contender>(name: &'static str, contender: C) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build();
        // It can't be dropped in async code.
        let runtime: &Runtime = Box::leak(Box::new(runtime.expect("a runtime")));
        let contender = Arc::new(contender);
        Self::loaded_by(name, move |load| {
            let contender = contender.clone();
            let run = move || runtime.block_on(run_load(contender, load));
            async { spawn_blocking(run).await.expect("no panic") }
        })
    }

    /// Puts it under load once.
    pub async fn run_load(&self, load: Load) -> Sample {
        (self.run)(load).await
    }

    /// A contender that another program loads.
    pub fn loaded_by<F>(name: &'static str, run: impl Fn(Load) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Sample> + Send + 'static,
    {
        Self {
            name,
            run: Box::new(move |load| Box::pin(run(load))),
        }
    }
}

impl std::fmt::Debug for Entrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Entrant").field(&self.name).finish()
    }
}

/// What must become of every request, or the figure is of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// All are admitted.
    Admitted,
    /// None is.
    Rejected,
    /// Whatever the contender's own rule says.
    Either,
}

/// What came of it, by contender and round.
#[derive(Debug)]
pub struct Comparison {
    entrants: Vec<(&'static str, Vec<Sample>)>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Decisions per second.
    Rate,
    /// Half of the decisions took no longer.
    P50,
    /// Of a hundred decisions, 99 took no longer.
    P99,
}

/// A contender's figures: the median of its rounds for each.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The contender's name.
    pub name: &'static str,
    /// Decisions per second.
    pub rate: f64,
    /// Half of the decisions took no longer.
    pub p50: Duration,
    /// Of a hundred decisions, 99 took no longer.
    pub p99: Duration,
    /// Processor time of this process for each decision.
    pub cpu: Duration,
    /// Of all requests, the part that was admitted.
    pub admitted: f64,
}

/// The round that isn't counted lasts until so many decisions were made for each of the plan's keys, since keys that are new
/// cost more; and so many rounds at most.
const WARM_UP: (usize, usize) = (10, 10);

/// Lets the contenders take turns, in another order every other round, after one round that isn't counted.
///
/// # Panics
///
/// If something else became of a request than expected.
pub async fn run_comparison(
    plan: &Plan,
    load: Load,
    expect: Expect,
    entrants: Vec<Entrant>,
) -> Comparison {
    let mut run_comparison = Comparison {
        entrants: entrants
            .iter()
            .map(|entrant| (entrant.name, vec![]))
            .collect(),
    };
    for round in 0..=plan.rounds {
        let mut order: Vec<usize> = (0..entrants.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for place in order {
            let mut sample = entrants[place].run_load(load).await;
            for _ in 1..WARM_UP.1 {
                if round > 0 || sample.decisions >= (WARM_UP.0 * plan.keys) as u64 {
                    break;
                }
                let more = entrants[place].run_load(load).await;
                sample.decisions += more.decisions;
                sample.admitted += more.admitted;
            }
            let admitted = match expect {
                Expect::Admitted => sample.decisions,
                Expect::Rejected => 0,
                Expect::Either => sample.admitted,
            };
            assert_eq!(
                sample.admitted, admitted,
                "{}: {expect:?} was expected of all {} (a quota used up? run for a shorter time)",
                entrants[place].name, sample.decisions
            );
            if round > 0 {
                run_comparison.entrants[place].1.push(sample);
            }
        }
    }
    run_comparison
}

impl Comparison {
    /// The contenders' figures.
    pub fn figures(&self) -> Vec<Figure> {
        (0..self.entrants.len())
            .map(|place| self.figure(place))
            .collect()
    }

    /// A contender's figures.
    pub fn figure(&self, place: usize) -> Figure {
        let (name, samples) = &self.entrants[place];
        let of = |pick: fn(&Sample) -> Duration| {
            Duration::from_secs_f64(median(samples.iter().map(|s| pick(s).as_secs_f64())))
        };
        Figure {
            name,
            rate: median(samples.iter().map(|sample| sample.rate)),
            p50: of(|sample| sample.p50),
            p99: of(|sample| sample.p99),
            cpu: of(|sample| sample.cpu),
            admitted: median(
                samples
                    .iter()
                    .map(|sample| sample.admitted as f64 / sample.decisions.max(1) as f64),
            ),
        }
    }

    /// Each round's ratio of the contender at `place` to the one at `to`.
    pub fn ratios(&self, measure: Measure, place: usize, to: usize) -> Vec<f64> {
        let value = |sample: &Sample| match measure {
            Measure::Rate => sample.rate,
            Measure::P50 => sample.p50.as_secs_f64(),
            Measure::P99 => sample.p99.as_secs_f64(),
        };
        let rounds = self.entrants[place].1.iter().zip(&self.entrants[to].1);
        rounds.map(|(a, b)| value(a) / value(b)).collect()
    }

    /// Each round's time for one decision that the contender at `place` needs more than the one at `than`, in ns.
    pub fn added_ns(&self, place: usize, than: usize) -> Vec<f64> {
        let rounds = self.entrants[place].1.iter().zip(&self.entrants[than].1);
        rounds.map(|(a, b)| 1e9 / a.rate - 1e9 / b.rate).collect()
    }
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}
