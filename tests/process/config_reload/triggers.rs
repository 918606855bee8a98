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
    // Of three requests of a tenant one is admitted, or all if it is on the list.
    let admitted = async |tenant: &'static str| {
        let checks = [(); 3].map(|()| watched.limiter.check(tenant).into_future());
        let decisions = join_all(checks).await;
        let admitted = decisions.iter().filter(|decision| decision.is_admitted());
        admitted.count()
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
    let error = watched.watcher.status().error().map(ToString::to_string);
    assert_contains(error.expect("an error"), ["vip.txt"]);
    assert_eq!(admitted("bob").await, 3);
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
