//! Loads of a watched file are reported to the observers of its limiter.

use tollgate::observe::Event;

use crate::config_reload::{NEVER, Watched, document};
use tollgate_tests::prelude::*;

/// Keeps the hash of each load, or `None` for one that failed.
#[derive(Debug, Default)]
struct Loads(Mutex<Vec<Option<String>>>);

impl Observer for Loads {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::ConfigLoaded { applied, hash, .. } = event {
            assert_eq!(*applied, hash.is_some());
            let hash = hash.map(str::to_owned);
            self.0.lock().expect("the loads").push(hash);
        }
    }
}

#[tokio::test]
async fn each_load_and_each_new_failure_is_reported_once() {
    let observed = Arc::new(Loads::default());
    let registry = || Registry::new().observe(observed.clone());
    let watched = Watched::with(registry, &document(10), NEVER).await;
    // A load is in force a moment before it is reported.
    let is_reported = async || observed.0.lock().is_ok_and(|loads| loads.len() == 1);
    until("the first load is reported", is_reported).await;
    for (text, is_good) in [
        (document(20), true),
        ("nonsense".to_owned(), false),
        ("nonsense".to_owned(), false),
        (document(30), true),
    ] {
        watched.write(&text);
        assert_eq!(watched.watcher.reload().await.is_ok(), is_good);
    }
    let hashes = observed.0.lock().expect("the loads").clone();
    let known: Vec<_> = hashes.iter().map(Option::is_some).collect();
    assert_eq!(known, [true, true, false, true], "{hashes:?}");
    assert_eq!(hashes[3].as_deref(), watched.watcher.status().hash());
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[3]);
}
