//! Files that cannot be loaded change nothing.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command, time::Duration};

use testkit::folder;
use tollgate::{
    Limiter,
    config::{Document, Registry, Watch, Watcher},
};

use crate::config_reload::{
    every_log,
    until::until,
    writes::{NAME, renamed},
};

const GOOD: &str = "[policies.api]\nquota = \"10/hour\"\nkey = \"global\"\n";
const BETTER: &str = "[policies.api]\nquota = \"20/hour\"\nkey = \"global\"\n";

const FAILED: &str = "configuration file not loaded; the last good document stays in force";
const RECOVERED: &str = "configuration file can be loaded again";

/// A limiter whose document is watched, and the folder of the file.
async fn watched(folder: &Path) -> (Limiter, Watcher) {
    every_log::keep();
    let file = folder.join(NAME);
    fs::write(&file, GOOD).expect("a file");
    let registry = Registry::new();
    let document = Document::load(&file).expect("a document");
    let limiter = document.limiter(&registry).expect("a limiter");
    let watch = Watch::new(&file).registry(registry);
    let watcher = watch.every(Duration::from_millis(5)).start(&limiter);
    let watcher = watcher.expect("a watch");
    until("the document is loaded", async || {
        watcher.status().loads() == 1
    })
    .await;
    (limiter, watcher)
}

/// Waits for two more attempts: at least one began after the call.
async fn tried_again(watcher: &Watcher) {
    for _ in 0..2 {
        let last = watcher.status().last_attempt();
        until("another attempt", async || {
            watcher.status().last_attempt() != last
        })
        .await;
    }
}

async fn limit(limiter: &Limiter) -> u64 {
    let decision = limiter.peek("alice").await.expect("a response");
    decision.policy("api").expect("the policy").limit()
}

struct Bad {
    what: &'static str,
    /// A part of the error.
    error: &'static str,
    /// Makes the file at a path.
    make: fn(&Path),
}

fn write(path: &Path, text: impl AsRef<[u8]>) {
    fs::write(path, text).expect("a file");
}

const BAD: [Bad; 17] = [
    Bad {
        what: "missing",
        error: "No such file",
        make: |_| {},
    },
    Bad {
        what: "empty",
        error: "policies",
        make: |path| write(path, ""),
    },
    Bad {
        what: "blank",
        error: "policies",
        make: |path| write(path, " \n\n"),
    },
    Bad {
        what: "a comment alone",
        error: "policies",
        make: |path| write(path, "# [policies.api]\n"),
    },
    Bad {
        what: "cut off in a text",
        error: ":2:",
        make: |path| write(path, &BETTER[..28]),
    },
    Bad {
        what: "cut off before a value",
        error: ":2:",
        make: |path| write(path, &BETTER[..24]),
    },
    Bad {
        what: "cut off before the quota",
        error: "policies.api.quota",
        make: |path| write(path, &BETTER[..15]),
    },
    Bad {
        what: "not TOML",
        error: ":1:",
        make: |path| write(path, "policies: {}"),
    },
    Bad {
        what: "with an unknown setting",
        error: "policies.api.quotas",
        make: |path| write(path, BETTER.replace("quota", "quotas")),
    },
    Bad {
        what: "with an invalid quota",
        error: "20/fortnight",
        make: |path| write(path, BETTER.replace("hour", "fortnight")),
    },
    Bad {
        what: "naming a list that is missing",
        error: "deny.txt",
        make: |path| {
            let list = "deny = [{ addresses = { file = \"deny.txt\" } }]\n";
            write(path, format!("{list}{BETTER}"));
        },
    },
    Bad {
        what: "not text",
        error: "utf-8",
        make: |path| write(path, b"[policies.\xff]"),
    },
    Bad {
        what: "too long",
        error: "longer than",
        make: |path| write(path, format!("{BETTER}{}", "#\n".repeat(1 << 20))),
    },
    Bad {
        what: "a link to a folder",
        error: "not a regular file",
        make: |path| symlink("/", path).expect("a link"),
    },
    Bad {
        what: "a link to nothing",
        error: "No such file",
        make: |path| symlink("nothing", path).expect("a link"),
    },
    Bad {
        what: "a link to itself",
        error: "symbolic links",
        make: |path| symlink(NAME, path).expect("a link"),
    },
    Bad {
        what: "a pipe without a writer",
        error: "not a regular file",
        make: |path| {
            let made = Command::new("mkfifo").arg(path).status();
            assert!(made.expect("mkfifo").success());
        },
    },
];

#[tokio::test]
async fn a_file_that_cannot_be_loaded_changes_nothing_and_is_logged_once() {
    for Bad { what, error, make } in BAD {
        let folder = folder();
        let (limiter, watcher) = watched(folder.path()).await;
        let file = folder.path().join(NAME);
        let lines = |message| every_log::lines(&file, message);
        assert!(limiter.check("alice").await.is_admitted());
        let before = watcher.status();

        let bad = folder.path().join(".bad");
        make(&bad);
        // It replaces the good one at once.
        let replaced = fs::rename(&bad, &file);
        replaced.unwrap_or_else(|_| fs::remove_file(&file).expect("a file"));
        until(what, async || watcher.status().error().is_some()).await;
        for _ in 0..3 {
            tried_again(&watcher).await;
        }
        // On demand it is tried as well.
        let rejected = watcher.reload().await.expect_err(what).to_string();
        println!("{what}: {rejected}");
        assert!(rejected.contains(error), "{what}: {rejected}");
        let status = watcher.status();
        let shown = status.error().map(ToString::to_string);
        assert_eq!(shown.as_deref(), Some(&*rejected), "{what}");
        assert_eq!((status.loads(), status.failures()), (1, 1), "{what}");
        assert_eq!(status.hash(), before.hash(), "{what}");
        assert_eq!(status.loaded_at(), before.loaded_at(), "{what}");
        assert_eq!(limit(&limiter).await, 10, "{what}");
        assert_eq!(
            (lines(FAILED).len(), lines(RECOVERED).len()),
            (1, 0),
            "{what}"
        );

        // The old text again: nothing has changed.
        renamed(folder.path(), GOOD);
        until(what, async || watcher.status().error().is_none()).await;
        tried_again(&watcher).await;
        assert_eq!(watcher.status().loads(), 1, "{what}");
        assert_eq!(
            (lines(FAILED).len(), lines(RECOVERED).len()),
            (1, 1),
            "{what}"
        );

        renamed(folder.path(), BETTER);
        until(what, async || watcher.status().loads() == 2).await;
        let peeked = limiter.peek("alice").await.expect("a response");
        let policy = peeked.policy("api").expect("the policy");
        // The share that is used stays.
        assert_eq!((policy.limit(), policy.remaining()), (20, 18), "{what}");
    }
}

#[tokio::test]
async fn each_content_that_cannot_be_loaded_is_logged() {
    let folder = folder();
    let (limiter, watcher) = watched(folder.path()).await;
    let file = folder.path().join(NAME);
    // The second has the same mistake.
    for (failures, text) in [
        (1, "quota = 5\n"),
        (2, "quota = 5 # requests\n"),
        (3, "[policies.api]\n"),
    ] {
        renamed(folder.path(), text);
        until("another failure", async || {
            watcher.status().failures() == failures
        })
        .await;
        tried_again(&watcher).await;
        assert_eq!(every_log::lines(&file, FAILED).len() as u64, failures);
    }
    assert_eq!(limit(&limiter).await, 10);
}
