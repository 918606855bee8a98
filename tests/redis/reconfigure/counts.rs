//! Which policies [`Changes`](tollgate::changes::Changes) says are kept, altered, added or removed.

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tollgate::changes::PolicyChangeKind;
use tollgate_tests::prelude::*;

use crate::reconfigure::support::*;

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
    let mut runner = TestRunner::new(Config {
        cases: 500,
        failure_persistence: None,
        ..Config::default()
    });
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
