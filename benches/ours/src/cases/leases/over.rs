//! Throughput, and how much of a limit several limiters exceed that share it.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use testkit::Server;
use tollgate::{CalendarWindow, Lease, Policy, Quota};

use crate::{
    contenders::{
        governor::Governor,
        local_sync::LocalSync,
        redis::Mux,
        tollgate::{TollgateLimiter, on_redis},
    },
    keys::{Callers, Rule},
    load::{Contender, Load, Rng},
    outcome::{Outcome, Row, Target, Unit, grouped},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

/// Limiters that share a limit, each with its own connections and counts, as in processes by themselves.
const LIMITERS: usize = 4;

/// The limit per second.
const LIMIT: u64 = 1_000;

/// Tasks that send requests to all of the limiters, as fast as they decide.
const TASKS: usize = 64;

/// A caller receives an admission later than it is charged, at most by so much.
const LATENESS: Duration = Duration::from_millis(10);

/// What a rule promises of a limit per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The limit in each second of the clock.
    EachSecond,
    /// The limit in any second.
    AnySecond,
    /// In any second a burst of the limit, and as much that refills.
    Burst,
}

/// Systems whose throughput and excess are measured: several limiters of each.
#[derive(Debug)]
pub struct Systems {
    plan: Plan,
    systems: Vec<System>,
    servers: Vec<Server>,
}

#[derive(Debug)]
struct System {
    name: &'static str,
    promise: Promise,
    /// Under a limit that they never reach.
    ample: Entrant,
    /// Under the limit.
    limited: Entrant,
    admissions: Arc<Admissions>,
}

/// When requests were admitted, in microseconds since 1970.
type Admissions = Mutex<Vec<u64>>;

impl Systems {
    /// Without any system.
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            systems: Vec::new(),
            servers: Vec::new(),
        }
    }

    /// tollgate with leases and without, and the baselines.
    pub async fn of_this_workspace(plan: Plan) -> Self {
        let mut systems = Self::new(plan);
        let window = |url, rule: Rule, lease| async move {
            let (requests, period) = rule.window();
            let quota = Quota::requests(requests).per(period);
            let policy = Policy::new("over", quota).strategy(CalendarWindow::utc());
            tollgate(url, policy, lease)
        };
        let gcra = |url, rule: Rule, lease| async move {
            tollgate(url, Policy::new("over", rule.quota()), lease)
        };
        let each = Promise::EachSecond;
        let leased = move |url, rule| window(url, rule, true);
        systems.add("tollgate with leases", each, leased).await;
        let single = move |url, rule| window(url, rule, false);
        systems.add("tollgate", each, single).await;
        let leased = move |url, rule| gcra(url, rule, true);
        let burst = Promise::Burst;
        systems
            .add("tollgate with leases, GCRA", burst, leased)
            .await;
        let single = move |url, rule| gcra(url, rule, false);
        systems.add("tollgate, GCRA", burst, single).await;
        let mux = async |url: String, rule| Mux::open(&url, rule, 1).await;
        systems.add("a script call per request", burst, mux).await;
        let sync = async |url: String, rule| LocalSync::open(&url, rule).await;
        systems.add("synchronized every 50 ms", each, sync).await;
        let governor = async |_, rule| Governor::new(rule, Callers::kept(1));
        systems.add("governor", burst, governor).await;
        systems
    }

    /// Adds a system. `open` makes one of its limiters, on the server at a URL.
    pub async fn add<C, F>(
        &mut self,
        name: &'static str,
        promise: Promise,
        open: impl Fn(String, Rule) -> F,
    ) where
        C: Contender,
        F: Future<Output = C>,
    {
        let ample = Rule {
            requests: 1_000_000,
            period: Duration::from_secs(8_640),
            burst: 1_000_000_000,
        };
        let admissions = Arc::new(Admissions::default());
        let mut entrants = Vec::new();
        let recorded = [None, Some(admissions.clone())];
        let rules = [ample, Rule::each_second(LIMIT)];
        for (rule, admissions) in rules.into_iter().zip(recorded) {
            // One of its own, so that what a system does at intervals is its own as well.
            let server = Server::start();
            let mut limiters = Vec::new();
            for _ in 0..LIMITERS {
                limiters.push(open(server.url(), rule).await);
            }
            let shared = Shared {
                limiters,
                admissions,
            };
            entrants.push(Entrant::new(name, shared));
            self.servers.push(server);
        }
        let (Some(limited), Some(ample)) = (entrants.pop(), entrants.pop()) else {
            return;
        };
        self.systems.push(System {
            name,
            promise,
            ample,
            limited,
            admissions,
        });
    }

    /// Measures all of them: the throughput in turns, the excess one after the other.
    pub async fn measure(self) -> Vec<Outcome> {
        let load = Load {
            tasks: TASKS,
            time: self.plan.time,
            stint: 16,
        };
        let mut excesses = Vec::new();
        for system in &self.systems {
            let rounds = u32::try_from(self.plan.rounds).unwrap_or(1);
            let time = load.time * rounds;
            if time >= Duration::from_secs(1) {
                start_of_a_second().await;
            }
            let sample = system.limited.run_load(Load { time, ..load }).await;
            let admissions = std::mem::take(&mut *lock(&system.admissions));
            excesses.push((system.name, worst(system.promise, admissions), sample.rate));
        }
        let entrants = self.systems.into_iter().map(|system| system.ample);
        let turns = run_comparison(&self.plan, load, Expect::Either, entrants.collect()).await;
        let title = format!("{LIMITERS} limiters, {TASKS} tasks, one hot key");
        let mut outcome = Outcome::of("over", title, &turns);
        for place in 1..excesses.len() {
            outcome = outcome.compare(&turns, Measure::Rate, place, Target::None);
        }
        let mut outcomes = vec![outcome];
        for (name, worst, rate) in excesses {
            let title = format!(
                "{LIMITERS} limiters share {} per second: {name}",
                grouped(LIMIT as f64)
            );
            let target = match name.starts_with("tollgate") {
                true => Target::AtMost(1.0),
                false => Target::None,
            };
            let row = Row {
                ours: format!("{} decisions/s", grouped(rate)),
                ..Row::number(
                    "admitted in the worst second, to what the rule promises",
                    worst,
                    Unit::Ratio,
                    target,
                )
            };
            outcomes.push(Outcome::alone("over", title, row));
        }
        outcomes
    }
}

