//! A store belongs to no runtime: it outlives them, and serves several.

use std::{future::pending, sync::mpsc};

use futures_util::poll;
use tollgate::limiter::OnMisconfiguration;
use tollgate_tests::prelude::*;

use crate::store::support::*;

/// A request that is made on this runtime.
fn check_on(runtime: &Runtime, limiter: &Limiter) -> Decision {
    runtime.block_on(limiter.check("key").into_future())
}

#[test]
fn a_store_is_built_outside_any_runtime_and_connects_with_the_first_request() {
    let server = Server::start();
    let connections = || server.info("stats", "total_connections_received");
    let before = connections();
    let limiter = single(&server, StrategyKind::Gcra, "10/h");
    drop(limiter.clone());
    let runtime = multi_thread(1);
    runtime.block_on(async {
        // Creating a check sends nothing, until it is awaited.
        drop(limiter.check("key").into_future());
        tokio::task::yield_now().await;
    });
    assert_eq!(connections(), before);
    assert!(admitted_by_store(&check_on(&runtime, &limiter)));
    assert_ne!(connections(), before);
}

#[test]
fn a_limiter_outlives_its_runtimes() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "100/month");
    for round in 1..=5 {
        for runtime in [current_thread(), multi_thread(1)] {
            let decision = check_on(&runtime, &limiter);
            assert!(admitted_by_store(&decision), "round {round}: {decision:?}");
        }
    }
    assert_eq!(current_thread().block_on(used(&limiter, "key")), [10]);
}

/// A runtime that ends takes its tasks along, those that wait for a result too; the next one must not notice.
#[test]
fn a_runtime_that_ends_amid_requests_leaves_the_limiter_usable() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Fixed, "1000/h");
    server.pause();
    for runtime in [current_thread(), multi_thread(1)] {
        runtime.block_on(async {
            for _ in 0..50 {
                drop(tokio::spawn(limiter.check("key").into_future()));
            }
            tokio::task::yield_now().await;
        });
        runtime.shutdown_background();
    }
    server.resume();
    let decision = check_on(&current_thread(), &limiter);
    assert!(admitted_by_store(&decision));
}

#[test]
fn two_runtimes_at_once_share_one_count() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "500/month");
    let threads = [0, 1].map(|_| {
        let limiter = limiter.clone();
        thread::spawn(move || {
            let limiters = [limiter];
            current_thread().block_on(hammer(&limiters, "key", 16, 1_000))
        })
    });
    let admitted = threads.map(|thread| thread.join().expect("a thread ends well"));
    assert_eq!(admitted.iter().sum::<u64>(), 500, "{admitted:?}");
}

/// Between two `block_on`s nothing drives a current-thread runtime, and nothing in it moves.
#[test]
fn a_stalled_runtime_delays_no_request() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "100/h");
    let still = current_thread();
    assert!(admitted_by_store(&check_on(&still, &limiter)));
    // Its workers are left with requests that are never sent.
    still.block_on(async {
        for _ in 0..10 {
            drop(tokio::spawn(limiter.check("key").into_future()));
        }
    });
    let other = current_thread();
    for _ in 0..10 {
        assert!(admitted_by_store(&check_on(&other, &limiter)));
    }
    assert!(admitted_by_store(&check_on(&still, &limiter)));
}

/// A multi-threaded runtime has no other thread to run its tasks.
#[test]
fn a_runtime_whose_only_thread_is_blocked_delays_no_other() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "1000/h");
    let (blocked, other) = (multi_thread(1), current_thread());
    assert!(admitted_by_store(&check_on(&blocked, &limiter)));
    let (unblock, wait) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let block = blocked.spawn(async move {
        begun.send(()).expect("the test waits");
        wait.recv().expect_err("the test drops the other end");
    });
    begins.recv().expect("it is blocked");
    for _ in 0..100 {
        assert!(admitted_by_store(&check_on(&other, &limiter)));
    }
    drop(unblock);
    blocked.block_on(block).expect("no panic");
    assert!(admitted_by_store(&check_on(&blocked, &limiter)));
}

/// A health check returns its connections to the store's pool, and the runtime in which it was made drives them.
#[test]
fn a_runtime_sends_no_request_on_a_connection_that_another_one_drives() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "100/h");
    let still = current_thread();
    assert!(still.block_on(limiter.health_check()).is_healthy());
    for other in [current_thread(), multi_thread(1)] {
        assert!(admitted_by_store(&check_on(&other, &limiter)));
    }
}

