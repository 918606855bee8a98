//! What [`Changes`] says becomes of the counts is what becomes of them, on both stores.

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tollgate::changes::{Changes, PolicyChangeKind};
use tollgate_tests::{prelude::*, script::NOW};

use crate::reconfigure::support::*;

/// A policy of any strategy, with some settings besides.
#[derive(Clone, Debug)]
struct AnyPolicy {
    strategy: StrategyKind,
    quota: String,
    tiers: Vec<String>,
    rejects_missing: bool,
    /// The TTL of its leases, in milliseconds.
    lease: Option<u64>,
}

impl AnyPolicy {
    fn build(&self) -> Policy {
        let policy = self.strategy.policy("p", &self.quota);
        let tiers = self.tiers.iter().map(|text| stores::quota(text));
        let policy = policy.tier_quotas(tiers);
        let policy = policy.missing_key(match self.rejects_missing {
            true => MissingKey::Reject,
            false => MissingKey::Skip,
        });
        match self.lease {
            Some(ttl) => policy.lease(Lease::max_units(64).ttl(ms(ttl))),
            None => policy,
        }
    }

    /// The same without a lease that does not fit it.
    fn fitted(mut self) -> Self {
        if settings([self.build()]).build().is_err() {
            self.lease = None;
        }
        self
    }

    /// The burst in force.
    fn capacity(&self) -> u64 {
        let limiter = settings([self.build()]).build().expect("a limiter");
        limiter.stats().policies[0].limit
    }
}

fn any_quota(has_burst: bool) -> impl Strategy<Value = String> {
    let period = prop::sample::select(vec!["s", "10s", "min", "90s", "h", "day"]);
    let burst = prop::option::of(1_u64..200);
    (1_u64..120, period, burst).prop_map(move |(amount, period, burst)| match burst {
        Some(burst) if has_burst => format!("{amount}/{period} burst {burst}"),
        _ => format!("{amount}/{period}"),
    })
}

fn any_policy() -> impl Strategy<Value = AnyPolicy> {
    prop::sample::select(StrategyKind::ALL.to_vec()).prop_flat_map(|strategy| {
        let has_burst = strategy.is_even();
        // Windows have tiers of their own period only.
        let tiers = prop::collection::vec(any_quota(has_burst), 0..1 + 2 * usize::from(has_burst));
        let lease = prop::option::of(prop::sample::select(vec![5, 50, 1_000]));
        let settings = (any_quota(has_burst), tiers, any::<bool>(), lease);
        settings.prop_map(move |(quota, tiers, rejects_missing, lease)| {
            let policy = AnyPolicy {
                strategy,
                quota,
                tiers,
                rejects_missing,
                lease,
            };
            policy.fitted()
        })
    })
}

/// An edit of one setting, or of all.
fn any_edit() -> impl Strategy<Value = (AnyPolicy, AnyPolicy)> {
    (any_policy(), any_policy(), 0..5).prop_map(|(before, other, edit)| {
        let same = before.strategy == other.strategy;
        let mut after = before.clone();
        match edit {
            0 if same => after.quota = other.quota,
            1 => after.rejects_missing = other.rejects_missing,
            2 => after.lease = other.lease,
            3 => {}
            _ => after = other,
        }
        (before, after.fitted())
    })
}

/// The numbers in `6 of 10 are 12 of 20`, `6 of 10 are all 5` or `6 of 10 are more than all 5`.
fn example(text: &str) -> Option<(u64, u64, u64)> {
    let (before, after) = text.split_once(": ")?.1.split_once(" are ")?;
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let used = before.split(' ').next().map(number)?;
    let after = after.split(';').next()?;
    let words: Vec<_> = after.split(' ').collect();
    let (becomes, of) = match words[..] {
        [becomes, "of", of] => (number(becomes), number(of)),
        ["all", of] | ["more", "than", "all", of] => (number(of), number(of)),
        _ => panic!("{text}"),
    };
    Some((used, becomes, of))
}

