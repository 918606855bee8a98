//! What makes a watch reload, and what ends it.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use testkit::folder;
use tokio::runtime::Builder;
use tollgate::{
    Gcra, InvalidValue, Limiter, Quota,
    config::{Document, Registry, Watch, WatchError},
    strategy::{Rule, Strategy},
};

use crate::config_reload::{
    every_log,
    process::Example,
    until::{TEST_TIMEOUT, until},
    writes::{NAME, in_place, renamed, renamed_to},
};

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3600);

fn document(quota: u64) -> String {
    format!("[policies.api]\nquota = \"{quota}/hour\"\nkey = \"global\"\n")
}

async fn limit(limiter: &Limiter) -> u64 {
    let decision = limiter.peek("alice").await.expect("a response");
    decision.policy("api").expect("the policy").limit()
}

#[tokio::test]
async fn a_reload_on_demand_puts_the_document_in_force_and_returns_its_changes() {
    let folder = folder();
    let file = folder.path().join(NAME);
    fs::write(&file, document(10)).expect("a file");
    let registry = Registry::new();
    let load = Document::load(&file).expect("a document");
    let limiter = load.limiter(&registry).expect("a limiter");
    let watcher = Watch::new(&file).every(NEVER).start(limiter.clone());
    let watcher = watcher.expect("a watch");
    until("the first poll", async || watcher.status().loads() == 1).await;
    let changes = watcher.reload().await.expect("the same document");
    assert!(changes.is_empty(), "{changes}");
    renamed(folder.path(), &document(20));
    let changes = watcher.reload().await.expect("another document");
    let policy = changes.policy("api").expect("the policy's");
    assert_eq!(policy.settings().len(), 1, "{changes}");
    assert_eq!(limit(&limiter).await, 20);
    let status = watcher.status();
    let hash = blake3_of(&document(20));
    assert_eq!(status.hash(), Some(hash.as_str()));
    assert!(status.loaded_at() >= status.last_attempt());
    assert!(status.error().is_none() && status.failures() == 0);
    assert_eq!(status.loads(), 3);
}

/// Panics if a quota has 13 units.
#[derive(Clone, Copy, Debug)]
struct Panics;

impl Strategy for Panics {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue> {
        assert_ne!(quota.amount(), 13, "as the test expects");
        Gcra.bind(quota)
    }
}

#[tokio::test]
async fn a_reload_in_which_registered_code_panics_is_a_failure_that_is_logged() {
    every_log::keep();
    let folder = folder();
    let file = folder.path().join(NAME);
    let text = |quota| document(quota) + "strategy = \"panics\"\n";
    fs::write(&file, text(10)).expect("a file");
    let registry = || Registry::new().strategy("panics", Panics);
    let load = Document::load_with(&file, &registry()).expect("a document");
    let limiter = load.limiter(&registry()).expect("a limiter");
    let watch = Watch::new(&file).registry(registry());
    let watcher = watch.every(Duration::from_millis(5)).start(&limiter);
    let watcher = watcher.expect("a watch");
    until("the first poll", async || watcher.status().loads() == 1).await;
    renamed(folder.path(), &text(13));
    until("a failure", async || watcher.status().failures() == 1).await;
    let error = watcher.status().error().expect("an error").to_string();
    assert!(error.contains("code that panicked"), "{error}");
    let error = watcher.reload().await.expect_err("a panic").to_string();
    assert!(error.contains("code that panicked"), "{error}");
    let logged = every_log::lines(&file, "configuration file not loaded");
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert_eq!(limit(&limiter).await, 10);
    renamed(folder.path(), &text(20));
    until("another document", async || watcher.status().loads() == 2).await;
    assert_eq!(limit(&limiter).await, 20);
    let logged = every_log::lines(&file, "configuration file can be loaded again");
    assert_eq!(logged.len(), 1, "{logged:?}");
}

