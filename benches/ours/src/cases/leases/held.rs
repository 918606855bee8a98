//! What a process holds for requests of unequal costs under two policies, to what they use.

use std::time::{Duration, Instant};

use testkit::Server;
use tollgate::{FixedWindow, Key, Lease, Limiter, Policy, Quota, observe::DecisionSource};

use crate::{
    contenders::tollgate::on_redis,
    outcome::{Outcome, Row, Target, Unit, grouped},
    plan::Plan,
    runner::median,
};

/// By requests, and by kilobytes.
const POLICIES: [(&str, u64); 2] = [("requests", 100_000), ("kilobytes", 1_000_000_000_000)];

/// The kilobytes of most requests, and of one in [`LARGE_AFTER`].
const KILOBYTES: [u64; 2] = [1, 20_000];

const LARGE_AFTER: u64 = 37;

/// More than the requests use within a TTL.
const MAX_UNITS: u64 = 1_000_000;

/// Requests per second.
const RATE: f64 = 1_740.0;

const TTL: Duration = Duration::from_millis(50);

/// How long it is measured at most: not until a policy is used up.
const MAX_TIME: Duration = Duration::from_secs(30);

/// What was done and seen in a run. Units are those of each policy.
#[derive(Default)]
struct Sample {
    /// The units that are held, at moments that are a millisecond apart.
    held: [Vec<f64>; 2],
    used: [u64; 2],
    requests: u64,
    by_lease: u64,
}

pub(crate) async fn mixed_costs(plan: Plan) -> Vec<Outcome> {
    let server = Server::start();
    let policies = POLICIES.map(|(name, units)| {
        Policy::new(name, Quota::requests(units).per_hour())
            .strategy(FixedWindow)
            .lease(Lease::max_units(MAX_UNITS).ttl(TTL))
    });
    let on = on_redis(&server.url());
    let on = policies
        .into_iter()
        .fold(on, |on, policy| on.policy(policy));
    let limiter = on.build().expect("a limiter");
    let rounds = u32::try_from(plan.rounds).unwrap_or(1);
    run(&limiter, plan.time).await;
    let time = (plan.time * rounds).min(MAX_TIME);
    let start = Instant::now();
    let sample = run(&limiter, time).await;
    let took = start.elapsed();

    let title = format!(
        "one hot key, {} requests/s, one in {LARGE_AFTER} of 20 MB, the others of 1 kB, two policies",
        grouped(RATE)
    );
    let by_lease = Row::number(
        "requests decided by leases, of all",
        sample.by_lease as f64 / sample.requests as f64,
        Unit::Fraction,
        Target::AtLeast(0.9),
    );
    let mut outcome = Outcome::alone("held", title, by_lease);
    let leases = limiter.stats().store.leases;
    for (place, (name, _)) in POLICIES.iter().enumerate() {
        let held = &sample.held[place];
        let used = sample.used[place] as f64 * (TTL * 5 / 8).as_secs_f64() / took.as_secs_f64();
        let most = held.iter().copied().fold(0.0, f64::max);
        let stats = leases.iter().find(|stats| *stats.policy == **name);
        let [granted, spent] = stats.map_or([0, 0], |stats| [stats.granted, stats.spent]);
        let held = median(held.iter().copied());
        outcome = outcome.row(Row {
            ours: format!(
                "{} held (most {}, used {}); {} granted, {} spent",
                grouped(held),
                grouped(most),
                grouped(used),
                grouped(granted as f64),
                grouped(spent as f64)
            ),
            ..Row::number(
                format!("{name} that are held, to those that are used in 5/8 of a TTL"),
                held / used.max(1.0),
                Unit::Fraction,
                Target::AtMost(1.0),
            )
        });
    }
    vec![outcome]
}

/// Sends requests at the rate, whatever the time of a decision.
async fn run(limiter: &Limiter, time: Duration) -> Sample {
    let (start, mut sample) = (Instant::now(), Sample::default());
    loop {
        let elapsed = start.elapsed();
        while (sample.requests as f64) < elapsed.as_secs_f64() * RATE {
            let is_large = sample.requests % LARGE_AFTER == LARGE_AFTER - 1;
            let kilobytes = KILOBYTES[usize::from(is_large)];
            let request = limiter
                .check(Key::global())
                .cost_for("kilobytes", kilobytes);
            let decision = request.await;
            assert!(decision.is_admitted(), "{decision:?}");
            sample.requests += 1;
            sample.by_lease += u64::from(decision.source() == DecisionSource::Lease);
            for (used, units) in sample.used.iter_mut().zip([1, kilobytes]) {
                *used += units;
            }
        }
        let leases = limiter.stats().store.leases;
        for ((name, _), held) in POLICIES.iter().zip(&mut sample.held) {
            let own = leases.iter().find(|stats| *stats.policy == **name);
            held.push(own.map_or(0.0, |stats| stats.held as f64));
        }
        if elapsed >= time && sample.requests > 0 {
            return sample;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
