//! What a reload does: one at a time, on a thread that may block.

use std::{
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use blake3::Hash;
use tokio::task::JoinError;

use super::WatchTarget;
use crate::{
    changes::{Changes, PolicyChangeKind},
    config::{
        Document, LoadError, Mistake, Registry,
        content::{self, hash_of_files},
        document::Origin,
    },
    sync::lock,
};

/// What a [`Watcher`](super::Watcher) has loaded, and what it has not.
#[derive(Clone, Debug, Default)]
pub struct WatchStatus {
    hash: Option<Arc<str>>,
    origin: Option<Arc<Origin>>,
    loaded_at: Option<SystemTime>,
    last_attempt: Option<SystemTime>,
    error: Option<Arc<LoadError>>,
    loads: u64,
    failures: u64,
}

impl WatchStatus {
    /// The BLAKE3 hash of the document in force, in hexadecimal, as `b3sum` prints that of its file. `None` until the watch has
    /// loaded one: what its target was built with is in force.
    pub fn hash(&self) -> Option<&str> {
        self.hash.as_deref()
    }

    /// The text of the document in force, as it was read from the file. `None` until the watch has loaded one.
    pub fn text(&self) -> Option<&str> {
        self.origin.as_deref().map(Origin::text)
    }

    /// When the document in force was loaded.
    pub fn loaded_at(&self) -> Option<SystemTime> {
        self.loaded_at
    }

    /// When the file was last read, or could not be read.
    pub fn last_attempt(&self) -> Option<SystemTime> {
        self.last_attempt
    }

    /// Why the file could not be loaded at the last attempt, `None` if it was or had not changed.
    pub fn error(&self) -> Option<&LoadError> {
        self.error.as_deref()
    }

    /// How many documents were put in force.
    pub fn loads(&self) -> u64 {
        self.loads
    }

    /// How many documents could not be loaded. One that stays as it is counts once, however often it is tried again.
    pub fn failures(&self) -> u64 {
        self.failures
    }
}

/// Why a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// It is time: the document is put in force if it has changed.
    Poll,
    /// SIGHUP or a call: the document is put in force in any case.
    Demand,
}

/// Loads the document of one file for one target.
#[derive(Debug)]
pub(super) struct Reloader {
    path: PathBuf,
    registry: Registry,
    target: WatchTarget,
    is_stopped: AtomicBool,
    /// Locked during a reload.
    progress: Mutex<Progress>,
    /// Locked only to be read and written.
    status: Mutex<WatchStatus>,
}

#[derive(Debug, Default)]
struct Progress {
    in_force: Option<Content>,
    /// The failure that was logged last, if the file could not be loaded since.
    failure: Option<Failure>,
}

/// A document as it was read.
#[derive(Clone, Debug)]
struct Content {
    hash: Hash,
    /// The files that the document names, as far as it could be parsed.
    files: Vec<PathBuf>,
    hash_of_files: Hash,
}

/// Why a document was not put in force. Equal ones are logged once.
#[derive(Debug)]
struct Failure {
    /// `None` if the document could not be read.
    content: Option<Content>,
    error: LoadError,
}

impl Content {
    /// Whether the document and the files that it names are still the same.
    fn is_unchanged(&self, hash: Hash) -> bool {
        self.hash == hash && self.hash_of_files == hash_of_files(&self.files)
    }
}

impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        let hash = |failure: &Self| failure.content.as_ref().map(|content| content.hash);
        hash(self) == hash(other) && self.error == other.error
    }
}

impl Reloader {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn new(path: PathBuf, registry: Registry, target: WatchTarget) -> Self {
        Self {
            path,
            registry,
            target,
            is_stopped: AtomicBool::new(false),
            progress: Mutex::default(),
            status: Mutex::default(),
        }
    }

    pub(super) fn status(&self) -> WatchStatus {
        lock(&self.status).clone()
    }

