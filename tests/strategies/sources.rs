//! Each way in which the articles' limiters go wrong, shown on their own commands, and what becomes of it here.

use testkit::{Connection, Reply, Server};
use tollgate::{Key, StoreError};

use crate::support::{By, KEY, World, ask, ask_at_once, counted, fault, left, ms, secs};

/// A client that speaks to the server as the articles' programs do.
struct Client(Connection);

impl Client {
    fn of(server: &Server) -> Self {
        Self(server.connect().expect("a connection"))
    }

    fn call(&mut self, args: &[&str]) -> Reply {
        self.0.call(args).expect("an answer")
    }

    /// What stands under a counter.
    fn get(&mut self, key: &str) -> i64 {
        match self.call(&["GET", key]) {
            Reply::Nil => 0,
            reply => reply.text().parse().expect("a number"),
        }
    }

    fn eval(&mut self, script: &str, keys: &[&str], args: &[&str]) -> Reply {
        let count = keys.len().to_string();
        let head = ["EVAL", script, &count];
        self.call(&[&head[..], keys, args].concat())
    }

    /// Rows 1 and 2 of the transaction: counts, and lets the counter end.
    fn count(&mut self, key: &str, seconds: &str) {
        self.call(&["MULTI"]).ok();
        self.call(&["INCR", key]).ok();
        self.call(&["EXPIRE", key, seconds]).ok();
        self.call(&["EXEC"]).ok();
    }
}

/// "Rate limiter 1": looks, and counts if the look allows it.
fn limiter_1(client: &mut Client, key: &str) -> bool {
    let passes = client.get(key) <= 10;
    if passes {
        client.count(key, "10");
    }
    passes
}

/// "Rate limiter 2", as one script.
const LIMITER_2: &str = "
    local current = redis.call('INCR', KEYS[1])
    if current == 1 then
      redis.call('EXPIRE', KEYS[1], 1)
    end
    return current";

/// `count_limit.lua`.
const COUNT_LIMIT: &str = "
    local current = redis.call('INCR', KEYS[1])
    if current == 1 then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    if current > tonumber(ARGV[1]) then
      return -1
    end
    return current";

fn count_limit(client: &mut Client, limit: &str, period_ms: &str) -> bool {
    let answer = client.eval(COUNT_LIMIT, &["count"], &[limit, period_ms]);
    answer.ok().int() != -1
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

/// Asks the articles' token bucket at `now_ms` by the client's clock.
fn token(client: &mut Client, capacity: &str, rate: &str, now_ms: u64) -> bool {
    let now = now_ms.to_string();
    let keys = ["tokens", "time"];
    client
        .eval(TOKEN_BUCKET, &keys, &[capacity, rate, &now, "1"])
        .ok()
        .int()
        == 1
}

fn passed(n: u64, mut ask: impl FnMut() -> bool) -> u64 {
    (0..n).map(|_| u64::from(ask())).sum()
}

// Row 1: "Rate limiter 1".

#[tokio::test]
async fn callers_who_all_look_before_any_counts_all_pass() {
    let world = World::redis();
    let (mut alice, mut bob) = (Client::of(world.server()), Client::of(world.server()));
    for _ in 0..10 {
        assert!(limiter_1(&mut alice, "second"));
    }
    // One more place by its own rule, and both find it free.
    let looks = [alice.get("second"), bob.get("second")];
    assert_eq!(looks.map(|count| count <= 10), [true, true]);
    alice.count("second", "10");
    bob.count("second", "10");
    assert_eq!(alice.get("second"), 12);

    for by in By::ALL {
        world.server().flush();
        let limiter = world.single(by, "10/h");
        assert_eq!(ask(&limiter, KEY, 9).await, 9);
        assert_eq!(ask_at_once(&limiter, KEY, 64).await, 1, "{by:?}");
    }
}

#[tokio::test]
async fn an_eleventh_request_passes_where_ten_are_allowed() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(passed(20, || limiter_1(&mut client, "second")), 11);

    for world in World::both() {
        for by in By::ALL {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/s")]);
            assert_eq!(ask(&limiter, KEY, 20).await, 10, "{by:?}");
        }
    }
}

