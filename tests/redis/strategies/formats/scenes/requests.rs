//! What requests under several policies store, and how keys are named.

use tollgate::store::RedisStoreBuilder;
use tollgate_tests::prelude::*;

use super::{Scene, policy, scene};
use crate::strategies::formats::calls::{check, check_each, read_epoch, reset, script, wait};

pub(super) fn all() -> Vec<Scene> {
    let scenes = [several(), names(), stores()];
    scenes.into_iter().flatten().collect()
}

/// Several policies in a request: all or nothing, rejections that charge, shadows.
fn several() -> Vec<Scene> {
    let together = scene(
        "several policies",
        || {
            vec![
                policy("second", "3/s", Gcra),
                policy("minute", "10/min", SlidingWindow::buckets(6)),
                policy("day", "50/day", CalendarWindow::utc()),
                policy(
                    "exports",
                    "2 concurrent",
                    Concurrency::with_ttl(secs(3_600)),
                ),
            ]
        },
        script(
            "wait 123456us, check alice, wait 1ms, check alice, wait 1ms, check alice, \
             check second=bob day=team cost 2, check second=carol day=team times 9",
        ),
        script(
            "check alice, wait 10s, check second=bob day=team times 9, \
             check minute=alice times 20",
        ),
    );
    let rejected = scene(
        "charged rejections",
        || {
            vec![
                policy("window", "3/min", FixedWindow).charge_rejected(true),
                policy("rate", "3/min", Gcra).charge_rejected(true),
                policy("log", "3/min", SlidingLog).charge_rejected(true),
            ]
        },
        script(
            "wait 123456us, check alice cost 2, check alice cost 2, check alice cost 2, \
             check bob times 5",
        ),
        script("wait 25s, check alice, check bob, wait 36s, check alice, check bob"),
    );
    let shadows = scene(
        "shadows",
        || {
            vec![
                policy("live", "3/min", Gcra),
                policy("beside", "2/min", FixedWindow).shadow(),
                policy("candidate", "5/min", TokenBucket).shadow_of("live"),
            ]
        },
        script("wait 123456us, check alice, check alice cost 2, check alice, check bob times 7"),
        script("check alice, check bob, wait 21s, check alice, check bob"),
    );
    vec![together, rejected, shadows]
}

/// Names of keys: readable and hashed, tuples, and policies and prefixes with other letters.
fn names() -> Vec<Scene> {
    let address = |text: &str| text.parse::<std::net::IpAddr>().expect(text);
    let [tenant, user, long] = ["tenant", "user", "a key of more than 23 characters"].map(Key::new);
    let keys = scene(
        "keys",
        || {
            vec![
                policy("burst", "5/min", Gcra),
                policy("a policy: {100%}, v1", "5/min", FixedWindow),
            ]
        },
        [
            wait(Duration::from_micros(123_456)),
            check(user),
            check(7_u64),
            check("/users/1@a.example"),
            check("12345678901234567890123"),
            check(long),
            check(""),
            check("{slot}"),
            check("\u{e9}"),
            check(Key::new(b"\xff\x00")),
            check(Key::secret("token")),
            check(Key::secret_with(&[7; 32], "token")),
            check(address("192.0.2.1")),
            check(address("2001:db8:1:2::5")),
            check(Key::network(address("192.0.2.1"), 24, 48)),
            check(Key::network(address("2001:db8:1:2::5"), 24, 48)),
            check(Key::network(address("2001:db8:1:2::5"), 24, 128)),
            check(Key::tuple([tenant, user])),
            check(Key::tuple([tenant, long])),
            check(Key::tuple([Key::tuple([tenant, user]), user])),
            check(Key::tuple([user])),
            check(Key::tuple::<Key>([])),
            check(KEY),
            check(Key::missing()),
        ],
        [],
    );
    let prefixed = |name, store| Scene {
        store,
        ..scene(
            name,
            || {
                vec![
                    policy("p", "5/min", Gcra),
                    policy("q", "5/min", TokenBucket),
                ]
            },
            [check("alice"), check("bob").cost(2)],
            [check("alice").cost(4), check("bob").cost(4)],
        )
    };
    vec![
        keys,
        prefixed("another prefix", |store| {
            store
                .rejection_cache_staleness(Duration::ZERO)
                .prefix("my-app.eu:")
        }),
        prefixed("no prefix", |store| {
            store.rejection_cache_staleness(Duration::ZERO).prefix("")
        }),
    ]
}

/// What the store adds: the epoch of cached rejections, and hash tags on a cluster.
fn stores() -> Vec<Scene> {
    // A process whose clock is frozen caches rejections for good, and reads the epoch once.
    fn caching(store: RedisStoreBuilder) -> RedisStoreBuilder {
        store.rejection_cache_clock(ManualClock::default())
    }
    let epoch = Scene {
        store: caching,
        ..scene(
            "epoch",
            || vec![policy("p", "1/h", FixedWindow)],
            script("wait 123456us, check alice, check alice, read epoch, wait 500ms, check bob"),
            [check("carol"), check("carol"), read_epoch()],
        )
    };
    let renewed = Scene {
        store: caching,
        ..scene(
            "epoch, ended by a reset",
            || vec![policy("p", "1/h", FixedWindow)],
            [check("alice"), check("bob"), check("bob"), read_epoch()],
            [reset("bob"), check("bob")],
        )
    };
    let cluster = |name, store| Scene {
        cluster: true,
        store,
        ..scene(
            name,
            || {
                vec![
                    policy("a", "5/min", Gcra),
                    policy("b", "3/min", FixedWindow),
                    policy("candidate", "2/min", Gcra).shadow_of("b"),
                ]
            },
            [
                wait(Duration::from_micros(123_456)),
                check("alice"),
                check("192.0.2.1").cost(2),
                check("{slot}"),
                check(KEY),
                // Across slots: admitted, and rejected by one of the two.
                check_each([("a", Key::new("carol")), ("b", Key::new("dave"))]).cost(2),
                check_each([("a", Key::new("erin")), ("b", Key::new("dave"))]).cost(2),
            ],
            [
                check("alice").times(9),
                check("192.0.2.1"),
                check_each([("a", Key::new("carol")), ("b", Key::new("dave"))]),
                check_each([("a", Key::new("carol")), ("b", Key::new("dave"))]),
            ],
        )
    };
    vec![
        epoch,
        renewed,
        cluster("cluster", |store| {
            store.rejection_cache_staleness(Duration::ZERO)
        }),
        cluster("cluster, 1024 hash tags", |store| {
            store
                .rejection_cache_staleness(Duration::ZERO)
                .hash_tags(1_024)
        }),
    ]
}
