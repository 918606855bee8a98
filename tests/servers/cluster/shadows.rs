//! Shadow policies of requests whose keys are in several slots.

use crate::cluster::support::*;
use tollgate::limiter::Keys;

#[tokio::test]
async fn shadows_in_other_slots_are_compared_with_the_requests_decision() {
    let master_keys = MasterKeys::find(cluster(), "shadow").await;
    let limiter = limiter(
        store(cluster()),
        [
            Fixed.policy("a", "2/h"),
            Fixed.policy("b", "6/h"),
            Fixed.policy("looser", "4/h").shadow_of("a"),
            Fixed.policy("stricter", "1/h").shadow_of("a"),
            Fixed.policy("beside", "9/h").shadow(),
        ],
    );
    let [a, b, c] = [0, 1, 2].map(|place| master_keys.key(place));
    let keys = || -> Keys {
        [
            ("a", a),
            ("b", b),
            ("looser", c),
            ("stricter", b),
            ("beside", c),
        ]
        .into()
    };
    let mut responses = Vec::new();
    for _ in 0..5 {
        let decision = limiter.check(keys()).await;
        let shows = |name| decision.policy(name).expect(name).would_reject();
        responses.push((
            admitted_by_store(&decision),
            shows("looser"),
            shows("stricter"),
            shows("beside"),
        ));
    }
    let expected = [
        (true, false, false, false),
        (true, false, true, false),
        (false, false, true, false),
        (false, false, true, false),
        (false, true, true, false),
    ];
    assert_eq!(responses, expected);
    // The candidates charge what they would have admitted; the one beside them what was admitted.
    assert_eq!(used(&limiter, keys()).await, [2, 2, 4, 1, 2]);
}

#[tokio::test]
async fn a_candidate_replaces_its_policy_between_two_others_of_another_slot() {
    let master_keys = MasterKeys::find(cluster(), "between").await;
    let limiter = limiter(
        store(cluster()),
        [
            Fixed.policy("a", "9/h"),
            Fixed.policy("b", "2/h"),
            Fixed.policy("c", "9/h"),
            Fixed.policy("looser", "4/h").shadow_of("b"),
        ],
    );
    let [one, other, third] = [0, 1, 2].map(|place| master_keys.key(place));
    let keys = || -> Keys { [("a", one), ("b", other), ("c", one), ("looser", third)].into() };
    for _ in 0..5 {
        let _ = limiter.check(keys()).await;
    }
    assert_eq!(used(&limiter, keys()).await, [2, 2, 2, 4]);
}