#[tokio::test]
async fn clients_whose_clocks_differ_count_in_windows_of_their_own() {
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
            world.single(By::Calendar, quota),
            world.single(By::Calendar, quota),
        ];
        let mut all = 0;
        for client in clients.iter().cycle().take(4) {
            all += ask(client, KEY, 5).await;
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
        for (by, expected) in [
            (By::Gcra, 10 + 2),
            (By::Bucket, 10 + 2),
            (By::Fixed, 9 + 10),
            (By::Calendar, 9 + 10),
            (By::List, 9 + 10),
            (By::Log, 9 + 1),
            (By::Sliding(1), 9 + 1),
            (By::Sliding(10), 9 + 1),
        ] {
            world.set(crate::support::START);
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/s")]);
            assert_eq!(ask(&limiter, KEY, 1).await, 1);
            world.advance(ms(900));
            let before = ask(&limiter, KEY, 30).await;
            world.advance(ms(200));
            let after = ask(&limiter, KEY, 30).await;
            assert_eq!(before + after, expected, "{by:?} on {}", world.name());
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
    for by in By::ALL {
        world.server().flush();
        let limiter = world.single(by, "10/s");
        for _ in 0..20 {
            ask(&limiter, KEY, 1).await;
            assert_eq!(world.server().immortal_keys(), [""; 0], "{by:?}");
        }
        world.advance(secs(2));
        assert_eq!(ask(&limiter, KEY, 20).await, 10, "{by:?}");
    }
}

#[tokio::test]
async fn a_key_that_lost_its_end_is_never_repaired() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(client.eval(LIMITER_2, &["count"], &[]).int(), 1);
    client.call(&["PERSIST", "count"]).ok();
    assert_eq!(client.eval(LIMITER_2, &["count"], &[]).int(), 2);
    assert_eq!(client.call(&["PTTL", "count"]).int(), -1);

    // On the next touch, be it a request that passes, one that is refused, or a look.
    for by in By::ALL {
        for (used, touch) in [(3, "passes"), (10, "is refused"), (3, "looks")] {
            world.server().flush();
            let limiter = world.single(by, "10/min");
            assert_eq!(ask(&limiter, KEY, used).await, used);
            let key = world.server().only_key();
            client.call(&["PERSIST", &key]).ok();
            match touch {
                "looks" => drop(limiter.peek(KEY).await),
                _ => drop(limiter.check(KEY).await),
            }
            let ttl = client.call(&["PTTL", &key]).int();
            let most = match by {
                By::Sliding(1) => 120_000,
                // It may end with its lap.
                By::Gcra => 126_000,
                _ => 66_000,
            };
            assert!((1..=most).contains(&ttl), "{by:?} {touch}: {ttl}");
            world.advance(ms(most as u64 + 1));
            assert_eq!(ask(&limiter, KEY, 20).await, 10, "{by:?} {touch}");
        }
    }
}

// Row 4: the list.

/// The list variant, up to where it writes: whether the caller passes, and whether the list is there.
fn list_look(client: &mut Client) -> (bool, bool) {
    let passes = client.call(&["LLEN", "list"]).int() <= 10;
    (passes, client.call(&["EXISTS", "list"]).int() == 1)
}

fn list_push(client: &mut Client, exists: bool, who: &str) -> i64 {
    if exists {
        return client.call(&["RPUSHX", "list", who]).int();
    }
    client.call(&["MULTI"]).ok();
    client.call(&["RPUSH", "list", who]).ok();
    client.call(&["EXPIRE", "list", "1"]).ok();
    client.call(&["EXEC"]).list().remove(0).int()
}

#[tokio::test]
async fn a_list_that_ends_between_look_and_push_loses_the_call() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let (_, exists) = list_look(&mut client);
    assert_eq!(list_push(&mut client, exists, "alice"), 1);
    let (passes, exists) = list_look(&mut client);
    world.advance(ms(1_001));
    assert!(passes && exists);
    assert_eq!(
        list_push(&mut client, exists, "bob"),
        0,
        "bob passed, and nothing says so"
    );
    assert!(world.server().keys().is_empty());

    for world in World::both() {
        let limiter = world.single(By::List, "10/s");
        assert_eq!(ask(&limiter, KEY, 1).await, 1);
        // From the last instant of the window on, whoever passes is listed.
        for step in [999, 1, 1, 1] {
            world.advance(ms(step));
            let before = limiter.callers("p", KEY).await.expect("callers").len();
            assert_eq!(ask(&limiter, KEY, 1).await, 1);
            let after = limiter.callers("p", KEY).await.expect("callers").len();
            assert_eq!(after, before + 1, "{} at {}", world.name(), world.now());
        }
    }
}

