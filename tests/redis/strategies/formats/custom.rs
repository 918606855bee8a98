//! State formats: what one strategy stores is never read by another.

use tollgate::strategy::{RuleInfo, Strategy};
use tollgate_tests::prelude::*;

use crate::strategies::{custom::Trial, support::*};

/// Counts as [`Trial`] does, under a state format of another name.
fn tagged(tag: &'static str) -> Policy {
    Altered::policy("tagged", "5/day", Trial, |altered| {
        altered.info = RuleInfo::new(tag, altered.info.capacity);
    })
}

#[track_caller]
fn assert_mistake(world: &World, tag: &'static str) {
    let limiter = world.builder().policy(tagged(tag)).build();
    let error = limiter.expect_err(tag);
    assert_eq!(error.policy(), Some("tagged"));
    assert_contains(error.value(), [&*format!("{tag:?}")]);
    assert_contains(
        error.expected(),
        ["letters of built-in formats are reserved"],
    );
}

#[test]
fn a_state_format_of_a_built_in_strategy_is_a_config_error_even_if_unused() {
    for world in World::both() {
        let built_in = ["g3", "t2", "f1", "c1", "r2", "l2", "s1", "p2", "x1"];
        let of_other_versions = ["g1", "g2", "t1", "r1", "l1", "p1", "x0", "c9"];
        for tag in built_in.into_iter().chain(of_other_versions) {
            assert_mistake(&world, tag);
        }
        assert!(world.builder().policy(tagged("z9")).build().is_ok());
    }
}

#[test]
fn a_state_format_is_a_lowercase_letter_and_a_digit() {
    for tag in [
        "", "z", "7", "zz", "Z1", "1z", "z1:", "z10", "é", "tg", "{}",
    ] {
        assert_mistake(&World::memory(), tag);
    }
}

/// A strategy of the user's that counts by a built-in one's rule.
#[derive(Debug)]
struct Halved;

impl Strategy for Halved {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let half = Quota::requests(quota.amount() / 2).per(quota.period());
        Gcra.bind(&half, terms)
    }
}

#[tokio::test]
async fn a_strategy_that_returns_a_built_in_rule_counts_by_it() {
    for world in World::both() {
        let policy = Policy::new("half", Quota::requests(10).per_day()).strategy(Halved);
        let limiter = world.limiter([policy]);
        assert_eq!(send(&limiter, KEY, 7).await, 5);
    }
}

#[tokio::test]
async fn under_one_name_and_key_each_strategy_has_its_own_count() {
    for world in World::both() {
        let ban = Policy::new("p", quota("5/day")).strategy(Ban::for_duration(secs(60)));
        let strategies = StrategyKind::ALL.map(|strategy| strategy.policy("p", "5/day"));
        let others = [ban, Policy::new("p", quota("5/day")).strategy(Trial)];
        let policies = strategies.into_iter().chain(others);
        let limiters = policies.map(|policy| (format!("{policy:?}"), world.limiter([policy])));
        for (name, limiter) in limiters.collect::<Vec<_>>() {
            // Two sliding windows are one strategy.
            let again = name.contains("buckets: 10");
            let expected = match name.contains("Ban") {
                true => 7,
                false if again => 0,
                false => 5,
            };
            let charged = limiter.charge(KEY, 0).await.expect("a response");
            assert!(matches!(charged.kind(), DecisionKind::Admitted), "{name}");
            let admitted = send(&limiter, KEY, 7).await;
            assert_eq!(admitted, expected, "{name}");
            // Of a ban, what is rejected elsewhere counts.
            let _ = limiter.charge(KEY, 1).await.expect("a response");
        }
    }
}
