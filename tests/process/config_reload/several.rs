//! Several watches of one limiter, and a watch whose runtime ends during a reload.

use tollgate::{
    config::Watch,
    error::InvalidValue,
    strategy::{Rule, Strategy, Terms},
};

use crate::config_reload::{SOON, Watched, document};
use tollgate_tests::prelude::*;

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