#[tokio::test]
async fn a_list_holds_one_caller_more_than_it_may_and_ours_lists_those_who_may() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let mut article = || {
        let (passes, exists) = list_look(&mut client);
        passes && list_push(&mut client, exists, "alice") > 0
    };
    assert_eq!(passed(20, &mut article), 11);

    for world in World::both() {
        let limiter = world.single(By::List, "10/s");
        let names: Vec<_> = (0..20).map(|n| Key::new(format!("caller-{n}"))).collect();
        for (n, name) in names.iter().enumerate() {
            let decision = limiter.check(tollgate::Keys::from(KEY).by(*name)).await;
            assert_eq!(counted(&decision), n < 10);
        }
        assert_eq!(
            limiter.callers("p", KEY).await.expect("callers"),
            names[..10]
        );
        world.advance(ms(1_001));
        assert!(limiter.callers("p", KEY).await.expect("callers").is_empty());
    }
}

// Row 5: count_limit.lua.

#[tokio::test]
async fn denied_calls_go_on_counting() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(passed(110, || count_limit(&mut client, "10", "60000")), 10);
    assert_eq!(client.get("count"), 110);
    // Two callers give their calls back, and still nobody passes.
    client.call(&["DECRBY", "count", "2"]).ok();
    assert!(!count_limit(&mut client, "10", "60000"));

    for world in World::both() {
        for by in By::ALL {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/min")]);
            let mut charged = limiter.check(KEY).cost(10).await;
            assert!(counted(&charged));
            assert_eq!(ask(&limiter, KEY, 100).await, 0);
            assert_eq!(
                limiter.refund(&mut charged, 2).await.expect("a refund"),
                [2],
                "{by:?}"
            );
            assert_eq!(
                ask(&limiter, KEY, 10).await,
                2,
                "{by:?} on {}",
                world.name()
            );
        }
    }
}

#[tokio::test]
async fn a_server_that_forgot_the_script_fails_every_call() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let sha = client.call(&["SCRIPT", "LOAD", COUNT_LIMIT]).text();
    let call = ["EVALSHA", &sha, "1", "count", "10", "1000"];
    assert_eq!(client.call(&call).int(), 1);
    client.call(&["SCRIPT", "FLUSH"]).ok();
    assert!(client.call(&call).error().starts_with("NOSCRIPT"));

    let limiter = world.single(By::Fixed, "10/min");
    assert_eq!(ask(&limiter, KEY, 5).await, 5);
    client.call(&["SCRIPT", "FLUSH"]).ok();
    assert_eq!(ask(&limiter, KEY, 10).await, 5);
    // The whole script once, and its name from then on.
    world.server().reset_stats();
    assert_eq!(ask(&limiter, Key::new("other"), 10).await, 10);
    assert_eq!(
        (
            world.server().calls("eval"),
            world.server().calls("evalsha")
        ),
        (0, 10)
    );
}

#[tokio::test]
async fn a_period_below_a_second_is_no_argument_for_expire() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["INCR", "count"]).ok();
    assert!(
        client
            .call(&["EXPIRE", "count", "0.25"])
            .error()
            .contains("not an integer")
    );
    // Rounded down it ends the key at once, and everybody passes.
    let mut rounded = || {
        let count = client.call(&["INCR", "count"]).int();
        client.call(&["EXPIRE", "count", "0"]).ok();
        count <= 10
    };
    assert_eq!(passed(50, &mut rounded), 50);

    for world in World::both() {
        for by in By::ALL {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/250ms")]);
            assert_eq!(ask(&limiter, KEY, 50).await, 10, "{by:?}");
            world.advance(ms(501));
            assert_eq!(
                ask(&limiter, KEY, 50).await,
                10,
                "{by:?} on {}",
                world.name()
            );
        }
    }
}

// Row 6: finer granularity.

