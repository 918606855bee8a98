//! What a reload does: one at a time, on a thread that may block.

use std::{
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use blake3::Hash;
use tokio::task::JoinError;

use super::{status::WatchStatus, target::WatchTarget};
use crate::{
    changes::{Changes, PolicyChangeKind},
    config::{
        Document, LoadError, Mistake, Registry,
        content::{self, hash_of_files},
    },
};

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
    in_force: Option<Loaded>,
    /// The failure that was logged last, if the file could not be loaded since.
    failure: Option<Failure>,
}

/// What was put in force, as it was read.
#[derive(Clone, Debug)]
struct Loaded {
    hash: Hash,
    /// The files that the document names.
    files: Vec<PathBuf>,
    hash_of_files: Hash,
}

/// Distinguishes one failure from the next: equal ones are logged once.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    /// That of the document, `None` if it could not be read.
    hash: Option<Hash>,
    message: String,
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
        LoadError::new(Some(&self.path), vec![Mistake::new("", found, expected)])
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
        let mut hash = None;
        let reload =
            AssertUnwindSafe(|| self.try_reload(trigger, progress.in_force.as_ref(), &mut hash));
        // The panic hook has reported a panic.
        let result = panic::catch_unwind(reload).unwrap_or_else(|_| {
            let expected = "registered code that does not panic";
            Err(self.not_loaded("code that panicked", expected))
        });
        let failure = result.as_ref().err().map(|error| Failure {
            hash,
            message: error.to_string(),
        });
        let begins = failure.is_some() && progress.failure != failure;
        let ends = failure.is_none() && progress.failure.is_some();
        progress.failure = failure;
        if ends {
            self.log_recovery();
        }
        match result {
            Ok(Some((loaded, changes))) => {
                self.set_status(now, |status| {
                    status.hash = Some(loaded.hash.to_hex().as_str().into());
                    status.loaded_at = Some(now);
                    status.loads += 1;
                });
                self.log_reload(&loaded, &changes);
                *observed = Some(Some(loaded.hash.to_hex().to_string()));
                progress.in_force = Some(loaded);
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

    /// Sets `hash` to that of the document as soon as it is known.
    fn try_reload(
        &self,
        trigger: Trigger,
        in_force: Option<&Loaded>,
        hash: &mut Option<Hash>,
    ) -> Result<Option<(Loaded, Changes)>, LoadError> {
        let text = content::read(&self.path)?;
        let read = blake3::hash(text.as_bytes());
        *hash = Some(read);
        let is_unchanged = |loaded: &Loaded| {
            loaded.hash == read && loaded.hash_of_files == hash_of_files(&loaded.files)
        };
        if trigger == Trigger::Poll && in_force.is_some_and(is_unchanged) {
            return Ok(None);
        }
        let document = Document::parse_file_with(&text, &self.path, &self.registry)?;
        let files = document.files();
        // Before they are loaded: a change after that is seen at the next poll.
        let hash_of_files = hash_of_files(&files);
        if self.is_stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let changes = self.target.reconfigure(&document, &self.registry)?;
        let loaded = Loaded {
            hash: read,
            files,
            hash_of_files,
        };
        Ok(Some((loaded, changes)))
    }

    /// Sets what the status says after an attempt.
    fn set_status(&self, now: SystemTime, set: impl FnOnce(&mut WatchStatus)) {
        let mut status = lock(&self.status);
        status.last_attempt = Some(now);
        status.error = None;
        set(&mut status);
    }

    fn log_reload(&self, loaded: &Loaded, changes: &Changes) {
        let (file, hash) = (self.path.display(), loaded.hash.to_hex());
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
    if changes.is_empty() {
        return "none".to_owned();
    }
    let policies = changes.policies();
    let policies = policies.filter(|policy| policy.kind() != PolicyChangeKind::Kept);
    let settings = changes.settings().iter().map(ToString::to_string);
    let changes: Vec<_> = settings.chain(policies.map(ToString::to_string)).collect();
    changes.join("; ")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
