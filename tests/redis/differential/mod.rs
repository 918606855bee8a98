//! Both stores decide alike, whatever the operations, and as each strategy is defined.
//!
//! Random histories are run on a limiter in process, on one on Redis, and on a model in unbounded integers: checks of any cost,
//! charges, refunds, settled admissions, credits, peeks, resets, bans, permits, tiers and overrides, TTLs that are lost or too long,
//! clocks that step, and reloads amid all that: other quotas, leases and roles, policies that go and return. After each step all
//! results are compared, and so are explanations of requests and the expiries of the keys on Redis. What fails is shrunk and printed
//! as a history to be put among the regressions. The model leaves out permits, bans, and what windows become if the clock steps back
//! or their period changes.
//!
//! Some policies have leases, beside one that has none, so that the store decides every request.
//!
//! `TOLLGATE_DIFFERENTIAL_STEPS` is how many steps to take in place of 8,000, `TOLLGATE_DIFFERENTIAL_SEED` which
//! histories to begin with: with the seed that a failure names it comes first. With `TOLLGATE_DIFFERENTIAL_FAILURES` it
//! goes on until there are that many failures.

use std::env;

use tollgate_tests::prelude::*;

use self::{
    history::{History, PolicySpec, Rate, Role, StrategyKind},
    run::Stores,
};

mod adjust;
mod generate;
mod history;
mod keys;
mod model;
mod regressions;
mod response;
mod run;
mod shrink;
mod small_log;

/// What is set in the environment, or else a number.
fn number(name: &str, otherwise: u64) -> u64 {
    env::var(name).map_or(otherwise, |text| text.parse().expect(name))
}

/// Runs a history; returns the smallest one that is found to fail, and how.
fn failure(stores: &mut Stores, seed: u64, history: History) -> Option<String> {
    let failure = stores.run(&history).err()?;
    let (history, failure) = shrink::shrink(stores, history, failure);
    let (source, text) = (history.source(), &failure.text);
    Some(format!("seed {seed}:\n{source}\n{text}\n"))
}

#[test]
fn both_stores_and_the_model_decide_alike() {
    let steps = number("TOLLGATE_DIFFERENTIAL_STEPS", 8_000);
    let first = number("TOLLGATE_DIFFERENTIAL_SEED", 1);
    println!("seed {first}, {steps} steps");
    let most = number("TOLLGATE_DIFFERENTIAL_FAILURES", 1) as usize;
    let (mut stores, begun) = (Stores::new(), Instant::now());
    let (mut taken, mut seed, mut failures) = (0, first, Vec::new());
    while taken < steps && failures.len() < most {
        let history = generate::history(seed);
        taken += history.steps.len() as u64;
        failures.extend(failure(&mut stores, seed, history));
        seed += 1;
    }
    let (modelled, time) = (stores.modelled, begun.elapsed());
    println!("{taken} steps in {time:.1?}, {modelled} of them by the model");
    assert!(failures.is_empty(), "{}", failures.concat());
    assert!(
        steps < 1_000 || 4 * modelled > taken,
        "too few by the model"
    );
}

#[test]
fn a_log_of_many_blocks_counts_as_the_model_has_it() {
    let log = PolicySpec {
        strategy: StrategyKind::SmallLog,
        quotas: vec![Rate::Per(60, 60_000_000)],
        declared: false,
        role: Role::Live,
        lease: None,
    };
    let mut stores = Stores::new();
    for seed in 0..LOGS {
        let history = generate::history_of(seed, vec![log.clone()]);
        let failed = failure(&mut stores, seed, history);
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

/// How many logs of many blocks there are.
const LOGS: u64 = 60;
