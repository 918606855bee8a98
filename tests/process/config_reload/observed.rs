//! Loads of a watched file are reported to the observers of its limiter.

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use testkit::folder;
use tollgate::{
    Key,
    config::{Document, Format, Registry, Watch},
    observe::{DecisionEvent, Event, Observer},
};

use crate::config_reload::writes::{NAME, renamed};

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
    crate::config_reload::until::until("the file is loaded", async || {
        watcher.status().loads() == 1
    })
    .await;
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

/// Counts decisions.
#[derive(Debug, Default)]
struct Decisions(AtomicU64);

impl Observer for Decisions {
    fn on_decision(&self, _: &DecisionEvent<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn the_observers_of_a_registry_observe_the_limiter_of_a_layer_once_also_after_a_reload() {
    let folder = folder();
    let file = folder.path().join(NAME);
    let text = |quota: u64| format!("[policies.api]\nquota = \"{quota}/hour\"\nkey = \"global\"\n");
    fs::write(&file, text(10)).expect("a file");
    let decisions = Arc::new(Decisions::default());
    let registry = Registry::new().observe(decisions.clone());
    let document = Document::load(&file).expect("a document");
    let layer = document.layer(&registry).expect("a layer");
    let limiter = layer.limiter();
    assert!(limiter.check(Key::global()).await.is_admitted());
    assert_eq!(decisions.0.load(Ordering::Relaxed), 1);
    let document = Document::parse(&text(20), Format::Toml).expect("a document");
    let changes = document.reconfigure(limiter, &registry).expect("changes");
    assert!(!changes.is_empty(), "{changes}");
    assert!(limiter.check(Key::global()).await.is_admitted());
    assert_eq!(decisions.0.load(Ordering::Relaxed), 2);
}
