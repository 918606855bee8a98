//! Files that cannot be loaded change nothing.

use std::{os::unix::fs::symlink, process::Command};

use crate::config_reload::{SOON, Watched, document, writes::NAME};
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
        ("blank", "policies", text(" \n\n")),
        ("cut off in a text", ":2:", text(&BETTER[..28])),
        ("not TOML", ":1:", text("policies: {}")),
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
