//! A cost may be any number: the work and the memory of a request do not depend on it, and no sum of charges overflows.

use futures_util::future::poll_immediate;
use tollgate_tests::prelude::*;

use super::support::*;

/// The memory and the commands that a request of this cost, a rejection and two refunds take.
async fn take(world: &World, limiter: &Limiter, cost: u64) -> [i64; 2] {
    let server = world.server();
    server.flush();
    server.reset_stats();
    let held = limiter.admit(KEY).cost(cost).await;
    assert!(admitted_by_store(&held));
    let held = held.expect("room");
    let memory = server.command(&["MEMORY", "USAGE", &server.only_key()]);
    let left = held.decision().policies().next().map(|own| own.remaining());
    let left = left.expect("a policy");
    assert!(!admitted_by_store(&limiter.admit(KEY).cost(left + 1).await));
    assert_eq!(refund(&held, cost / 2).await, cost / 2);
    assert_eq!(refund(&held, cost).await, cost - cost / 2);
    let commands = "lindex llen lpos lrange lrem lset ltrim rpush del pexpireat pexpiretime pttl \
                    zadd zcount zmscore zrangebyscore zrem zscore";
    let calls = commands.split(' ').map(|command| server.calls(command));
    [memory.int(), calls.sum::<u64>() as i64]
}

#[tokio::test]
async fn a_request_takes_as_much_memory_and_as_many_commands_whatever_it_costs() {
    let world = World::redis();
    let rate = quota("100000/h");
    let permits = Concurrency::with_ttl(secs(3_600));
    // The strategies that store each charge, at their largest quotas.
    for policy in [
        Policy::new("list", rate).strategy(ListWindow),
        Policy::new("log", rate).strategy(SlidingLog),
        Policy::new("permits", Quota::concurrent(10_000)).strategy(permits),
    ] {
        let capacity = policy.quota().capacity();
        let limiter = world.limiter([policy]);
        let [few, many] = [2, capacity].map(async |cost| take(&world, &limiter, cost).await);
        let (few, many) = (few.await, many.await);
        // A charge of the whole quota, and its rejection, also find when the next unit comes back.
        let is_same = many[0] <= few[0] + 16 && many[1] <= few[1] + 4;
        assert!(is_same, "{few:?}, {many:?}");
    }
}

/// So many that a list window's list is written anew from the first of them on.
#[tokio::test]
async fn a_large_refund_removes_the_callers_last_units_among_those_of_others() {
    for world in World::both() {
        let limiter = world.single(StrategyKind::List, "10000/h");
        let [alice, bob] = ["alice", "bob"].map(Key::new);
        let charge = |caller: Key, cost| {
            let admit = limiter.admit(Keys::from(KEY).caller(caller)).cost(cost);
            admit.into_future()
        };
        let first = charge(alice, 900).await.expect("room");
        let small = (0..1_400).map(|n| charge(if n % 2 == 0 { bob } else { alice }, 1 + n % 3));
        assert!(join_all(small).await.iter().all(Result::is_ok));
        let policy = limiter.policy("p").expect("a policy");
        let mut listed = policy.callers(KEY).await.expect("callers");
        assert_eq!(refund(&first, 899).await, 899);
        for _ in 0..899 {
            let last = listed.iter().rposition(|caller| *caller == alice);
            listed.remove(last.expect("a unit of the caller"));
        }
        assert_eq!(policy.callers(KEY).await.expect("callers"), listed);
    }
}

/// Twice, as a client that hangs up does it.
#[tokio::test]
async fn huge_charges_dropped_before_their_result_do_not_overflow() {
    for world in World::both() {
        let scene = world.scene(StrategyKind::Gcra, "10/min");
        let admission = scene.admit(1).await.expect("room");
        let policy = admission.policy("p").expect("a policy");
        for _ in 0..2 {
            drop(poll_immediate(Box::pin(policy.charge(u64::MAX))).await);
        }
        policy.charge(u64::MAX).await.expect("a charge");
        policy.settle(u64::MAX).await.expect("a charge");
        assert_eq!(scene.left().await, 0);
    }
}
