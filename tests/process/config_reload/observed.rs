//! Loads of a watched file are reported to the observers of its limiter.

use tollgate::observe::{DecisionEvent, Event, Observer};

use crate::config_reload::{NEVER, Watched, document};
use tollgate_tests::prelude::*;

/// Keeps the hash of each load, or `None` for one that failed; and counts decisions.
#[derive(Debug, Default)]
struct Observed {
    loads: Mutex<Vec<Option<String>>>,
    decisions: AtomicU64,
}

impl Observer for Observed {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::ConfigLoaded { applied, hash, .. } = event {
            assert_eq!(*applied, hash.is_some());
            let hash = hash.map(str::to_owned);
            self.loads.lock().expect("the loads").push(hash);
        }
    }

    fn on_decision(&self, _: &DecisionEvent<'_>) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn each_load_each_new_failure_and_each_decision_is_reported_once() {
    let observed = Arc::new(Observed::default());
    let registry = || Registry::new().observe(observed.clone());
    let watched = Watched::with(registry, &document(10), NEVER).await;
    // A load is in force a moment before it is reported.
    let is_reported = async || observed.loads.lock().is_ok_and(|loads| loads.len() == 1);
    until("the first load is reported", is_reported).await;
    let check = async || {
        assert!(watched.limiter.check("alice").await.is_admitted());
        observed.decisions.load(Ordering::Relaxed)
    };
    assert_eq!(check().await, 1);
    watched.write(&document(20));
    assert!(watched.watcher.reload().await.is_ok());
    watched.write("nonsense");
    for _ in 0..2 {
        assert!(watched.watcher.reload().await.is_err());
    }
    watched.write(&document(30));
    assert!(watched.watcher.reload().await.is_ok());
    assert_eq!(check().await, 2);
    let hashes = observed.loads.lock().expect("the loads").clone();
    let known: Vec<_> = hashes.iter().map(Option::is_some).collect();
    assert_eq!(known, [true, true, false, true], "{hashes:?}");
    let status = watched.watcher.status();
    assert_eq!(hashes[3].as_deref(), status.hash());
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[3]);
}