pub(crate) async fn limit(plan: Plan) -> Vec<Outcome> {
    Systems::of_this_workspace(plan).await.measure().await
}

fn tollgate(url: String, policy: Policy, lease: bool) -> TollgateLimiter {
    let policy = match lease {
        true => policy.lease(Lease::max_units(super::MAX_UNITS).ttl(Duration::from_millis(50))),
        false => policy,
    };
    TollgateLimiter::under(on_redis(&url), policy, Callers::kept(1))
        .cached()
        .leased()
}

/// Limiters that share a limit.
struct Shared<C> {
    limiters: Vec<C>,
    admissions: Option<Arc<Admissions>>,
}

impl<C: Contender> Contender for Shared<C> {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let limiter = &self.limiters[rng.below(self.limiters.len())];
        let admitted = limiter.decide(rng).await;
        if let (true, Some(admissions)) = (admitted, &self.admissions) {
            lock(admissions).push(since_1970().as_micros() as u64);
        }
        admitted
    }
}

fn lock(admissions: &Admissions) -> std::sync::MutexGuard<'_, Vec<u64>> {
    admissions.lock().unwrap_or_else(PoisonError::into_inner)
}

fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Waits until a second of the clock has begun, so that the first one is whole.
async fn start_of_a_second() {
    let part = Duration::from_nanos(since_1970().subsec_nanos().into());
    tokio::time::sleep(Duration::from_secs(1) + LATENESS - part).await;
}

/// The most that was admitted in a second, to what a rule promises at most.
fn worst(promise: Promise, mut admissions: Vec<u64>) -> f64 {
    admissions.sort_unstable();
    let second = Duration::from_secs(1);
    let (most, promised) = match promise {
        Promise::EachSecond => {
            let each = admissions.chunk_by(|a, b| a / 1_000_000 == b / 1_000_000);
            (each.map(<[u64]>::len).max(), LIMIT)
        }
        Promise::AnySecond => (most_in_any(second - LATENESS, &admissions), LIMIT),
        Promise::Burst => (most_in_any(second - LATENESS, &admissions), 2 * LIMIT),
    };
    most.unwrap_or(0) as f64 / promised as f64
}

/// The most in any half-open interval of this length.
fn most_in_any(length: Duration, sorted: &[u64]) -> Option<usize> {
    let length = length.as_micros() as u64;
    let from = sorted.iter().enumerate();
    from.map(|(index, first)| sorted.partition_point(|at| *at < first + length) - index)
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_second_is_one_of_the_clock_or_any() {
        let second = 1_000_000;
        // As many at the end of one second as at the start of the next.
        let edge = |count| {
            let end = std::iter::repeat_n(5 * second - 1, count);
            end.chain(std::iter::repeat_n(5 * second, count)).collect()
        };
        assert_eq!(worst(Promise::EachSecond, edge(1_000)), 1.0);
        assert_eq!(worst(Promise::AnySecond, edge(1_000)), 2.0);
        assert_eq!(worst(Promise::Burst, edge(1_000)), 1.0);
        // Apart by a second, less what an admission may be late.
        let apart = |gap| vec![second, second + gap];
        assert_eq!(worst(Promise::AnySecond, apart(989_999)), 0.002);
        assert_eq!(worst(Promise::AnySecond, apart(990_000)), 0.001);
        assert_eq!(worst(Promise::AnySecond, vec![]), 0.0);
    }
}
