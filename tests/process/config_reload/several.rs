//! Several watches of one limiter, and a watch whose runtime ends during a reload.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use testkit::folder;
use tokio::runtime::{Builder, Runtime};
use tollgate::{
    FixedWindow, InvalidValue, Limiter, Quota,
    config::{Document, Registry, Watch},
    strategy::{Rule, Strategy},
};

use crate::config_reload::{
    until::{TEST_TIMEOUT, until},
    writes::{NAME, renamed},
};

fn document(quota: u64) -> String {
    format!("[policies.api]\nquota = \"{quota}/hour\"\nkey = \"global\"\n")
}

/// The limit and the remaining units.
async fn status(limiter: &Limiter) -> (u64, u64) {
    let decision = limiter.peek("alice").await.expect("a response");
    let policy = decision.policy("api").expect("the policy");
    (policy.limit(), policy.remaining())
}

#[tokio::test]
async fn two_watches_of_one_limiter_reload_each_change_and_the_counts_change_once() {
    let folder = folder();
    let file = folder.path().join(NAME);
    fs::write(&file, document(10)).expect("a file");
    let load = Document::load(&file).expect("a document");
    let limiter = load.limiter(&Registry::new()).expect("a limiter");
    assert!(limiter.check("alice").times(4).await.is_admitted());
    let watch = || Watch::new(&file).every(Duration::from_millis(5));
    let [first, second] = [(); 2].map(|()| watch().start(&limiter).expect("a watch"));
    let loads = async |times| {
        until("both have loaded it", async || {
            [&first, &second].map(|watcher| watcher.status().loads()) == [times; 2]
        })
        .await;
    };
    loads(1).await;
    renamed(folder.path(), &document(20));
    loads(2).await;
    // 4 of 10 are 8 of 20.
    assert_eq!(status(&limiter).await, (20, 12));
    renamed(folder.path(), "policies = 5");
    until("both have failed", async || {
        [&first, &second].map(|watcher| watcher.status().failures()) == [1; 2]
    })
    .await;
    assert_eq!(status(&limiter).await, (20, 12));
    drop(first);
    renamed(folder.path(), &document(40));
    until("the other has loaded it", async || {
        second.status().loads() == 3
    })
    .await;
    assert_eq!(status(&limiter).await.0, 40);
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
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue> {
        while self.0.is_held.load(Ordering::Acquire) {
            self.0.waits.store(true, Ordering::Release);
            thread::sleep(Duration::from_millis(1));
        }
        FixedWindow.bind(quota)
    }
}

fn runtime() -> Runtime {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build();
    runtime.expect("a runtime")
}

#[test]
fn a_reload_outlives_its_runtime_and_is_in_force_on_another() {
    let folder = folder();
    let file = folder.path().join(NAME);
    let document = |quota| document(quota) + "strategy = \"slow\"\n";
    fs::write(&file, document(10)).expect("a file");
    let held = Arc::new(Held::default());
    let registry = Registry::new().strategy("slow", SlowStrategy(Arc::clone(&held)));
    let load = Document::load(&file).expect("a document");
    let limiter = load.limiter(&registry).expect("a limiter");
    let (first, second) = (runtime(), runtime());
    let watcher = first.block_on(async {
        let watch = Watch::new(&file).registry(registry).start(&limiter);
        let watcher = Arc::new(watch.expect("a watch"));
        until("the first poll", async || watcher.status().loads() == 1).await;
        watcher
    });
    held.is_held.store(true, Ordering::Release);
    renamed(folder.path(), &document(20));
    let demanded = Arc::clone(&watcher);
    let demanded = second.spawn(async move { demanded.reload().await });
    let start = Instant::now();
    while !held.waits.load(Ordering::Acquire) {
        assert!(start.elapsed() < TEST_TIMEOUT, "no reload");
        thread::sleep(Duration::from_millis(1));
    }
    first.shutdown_background();
    assert_eq!(second.block_on(status(&limiter)).0, 10);
    held.is_held.store(false, Ordering::Release);
    second.block_on(async {
        until("it is in force", async || watcher.status().loads() >= 2).await;
        assert_eq!(status(&limiter).await.0, 20);
        // It ran on a thread that the runtime did not wait for, or was not begun.
        drop(demanded.await.expect("no panic"));
        let error = watcher.reload().await.expect_err("no runtime").to_string();
        assert!(error.contains("a watch whose runtime has ended"), "{error}");
        assert_eq!(status(&limiter).await.0, 20);
    });
}
