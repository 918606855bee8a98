//! From a history that fails to a small one.

use std::time::{Duration, Instant};

use crate::differential::{
    history::{History, Op, Request, Role, Step},
    run::{Failure, Stores, is_sound},
};

/// How long the search may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The smallest history that is found to fail, and how.
pub(crate) fn shrink(
    stores: &mut Stores,
    mut history: History,
    mut failure: Failure,
) -> (History, Failure) {
    let deadline = Instant::now() + TIMEOUT;
    history.steps.truncate(failure.step + 1);
    loop {
        let smaller = candidates(&history)
            .take_while(|_| Instant::now() < deadline)
            .find_map(|candidate| Some((stores.run(&candidate).err()?, candidate)));
        let Some((found, mut smaller)) = smaller else {
            return (history, failure);
        };
        smaller.steps.truncate(found.step + 1);
        (history, failure) = (smaller, found);
    }
}

/// Smaller histories, the smallest first.
fn candidates(history: &History) -> impl Iterator<Item = History> {
    without_steps(history)
        .chain(without_policies(history))
        .chain(with_simpler_steps(history))
}

fn without_steps(history: &History) -> impl Iterator<Item = History> {
    let len = history.steps.len();
    let sizes = std::iter::successors(Some(len / 2), |size| Some(size / 2));
    let sizes = sizes.take_while(|size| *size > 0);
    sizes.flat_map(move |size| {
        (0..len).step_by(size).rev().map(move |from| {
            let mut smaller = history.clone();
            smaller.steps.drain(from..(from + size).min(len));
            smaller
        })
    })
}

fn without_policies(history: &History) -> impl Iterator<Item = History> {
    let policies = 0..history.policies.len();
    let policies = policies.filter_map(move |place| {
        let mut smaller = history.clone();
        smaller.policies.remove(place);
        for policy in &mut smaller.policies {
            if let Role::ShadowOf(live) = &mut policy.role {
                *live = live.saturating_sub(usize::from(*live > place));
            }
        }
        for request in smaller
            .steps
            .iter_mut()
            .flat_map(|step| requests(&mut step.op))
        {
            if place < request.tiers.len() {
                request.tiers.remove(place);
            }
        }
        (!smaller.policies.is_empty()).then_some(smaller)
    });
    let roles = 0..history.policies.len();
    let roles = roles.filter_map(move |place| {
        let mut smaller = history.clone();
        smaller.policies[place].role = Role::Live;
        (history.policies[place].role != Role::Live).then_some(smaller)
    });
    let quotas = 0..history.policies.len();
    let quotas = quotas.filter_map(move |place| {
        let mut smaller = history.clone();
        smaller.policies[place].quotas.pop();
        (history.policies[place].quotas.len() > 1).then_some(smaller)
    });
    let cache = history.cache.then(|| History {
        cache: false,
        ..history.clone()
    });
    let all = policies.chain(roles).chain(quotas).chain(cache);
    all.filter(|smaller| is_sound(&smaller.policies))
}

fn with_simpler_steps(history: &History) -> impl Iterator<Item = History> {
    (0..history.steps.len()).flat_map(move |place| {
        simpler(&history.steps[place]).into_iter().map(move |step| {
            let mut simpler = history.clone();
            simpler.steps[place] = step;
            simpler
        })
    })
}

fn simpler(step: &Step) -> Vec<Step> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Step) -> bool| {
        let mut simpler = step.clone();
        if change(&mut simpler) {
            all.push(simpler);
        }
    };
    with(&|step| std::mem::take(&mut step.peek));
    with(&|step| std::mem::take(&mut step.wait) != 0);
    with(&|step| std::mem::take(&mut step.after_wait));
    for round in [DAY, 60_000_000, 1_000_000, 1_000] {
        with(&|step| {
            let rounded = step.wait / round * round;
            rounded != std::mem::replace(&mut step.wait, rounded)
        });
    }
    with(&|step| change(step, &|r| std::mem::replace(&mut r.times, 1) != 1));
    with(&|step| change(step, &|r| r.cost.take().is_some()));
    with(&|step| {
        change(step, &|r| {
            r.cost.is_some_and(|c| c > 1) && r.cost.replace(1).is_some()
        })
    });
    with(&|step| {
        change(step, &|r| {
            r.cost.is_some_and(|c| c > 1) && r.cost.replace(r.cost.unwrap_or(0) / 2).is_some()
        })
    });
    with(&|step| change(step, &|r| !std::mem::take(&mut r.tiers).is_empty()));
    if !matches!(step.op, Op::AtOnce(_)) {
        with(&|step| change(step, &|r| std::mem::take(&mut r.key) != 0));
    }
    with(&|step| match &mut step.op {
        Op::AtOnce(requests) => {
            let (request, n) = requests[0].clone();
            step.op = if n > 1 {
                Op::AtOnce(vec![(request, n - 1)])
            } else {
                Op::Check(request)
            };
            true
        }
        Op::Refund { units, .. } | Op::Settle { units, .. } if *units > 1 => {
            *units /= 2;
            true
        }
        Op::Refund { of, .. } | Op::Settle { of, .. } | Op::Drop { of } | Op::Persist { of }
            if *of > 8 =>
        {
            *of %= 8;
            true
        }
        _ => false,
    });
    all
}

const DAY: i64 = 86_400_000_000;

fn change(step: &mut Step, edit: &dyn Fn(&mut Request) -> bool) -> bool {
    requests(&mut step.op).fold(false, |changed, request| edit(request) | changed)
}

fn requests(op: &mut Op) -> impl Iterator<Item = &mut Request> {
    let (one, several) = match op {
        Op::Check(request) | Op::Charge(request) | Op::Peek(request) => (Some(request), None),
        Op::AtOnce(requests) => (None, Some(requests)),
        _ => (None, None),
    };
    let several = several.into_iter().flatten().map(|(request, _)| request);
    one.into_iter().chain(several)
}
