//! Requests of one batch are decided one after the other, and none undoes another.

use testkit::Clock;
use tokio::join;
use tollgate_tests::{prelude::*, results::CallResult};

use crate::store::support::*;

/// Requests that one task makes before its runtime's workers run share a batch, in this order.
fn in_one_batch(server: &Server, requests: impl FnOnce()) {
    server.reset_stats();
    requests();
    let calls = server.calls("evalsha") + server.calls("eval");
    assert!(calls <= 2, "{calls} calls were no single batch");
}

/// A tenant's key is part of many entries. One that another policy rejects must not end it early for those that follow.
#[test]
fn a_rejection_by_one_policy_does_not_shorten_the_ttl_of_a_key_that_others_share() {
    let (clock, server) = on_a_clock();
    let runtime = current_thread();
    for strategy in EACH {
        let policies = [("tenant", "10/h"), ("user", "5/h")];
        let policies = policies.map(|(name, quota)| strategy.policy(name, quota));
        let limiter = limiter(store(&server), policies);
        let check = |user, cost| {
            limiter
                .check(keys_of("acme", user))
                .cost(cost)
                .into_future()
        };
        assert!(admitted_by_store(&runtime.block_on(check("a", 4))));
        in_one_batch(&server, || {
            let checks = join_all([check("a", 5), check("b", 5)]);
            let decisions = runtime.block_on(checks);
            let admitted: Vec<_> = decisions.iter().map(admitted_by_store).collect();
            assert_eq!(admitted, [false, true]);
        });
        // By the first four units alone, the tenant would be idle by now.
        clock.advance(secs(25 * 60));
        let left = match strategy.is_even() {
            true => 9 - 25 / 6,
            false => 9,
        };
        let tenant = runtime.block_on(used(&limiter, keys_of("acme", "c")));
        assert_eq!(tenant[0], left, "{strategy:?}");
    }
}

fn keys_of(tenant: &str, user: &str) -> Keys {
    [("tenant", Key::new(tenant)), ("user", Key::new(user))].into()
}

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Peek,
    Check(u64),
    Charge(u64),
    Reset,
}

impl Operation {
    const ALL: [Self; 6] = {
        use Operation::{Charge, Check, Peek, Reset};
        [Peek, Check(0), Check(1), Check(11), Charge(5), Reset]
    };

    /// The result for the key.
    async fn run(self, limiter: &Limiter, key: &str) -> (State, Duration) {
        let key = Key::new(key);
        let status = match self {
            Self::Check(cost) => {
                let decision = limiter.check(key).cost(cost).await;
                return seen(&decision, decision.count("p"));
            }
            Self::Peek => limiter.peek(key).await,
            Self::Charge(units) => limiter.charge(key, units).await,
            Self::Reset => limiter.reset(key).await,
        };
        let status = status.expect("a response");
        seen(&status, status.count("p"))
    }
}

/// The state of a key before the operations.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Initial {
    Unused,
    Used,
    UsedUp,
    Immortal,
    /// All of it was charged before the clock stepped back by an hour.
    Ahead,
}

impl Initial {
    const ALL: [Self; 5] = {
        use Initial::{Ahead, Immortal, Unused, Used, UsedUp};
        [Unused, Used, UsedUp, Immortal, Ahead]
    };

    async fn prepare(self, limiter: &Limiter, server: &Server, clock: &Clock) {
        server.flush();
        clock.set(START);
        if let Self::Ahead = self {
            clock.advance(secs(3_600));
        }
        let units = match self {
            Self::Unused => 0,
            Self::Used | Self::Immortal => 4,
            Self::UsedUp | Self::Ahead => 10,
        };
        let check = |key| limiter.check(Key::new(key)).cost(units);
        let (together, apart) = join!(check("together"), check("apart"));
        assert!(admitted_by_store(&together) && admitted_by_store(&apart));
        if let Self::Immortal = self {
            for key in server.keys() {
                server.command(&["PERSIST", &key]).ok();
            }
        }
        clock.set(START);
    }
}

type State = (bool, u64, RetryAfter);

/// What a caller sees, and how long it takes for all to be free again: later requests move that.
fn seen(response: &impl CallResult, policy: PolicyDecision<'_>) -> (State, Duration) {
    let is_admitted = admitted_by_store(response);
    let state = (is_admitted, policy.remaining(), policy.retry_after());
    (state, policy.reset_after())
}

