//! Runtimes that end, or are not driven any more, while units are leased from them.

use testkit::Server;
use tokio::runtime::{Builder, Runtime};

use crate::leases::support::{
    KEY, StrategyKind, TTL, held, hold_more_than, leases, single, until, used,
};

fn current_thread() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// The task that refunds a lease belongs to its runtime.
#[test]
fn a_key_is_leased_again_after_the_runtime_of_its_lease_has_ended() {
    for keeps in [false, true] {
        let server = Server::start();
        let limiter = single(&server, StrategyKind::Fixed, "1000000/month");
        let first = current_thread();
        let mut admitted = first.block_on(hold_more_than(&limiter, KEY, 16));
        let lost = held(&limiter);
        let first = keeps.then_some(first);
        std::thread::sleep(2 * TTL);
        let second = current_thread();
        second.block_on(async {
            let spent = || leases(&limiter, "p").expect("leases").spent;
            let before = spent();
            until("a lease of this runtime is spent", async || {
                for _ in 0..20 {
                    admitted += u64::from(limiter.check(KEY).await.is_admitted());
                }
                spent() > before + lost + 100
            })
            .await;
        });
        // What it held is lost with it.
        drop(first);
        second.block_on(async {
            until("nothing is held", async || held(&limiter) == 0).await;
            until("what was left is refunded", async || {
                used(&limiter, KEY).await <= admitted + lost + 64
            })
            .await;
        });
    }
}
