//! Requests of one batch are decided one after the other, and none undoes another.

use std::fmt::Debug;

use testkit::Clock;
use tokio::join;
use tollgate_tests::prelude::*;

use crate::store::{results::CallResult, support::*};

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
        let limiter = limiter(
            store(&server),
            [
                strategy.policy("tenant", "10/h"),
                strategy.policy("user", "5/h"),
            ],
        );
        let check =
            |limiter: &Limiter, user: &str, cost| limiter.check(keys_of("acme", user)).cost(cost);
        assert!(admitted_by_store(
            &runtime.block_on(check(&limiter, "a", 4).into_future())
        ));
        in_one_batch(&server, || {
            runtime.block_on(async {
                let (rejected, admitted) = join!(check(&limiter, "a", 5), check(&limiter, "b", 5));
                assert!(!admitted_by_store(&rejected) && admitted_by_store(&admitted));
            });
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
    const ALL: [Self; 6] = [
        Self::Peek,
        Self::Check(0),
        Self::Check(1),
        Self::Check(11),
        Self::Charge(5),
        Self::Reset,
    ];

    /// The result for the key.
    async fn run(self, limiter: &Limiter, key: &str) -> (State, Duration) {
        let key = Key::new(key);
        let status = match self {
            Self::Check(cost) => {
                let decision = limiter.check(key).cost(cost).await;
                let policy = decision.policies().next().expect("a policy");
                return (seen(&decision, policy), policy.reset_after());
            }
            Self::Peek => limiter.peek(key).await,
            Self::Charge(units) => limiter.charge(key, units).await,
            Self::Reset => limiter.reset(key).await,
        };
        let status = status.expect("a response");
        let policy = status.policies().next().expect("a policy");
        (seen(&status, policy), policy.reset_after())
    }
}

/// The state of a key before the operations.
#[derive(Clone, Copy, Debug)]
enum Initial {
    Unused,
    Used,
    UsedUp,
    Immortal,
    /// All of it was charged before the clock stepped back by an hour.
    Ahead,
}

impl Initial {
    const ALL: [Self; 5] = [
        Self::Unused,
        Self::Used,
        Self::UsedUp,
        Self::Immortal,
        Self::Ahead,
    ];

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

/// What a caller sees, except for how long it takes for all to be free again: later requests move that.
fn seen(response: &impl CallResult, policy: PolicyDecision<'_>) -> State {
    (
        admitted_by_store(response),
        policy.remaining(),
        policy.retry_after(),
    )
}

type State = (bool, u64, RetryAfter);

#[test]
fn two_requests_in_one_batch_are_decided_as_if_they_were_sent_separately() {
    let (clock, server) = on_a_clock();
    let runtime = current_thread();
    let mut failures = Vec::new();
    for strategy in EACH {
        let limiter = single(&server, strategy, "10/min");
        for before in Initial::ALL {
            for first in Operation::ALL {
                for second in Operation::ALL {
                    runtime.block_on(async {
                        before.prepare(&limiter, &server, &clock).await;
                        let run = |question: Operation, key| question.run(&limiter, key);
                        let (a, b) = join!(run(first, "together"), run(second, "together"));
                        let (x, y) = (run(first, "apart").await, run(second, "apart").await);
                        let mut fail = |what: &str, left: &dyn Debug, right: &dyn Debug| {
                            let case = format!("{strategy:?} {before:?} {first:?}, {second:?}");
                            failures.push(format!("{case}: {what}: {left:?}, apart {right:?}"));
                        };
                        if a.0 != x.0 {
                            fail("the first", &a.0, &x.0);
                        }
                        if b.0 != y.0 {
                            fail("the second", &b.0, &y.0);
                        }
                        for seconds in [1, 25] {
                            clock.advance(secs(seconds));
                            let peek = |key| run(Operation::Peek, key);
                            let (together, apart) = join!(peek("together"), peek("apart"));
                            if together != apart {
                                fail(&format!("{seconds} s on"), &together, &apart);
                            }
                        }
                        if let Initial::Immortal = before {
                            let immortal = server.immortal_keys();
                            if !immortal.is_empty() {
                                fail("immortal", &immortal, &"");
                            }
                        }
                    });
                }
            }
        }
    }
    let (count, some) = (failures.len(), failures.iter().take(60).collect::<Vec<_>>());
    assert!(failures.is_empty(), "{count}: {some:#?}");
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
            let responses = runtime.block_on(join_all(checks));
            let left = responses.iter().map(|response| {
                let policy = response.policies().next().expect("a policy");
                (admitted_by_store(response), policy.remaining())
            });
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
        assert!(
            admitted_by_store(&first) && !admitted_by_store(&second) && admitted_by_store(&other)
        );
        assert_eq!([first.admitted(), second.admitted()], [10, 0]);
    });
}

#[test]
fn requests_of_many_kinds_in_one_batch_all_get_their_own_results() {
    let server = Server::start();
    let runtime = current_thread();
    let store = store(&server);
    let both = limiter(
        store.clone(),
        [
            StrategyKind::Gcra.policy("a", "100/h"),
            StrategyKind::Fixed.policy("b", "50/h"),
        ],
    );
    let one = limiter(store, [StrategyKind::Fixed.policy("b", "50/h")]);
    in_one_batch(&server, || {
        runtime.block_on(async {
            let (x, y, z, charged, seen) = join!(
                both.check("key").cost_for("a", 7),
                one.check("key").cost(40),
                both.check("key").cost(10),
                one.charge("key", 4),
                both.peek("key"),
            );
            assert!(admitted_by_store(&x) && admitted_by_store(&y) && admitted_by_store(&charged));
            assert!(!admitted_by_store(&z), "41 of 50 are taken: {z:?}");
            let [a, b] = ["a", "b"].map(str::to_owned);
            assert_eq!(remaining(x.policies()), [(a.clone(), 93), (b.clone(), 49)]);
            assert_eq!(remaining(y.policies()), [(b.clone(), 9)]);
            assert_eq!(remaining(z.policies()), [(a.clone(), 93), (b.clone(), 9)]);
            assert_eq!(
                remaining(charged.expect("a response").policies()),
                [(b.clone(), 5)]
            );
            assert_eq!(
                remaining(seen.expect("a response").policies()),
                [(a, 93), (b, 5)]
            );
        });
    });
}

fn remaining<'a>(policies: impl Iterator<Item = PolicyDecision<'a>>) -> Vec<(String, u64)> {
    let left = policies.map(|policy| (policy.policy().to_owned(), policy.remaining()));
    left.collect()
}
