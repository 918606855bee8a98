//! A replay equals a straightforward simulation.

use super::{
    log,
    model::{DOCUMENT, POLICIES, simulate},
    scene::Scene,
};

/// So many that each policy rejects some.
const LINES: usize = 30_000;

#[test]
fn a_replay_equals_a_straightforward_simulation() {
    let requests = log::requests(LINES);
    let mut lines = String::new();
    for request in &requests {
        request.write_json(&mut lines);
    }
    let report = Scene::new(DOCUMENT, &lines).report(&["access.log", "--top=7"]);

    let found = simulate(&requests);
    assert_eq!(report["requests"], LINES);
    assert_eq!(report["rejected"], found.rejected);
    assert_eq!(report["admitted"], LINES as u64 - found.rejected);
    assert_eq!(
        (&report["late"], &report["unreadable"]),
        (&0.into(), &0.into())
    );
    for (index, (name, rejections)) in POLICIES.iter().zip(&found.policies).enumerate() {
        let reported = &report["policies"][index];
        assert_eq!(reported["policy"], *name);
        assert_eq!(reported["applied"], LINES);
        let rejected: u64 = rejections.values().sum();
        assert!(rejected > 0, "{name}");
        assert_eq!(reported["rejected"], rejected);

        let mut counts: Vec<_> = rejections.values().copied().collect();
        counts.sort_by(|a, b| b.cmp(a));
        counts.truncate(7);
        let top = reported["top"].as_array().expect("keys");
        let reported: Vec<_> = top
            .iter()
            .filter_map(|top| top["rejected"].as_u64())
            .collect();
        assert_eq!(reported, counts);
        for top in top {
            let key = top["key"].as_str().expect("a key");
            assert_eq!(top["rejected"], rejections[key], "{key}");
        }
    }
}