/// The units used after the change, by its words, of `used` before.
fn expected(changes: &Changes, before: &AnyPolicy, after: &AnyPolicy) -> (u64, u64) {
    let used = (before.capacity() * 3).div_ceil(5);
    let change = changes.policy("p").expect("p");
    let Some(text) = change.counts() else {
        assert_eq!(change.kind(), PolicyChangeKind::Kept);
        return (used, used);
    };
    assert_eq!(change.kind(), PolicyChangeKind::Altered);
    if text.contains("afresh") {
        return (used, 0);
    }
    match example(text) {
        Some((used, becomes, of)) => {
            assert_eq!(of, after.capacity(), "{text}");
            (used, becomes)
        }
        None => {
            assert!(text.starts_with("the count"), "{text}");
            (used, used.min(after.capacity()))
        }
    }
}

async fn apply(world: &World, limiter: &Limiter, before: &AnyPolicy, after: &AnyPolicy, key: Key) {
    world.set(NOW);
    replace(limiter, [before.build()]);
    let used = (before.capacity() * 3).div_ceil(5);
    let charged = limiter.charge([("p", key)], used).await;
    charged.expect("a response");
    let changes = replace(limiter, [after.build()]);
    let (used_before, becomes) = expected(&changes, before, after);
    assert_eq!(used_before, used, "{changes}");
    let found = used_by(limiter, "p", key).await;
    let case = format!("on {}: {changes}\n{before:?}\n{after:?}", world.name());
    assert_eq!(found, becomes, "{case}");
    // And back: the policies of a limiter are what it was given.
    assert!(replace(limiter, limiter.policies()).is_empty());
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    })
}

#[test]
fn what_is_said_about_the_counts_holds() {
    let runtime = current_thread();
    let worlds = [World::memory(), World::redis()];
    let limiters = worlds.each_ref().map(|world| {
        world.set(NOW);
        world.limiter([StrategyKind::Gcra.policy("p", "1/s")])
    });
    let mut runner = runner(400);
    let tested = runner.run(&any_edit(), |(before, after)| {
        let key = fresh_key();
        runtime.block_on(async {
            for (world, limiter) in worlds.iter().zip(&limiters) {
                apply(world, limiter, &before, &after, key).await;
            }
        });
        Ok(())
    });
    tested.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Sets of several policies: each is kept, altered, added or removed by its name, in any order.
#[test]
fn each_policy_of_a_set_is_kept_altered_added_or_removed() {
    let set = || prop::collection::vec((0_u8..6, 1_u64..3), 1..6);
    let limiter = settings([policy("first", "1/s")]).built();
    let build = |set: &BTreeMap<u8, u64>| -> Vec<_> {
        let policies = set.iter();
        let policies = policies.map(|(name, n)| policy(&format!("p{name}"), &format!("{n}/h")));
        policies.collect()
    };
    let mut runner = runner(500);
    let cases = (set(), set(), any::<bool>());
    let tested = runner.run(&cases, |(before, after, backwards)| {
        let (before, after) = (BTreeMap::from_iter(before), BTreeMap::from_iter(after));
        replace(&limiter, build(&before));
        let mut policies = build(&after);
        if backwards {
            policies.reverse();
        }
        let changes = replace(&limiter, policies);
        for name in 0..6 {
            let change = changes.policy(&format!("p{name}"));
            let expected = match (before.get(&name), after.get(&name)) {
                (None, None) => None,
                (None, Some(_)) => Some(PolicyChangeKind::Added),
                (Some(_), None) => Some(PolicyChangeKind::Removed),
                (Some(old), Some(new)) if old == new => Some(PolicyChangeKind::Kept),
                _ => Some(PolicyChangeKind::Altered),
            };
            prop_assert_eq!(change.map(|change| change.kind()), expected, "{}", changes);
        }
        prop_assert_eq!(limiter.policies().len(), after.len());
        Ok(())
    });
    tested.unwrap_or_else(|failure| panic!("{failure}"));
}