#[test]
fn a_runtime_that_ends_fails_no_request_of_another() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "1000000000/month");
    let is_over = Arc::new(AtomicBool::new(false));
    let (others, ends) = (limiter.clone(), is_over.clone());
    let others = thread::spawn(move || {
        let (runtime, mut decisions) = (current_thread(), 0);
        while !ends.load(Ordering::SeqCst) {
            let checks = (0..8).map(|_| others.check("key").into_future());
            for decision in runtime.block_on(join_all(checks)) {
                assert!(admitted_by_store(&decision), "{decision:?}");
                decisions += 1;
            }
        }
        decisions
    });
    for _ in 0..20 {
        let ending = multi_thread(1);
        assert!(admitted_by_store(&check_on(&ending, &limiter)));
        for _ in 0..50 {
            drop(ending.spawn(limiter.check("key").into_future()));
        }
        ending.shutdown_background();
    }
    is_over.store(true, Ordering::SeqCst);
    assert!(others.join().expect("the store decides each") > 0);
}

#[test]
fn a_refund_a_reset_and_a_check_of_one_task_are_made_in_their_order() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "10/month");
    let key = Key::new("key");
    for runtime in [current_thread(), multi_thread(1)] {
        runtime.block_on(async {
            for _ in 0..100 {
                let mut charged = limiter.check(key).cost(4).await;
                assert!(admitted_by_store(&charged));
                charged.refund(4).await.expect("a response");
                assert_eq!(used(&limiter, key).await, [0]);
                assert!(limiter.check(key).cost(10).await.is_admitted());
                let _before = limiter.reset(key).await.expect("a response");
                assert!(limiter.check(key).cost(10).await.is_admitted());
                let _before = limiter.reset(key).await.expect("a response");
            }
        });
    }
}

/// Connections of a shared pool may have been made in a runtime that has ended, or is stalled.
#[test]
fn a_shared_pool_serves_stores_in_runtimes_that_come_and_go() {
    let server = Server::start();
    let pool = pool_of(server.url(), 8);
    for round in 1..=10 {
        let store = RedisStore::builder().pool(pool.clone());
        let store = store.timeout(TEST_TIMEOUT).built();
        let limiter = limiter(store, [StrategyKind::Gcra.policy("p", "100/h")]);
        let decision = check_on(&current_thread(), &limiter);
        assert!(admitted_by_store(&decision), "round {round}");
    }
}

/// What `f` returns on a thread of a runtime that shuts down.
fn in_a_runtime_that_shuts_down<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let ending = multi_thread(2);
    let (begun, begins) = mpsc::channel();
    let (returned, result) = mpsc::channel();
    ending.spawn(async move {
        begun.send(()).expect("the test waits");
        // The other thread of the runtime drops all tasks from now on.
        while !tokio::spawn(pending::<()>()).is_finished() {
            thread::yield_now();
        }
        assert!(returned.send(f()).is_ok(), "the test waits");
    });
    begins.recv().expect("it runs");
    ending.shutdown_background();
    result.recv().expect("a result")
}

/// The service ends while it serves requests: nothing has to be corrected.
#[test]
fn a_check_in_a_runtime_that_shuts_down_is_no_misconfiguration() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "10/h");
    let check = move || limiter.check("key").into_future().now_or_never();
    let decision = in_a_runtime_that_shuts_down(check);
    let error = store_error(&decision.expect("it is decided at once"));
    assert!(matches!(error, StoreError::Connection(_)), "{error:?}");
}

/// A caller that repeats it would be charged twice.
#[test]
fn the_error_of_a_charge_in_a_runtime_that_shuts_down_says_that_it_is_kept() {
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Gcra, "10/month");
    let charging = limiter.clone();
    let charge = move || charging.charge("key", 3).into_future().now_or_never();
    let charged = in_a_runtime_that_shuts_down(charge);
    let error = charged.expect("it is decided at once").expect_err("kept");
    let is_kept = matches!(error, CallError::Store(StoreError::Deferred { .. }));
    assert!(is_kept, "{error:?}");
    let runtime = current_thread();
    let sent = runtime.block_on(limiter.shutdown(TEST_TIMEOUT));
    sent.expect("nothing is left");
    assert_eq!(runtime.block_on(used(&limiter, "key")), [3]);
}

/// A batch of them waits for a connection. Those that wait for their results are still there when the tasks of the runtime have ended.
#[test]
fn what_a_runtime_had_begun_to_send_by_hand_when_it_ended_is_made_by_another() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr());
    let store = RedisStore::builder().url(format!("redis://{}", proxy.addr()));
    let store = store.timeout(TEST_TIMEOUT).connections(1).overrides(false);
    let policy = StrategyKind::Fixed.policy("p", "100/month");
    let limiter = limiter(store.built(), [policy]);
    let [ended, other] = [(); 2].map(|()| current_thread());
    let admit = |key: &'static str| {
        let admission = other.block_on(limiter.admit(key).cost(10).into_future());
        admission.expect("room").policy("p").expect("a policy")
    };
    let (refunded, settled) = (admit("refunded"), admit("settled"));
    let connections = proxy.connections();
    proxy.hold();
    let mut charge = limiter.charge("charged", 3).into_future();
    let mut refund = Box::pin(refunded.refund(4));
    let mut settle = Box::pin(settled.settle(2));
    ended.block_on(async {
        assert!(poll!(&mut charge).is_pending());
        assert!(poll!(&mut refund).is_pending() && poll!(&mut settle).is_pending());
        let connects = async || proxy.connections() > connections;
        until("they wait for a connection", connects).await;
    });
    drop(ended);
    proxy.pass();
    let charge = other.block_on(charge).expect_err("kept");
    let is_kept = matches!(charge, CallError::Store(StoreError::Deferred { .. }));
    assert!(is_kept, "{charge:?}");
    let refund = other.block_on(refund).expect_err("kept");
    assert!(matches!(refund, StoreError::Deferred { .. }), "{refund:?}");
    let settle = other.block_on(settle).expect_err("unknown");
    assert!(matches!(settle, StoreError::Connection(_)), "{settle:?}");
    let sent = other.block_on(limiter.shutdown(TEST_TIMEOUT));
    sent.expect("nothing is left");
    for (key, units) in [("charged", 3), ("refunded", 6), ("settled", 2)] {
        assert_eq!(other.block_on(used(&limiter, key)), [units], "{key}");
    }
}