#[tokio::test]
async fn a_file_that_the_document_names_is_watched_too() {
    every_log::keep();
    let folder = folder();
    let (file, list) = (folder.path().join(NAME), folder.path().join("vip.txt"));
    fs::write(&list, "alice\n").expect("a list");
    let allow = "allow = [{ policy = \"api\", keys = { file = \"vip.txt\" } }]\n";
    // Keys of a header that looks like a credential are hashed.
    let text = document(1).replace("global", "header:x-tenant readable");
    fs::write(&file, format!("{allow}{text}")).expect("a file");
    let registry = Registry::new();
    let load = Document::load(&file).expect("a document");
    let limiter = load.limiter(&registry).expect("a limiter");
    let watch = Watch::new(&file).every(Duration::from_millis(5));
    let watcher = watch.start(&limiter).expect("a watch");
    until("the document is loaded", async || {
        watcher.status().loads() == 1
    })
    .await;
    for _ in 0..3 {
        assert!(limiter.check("alice").await.is_admitted());
    }
    assert!(limiter.check("bob").await.is_admitted());
    assert!(!limiter.check("bob").await.is_admitted());

    renamed_to(&list, "bob\n");
    until("the list is loaded", async || watcher.status().loads() == 2).await;
    for _ in 0..3 {
        assert!(limiter.check("bob").await.is_admitted());
    }
    assert!(limiter.check("alice").await.is_admitted());
    assert!(!limiter.check("alice").await.is_admitted());

    fs::remove_file(&list).expect("a list");
    until("the list is missed", async || {
        watcher.status().failures() == 1
    })
    .await;
    let error = watcher.status();
    let error = error.error().expect("an error").to_string();
    assert!(error.contains("vip.txt"), "{error}");
    assert!(limiter.check("bob").await.is_admitted());
    renamed_to(&list, "bob\n");
    until("the list is back", async || {
        watcher.status().error().is_none()
    })
    .await;
    assert_eq!(watcher.status().loads(), 2);
    let logged = every_log::lines(&file, "configuration file can be loaded again");
    assert_eq!(logged.len(), 1, "{logged:?}");
}

#[tokio::test]
async fn a_watch_ends_with_its_watcher() {
    let folder = folder();
    let file = folder.path().join(NAME);
    fs::write(&file, document(10)).expect("a file");
    let load = Document::load(&file).expect("a document");
    let limiter = load.limiter(&Registry::new()).expect("a limiter");
    let tasks = tokio::runtime::Handle::current().metrics();
    let before = tasks.num_alive_tasks();
    let watch = Watch::new(&file).every(Duration::from_millis(1));
    let watcher = watch.start(&limiter).expect("a watch");
    until("the document is loaded", async || {
        watcher.status().loads() == 1
    })
    .await;
    drop(watcher);
    until("its task ends", async || tasks.num_alive_tasks() == before).await;
    in_place(folder.path(), &document(20));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(limit(&limiter).await, 10);
}

#[test]
fn a_reload_after_its_runtime_has_ended_is_an_error() {
    let folder = folder();
    let file = folder.path().join(NAME);
    fs::write(&file, document(10)).expect("a file");
    let load = Document::load(&file).expect("a document");
    let limiter = load.limiter(&Registry::new()).expect("a limiter");
    let runtime = || {
        Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let first = runtime();
    let watcher = first.block_on(async { Watch::new(&file).start(&limiter) });
    let watcher = watcher.expect("a watch");
    drop(first);
    let error = runtime()
        .block_on(watcher.reload())
        .expect_err("no runtime");
    assert!(error.to_string().contains("runtime"), "{error}");
}

#[test]
fn a_watch_that_cannot_run_is_an_error_where_it_is_started() {
    let limiter = Limiter::builder().policy(tollgate::Policy::new(
        "api",
        tollgate::Quota::requests(1).per_hour(),
    ));
    let limiter = limiter.build().expect("a limiter");
    let watch = || Watch::new("limits.toml");
    let error = watch().start(&limiter).expect_err("no runtime");
    assert!(matches!(error, WatchError::NoTimers), "{error}");
    let no_timers = Builder::new_current_thread().build().expect("a runtime");
    let error = no_timers.block_on(async { watch().start(&limiter) });
    assert!(matches!(error, Err(WatchError::NoTimers)), "{error:?}");
    let no_io = Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let error = no_io.block_on(async { watch().on_hangup().start(&limiter) });
    assert!(matches!(error, Err(WatchError::Hangup(_))), "{error:?}");
    let error = no_io.block_on(async { watch().every(Duration::ZERO).start(&limiter) });
    assert!(matches!(error, Err(WatchError::ZeroInterval)), "{error:?}");
}

#[test]
fn a_process_reloads_on_sighup() {
    let folder = folder();
    let file = folder.path().join(NAME);
    fs::write(&file, document(10)).expect("a file");
    let limits = file.to_string_lossy().into_owned();
    let example = Example::start("configured", &[("LIMITS", &limits)]);
    let reloaded = |times: usize| {
        let start = Instant::now();
        while example
            .output()
            .matches("configuration file reloaded")
            .count()
            < times
        {
            assert!(start.elapsed() < TEST_TIMEOUT, "{}", example.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    reloaded(1);
    // Nothing has changed, so that no poll reloads.
    for times in 2..5 {
        example.signal("HUP");
        reloaded(times);
    }
    assert_eq!(example.get("/", &[]).status, 200);
}

fn blake3_of(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}
