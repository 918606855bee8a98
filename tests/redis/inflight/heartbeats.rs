//! Permits that are renewed, and those that are not.

use std::{
    collections::VecDeque,
    sync::{OnceLock, RwLock},
};

use tokio::runtime::Handle;
use tollgate_tests::{bare_thread::on_bare_thread, prelude::*};

use crate::inflight::support::*;

/// `PERMIT_TTL` is 300 ms.
#[tokio::test]
async fn held_permits_are_renewed_beyond_their_ttl() {
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        let held = fill(&limiter).await;
        for _ in 0..3 {
            world.advance(PERMIT_TTL * 9 / 10);
            until_heartbeats(&world, 10).await;
            assert!(!admitted_by_store(&admit(&limiter).await));
        }
        drop(held);
        until_free(&limiter, 10).await;
        // All of a request for several.
        let several = limiter.admit(KEY).cost(6).await.expect("permits");
        for _ in 0..2 {
            world.advance(PERMIT_TTL * 9 / 10);
            until_heartbeats(&world, 6).await;
        }
        assert_eq!(free(&limiter).await, 4);
        drop(several);
        until_free(&limiter, 10).await;
        world.no_key_is_immortal();
    }
}

#[tokio::test]
async fn a_heartbeat_that_comes_too_late_revives_nothing_and_takes_no_others_permits() {
    let world = World::redis();
    let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
    let late = fill(&limiter).await;
    world.advance(PERMIT_TTL);
    until_heartbeats(&world, 10).await;
    assert_eq!(free(&limiter).await, 10);
    let others = fill(&limiter).await;
    drop(late);
    assert_eq!(free(&limiter).await, 0);
    drop(others);
    until_free(&limiter, 10).await;
    world.no_key_is_immortal();
}

/// Whatever comes first after the pause: a peek, a check, a release of another one, or new keys that need room.
#[tokio::test]
async fn in_process_held_permits_outlast_any_pause_and_are_free_when_they_are_released() {
    for first in 0..4 {
        let clock = ManualClock::at(Timestamp::from_micros(1));
        let store = MemoryStore::builder().clock(clock.clone());
        let store = store.max_keys(64.try_into().expect("not 0")).build();
        let builder = || Limiter::builder().store(store.clone());
        let limiter = build(builder(), [permit_policy(PERMIT_TTL)]);
        let others = Policy::new("others", Quota::requests(1).per_day());
        let others = build(builder(), [others]);
        let mut held = fill(&limiter).await;
        clock.advance(LONG_TTL);
        match first {
            0 => assert_eq!(free(&limiter).await, 0),
            1 => assert!(!admitted_by_store(&admit(&limiter).await)),
            2 => drop(held.pop()),
            _ => {
                for key in 0..1_000_u64 {
                    assert!(others.check(Key::from(key)).await.is_admitted());
                }
            }
        }
        let of_others = fill(&limiter).await;
        assert_eq!(held.len() + of_others.len(), MAX_PERMITS as usize);
        drop(held);
        assert_eq!(free(&limiter).await, MAX_PERMITS - of_others.len() as u64);
        drop(of_others);
        assert_eq!(free(&limiter).await, MAX_PERMITS);
    }
}

/// The clock passes a TTL after each of their requests.
#[test]
fn in_process_no_more_are_in_flight_than_the_limit_on_several_threads() {
    let clock = ManualClock::at(Timestamp::from_micros(1));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = build(Limiter::builder().store(store), [permit_policy(PERMIT_TTL)]);
    // It stands still from the charge of a permit until that is held.
    let clock = RwLock::new(clock);
    let in_flight = AtomicU64::new(0);
    let work = || {
        let mut held = VecDeque::new();
        for _ in 0..5_000 {
            let stands_still = clock.read().expect("no panic");
            let result = limiter.admit(KEY).now().expect("a response");
            drop(stands_still);
            if let Ok(admission) = result {
                let now = in_flight.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now <= MAX_PERMITS, "{now} in flight");
                held.push_back(admission);
            }
            clock.write().expect("no panic").advance(PERMIT_TTL);
            if held.len() == 4 {
                in_flight.fetch_sub(1, Ordering::SeqCst);
                drop(held.pop_front());
            }
        }
        in_flight.fetch_sub(held.len() as u64, Ordering::SeqCst);
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
}

/// Advances the clock by several TTLs, as fast as heartbeats allow.
async fn advance_several_ttls(world: &World, held: u64) {
    for _ in 0..3 {
        world.advance(PERMIT_TTL * 9 / 10);
        until_heartbeats(world, held).await;
    }
}

async fn acquire(limiter: &Limiter) -> Admission {
    let result = admit(limiter).await;
    assert!(admitted_by_store(&result), "{result:?}");
    result.expect("a permit")
}