/// Some are dropped before the connection of their runtime is, and some after it.
#[test]
fn what_the_tasks_of_an_ending_runtime_drop_is_refunded() {
    const MANY: u64 = 64;
    let server = Server::start();
    let limiter = single(&server, StrategyKind::Fixed, "1000/month");
    for threads in [1, 2, 3, 1, 2, 3] {
        let ending = multi_thread(threads);
        ending.block_on(async {
            let mut unread: Vec<_> = (0..MANY)
                .map(|_| limiter.check("key").into_future())
                .collect();
            server.pause();
            for check in &mut unread {
                assert!(check.now_or_never().is_none());
            }
            server.resume();
            until_used(&limiter, "key", [MANY]).await;
            for check in unread {
                drop(tokio::spawn(async move {
                    pending::<()>().await;
                    drop(check);
                }));
            }
        });
        drop(ending);
        let runtime = current_thread();
        let sent = runtime.block_on(limiter.shutdown(TEST_TIMEOUT));
        sent.expect("nothing is left");
        assert_eq!(runtime.block_on(used(&limiter, "key")), [0]);
    }
}

#[test]
fn in_a_runtime_without_timers_or_without_io_the_store_is_misconfigured() {
    is_misconfigured_in(Builder::new_current_thread().enable_io());
    is_misconfigured_in(Builder::new_current_thread().enable_time());
}

fn is_misconfigured_in(runtime: &mut Builder) {
    let server = Server::start();
    let unsuitable = runtime.build().expect("a runtime");
    let actions = [OnMisconfiguration::Reject, OnMisconfiguration::AsStoreError];
    let [rejects, admits] = actions.map(|action| {
        let builder = Limiter::builder().store(store(&server));
        let policies = [StrategyKind::Gcra.policy("p", "10/h")];
        stores::limiter(builder.on_misconfiguration(action), policies)
    });
    // Also once it has connections, in another runtime.
    let suitable = multi_thread(1);
    for used_units in [1, 2] {
        let decision = check_on(&unsuitable, &rejects);
        assert!(!decision.is_admitted(), "{decision:?}");
        let error = store_error(&decision);
        assert!(matches!(error, StoreError::NoRuntime(_)), "{error:?}");
        let decision = check_on(&unsuitable, &admits);
        let kind = decision.kind();
        assert!(matches!(kind, DecisionKind::Admitted), "{kind:?}");
        assert_eq!(decision.source(), DecisionSource::Fallback);
        let health = unsuitable.block_on(rejects.health_check());
        let issues = health.issues().iter();
        let mut issues = issues.map(ToString::to_string);
        assert!(issues.any(|issue| issue.contains("no suitable tokio runtime")));
        let charge = unsuitable.block_on(rejects.charge("key", 1).into_future());
        let error = charge.expect_err("it can't be sent");
        let is_known = matches!(error, CallError::Store(StoreError::NoRuntime(_)));
        assert!(is_known, "{error:?}");
        assert!(admitted_by_store(&check_on(&suitable, &rejects)));
        // Nothing was kept to be charged later.
        let sent = suitable.block_on(rejects.shutdown(TEST_TIMEOUT));
        sent.expect("nothing is left");
        assert_eq!(suitable.block_on(used(&admits, "key")), [used_units]);
    }
}

/// Dropping the last handle ends the workers and closes their connections, in a runtime that goes on.
#[tokio::test]
async fn a_store_that_is_dropped_closes_its_connections() {
    let server = Server::start();
    let connected = || server.command(&["CLIENT", "LIST"]).text().lines().count();
    let before = connected();
    let limiter = limiter(store(&server), [StrategyKind::Gcra.policy("p", "100/h")]);
    for key in 0..32_u64 {
        assert!(admitted_by_store(&limiter.check(key).await));
    }
    assert!(connected() > before);
    drop(limiter);
    until("the workers have closed theirs", async || {
        connected() == before
    })
    .await;
}