#[test]
fn two_requests_in_one_batch_are_decided_as_if_they_were_sent_separately() {
    let (clock, server) = on_a_clock();
    let runtime = current_thread();
    for strategy in EACH {
        let limiter = single(&server, strategy, "10/min");
        for (before, (first, second)) in each_with(Initial::ALL, pairs_of_operations()) {
            let _case = Case(format!("{strategy:?} {before:?} {first:?}, {second:?}"));
            runtime.block_on(async {
                before.prepare(&limiter, &server, &clock).await;
                let run = |operation: Operation, key| operation.run(&limiter, key);
                let (a, b) = join!(run(first, "together"), run(second, "together"));
                let (x, y) = (run(first, "apart").await, run(second, "apart").await);
                assert_eq!((a.0, b.0), (x.0, y.0));
                for seconds in [1, 25] {
                    clock.advance(secs(seconds));
                    let peek = |key| run(Operation::Peek, key);
                    let (together, apart) = join!(peek("together"), peek("apart"));
                    assert_eq!(together, apart, "{seconds} s on");
                }
                assert!(before != Initial::Immortal || server.immortal_keys().is_empty());
            });
        }
    }
}

/// Each operation after each.
fn pairs_of_operations() -> [(Operation, Operation); 36] {
    let pairs: Vec<_> = each_with(Operation::ALL, Operation::ALL).collect();
    pairs.try_into().expect("six of six")
}

/// However many requests there are for one key, a later one for another goes with them.
#[test]
fn a_hot_key_delays_no_other_key() {
    let (_clock, server) = on_a_clock();
    let runtime = current_thread();
    for strategy in EACH {
        let limiter = single(&server, strategy, "3/h");
        let check = |key: String| limiter.check(key).into_future();
        in_one_batch(&server, || {
            let hot = join_all((0..5_000).map(|_| check("hot".into())));
            let others = join_all((0..127).map(|key: u32| check(key.to_string())));
            let (hot, others) = runtime.block_on(async { join!(hot, others) });
            assert_eq!(hot.iter().filter(|one| admitted_by_store(one)).count(), 3);
            assert!(others.iter().all(admitted_by_store), "{strategy:?}");
        });
        server.flush();
    }
}

#[test]
fn equal_requests_in_one_batch_are_served_first_come_first_served() {
    let (_clock, server) = on_a_clock();
    let runtime = current_thread();
    for strategy in EACH {
        let limiter = single(&server, strategy, "3/h");
        in_one_batch(&server, || {
            let checks = (0..5).map(|_| limiter.check("key").into_future());
            let decisions = runtime.block_on(join_all(checks));
            let left = decisions
                .iter()
                .map(|one| (admitted_by_store(one), one.left("p")));
            let expected = [(true, 2), (true, 1), (true, 0), (false, 0), (false, 0)];
            assert_eq!(left.collect::<Vec<_>>(), expected, "{strategy:?}");
        });
    }
}

/// A sum past all numbers would end the worker, and all requests with it.
#[test]
fn a_check_for_more_requests_than_can_be_counted_is_admitted_what_is_left() {
    let server = Server::start();
    let runtime = current_thread();
    let limiter = single(&server, StrategyKind::Gcra, "10/h");
    runtime.block_on(async {
        let all = || limiter.check("key").times(u64::MAX);
        let (first, second, other) = join!(all(), all(), limiter.check("other"));
        let admitted = [first, second, other].map(|one| (admitted_by_store(&one), one.admitted()));
        assert_eq!(admitted, [(true, 10), (false, 0), (true, 1)]);
    });
}

#[test]
fn requests_of_many_kinds_in_one_batch_all_get_their_own_results() {
    let server = Server::start();
    let runtime = current_thread();
    let store = store(&server);
    let a = StrategyKind::Gcra.policy("a", "100/h");
    let b = StrategyKind::Fixed.policy("b", "50/h");
    let both = limiter(store.clone(), [a, b.clone()]);
    let one = limiter(store, [b]);
    in_one_batch(&server, || {
        runtime.block_on(async {
            let (x, y, z, charged, seen) = join!(
                both.check("key").cost_for("a", 7),
                one.check("key").cost(40),
                both.check("key").cost(10),
                one.charge("key", 4),
                both.peek("key"),
            );
            let (charged, seen) = (charged.expect("a response"), seen.expect("a response"));
            assert!(admitted_by_store(&x) && admitted_by_store(&y) && admitted_by_store(&charged));
            assert!(!admitted_by_store(&z), "41 of 50 are taken: {z:?}");
            assert_eq!([x.left("a"), x.left("b")], [93, 49]);
            assert_eq!([z.left("a"), z.left("b")], [93, 9]);
            assert_eq!([seen.left("a"), seen.left("b")], [93, 5]);
            assert_eq!([y.left("b"), charged.left("b")], [9, 5]);
            assert_eq!([y.policies().len(), charged.policies().len()], [1, 1]);
        });
    });
}
