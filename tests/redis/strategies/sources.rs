//! Each way in which the articles' limiters go wrong, shown on their own commands, and what becomes of it here.

use testkit::{Connection, Reply, Server};

use crate::strategies::support::{KEY, StrategyKind, World, ms, secs, send, send_concurrently};

/// A client that speaks to the server as the articles' programs do.
pub(crate) struct Client(Connection);

impl Client {
    pub(crate) fn of(server: &Server) -> Self {
        Self(server.connect().expect("a connection"))
    }

    pub(crate) fn call(&mut self, args: &[&str]) -> Reply {
        self.0.call(args).expect("a response")
    }

    /// The value of a counter.
    pub(crate) fn get(&mut self, key: &str) -> i64 {
        match self.call(&["GET", key]) {
            Reply::Nil => 0,
            reply => reply.text().parse().expect("a number"),
        }
    }

    pub(crate) fn eval(&mut self, script: &str, keys: &[&str], args: &[&str]) -> Reply {
        let count = keys.len().to_string();
        let head = ["EVAL", script, &count];
        self.call(&[&head[..], keys, args].concat())
    }

    /// Rows 1 and 2 of the transaction: counts, and lets the counter end.
    pub(crate) fn count(&mut self, key: &str, seconds: &str) {
        self.call(&["MULTI"]).ok();
        self.call(&["INCR", key]).ok();
        self.call(&["EXPIRE", key, seconds]).ok();
        self.call(&["EXEC"]).ok();
    }
}

/// "Rate limiter 1": reads, and counts if there is room.
fn limiter_1(client: &mut Client, key: &str) -> bool {
    let passes = client.get(key) <= 10;
    if passes {
        client.count(key, "10");
    }
    passes
}

/// "Rate limiter 2", as one script.
pub(crate) const LIMITER_2: &str = "
    local current = redis.call('INCR', KEYS[1])
    if current == 1 then
      redis.call('EXPIRE', KEYS[1], 1)
    end
    return current";

/// `count_limit.lua`.
pub(crate) const COUNT_LIMIT: &str = "
    local current = redis.call('INCR', KEYS[1])
    if current == 1 then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    if current > tonumber(ARGV[1]) then
      return -1
    end
    return current";

pub(crate) fn count_limit(client: &mut Client, limit: &str, period_ms: &str) -> bool {
    let response = client.eval(COUNT_LIMIT, &["count"], &[limit, period_ms]);
    response.ok().int() != -1
}

/// The token bucket: tokens and time in two keys.
const TOKEN_BUCKET: &str = "
    local capacity, rate, now, requested = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
    local ttl = math.floor(2 * capacity / rate)
    local tokens = tonumber(redis.call('GET', KEYS[1]) or capacity)
    local last = tonumber(redis.call('GET', KEYS[2]) or 0)
    local filled = math.min(capacity, tokens + math.max(0, now - last) * rate)
    local passes = filled - requested >= 1
    if passes then
      filled = filled - requested
    end
    redis.call('SETEX', KEYS[1], ttl, filled)
    redis.call('SETEX', KEYS[2], ttl, now)
    return passes and 1 or 0";

/// Calls the articles' token bucket at `now_ms` by the client's clock.
pub(crate) fn token(client: &mut Client, capacity: &str, rate: &str, now_ms: u64) -> bool {
    let now = now_ms.to_string();
    let keys = ["tokens", "time"];
    client
        .eval(TOKEN_BUCKET, &keys, &[capacity, rate, &now, "1"])
        .ok()
        .int()
        == 1
}

pub(crate) fn passed(n: u64, mut send: impl FnMut() -> bool) -> u64 {
    (0..n).map(|_| u64::from(send())).sum()
}

// Row 1: "Rate limiter 1".

#[tokio::test]
async fn callers_that_all_read_before_one_increments_all_pass() {
    let world = World::redis();
    let (mut alice, mut bob) = (Client::of(world.server()), Client::of(world.server()));
    for _ in 0..10 {
        assert!(limiter_1(&mut alice, "second"));
    }
    // One more unit by its own rule, and both find it free.
    let looks = [alice.get("second"), bob.get("second")];
    assert_eq!(looks.map(|count| count <= 10), [true, true]);
    alice.count("second", "10");
    bob.count("second", "10");
    assert_eq!(alice.get("second"), 12);

    for strategy in StrategyKind::ALL {
        world.server().flush();
        let limiter = world.single(strategy, "10/h");
        assert_eq!(send(&limiter, KEY, 9).await, 9);
        assert_eq!(
            send_concurrently(&limiter, KEY, 64).await,
            1,
            "{strategy:?}"
        );
    }
}

#[tokio::test]
async fn an_eleventh_request_passes_where_ten_are_allowed() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(passed(20, || limiter_1(&mut client, "second")), 11);

    for world in World::both() {
        for strategy in StrategyKind::ALL {
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/s")]);
            assert_eq!(send(&limiter, KEY, 20).await, 10, "{strategy:?}");
        }
    }
}