    /// Puts no more documents in force.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// The result of a reload on demand, which ran on another thread.
    pub(super) fn demanded(
        &self,
        reload: Result<Result<Option<Changes>, LoadError>, JoinError>,
    ) -> Result<Changes, LoadError> {
        let not_loaded = |found| self.not_loaded(found, "a watch that has not ended");
        match reload {
            Ok(Ok(Some(changes))) => Ok(changes),
            Ok(Ok(None)) => Err(not_loaded("a watch that has ended")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(not_loaded("a watch whose runtime has ended")),
        }
    }

    fn not_loaded(&self, found: impl Into<String>, expected: &str) -> LoadError {
        LoadError::new(Some(&self.path), vec![Mistake::of_whole(found, expected)])
    }

    /// Loads the document, and puts it in force if that is demanded or it has changed; returns `None` otherwise. Blocks.
    pub(super) fn reload(&self, trigger: Trigger) -> Result<Option<Changes>, LoadError> {
        let mut observed = None;
        let result = self.reload_locked(trigger, &mut observed);
        // Under no lock.
        if let Some(loaded) = observed {
            self.target.report_load(loaded.as_deref());
        }
        result
    }

    /// Sets `observed` to what is reported to observers: the hash of a document that was put in force, or a failure.
    fn reload_locked(
        &self,
        trigger: Trigger,
        observed: &mut Option<Option<String>>,
    ) -> Result<Option<Changes>, LoadError> {
        let mut progress = lock(&self.progress);
        let now = SystemTime::now();
        let mut content = None;
        let reload = AssertUnwindSafe(|| self.try_reload(trigger, &progress, &mut content));
        // The panic hook has reported a panic.
        let result = panic::catch_unwind(reload).unwrap_or_else(|_| {
            let expected = "registered code that does not panic";
            Err(self.not_loaded("code that panicked", expected))
        });
        let failure = result.as_ref().err().map(|error| Failure {
            content: content.clone(),
            error: error.clone(),
        });
        let begins = failure.is_some() && progress.failure != failure;
        let ends = failure.is_none() && progress.failure.is_some();
        progress.failure = failure;
        if ends {
            self.log_recovery();
        }
        match result {
            Ok(Some((hash, origin, changes))) => {
                self.set_status(now, |status| {
                    status.hash = Some(hash.to_hex().as_str().into());
                    status.origin = Some(origin);
                    status.loaded_at = Some(now);
                    status.loads += 1;
                });
                self.log_reload(hash, &changes);
                *observed = Some(Some(hash.to_hex().to_string()));
                progress.in_force = content;
                Ok(Some(changes))
            }
            Ok(None) => {
                self.set_status(now, |_| {});
                Ok(None)
            }
            Err(error) => {
                self.set_status(now, |status| {
                    status.error = Some(Arc::new(error.clone()));
                    status.failures += u64::from(begins);
                });
                if begins {
                    *observed = Some(None);
                    self.log_failure(&error);
                }
                Err(error)
            }
        }
    }

    /// Sets `content` to what was read as soon as it is known. Returns the hash and the origin of a document that was put in
    /// force.
    fn try_reload(
        &self,
        trigger: Trigger,
        progress: &Progress,
        content: &mut Option<Content>,
    ) -> Result<Option<(Hash, Arc<Origin>, Changes)>, LoadError> {
        let text = content::read(&self.path)?;
        let hash = blake3::hash(text.as_bytes());
        if trigger == Trigger::Poll {
            if let Some(failure) = &progress.failure
                && let Some(failed) = &failure.content
                && failed.is_unchanged(hash)
            {
                *content = Some(failed.clone());
                return Err(failure.error.clone());
            }
            let in_force = progress.in_force.as_ref();
            if in_force.is_some_and(|in_force| in_force.is_unchanged(hash)) {
                return Ok(None);
            }
        }
        let read = |files: Vec<PathBuf>| Content {
            hash,
            hash_of_files: hash_of_files(&files),
            files,
        };
        *content = Some(read(Vec::new()));
        let document = Document::parse_file(&text, &self.path)?;
        // Before they are loaded: a change after that is seen at the next poll.
        *content = Some(read(document.files()));
        if self.is_stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let changes = self.target.reconfigure(&document, &self.registry)?;
        Ok(Some((hash, document.origin, changes)))
    }

    /// Sets what the status says after an attempt.
    fn set_status(&self, now: SystemTime, set: impl FnOnce(&mut WatchStatus)) {
        let mut status = lock(&self.status);
        status.last_attempt = Some(now);
        status.error = None;
        set(&mut status);
    }

    fn log_reload(&self, hash: Hash, changes: &Changes) {
        let (file, hash) = (self.path.display(), hash.to_hex());
        let changes = in_one_line(changes);
        tracing::info!(%file, hash = hash.as_str(), changes, "configuration file reloaded");
    }

    fn log_recovery(&self) {
        let file = self.path.display();
        tracing::info!(%file, "configuration file can be loaded again");
    }

    fn log_failure(&self, error: &LoadError) {
        let file = self.path.display();
        tracing::error!(%file, %error, "configuration file not loaded; the last good document stays in force");
    }
}

/// What has changed, without the policies that were kept.
fn in_one_line(changes: &Changes) -> String {
    let lines = changes.lines(|policy| policy.kind() != PolicyChangeKind::Kept);
    if lines.is_empty() {
        return "none".to_owned();
    }
    lines.join("; ")
}
