//! What makes a watch reload, and what ends it.

use testkit::folder;
use tokio::runtime::{Builder, Handle, Runtime};
use tollgate::{
    changes::PolicyChangeKind,
    config::{Watch, WatchError},
    error::InvalidValue,
    strategy::{Rule, Strategy, Terms},
};
use tollgate_tests::{example::Stage, prelude::*};

use crate::config_reload::{
    NEVER, SOON, Watched, document,
    writes::{NAME, renamed_to},
};

#[tokio::test]
async fn a_reload_on_demand_puts_the_document_in_force_and_returns_its_changes() {
    let watched = Watched::start(&document(10), NEVER).await;
    let reload = async || watched.watcher.reload().await.expect("a document");
    let changes = reload().await;
    assert!(changes.is_empty(), "{changes}");
    watched.write(&document(20));
    let changes = reload().await;
    let policy = changes.policy("api").expect("the policy's");
    assert_eq!(policy.kind(), PolicyChangeKind::Altered, "{changes}");
    assert_eq!(watched.limit().await, 20);
    let status = watched.watcher.status();
    let hash = blake3::hash(document(20).as_bytes()).to_hex().to_string();
    assert_eq!(status.hash(), Some(hash.as_str()));
    assert!(status.loaded_at() >= status.last_attempt());
    assert!(status.error().is_none() && status.failures() == 0);
    assert_eq!(status.loads(), 3);
}

/// Panics if a quota has 13 units.
#[derive(Clone, Copy, Debug)]
struct Panics;

impl Strategy for Panics {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        assert_ne!(quota.amount(), 13, "as the test expects");
        Gcra.bind(quota, terms)
    }
}

#[tokio::test]
async fn a_reload_in_which_registered_code_panics_is_a_failure_that_is_logged() {
    let text = |quota| document(quota) + "strategy = \"panics\"\n";
    let registry = || Registry::new().strategy("panics", Panics);
    let watched = Watched::with(registry, &text(10), SOON).await;
    watched.write(&text(13));
    watched.until_failures(1).await;
    let status = watched.watcher.status();
    let demanded = watched.watcher.reload().await.expect_err("a panic");
    for error in [status.error().expect("an error"), &demanded] {
        let error = error.to_string();
        assert!(error.contains("code that panicked"), "{error}");
    }
    assert_eq!(watched.logged(), (1, 0));
    assert_eq!(watched.limit().await, 10);
    watched.write(&text(20));
    watched.until_loads(2).await;
    assert_eq!(watched.limit().await, 20);
    assert_eq!(watched.logged(), (1, 1));
}

#[tokio::test]
async fn a_file_that_the_document_names_is_watched_too() {
    // Keys of a header that looks like a credential are hashed.
    let text = document(1).replace("global", "header:x-tenant readable");
    let watched = Watched::start(&text, SOON).await;
    let list = watched.folder.path().join("vip.txt");
    let limiter = &watched.limiter;
    // Of three requests of a tenant one is admitted, or all if it is on the list.
    let admitted = async |tenant: &'static str| {
        let mut admitted = 0;
        for _ in 0..3 {
            admitted += u64::from(limiter.check(tenant).await.is_admitted());
        }
        admitted
    };
    fs::write(&list, "alice\n").expect("a list");
    let allow = "allow = [{ policy = \"api\", keys = { file = \"vip.txt\" } }]\n";
    watched.write(&format!("{allow}{text}"));
    watched.until_loads(2).await;
    assert_eq!((admitted("alice").await, admitted("bob").await), (3, 1));

    renamed_to(&list, "bob\n");
    watched.until_loads(3).await;
    assert_eq!((admitted("alice").await, admitted("bob").await), (1, 3));

    fs::remove_file(&list).expect("a list");
    watched.until_failures(1).await;
    let status = watched.watcher.status();
    let error = status.error().expect("an error").to_string();
    assert!(error.contains("vip.txt"), "{error}");
    assert_eq!(admitted("bob").await, 3);
    renamed_to(&list, "bob\n");
    let error = || watched.watcher.status().error().is_some();
    until("the list is back", async || !error()).await;
    assert_eq!(watched.watcher.status().loads(), 3);
    assert_eq!(watched.logged(), (1, 1));
}

#[tokio::test]
async fn a_watch_ends_with_its_watcher() {
    let tasks = Handle::current().metrics();
    let before = tasks.num_alive_tasks();
    let watched = Watched::start(&document(10), SOON).await;
    assert!(tasks.num_alive_tasks() > before);
    drop(watched.watcher);
    until("its task ends", async || tasks.num_alive_tasks() == before).await;
}