#[tokio::test]
async fn clients_whose_clocks_differ_count_in_different_windows() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    // One client's clock is a second ahead of the other's.
    let seconds = ["client:1800000000", "client:1800000001"];
    let all = seconds.map(|second| passed(20, || limiter_1(&mut client, second)));
    assert_eq!(all, [11, 11]);

    // Here the server's clock names the window. It is years from this machine's own, which must not matter, not even
    // where windows are the calendar's, whose bounds the client computes.
    for quota in ["10/s", "10/day", "10/week", "10/month"] {
        let clients = [
            world.single(StrategyKind::Calendar, quota),
            world.single(StrategyKind::Calendar, quota),
        ];
        let mut all = 0;
        for client in clients.iter().cycle().take(4) {
            all += send(client, KEY, 5).await;
        }
        assert_eq!(all, 10, "{quota}");
        world.server().flush();
    }
}

/// Ten a second. One request opens the window; then all that pass at its end and, 200 ms later, at the next one's
/// beginning.
#[tokio::test]
async fn at_the_edge_of_two_windows_a_double_burst_passes() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let mut article = |world: &World| {
        let second = format!("client:{}", world.now() / 1_000_000);
        passed(30, || limiter_1(&mut client, &second))
    };
    world.advance(ms(900));
    let before = article(&world);
    world.advance(ms(200));
    assert_eq!(before + article(&world), 22);

    let mut client = Client::of(world.server());
    assert!(count_limit(&mut client, "10", "1000"));
    world.advance(ms(900));
    let before = passed(30, || count_limit(&mut client, "10", "1000"));
    world.advance(ms(200));
    assert_eq!(
        before + passed(30, || count_limit(&mut client, "10", "1000")),
        19
    );

    for world in World::both() {
        // Within 200 ms, around the edge.
        for (strategy, expected) in [
            (StrategyKind::Gcra, 10 + 2),
            (StrategyKind::Bucket, 10 + 2),
            (StrategyKind::Fixed, 9 + 10),
            (StrategyKind::Calendar, 9 + 10),
            (StrategyKind::List, 9 + 10),
            (StrategyKind::Log, 9 + 1),
            (StrategyKind::Sliding(1), 9 + 1),
            (StrategyKind::Sliding(10), 9 + 1),
        ] {
            world.set(crate::strategies::support::START);
            let limiter = world.limiter([strategy.policy(&format!("{strategy:?}"), "10/s")]);
            assert_eq!(send(&limiter, KEY, 1).await, 1);
            world.advance(ms(900));
            let before = send(&limiter, KEY, 30).await;
            world.advance(ms(200));
            let after = send(&limiter, KEY, 30).await;
            assert_eq!(before + after, expected, "{strategy:?} on {}", world.name());
        }
    }
}

// Rows 2 and 3: "Rate limiter 2".

#[tokio::test]
async fn a_crash_between_counting_and_expiring_locks_the_client_out_for_good() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(client.call(&["INCR", "count"]).int(), 1);
    // The result is 1, and the EXPIRE that would follow is lost with the client.
    drop(client);
    let mut client = Client::of(world.server());
    let mut limiter_2 = || client.eval(LIMITER_2, &["count"], &[]).int() <= 10;
    assert_eq!(passed(20, &mut limiter_2), 9);
    world.advance(secs(86_400));
    assert_eq!(passed(20, limiter_2), 0, "a day later");
    assert_eq!(world.server().immortal_keys(), ["count"]);

    // Here there is nothing between them: a count and its end are written in one script, and undone as one.
    for strategy in StrategyKind::ALL {
        world.server().flush();
        let limiter = world.single(strategy, "10/s");
        for _ in 0..20 {
            send(&limiter, KEY, 1).await;
            assert_eq!(world.server().immortal_keys(), [""; 0], "{strategy:?}");
        }
        world.advance(secs(2));
        assert_eq!(send(&limiter, KEY, 20).await, 10, "{strategy:?}");
    }
}

#[tokio::test]
async fn a_key_that_lost_its_ttl_is_never_repaired() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(client.eval(LIMITER_2, &["count"], &[]).int(), 1);
    client.call(&["PERSIST", "count"]).ok();
    assert_eq!(client.eval(LIMITER_2, &["count"], &[]).int(), 2);
    assert_eq!(client.call(&["PTTL", "count"]).int(), -1);

    // By a rejected request, a peek, and an admitted request, if it writes a TTL at all: GCRA's does when the arrival
    // time crosses a full minute.
    for strategy in StrategyKind::ALL {
        for (used, touch) in [(3, "passes"), (10, "is rejected"), (3, "looks")] {
            world.server().flush();
            let limiter = world.single(strategy, "10/min");
            assert_eq!(send(&limiter, KEY, used).await, used);
            let key = world.server().only_key();
            if matches!((strategy, touch), (StrategyKind::Gcra, "passes")) {
                world.advance(secs(59));
            }
            client.call(&["PERSIST", &key]).ok();
            match touch {
                "looks" => drop(limiter.peek(KEY).await.expect("a response")),
                _ => drop(limiter.check(KEY).await),
            }
            let ttl = client.call(&["PTTL", &key]).int();
            let most = match strategy {
                StrategyKind::Sliding(1) | StrategyKind::Calendar => 120_000,
                StrategyKind::Gcra => 126_000,
                _ => 66_000,
            };
            assert!((1..=most).contains(&ttl), "{strategy:?} {touch}: {ttl}");
            world.advance(ms(most as u64 + 1));
            assert_eq!(send(&limiter, KEY, 20).await, 10, "{strategy:?} {touch}");
        }
    }
}

// Row 4: the list.
