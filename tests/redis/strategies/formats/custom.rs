//! State formats: what one strategy stores is never read by another.

use tollgate::strategy::{ErasedLocalRule, LuaScript, QuotaStatus, RuleInfo, Snapshot, Strategy};
use tollgate_tests::prelude::*;

use crate::strategies::{custom::Trial, support::*};

/// Counts as [`Trial`] does, under a state format of another name.
#[derive(Clone, Debug)]
struct Tagged {
    tag: &'static str,
    inner: Arc<dyn Rule>,
}

impl Tagged {
    fn policy(tag: &'static str) -> Policy {
        let quota = Quota::requests(5).per_day();
        let inner = Trial.bind(&quota, &Terms::default()).expect("a rule");
        Policy::new("tagged", quota).strategy(Self { tag, inner })
    }
}

impl Strategy for Tagged {
    fn bind(&self, _quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(self.clone()))
    }
}

impl Rule for Tagged {
    fn info(&self) -> RuleInfo {
        RuleInfo::new(self.tag, self.inner.info().capacity)
    }

    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus {
        self.inner.status(snapshot, now, cost)
    }

    fn script(&self) -> Option<LuaScript> {
        self.inner.script()
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        self.inner.local_rule()
    }
}

#[track_caller]
fn assert_mistake(world: &World, tag: &'static str) {
    let limiter = world.builder().policy(Tagged::policy(tag)).build();
    let error = limiter.expect_err(tag);
    assert_eq!(error.policy(), Some("tagged"));
    assert!(error.value().contains(&format!("{tag:?}")), "{error}");
    assert!(
        error
            .expected()
            .contains("letters of built-in formats are reserved"),
        "{error}"
    );
}

#[test]
fn a_state_format_of_a_built_in_strategy_is_a_config_error_even_if_unused() {
    for world in World::both() {
        for tag in ["g3", "t2", "f1", "c1", "r2", "l2", "s1", "p2", "x1"] {
            assert_mistake(&world, tag);
        }
        // Those of other versions too.
        for tag in ["g1", "g2", "t1", "r1", "l1", "p1", "x0", "c9"] {
            assert_mistake(&world, tag);
        }
        assert!(world.builder().policy(Tagged::policy("z9")).build().is_ok());
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
        let quota = Quota::requests(5).per_day();
        let ban = Ban::for_duration(secs(60));
        let strategies = StrategyKind::ALL.map(|strategy| strategy.count("p", quota));
        let others = [
            Policy::new("p", quota).strategy(ban),
            Policy::new("p", quota).strategy(Trial),
        ];
        let policies: Vec<_> = strategies.into_iter().chain(others).collect();
        let names: Vec<_> = policies
            .iter()
            .map(|policy| format!("{policy:?}"))
            .collect();
        let limiters: Vec<_> = policies
            .into_iter()
            .map(|policy| world.limiter([policy]))
            .collect();
        for (limiter, name) in limiters.iter().zip(names) {
            // Two sliding windows are one strategy.
            let again = name.contains("buckets: 10");
            let expected = match name.contains("Ban") {
                true => 7,
                false if again => 0,
                false => 5,
            };
            let charged = limiter.charge(KEY, 0).await.expect("a response");
            assert!(matches!(charged.kind(), DecisionKind::Admitted), "{name}");
            let admitted = send(limiter, KEY, 7).await;
            assert_eq!(admitted, expected, "{name}");
            // Of a ban, what is rejected elsewhere counts.
            let _ = limiter.charge(KEY, 1).await.expect("a response");
        }
    }
}