#[tokio::test]
async fn a_thousand_a_second_kept_as_a_hundred_per_tenth_refuses_an_honest_burst() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(passed(250, || count_limit(&mut client, "100", "100")), 100);

    for world in World::both() {
        let limiter = world.single(By::Sliding(10), "1000/s");
        assert_eq!(limiter.check(KEY).times(250).await.admitted(), 250);
        // And yet it is a thousand a second: whatever is asked for in the following 900 ms.
        let mut all = 250;
        for _ in 0..9 {
            world.advance(ms(100));
            all += limiter.check(KEY).times(250).await.admitted();
        }
        assert_eq!(all, 1_000, "{}", world.name());
        // Who wants the strict tenth has it as a second policy.
        let policies = [
            By::Sliding(10).policy("a", "1000/s"),
            By::Fixed.policy("b", "100/100ms"),
        ];
        let strict = world.limiter(policies);
        assert_eq!(strict.check(KEY).times(250).await.admitted(), 100);
    }
}

// Row 7: the token bucket.

#[tokio::test]
async fn a_bucket_whose_time_to_live_is_in_another_unit_than_its_rate_outlives_it_a_thousandfold() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    // Ten tokens at 10 per second: full again after a second.
    assert!(token(&mut client, "10", "0.01", 0));
    assert_eq!(client.call(&["PTTL", "tokens"]).int(), 2_000_000);

    world.server().flush();
    let limiter = world.single(By::Bucket, "10/s");
    for used in 1..=10 {
        assert_eq!(ask(&limiter, KEY, 1).await, 1);
        let ttl = client.call(&["PTTL", &world.server().only_key()]).int();
        assert_eq!(ttl, 100 * used, "as long as what is missing");
    }
}

#[tokio::test]
async fn the_last_token_cannot_be_taken() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    assert_eq!(
        passed(20, || token(&mut client, "10", "0.01", 1_000_000)),
        9
    );
    world.server().flush();
    assert_eq!(passed(20, || token(&mut client, "1", "0.01", 1_000_000)), 0);

    for world in World::both() {
        let ten = world.limiter([By::Bucket.policy("ten", "10/s")]);
        assert_eq!(ask(&ten, KEY, 20).await, 10);
        assert_eq!(left(&ten, KEY).await, 0);
        let one = world.limiter([By::Bucket.policy("one", "1/s")]);
        assert_eq!(ask(&one, KEY, 20).await, 1);
    }
}

#[tokio::test]
async fn a_client_whose_clock_is_ahead_fills_the_bucket_by_it() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let now = world.now() / 1_000;
    let all =
        [now, now + 3_600_000].map(|now| passed(20, || token(&mut client, "10", "0.01", now)));
    assert_eq!(all, [9, 9]);

    // There is no clock to send: two clients have ten tokens between them.
    let clients = [World::single, World::single].map(|new| new(&world, By::Bucket, "10/s"));
    assert_eq!(ask(&clients[0], KEY, 20).await, 10);
    assert_eq!(ask(&clients[1], KEY, 20).await, 0);
}

#[tokio::test]
async fn two_keys_can_part_and_the_bucket_is_full_again() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let now = world.now() / 1_000;
    for lost in ["tokens", "time"] {
        world.server().flush();
        assert_eq!(passed(20, || token(&mut client, "10", "0.01", now)), 9);
        // Evicted, or ended first.
        client.call(&["DEL", lost]).ok();
        assert_eq!(
            passed(20, || token(&mut client, "10", "0.01", now)),
            9,
            "without {lost}"
        );
    }

    for by in By::ALL {
        world.server().flush();
        let limiter = world.single(by, "10/s");
        assert_eq!(ask(&limiter, KEY, 20).await, 10);
        // There is nothing that could part.
        world.server().only_key();
    }
}

#[tokio::test]
async fn fractions_of_tokens_add_up_to_less_than_a_token() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    let mut now = world.now() / 1_000;
    // Two tokens, one of which can't be taken; 0.2 per ms, so that there's one more after 5 ms.
    assert!(token(&mut client, "2", "0.2", now));
    let mut passed = Vec::new();
    for _ in 0..5 {
        now += 1;
        passed.push(token(&mut client, "2", "0.2", now));
    }
    assert_eq!(passed, [false; 5], "on time, and refused");
    assert_eq!(client.call(&["GET", "tokens"]).text(), "1.9999999999999998");

    for world in World::both() {
        for by in [By::Bucket, By::Gcra] {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "200/s burst 1")]);
            assert_eq!(ask(&limiter, KEY, 1).await, 1);
            for on_time in [false, false, false, false, true] {
                world.advance(ms(1));
                assert_eq!(ask(&limiter, KEY, 1).await == 1, on_time, "{by:?}");
            }
        }
    }
}