#[tokio::test]
async fn two_watches_of_one_limiter_reload_each_change_and_the_counts_change_once() {
    let watched = Watched::start(&document(10), SOON).await;
    let limiter = &watched.limiter;
    assert!(limiter.check("alice").times(4).await.is_admitted());
    let second = Watch::new(watched.file()).every(SOON).start(limiter);
    let second = second.expect("a watch");
    let loads = async |n| {
        watched.until_loads(n).await;
        until("the other too", async || second.status().loads() == n).await;
    };
    loads(1).await;
    watched.write(&document(20));
    loads(2).await;
    // 4 of 10 are 8 of 20.
    assert_eq!(watched.status().await, (20, 12));
    watched.write("policies = 5");
    watched.until_failures(1).await;
    until("the other too", async || second.status().failures() == 1).await;
    assert_eq!(watched.status().await, (20, 12));
    drop(second);
    watched.write(&document(40));
    watched.until_loads(3).await;
    assert_eq!(watched.limit().await, 40);
}

/// Counts as a fixed window. Once it is held, a reload waits until it is let go.
#[derive(Debug, Default)]
struct Held {
    is_held: AtomicBool,
    waits: AtomicBool,
}

#[derive(Debug)]
struct SlowStrategy(Arc<Held>);

impl Strategy for SlowStrategy {
    fn bind(&self, quota: &Quota, terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        while self.0.is_held.load(Ordering::Acquire) {
            self.0.waits.store(true, Ordering::Release);
            thread::sleep(ms(1));
        }
        FixedWindow.bind(quota, terms)
    }
}

#[test]
fn a_reload_outlives_its_runtime_and_is_in_force_on_another() {
    let document = |quota| document(quota) + "strategy = \"slow\"\n";
    let held = Arc::new(Held::default());
    let registry = || Registry::new().strategy("slow", SlowStrategy(held.clone()));
    let (first, second) = (multi_thread(1), multi_thread(1));
    let text = document(10);
    let watched = Watched::with(registry, &text, SOON);
    let watched = Arc::new(first.block_on(watched));
    held.is_held.store(true, Ordering::Release);
    watched.write(&document(20));
    let demanded = Arc::clone(&watched);
    let demanded = second.spawn(async move { demanded.watcher.reload().await });
    second.block_on(until("a reload", async || {
        held.waits.load(Ordering::Acquire)
    }));
    first.shutdown_background();
    second.block_on(async {
        assert_eq!(watched.limit().await, 10);
        held.is_held.store(false, Ordering::Release);
        let loads = || watched.watcher.status().loads();
        until("it is in force", async || loads() >= 2).await;
        assert_eq!(watched.limit().await, 20);
        // It ran on a thread that the runtime did not wait for, or was not begun.
        drop(demanded.await.expect("no panic"));
        let error = watched.watcher.reload().await.expect_err("no runtime");
        let error = error.to_string();
        assert!(error.contains("a watch whose runtime has ended"), "{error}");
        assert_eq!(watched.limit().await, 20);
    });
}

fn runtime(enable: impl FnOnce(&mut Builder) -> &mut Builder) -> Runtime {
    let runtime = enable(&mut Builder::new_current_thread()).build();
    runtime.expect("a runtime")
}

#[test]
fn a_watch_that_cannot_run_is_an_error_where_it_is_started() {
    let policy = Policy::new("api", quota("1/h"));
    let limiter: Limiter = Limiter::builder().policy(policy).built();
    let watch = || Watch::new("limits.toml");
    let error = watch().start(&limiter).expect_err("no runtime");
    assert!(matches!(error, WatchError::NoTimers), "{error}");
    let no_timers = runtime(|runtime| runtime);
    let error = no_timers.block_on(async { watch().start(&limiter) });
    assert!(matches!(error, Err(WatchError::NoTimers)), "{error:?}");
    let no_io = runtime(Builder::enable_time);
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
    // No time passes until the next poll.
    let example = Stage::in_process().start("configured", &[("LIMITS", &limits)]);
    example.output_until("configuration file reloaded");
    for quota in [20, 30] {
        renamed_to(&file, &document(quota));
        example.signal("HUP");
        example.output_until(&format!("-> {quota}/h"));
        let response = example.get("/", &[]);
        let policy = format!("\"api\";q={quota};w=3600");
        assert_eq!(response.field("ratelimit-policy"), Some(&*policy));
    }
}
