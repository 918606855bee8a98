//! A configuration file that changes while requests are served.

mod bad_files;
mod code_on_layers;
mod four_processes;
mod load;
mod observed;
mod triggers;
mod writes;

use std::sync::LazyLock;

use testkit::{TempDir, folder};
use tollgate::config::{Watch, Watcher};
use tracing::Level;

use tollgate_tests::prelude::*;
use writes::{NAME, renamed};

/// Longer than any test takes.
const NEVER: Duration = secs(3_600);

/// The time between two polls of a file that tests wait for.
const SOON: Duration = ms(5);

/// What all threads log: files are loaded on threads of their own.
static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false);
    let subscriber = subscriber.with_max_level(Level::INFO);
    let subscriber = subscriber.with_writer(log.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only one");
    log
});

/// So many requests an hour.
fn document(quota: u64) -> String {
    format!("[policies.api]\nquota = \"{quota}/hour\"\nkey = \"global\"\n")
}

/// A limiter whose document is watched, in a folder of its own.
struct Watched {
    folder: TempDir,
    limiter: Limiter,
    watcher: Watcher,
}

impl Watched {
    /// Watches a file with this text, and waits until it is loaded.
    async fn start(text: &str, every: Duration) -> Self {
        Self::with(Registry::new, text, every).await
    }

    async fn with(registry: impl Fn() -> Registry, text: &str, every: Duration) -> Self {
        LazyLock::force(&LOG);
        let folder = folder();
        let file = folder.path().join(NAME);
        fs::write(&file, text).expect("a file");
        let document = Document::load(&file).expect("a document");
        let limiter = document.limiter(&registry()).expect("a limiter");
        let watch = Watch::new(&file).registry(registry()).every(every);
        let watched = Self {
            folder,
            watcher: watch.start(&limiter).expect("a watch"),
            limiter,
        };
        watched.until_loads(1).await;
        watched
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    fn write(&self, text: &str) {
        renamed(self.folder.path(), text);
    }

    async fn until_loads(&self, n: u64) {
        until("so many loads", async || self.watcher.status().loads() == n).await;
    }

    async fn until_failures(&self, n: u64) {
        let status = || self.watcher.status();
        until("so many failures", async || status().failures() == n).await;
    }

    /// The limit, and what remains of it.
    async fn status(&self) -> (u64, u64) {
        let status = self.limiter.peek("alice").await.expect("a response");
        let policy = status.policy("api").expect("the policy");
        (policy.limit(), policy.remaining())
    }

    async fn limit(&self) -> u64 {
        self.status().await.0
    }

    /// How many failures to load the file were logged, and how many recoveries from one.
    fn logged(&self) -> (usize, usize) {
        let file = self.file().display().to_string();
        let failed = "configuration file not loaded; the last good document stays in force";
        let [failed, recovered] = [failed, "configuration file can be loaded again"].map(|text| {
            let lines = LOG.lines(text);
            lines.iter().filter(|line| line.contains(&file)).count()
        });
        (failed, recovered)
    }
}