// Rows 8 to 10: the OCR service. Ten a minute, and a provider that takes its time.

#[tokio::test]
async fn a_counter_that_ends_during_the_slow_call_comes_back_without_an_end() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    if client.call(&["GET", "ocr"]).is_nil() {
        client.call(&["SET", "ocr", "0", "EX", "60"]).ok();
    }
    world.advance(secs(61));
    // The provider's answer is there: now it counts.
    client.call(&["INCR", "ocr"]).ok();
    assert_eq!(client.call(&["PTTL", "ocr"]).int(), -1);
    let mut article = || {
        let passes = client.get("ocr") < 10;
        if passes {
            client.call(&["INCR", "ocr"]).ok();
        }
        passes
    };
    assert_eq!(passed(20, &mut article), 9);
    world.advance(secs(86_400));
    assert_eq!(passed(20, article), 0, "locked out for ever");

    world.server().flush();
    for world in World::both() {
        for by in By::ALL {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/min")]);
            let mut reserved = limiter.check(KEY).await;
            assert!(counted(&reserved));
            world.advance(secs(121));
            // It failed, so it is given back; by now there is nothing that time has not given back.
            assert_eq!(
                limiter.refund(&mut reserved, 1).await.expect("a refund"),
                [0],
                "{by:?}"
            );
            // It succeeded, and its true cost is charged, in a window that the request never saw.
            assert!(counted(&limiter.charge(KEY, 1).await));
            assert_eq!(left(&limiter, KEY).await, 9, "{by:?} on {}", world.name());
            let immortal = world
                .redis_server()
                .map_or(Vec::new(), Server::immortal_keys);
            assert_eq!(immortal, [""; 0], "{by:?}");
            world.advance(secs(121));
            assert_eq!(ask(&limiter, KEY, 20).await, 10, "{by:?}");
        }
    }
}

#[tokio::test]
async fn a_counter_can_end_between_the_question_whether_it_exists_and_the_count() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["SET", "ocr", "3", "PX", "60000"]).ok();
    world.advance(secs(60));
    assert_eq!(client.call(&["EXISTS", "ocr"]).int(), 1);
    world.advance(ms(1));
    client.call(&["INCR", "ocr"]).ok();
    assert_eq!(client.call(&["PTTL", "ocr"]).int(), -1);

    // A key in its last millisecond, in ours: each write comes with the window it belongs to.
    for by in By::ALL {
        for micros in 0..3 {
            world.server().flush();
            world.set(crate::support::START + 500_000);
            let limiter = world.single(by, "10/min");
            assert_eq!(ask(&limiter, KEY, 3).await, 3);
            let ttl = world
                .server()
                .command(&["PTTL", &world.server().only_key()])
                .int();
            world.advance(ms(ttl as u64 - 1) + micros * std::time::Duration::from_micros(500));
            assert_eq!(ask(&limiter, KEY, 1).await, 1);
            assert_eq!(world.server().immortal_keys(), [""; 0], "{by:?}");
            // Locked out by nothing: after the longest memory of all there is the full quota.
            world.advance(secs(121));
            assert_eq!(ask(&limiter, KEY, 20).await, 10, "{by:?}");
        }
    }
}

#[tokio::test]
async fn callers_who_are_counted_only_afterwards_pass_the_check_together() {
    const REPAIR: &str = "
        local count = redis.call('INCR', KEYS[1])
        if redis.call('TTL', KEYS[1]) == -1 then
          redis.call('EXPIRE', KEYS[1], 60)
        end
        return count";
    let world = World::redis();
    let mut clients: Vec<_> = (0..64).map(|_| Client::of(world.server())).collect();
    let checks: Vec<_> = clients
        .iter_mut()
        .map(|client| client.get("ocr") < 10)
        .collect();
    assert_eq!(checks, [true; 64]);
    for client in &mut clients {
        client.eval(REPAIR, &["ocr"], &[]).ok();
    }
    assert_eq!(clients[0].get("ocr"), 64);

    // Taken first, and given back by those whose provider failed.
    for world in World::both() {
        for by in By::ALL {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/min")]);
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..64 {
                tasks.spawn(limiter.check(KEY).into_future());
            }
            let mut reserved = tasks.join_all().await;
            reserved.retain(counted);
            assert_eq!(reserved.len(), 10, "{by:?}");
            for failed in &mut reserved[..4] {
                assert_eq!(limiter.refund(failed, 1).await.expect("a refund"), [1]);
            }
            assert_eq!(
                ask_at_once(&limiter, KEY, 64).await,
                4,
                "{by:?} on {}",
                world.name()
            );
        }
    }
}

