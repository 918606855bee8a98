//! A cost may be any number: the work and the memory of a request do not depend on it, and no sum of charges overflows.

use futures_util::future::poll_immediate;
use tollgate_tests::prelude::*;

use super::support::*;

/// The memory and the commands that a request of this cost, a rejection and two refunds take.
async fn take(world: &World, limiter: &Limiter, cost: u64) -> [i64; 2] {
    let server = world.server();
    server.flush();
    server.reset_stats();
    let mut held = limiter.check(KEY).cost(cost).await;
    assert!(admitted_by_store(&held));
    let memory = server.command(&["MEMORY", "USAGE", &server.only_key()]);
    let left = held.policies().next().expect("a policy").remaining();
    assert!(!admitted_by_store(&limiter.check(KEY).cost(left + 1).await));
    assert_eq!(refund(&mut held, cost / 2).await, cost / 2);
    assert_eq!(refund(&mut held, cost).await, cost - cost / 2);
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

/// Twice, as a client that hangs up does it.
#[tokio::test]
async fn huge_charges_dropped_before_their_result_do_not_overflow() {
    for world in World::both() {
        let scene = world.scene(StrategyKind::Gcra, "10/min");
        let admission = scene.check(1).await.into_result().expect("room");
        let policy = admission.policy("p").expect("a policy");
        for _ in 0..2 {
            drop(poll_immediate(Box::pin(policy.charge(u64::MAX))).await);
        }
        policy.charge(u64::MAX).await.expect("a charge");
        policy.settle(u64::MAX).await.expect("a charge");
        assert_eq!(scene.left().await, 0);
    }
}
