//! The number of series.

use std::{collections::BTreeSet, num::NonZeroUsize, thread};

use tollgate::{MemoryStore, Policy, Quota};

use crate::{
    guide,
    support::{Exposition, Observed, random, random_key},
};

/// Fewer than are used.
const MAX_KEYS: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// The number of series by the guide.
fn formula(policies: usize, shadows: usize, servers: usize) -> usize {
    let [always, per_policy, per_shadow, per_server] = guide::formula();
    always + per_policy * policies + per_shadow * shadows + per_server * servers
}

/// The series, without their values.
fn series(exposition: &Exposition) -> BTreeSet<String> {
    let samples = exposition.0.iter();
    let series: BTreeSet<_> = samples
        .map(|sample| format!("{} {:?}", sample.name, sample.labels))
        .collect();
    assert_eq!(series.len(), exposition.0.len(), "a series twice");
    series
}

fn quota() -> Quota {
    Quota::requests(3).per_minute()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(future)
}

#[test]
fn a_million_keys_leave_the_series_that_the_guide_says() {
    let observed = Observed::new();
    let builder = observed
        .limiter()
        .store(MemoryStore::builder().max_keys(MAX_KEYS).build())
        .policy(Policy::new("one", quota()))
        .policy(Policy::new("two", quota()).refund_unless(tollgate::outcome::success))
        .policy(Policy::new("next", quota()).shadow_of("one"));
    let limiter = builder.build().expect("a limiter");
    let before = series(&observed.exposition());
    assert_eq!(before.len(), formula(3, 1, 0));

    let check = |seed: u64| {
        let mut state = seed;
        block_on(async {
            for _ in 0..500_000 {
                let key = random_key(&mut state);
                let times = 1 + random(&mut state) % 3;
                let _ = limiter.check(key).times(times).cost(2).await;
            }
        });
    };
    thread::scope(|scope| (0..2).for_each(|seed| drop(scope.spawn(move || check(seed)))));
    let after = observed.exposition();
    assert_eq!(series(&after), before);
    assert!(after.value("tollgate_requests_total", &[]) >= 1_000_000.0);
    assert!(after.value("tollgate_memory_evictions_total", &[]) > 0.0);
    assert!(after.value("tollgate_decision_seconds_count", &[("source", "store")]) > 1_000.0);
}