/// As with one runtime per core: that of the first request ends, the others go on. One of one thread stands still between its
/// `block_on`s.
#[test]
fn permits_are_renewed_when_the_runtime_that_acquired_the_first_has_ended_or_stands_still() {
    for world in World::both() {
        for ends in [true, false] {
            let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
            let (one, other) = (current_thread(), multi_thread(1));
            let first = one.block_on(acquire(&limiter));
            let second = other.block_on(acquire(&limiter));
            one.block_on(async { drop(first) });
            one.block_on(until_free(&limiter, MAX_PERMITS - 1));
            let still = Some(one).filter(|_| !ends);
            other.block_on(advance_several_ttls(&world, 1));
            assert_eq!(other.block_on(free(&limiter)), MAX_PERMITS - 1);
            other.block_on(async { drop(second) });
            other.block_on(until_free(&limiter, MAX_PERMITS));
            drop(still);
        }
    }
}

/// Without permits there are no heartbeats: an idle application sends nothing.
#[tokio::test]
async fn nothing_is_sent_while_nothing_is_held() {
    let world = World::redis();
    let server = world.server();
    let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
    let held = fill(&limiter).await;
    until_heartbeats(&world, MAX_PERMITS).await;
    drop(held);
    until_free(&limiter, MAX_PERMITS).await;
    server.reset_stats();
    tokio::time::sleep(PERMIT_TTL).await;
    assert_eq!(server.calls("evalsha"), 0);
}

/// What a runtime's tasks hold is dropped with them, when nothing can be sent any more.
#[test]
fn a_runtime_that_ends_with_requests_in_flight_does_end() {
    for world in World::both() {
        for own_runtime in [current_thread, || multi_thread(1)] {
            let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
            let held = limiter.clone();
            on_bare_thread(move || {
                let runtime = own_runtime();
                runtime.block_on(async {
                    for _ in 0..MAX_PERMITS {
                        let admission = acquire(&held).await;
                        tokio::spawn(async move {
                            std::future::pending::<()>().await;
                            drop(admission);
                        });
                    }
                    tokio::task::yield_now().await;
                });
            });
            world.advance(PERMIT_TTL);
            assert_eq!(current_thread().block_on(free(&limiter)), MAX_PERMITS);
        }
    }
}

/// Without timers, and without a runtime: the IO thread renews them.
#[test]
fn permits_that_are_taken_where_no_task_could_renew_them_are_renewed_and_released() {
    let take = |limiter: &Limiter| -> Vec<_> {
        let admit = || limiter.admit(KEY);
        let call = |_| admit().now().unwrap_or_else(|_| admit().blocking());
        let held: Vec<_> = (0..MAX_PERMITS).map(call).collect();
        assert!(held.iter().all(admitted_by_store), "{held:?}");
        held
    };
    let without_timers = Builder::new_current_thread().build().expect("a runtime");
    let other = multi_thread(1);
    for world in World::both() {
        let limiter = world.limiter([permit_policy(PERMIT_TTL)]);
        for in_runtime in [false, true] {
            let on_thread = limiter.clone();
            let held = match in_runtime {
                false => on_bare_thread(move || take(&on_thread)),
                true => without_timers.block_on(async { take(&limiter) }),
            };
            other.block_on(advance_several_ttls(&world, MAX_PERMITS));
            assert_eq!(other.block_on(free(&limiter)), 0);
            on_bare_thread(move || drop(held));
            other.block_on(until_free(&limiter, MAX_PERMITS));
        }
    }
}

const TASKS_URL: &str = "TOLLGATE_INFLIGHT_TASKS_URL";

/// The runtime of the thread `tollgate`, on which a blocking call is polled.
fn background_runtime() -> Handle {
    let found = Arc::new(OnceLock::new());
    let own = found.clone();
    let store = StubStore::responding(move |_| {
        own.get_or_init(Handle::current);
        None
    });
    let limiter = build(Limiter::builder().store(store), [permit_policy(LONG_TTL)]);
    on_bare_thread(move || drop(limiter.admit(KEY).blocking()));
    found.get().expect("a runtime").clone()
}

/// Runs as a process of its own, below. It does nothing in a plain run of the tests.
#[test]
fn child_process_that_drops_its_limiters() {
    let Ok(url) = env::var(TASKS_URL) else { return };
    let (own, background) = (multi_thread(1), background_runtime());
    own.block_on(async {
        for in_process in [true, false] {
            for _ in 0..20 {
                let redis = store(url.clone());
                for _ in 0..50 {
                    let builder = match in_process {
                        true => Limiter::builder(),
                        false => Limiter::builder().store(redis.clone()),
                    };
                    let day = permit_policy(secs(86_400));
                    let limiter = build(builder, [day]);
                    drop(limiter.admit(KEY).await.expect("a permit"));
                }
            }
        }
        let tasks = || [&Handle::current(), &background].map(|of| of.metrics().num_alive_tasks());
        until("there is no task", async || tasks() == [0, 0]).await;
    });
}

#[test]
fn dropped_limiters_leave_no_task() {
    let server = Server::start();
    let child =
        tollgate_tests::child::test(module_path!(), "child_process_that_drops_its_limiters")
            .env(TASKS_URL, server.url())
            .output()
            .expect("a process");
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}");
}
