//! A server that can't write, without memory or without rights.

use testkit::Clock;
use tollgate_tests::prelude::*;

use crate::store::support::*;

/// Sets how many bytes a server may use: with one it is full, whatever it frees.
fn set_memory(server: &Server, bytes: &str) {
    server.command(&["CONFIG", "SET", "maxmemory", bytes]).ok();
}

#[tokio::test]
async fn a_full_redis_charges_no_policy_of_a_failed_request() {
    let clock = Clock::at(START);
    let server = Server::builder()
        .clock(&clock)
        .arg("maxmemory-policy", "noeviction")
        .start();
    for (order, quota) in each_with(PAIRS, quotas(10)) {
        server.flush();
        let both = pair(&server, order, &quota);
        let alone = single(&server, order[0], &quota);
        for key in ["begun", "gone"] {
            assert!(admitted_by_store(&both.check(Key::new(key)).cost(3).await));
        }
        assert!(admitted_by_store(&alone.check("spent").cost(10).await));
        let begun: Vec<_> = server.keys();
        let before: Vec<_> = begun.iter().map(|key| contents(&server, key)).collect();
        set_memory(&server, "1");

        let (begins, goes_on, other, spent, seen) = tokio::join!(
            both.check("new"),
            both.check("begun").cost(2),
            alone.check("another"),
            alone.check("spent"),
            both.peek("begun"),
        );
        for decision in [begins, goes_on, other] {
            let error = store_error(&decision);
            assert!(
                matches!(&error, StoreError::Server { code, .. } if &**code == "OOM"),
                "{error:?}"
            );
        }
        // No memory is needed to reject or to peek.
        assert!(!admitted_by_store(&spent) && admitted_by_store(&seen));
        assert!(both.charge("begun", 1).await.is_err());
        let after: Vec<_> = begun.iter().map(|key| contents(&server, key)).collect();
        assert_eq!(after, before, "{order:?}, {quota}");

        // To forget a key needs none either.
        assert!(admitted_by_store(&both.reset("gone").await));

        set_memory(&server, "0");
        assert_eq!(used(&both, "begun").await, [3, 3], "{order:?}, {quota}");
        assert_eq!(used(&both, "new").await, [0, 0], "{order:?}, {quota}");
        assert_eq!(used(&alone, "another").await, [0], "{order:?}, {quota}");
        assert!(
            admitted_by_store(&both.check("new").await),
            "service goes on"
        );
        assert_eq!(server.immortal_keys(), [""; 0]);
    }
}

/// The commands that scripts use, and those that bring them to the server.
const COMMANDS: [&str; 18] = [
    "evalsha",
    "eval",
    "time",
    "get",
    "set",
    "incrby",
    "pttl",
    "pexpiretime",
    "pexpireat",
    "del",
    "lindex",
    "llen",
    "lpos",
    "lrange",
    "lrem",
    "lset",
    "ltrim",
    "rpush",
];

/// Without these nothing can be counted by one strategy or another; without the others refunds, repairs and clean-ups
/// may fail.
const NEEDED: [&str; 10] = [
    "eval",
    "evalsha",
    "get",
    "lindex",
    "lset",
    "pexpireat",
    "pexpiretime",
    "rpush",
    "set",
    "time",
];

/// Before 7.0 the expiry of a key is read by its TTL.
fn known_to<const N: usize>(server: &Server, commands: [&'static str; N]) -> [&'static str; N] {
    let old = server.version() < (7, 0);
    commands.map(|command| match command {
        "pexpiretime" if old => "pttl",
        other => other,
    })
}

#[tokio::test]
async fn a_user_without_one_of_the_commands_charges_nothing_for_a_failed_request() {
    let (_clock, server) = on_a_clock();
    let mut needed = BTreeSet::new();
    for command in known_to(&server, COMMANDS) {
        for (order, quota) in each_with(PAIRS, quotas(10)) {
            server.flush();
            server.command(&["SCRIPT", "FLUSH"]).ok();
            let all = pair(&server, order, &quota);
            server.acl("gate", "secret", &format!("~* +@all -{command}"));
            let policies = [
                order[0].policy("first", &quota),
                order[1].policy("second", &quota),
            ];
            let lacking = limiter(store_at(server.url_as("gate", "secret")), policies);

            // One key is new, one has been charged before, by a user with rights.
            let mut expected = [0, 4];
            if command != "eval" {
                assert!(admitted_by_store(&all.check("begun").cost(4).await));
            } else {
                // Elsewhere the script would be in the server's cache already.
                expected[1] = 0;
            }
            for _ in 0..3 {
                let (new, begun) = tokio::join!(lacking.check("new"), lacking.check("begun"));
                for (decision, charged) in [new, begun].into_iter().zip(&mut expected) {
                    match decision.kind() {
                        DecisionKind::Admitted => *charged += 1,
                        DecisionKind::StoreFailed(StoreError::Server { code, message, .. }) => {
                            needed.insert(command);
                            assert_eq!(&**code, "NOPERM", "without {command}: {message}");
                        }
                        other => panic!("without {command}: {other:?}"),
                    }
                }
            }
            for (key, expected) in ["new", "begun"].into_iter().zip(expected) {
                let used = used(&all, Key::new(key)).await;
                let context = format!("{key} without {command}, {order:?}, {quota}");
                assert_eq!(used, [expected; 2], "{context}");
            }
            assert_eq!(server.immortal_keys(), [""; 0], "without {command}");

            server.acl("gate", "secret", "~* +@all");
            assert!(
                admitted_by_store(&lacking.check("new").await),
                "service goes on"
            );
        }
    }
    assert_eq!(needed, known_to(&server, NEEDED).into());
}

/// The key's name is in a user's rights: the layer needs nothing outside the prefix.
#[tokio::test]
async fn a_user_needs_access_only_to_keys_under_the_prefix() {
    let (_clock, server) = on_a_clock();
    let commands = known_to(&server, COMMANDS)
        .map(|command| format!("+{command}"))
        .join(" ");
    server.acl(
        "gate",
        "secret",
        &format!("~tg:* +ping +unwatch +client {commands}"),
    );
    let store = store_at(server.url_as("gate", "secret"));
    for (period, quota) in PERIODS.into_iter().zip(quotas(2)) {
        let policies =
            EACH.map(|strategy| strategy.policy(&format!("{strategy:?} {period}"), &quota));
        let limiter = limiter(store.clone(), policies);
        for admitted in [true, true, false] {
            assert_eq!(admitted_by_store(&limiter.check("key").await), admitted);
        }
        assert!(admitted_by_store(&limiter.reset("key").await));
        assert!(admitted_by_store(&limiter.check("key").await));
    }
}
