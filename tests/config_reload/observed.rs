//! Loads of a watched file are reported to the observers of its limiter.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use testkit::folder;
use tollgate::{
    config::{Document, Registry, Watch},
    observe::{Event, Observer},
};

use crate::writes::{NAME, renamed};

/// Keeps the hash of each load, or `None` for one that failed.
#[derive(Debug, Default)]
struct Loads(Mutex<Vec<Option<String>>>);

impl Loads {
    fn all(&self) -> Vec<Option<String>> {
        self.0.lock().expect("the loads").clone()
    }
}

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
async fn each_load_and_each_new_failure_is_reported() {
    let folder = folder();
    let folder = folder.path();
    let file = folder.join(NAME);
    let text = |quota: u64| format!("[policies.api]\nquota = \"{quota}/hour\"\nkey = \"global\"\n");
    fs::write(&file, text(10)).expect("a file");
    let registry = Registry::new();
    let loads = Arc::new(Loads::default());
    let builder = Document::load(&file)
        .expect("a document")
        .builder(&registry);
    let limiter = builder.expect("settings").observe(loads.clone()).build();
    let limiter: tollgate::Limiter = limiter.expect("a limiter");
    // Never by itself.
    let watch = Watch::new(&file).registry(registry);
    let watcher = watch.every(Duration::from_secs(3_600)).start(&limiter);
    let watcher = watcher.expect("a watch");
    crate::until::until("the file is loaded", async || watcher.status().loads() == 1).await;
    renamed(folder, &text(20));
    assert!(watcher.reload().await.is_ok());
    renamed(folder, "nonsense");
    for _ in 0..2 {
        assert!(watcher.reload().await.is_err());
    }
    renamed(folder, &text(30));
    assert!(watcher.reload().await.is_ok());
    let mut hashes = loads.all();
    // Another test may have sent this process a SIGHUP.
    hashes.dedup();
    let known: Vec<_> = hashes.iter().map(Option::is_some).collect();
    assert_eq!(known, [true, true, false, true], "{hashes:?}");
    let status = watcher.status();
    assert_eq!(hashes[3].as_deref(), status.hash());
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[3]);
}
