//! From a history that fails to a small one.

use tollgate_tests::prelude::*;

use crate::differential::{
    history::{History, Op, Request, Role, Step},
    run::{Failure, Stores, is_sound},
};

/// How long the search may take.
const TIMEOUT: Duration = secs(60);

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
    let changes: [fn(&mut History, usize); 4] = [
        remove_policy,
        |smaller, place| smaller.policies[place].role = Role::Live,
        |smaller, place| smaller.policies[place].quotas.truncate(1),
        |smaller, _| smaller.cache = false,
    ];
    let changed = changes.into_iter().flat_map(move |change| {
        policies.clone().map(move |place| {
            let mut smaller = history.clone();
            change(&mut smaller, place);
            smaller
        })
    });
    changed.filter(move |smaller| {
        let reloads = smaller.steps.iter().filter_map(|step| match &step.op {
            Op::Reload { policies, .. } => Some(policies),
            _ => None,
        });
        let mut sets = [&smaller.policies].into_iter().chain(reloads);
        smaller != history && sets.all(|policies| is_sound(policies))
    })
}

fn remove_policy(history: &mut History, place: usize) {
    history.policies.remove(place);
    history.steps.retain_mut(|step| match &mut step.op {
        Op::Reload { policies, .. } => {
            policies.remove(place);
            true
        }
        Op::Credit { place: of, .. } | Op::Override { place: of, .. } => {
            let is_kept = *of != place;
            *of -= usize::from(*of > place);
            is_kept
        }
        _ => true,
    });
    for request in history.steps.iter_mut().flat_map(requests) {
        if place < request.tiers.len() {
            request.tiers.remove(place);
        }
    }
}

fn with_simpler_steps(history: &History) -> impl Iterator<Item = History> {
    const DAY: i64 = 86_400_000_000;
    const SECOND: i64 = 1_000_000;
    let changes: [fn(&mut Step); 13] = [
        |step| step.peek = false,
        |step| step.wait = 0,
        |step| step.after_wait = false,
        |step| step.wait -= step.wait % DAY,
        |step| step.wait -= step.wait % (60 * SECOND),
        |step| step.wait -= step.wait % SECOND,
        |step| step.wait -= step.wait % 1_000,
        |step| requests(step).for_each(|request| request.times = 1),
        |step| requests(step).for_each(|request| request.cost = None),
        |step| {
            requests(step).for_each(|request| request.cost = request.cost.map(|cost| cost.min(1)))
        },
        |step| {
            requests(step)
                .for_each(|request| request.cost = request.cost.map(|cost| cost.div_ceil(2)))
        },
        |step| requests(step).for_each(|request| request.tiers.clear()),
        simplify,
    ];
    (0..history.steps.len()).flat_map(move |place| {
        let changed = changes.into_iter().map(move |change| {
            let mut simpler = history.clone();
            change(&mut simpler.steps[place]);
            simpler
        });
        changed.filter(move |simpler| simpler != history)
    })
}

fn simplify(step: &mut Step) {
    match &mut step.op {
        Op::AtOnce(requests) => {
            let (request, n) = requests[0].clone();
            step.op = if n > 1 {
                Op::AtOnce(vec![(request, n - 1)])
            } else {
                Op::Check(request)
            };
        }
        Op::Check(request) | Op::Charge(request) | Op::Peek(request) => {
            request.key = 0;
        }
        Op::Reload { pending, .. } => drop(pending.pop()),
        Op::Refund { units, .. } | Op::Settle { units, .. } if *units > 1 => *units /= 2,
        Op::Refund { of, .. } | Op::Settle { of, .. } | Op::Drop { of } | Op::Persist { of } => {
            *of %= 8;
        }
        _ => {}
    }
}

fn requests(step: &mut Step) -> impl Iterator<Item = &mut Request> {
    let (one, several) = match &mut step.op {
        Op::Check(request)
        | Op::Charge(request)
        | Op::Peek(request)
        | Op::Credit { request, .. } => (Some(request), None),
        Op::AtOnce(requests)
        | Op::Reload {
            pending: requests, ..
        } => (None, Some(requests)),
        _ => (None, None),
    };
    let several = several.into_iter().flatten().map(|(request, _)| request);
    one.into_iter().chain(several)
}
