//! Files that cannot be loaded change nothing.

use std::{os::unix::fs::symlink, process::Command};

use tollgate::{config::Watch, error::InvalidValue, extract::Extracted};

use crate::config_reload::{
    SOON, Watched, document,
    writes::{NAME, renamed_to},
};
use tollgate_tests::prelude::*;

const BETTER: &str = "[policies.api]\nquota = \"20/hour\"\nkey = \"global\"\n";

/// Waits for two more attempts: at least one began after the call.
async fn tried_again(watched: &Watched) {
    for _ in 0..2 {
        let last = watched.watcher.status().last_attempt();
        let attempted = async || watched.watcher.status().last_attempt() != last;
        until("another attempt", attempted).await;
    }
}

fn write(path: &Path, text: impl AsRef<[u8]>) {
    fs::write(path, text).expect("a file");
}

/// What stands in place of a document.
enum Bad {
    Nothing,
    Bytes(Vec<u8>),
    Link(&'static str),
    /// Without a writer.
    Pipe,
}

fn text(text: impl AsRef<[u8]>) -> Bad {
    Bad::Bytes(text.as_ref().to_owned())
}

impl Bad {
    fn make(self, path: &Path) {
        match self {
            Self::Nothing => {}
            Self::Bytes(bytes) => write(path, bytes),
            Self::Link(to) => symlink(to, path).expect("a link"),
            Self::Pipe => {
                let made = Command::new("mkfifo").arg(path).status();
                assert!(made.expect("mkfifo").success());
            }
        }
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_loaded_changes_nothing_and_is_logged_once() {
    let list = "deny = [{ addresses = { file = \"deny.txt\" } }]\n";
    let fortnight = BETTER.replace("hour", "fortnight");
    for (what, error, bad) in [
        ("missing", "No such file", Bad::Nothing),
        ("empty", "policies", text("")),
        ("blank", "policies", text(" \n\n")),
        ("a comment", "policies", text("# [policies.api]\n")),
        ("cut off in a text", ":2:", text(&BETTER[..28])),
        ("cut off before a value", ":2:", text(&BETTER[..24])),
        (
            "cut off before the quota",
            "policies.api.quota",
            text(&BETTER[..15]),
        ),
        ("not TOML", ":1:", text("policies: {}")),
        (
            "an unknown setting",
            "policies.api.quotas",
            text(BETTER.replace("quota", "quotas")),
        ),
        ("an invalid quota", "20/fortnight", text(fortnight)),
        (
            "naming a list that is missing",
            "deny.txt",
            text(list.to_owned() + BETTER),
        ),
        ("not text", "utf-8", text(b"[policies.\xff]")),
        (
            "too long",
            "longer than",
            text(BETTER.to_owned() + &"#\n".repeat(1 << 20)),
        ),
        ("a link to a folder", "not a regular file", Bad::Link("/")),
        ("a link to nothing", "No such file", Bad::Link("nothing")),
        ("a link to itself", "symbolic links", Bad::Link(NAME)),
        ("a pipe without a writer", "not a regular file", Bad::Pipe),
    ] {
        let watched = Watched::start(&document(10), SOON).await;
        let watcher = &watched.watcher;
        assert!(watched.limiter.check("alice").await.is_admitted());
        let before = watcher.status();

        let (file, other) = (watched.file(), watched.folder.path().join(".bad"));
        bad.make(&other);
        // It replaces the good one at once.
        let replaced = fs::rename(&other, &file);
        replaced.unwrap_or_else(|_| fs::remove_file(&file).expect("a file"));
        until(what, async || watcher.status().error().is_some()).await;
        tried_again(&watched).await;
        // On demand it is tried as well.
        let rejected = watcher.reload().await.expect_err(what).to_string();
        assert!(rejected.contains(error), "{what}: {rejected}");
        let status = watcher.status();
        let shown = status.error().map(ToString::to_string);
        assert_eq!(shown.as_deref(), Some(&*rejected), "{what}");
        assert_eq!((status.loads(), status.failures()), (1, 1), "{what}");
        assert_eq!(status.hash(), before.hash(), "{what}");
        assert_eq!(status.loaded_at(), before.loaded_at(), "{what}");
        assert_eq!(watched.limit().await, 10, "{what}");
        assert_eq!(watched.logged(), (1, 0), "{what}");

        // The old text again: nothing has changed.
        watched.write(&document(10));
        until(what, async || watcher.status().error().is_none()).await;
        tried_again(&watched).await;
        assert_eq!(watcher.status().loads(), 1, "{what}");
        assert_eq!(watched.logged(), (1, 1), "{what}");

        watched.write(BETTER);
        watched.until_loads(2).await;
        // The share that is used stays.
        assert_eq!(watched.status().await, (20, 18), "{what}");
    }
}

/// Counts how often a policy with it is built.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl KeyExtractor for Counted {
    fn extract(&self, _: &Parts) -> Extracted {
        Extracted::Absent
    }

    fn validate(&self) -> Result<(), InvalidValue> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::test]
async fn a_document_that_cannot_be_loaded_is_built_again_only_when_it_or_a_file_of_it_has_changed()
{
    let folder = testkit::folder();
    let path = folder.path().join(NAME);
    let policy = "[policies.api]\nquota = '20/hour'\nkey = 'counted'\n";
    write(
        &path,
        format!("deny = [{{ addresses = {{ file = 'deny.txt' }} }}]\n{policy}"),
    );
    let builds = Arc::new(AtomicUsize::new(0));
    let registry = Registry::new().key("counted", Counted(builds.clone()));
    let policy = Policy::new("api", quota("10/min"));
    let limiter = Limiter::builder().policy(policy).built();
    let watch = Watch::new(&path).registry(registry).every(SOON);
    let watcher = watch.start(&limiter).expect("a watch");
    until("a failure", async || watcher.status().error().is_some()).await;
    let built = builds.load(Ordering::Relaxed);
    for _ in 0..10 {
        let last = watcher.status().last_attempt();
        let attempted = async || watcher.status().last_attempt() != last;
        until("another attempt", attempted).await;
        assert!(watcher.status().error().is_some());
    }
    assert_eq!(builds.load(Ordering::Relaxed), built);
    // On demand it is built.
    watcher.reload().await.expect_err("no list");
    assert!(builds.load(Ordering::Relaxed) > built);
    renamed_to(&folder.path().join("deny.txt"), "192.0.2.1\n");
    until("a load", async || watcher.status().loads() == 1).await;
    assert_eq!(watcher.status().failures(), 1);
}

#[tokio::test]
async fn each_content_that_cannot_be_loaded_is_logged() {
    let watched = Watched::start(&document(10), SOON).await;
    // The second has the same mistake.
    let bad = ["quota = 5\n", "quota = 5 # requests\n", "[policies.api]\n"];
    for (failures, text) in (1..).zip(bad) {
        watched.write(text);
        watched.until_failures(failures).await;
        tried_again(&watched).await;
        assert_eq!(watched.logged().0 as u64, failures);
    }
    assert_eq!(watched.limit().await, 10);
}