// Row 12: counters.

#[tokio::test]
async fn a_counter_that_is_given_back_after_its_end_counts_below_zero_for_ever() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["INCRBY", "count", "5"]).ok();
    client.call(&["PEXPIRE", "count", "60000"]).ok();
    world.advance(secs(61));
    client.call(&["DECRBY", "count", "5"]).ok();
    assert_eq!(
        (client.get("count"), client.call(&["PTTL", "count"]).int()),
        (-5, -1)
    );

    world.server().flush();
    for world in World::both() {
        for by in By::ALL {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/min")]);
            let mut charged = limiter.check(KEY).cost(5).await;
            assert!(counted(&charged));
            assert_eq!(left(&limiter, KEY).await, 5);
            // Twice is once.
            assert_eq!(
                limiter
                    .refund(&mut charged.clone(), 2)
                    .await
                    .expect("a refund"),
                [2]
            );
            assert_eq!(left(&limiter, KEY).await, 7);
            world.advance(secs(121));
            assert_eq!(
                limiter.refund(&mut charged, 5).await.expect("a refund"),
                [0],
                "{by:?}"
            );
            assert_eq!(left(&limiter, KEY).await, 10);
            assert_eq!(
                ask(&limiter, KEY, 20).await,
                10,
                "{by:?} on {}",
                world.name()
            );
        }
    }
}

#[tokio::test]
async fn a_reset_tells_what_was_there() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["SET", "count", "7", "PX", "60000"]).ok();
    assert_eq!(client.call(&["GETSET", "count", "0"]).text(), "7");
    assert_eq!(
        client.call(&["PTTL", "count"]).int(),
        -1,
        "and its end is lost"
    );

    world.server().flush();
    for world in World::both() {
        for by in By::ALL {
            let limiter = world.limiter([by.policy(&format!("{by:?}"), "10/min")]);
            assert!(counted(&limiter.check(KEY).cost(7).await));
            let was = limiter.reset(KEY).await;
            let was = was.verdicts().next().expect("a verdict").remaining();
            assert_eq!(was, 3, "{by:?} on {}", world.name());
            assert_eq!(left(&limiter, KEY).await, 10, "{by:?}");
            if let Some(server) = world.redis_server() {
                assert_eq!(server.keys(), ["tg:gen"], "that something was reset");
            }
        }
    }
}

#[tokio::test]
async fn something_else_under_the_key_is_an_error_in_some_words_and_is_left_alone() {
    let world = World::redis();
    let mut client = Client::of(world.server());
    client.call(&["SET", "count", "ten"]).ok();
    assert!(
        client
            .eval(LIMITER_2, &["count"], &[])
            .error()
            .contains("not an integer")
    );
    client.call(&["SET", "count", &i64::MAX.to_string()]).ok();
    assert!(
        client
            .eval(LIMITER_2, &["count"], &[])
            .error()
            .contains("overflow")
    );

    for by in By::ALL {
        world.server().flush();
        let limiter = world.single(by, "10/min");
        assert_eq!(ask(&limiter, KEY, 1).await, 1);
        let key = world.server().only_key();
        for foreign in [
            &["SET", &key, "ten"][..],
            &["SET", &key, "-3"],
            &["SET", &key, "12345678901234567890"],
            &["SET", &key, "1:2:3:4"],
            &["HSET", &key, "a", "b"],
            &["RPUSH", &key, "ten"],
            &["SADD", &key, "ten"],
        ] {
            client.call(&["DEL", &key]).ok();
            client.call(foreign).ok();
            let before = client.call(&["DUMP", &key]);
            for decision in [
                limiter.check(KEY).await,
                limiter.charge(KEY, 1).await,
                limiter.peek(KEY).await,
            ] {
                match fault(&decision) {
                    StoreError::Foreign { key: named, .. } => assert_eq!(*named, *key),
                    other => panic!("{by:?} {foreign:?}: {other}"),
                }
            }
            assert_eq!(client.call(&["DUMP", &key]), before, "{by:?} {foreign:?}");
        }
        // Nobody else is harmed.
        assert_eq!(ask(&limiter, Key::new("other"), 1).await, 1);
    }
}
