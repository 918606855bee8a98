//! The work and the memory of a request do not depend on its cost.

use tollgate_tests::prelude::*;

use super::support::*;

/// The calls of the commands of scripts.
fn calls(server: &Server) -> u64 {
    let commands = "lindex llen lpos lrange lrem lset ltrim rpush del pexpireat pexpiretime pttl \
                    zadd zcount zmscore zrangebyscore zrem zscore";
    commands
        .split(' ')
        .map(|command| server.calls(command))
        .sum()
}

/// Limiters of the strategies that store each charge, at their largest quotas.
fn limiters(world: &World) -> impl Iterator<Item = (Limiter, u64)> + '_ {
    let rate = quota("100000/h");
    let permits = Concurrency::with_ttl(secs(3_600));
    let policies = [
        Policy::new("list", rate).strategy(ListWindow),
        Policy::new("log", rate).strategy(SlidingLog),
        Policy::new("permits", Quota::concurrent(10_000)).strategy(permits),
    ];
    policies.into_iter().map(|policy| {
        let capacity = policy.quota().capacity();
        (world.limiter([policy]), capacity)
    })
}

/// What a request and its refunds took.
#[derive(Debug)]
struct Taken {
    memory: i64,
    charge: u64,
    rejection: u64,
    partial_refund: u64,
    refund: u64,
}

async fn take(world: &World, limiter: &Limiter, cost: u64) -> Taken {
    let server = world.server();
    server.flush();
    // After what the request before released.
    drop(limiter.peek(KEY).await.expect("a response"));
    let mut before = 0;
    let mut since = || {
        let now = calls(server);
        now - std::mem::replace(&mut before, now)
    };
    since();
    let mut held = limiter.check(KEY).cost(cost).await;
    assert!(admitted_by_store(&held));
    let charge = since();
    let memory = server.command(&["MEMORY", "USAGE", &server.only_key()]);
    let left = held.policies().next().expect("a policy").remaining();
    assert!(!admitted_by_store(&limiter.check(KEY).cost(left + 1).await));
    let rejection = since();
    assert_eq!(refund(&mut held, cost / 2).await, cost / 2);
    let partial_refund = since();
    assert_eq!(refund(&mut held, cost).await, cost - cost / 2);
    Taken {
        memory: memory.int(),
        charge,
        rejection,
        partial_refund,
        refund: since(),
    }
}

#[tokio::test]
async fn a_request_takes_as_much_memory_and_as_many_commands_whatever_it_costs() {
    let world = World::redis();
    for (limiter, capacity) in limiters(&world) {
        let few = take(&world, &limiter, 2).await;
        let many = take(&world, &limiter, capacity).await;
        let both = format!("{few:?}, {many:?}");
        assert!(many.memory <= few.memory + 16, "{both}");
        // A charge of the whole quota also finds when the next unit comes back.
        assert!(many.charge <= few.charge + 2, "{both}");
        assert!(many.rejection <= few.rejection + 2, "{both}");
        assert_eq!(many.partial_refund, few.partial_refund, "{both}");
        assert_eq!(many.refund, few.refund, "{both}");
    }
}

/// Fifty requests in one batch are one charge of an entry for each.
#[tokio::test]
async fn requests_at_once_have_an_entry_each_at_most() {
    let world = World::redis();
    let server = world.server();
    for (limiter, capacity) in limiters(&world) {
        server.flush();
        let cost = capacity / 50;
        let checks = (0..50).map(|_| limiter.check(KEY).cost(cost).into_future());
        let held = join_all(checks).await;
        assert!(held.iter().all(admitted_by_store));
        let key = server.only_key();
        let memory = server.command(&["MEMORY", "USAGE", &key]).int();
        assert!(memory < 20_000, "{key}: {memory}");
        assert_eq!(left(&limiter, KEY).await, 0);
    }
}

/// Neither by a rejection, which has to find when enough units will be back, nor by a refund.
#[tokio::test]
async fn no_request_of_a_long_log_runs_a_command_for_each_entry() {
    let world = World::redis();
    let (limiter, server) = (world.single(StrategyKind::Log, "4000/h"), world.server());
    let mut held = Vec::new();
    for _ in 0..3_000 {
        world.step(1);
        held.push(limiter.check(KEY).await);
    }
    for cost in [1_001, 2_500, 4_000] {
        let before = calls(server);
        assert!(!admitted_by_store(&limiter.check(KEY).cost(cost).await));
        assert!(calls(server) - before < 40, "{cost}");
    }
    for place in [0, 1_500, 2_999] {
        let before = calls(server);
        assert_eq!(refund(&mut held[place], 1).await, 1);
        assert!(calls(server) - before < 40, "{place}");
    }
    // The clock steps back; then half of the log has expired.
    for micros in [-1_000, 3_600_000_000] {
        world.step(micros);
        let before = calls(server);
        assert!(admitted_by_store(&limiter.check(KEY).await));
        assert!(calls(server) - before < 60, "{micros}");
    }
}
