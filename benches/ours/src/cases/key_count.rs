//! Many keys: what they take, and whether they slow anything down.

use std::sync::Arc;

use testkit::{Reply, Server};

use super::{TASKS, keys, race, waiting};
use crate::{
    contenders::tollgate::{TollgateLimiter, on_redis},
    keys::{Callers, Rule, name},
    outcome::{Outcome, Row, Target, Unit},
    plan::Plan,
    runner::{Entrant, Expect, Measure, run_comparison},
};

pub(super) async fn bytes(plan: Plan) -> Vec<Outcome> {
    let server = Server::start();
    // Of which no key's life ends meanwhile.
    let rule = Rule::at_once(10);
    let limiter = TollgateLimiter::one(on_redis(&server.url()), rule, Callers::each());
    let before = memory(&server);
    let sent = plan.stored.div_ceil(TASKS) * TASKS;
    let admitted = race(Arc::new(limiter), TASKS, plan.stored.div_ceil(TASKS)).await;
    let held = count(&server);
    assert_eq!((admitted, held), (sent as u64, sent as u64));
    let each = (memory(&server) - before) as f64 / held as f64;
    let title = format!("Redis memory, {} of GCRA", keys(plan.stored));
    let target = Target::AtMost(135.0);
    let row = Row::number("bytes per key", each, Unit::Bytes, target);
    vec![Outcome::alone("bytes", title, row)]
}

pub(super) async fn vast(plan: Plan) -> Vec<Outcome> {
    let Some(vast) = plan.vast else {
        return Vec::new();
    };
    // Both with so many units taken that no key's life ends meanwhile.
    let rule = Rule::ample(vast);
    let server = |keys| async move {
        let server = Server::start();
        let limiter = TollgateLimiter::one(on_redis(&server.url()), rule, Callers::Made(keys));
        // And charged twice: a new key costs one more command.
        limiter.charge_first(5_000).await;
        limiter.charge_first(1).await;
        fill(&server, keys);
        (server, limiter)
    };
    let (large, many) = server(vast).await;
    let (_small, few) = server(plan.keys).await;
    let entrants = vec![Entrant::new("vast", many), Entrant::new("fewer keys", few)];
    let turns = run_comparison(&plan, waiting(&plan, 512), Expect::Admitted, entrants).await;
    assert_eq!(count(&large), vast as u64);
    let title = format!("512 tasks, {} against {}", keys(vast), keys(plan.keys));
    vec![Outcome::of("vast", title, &turns).compare(&turns, Measure::Rate, 1, Target::AtLeast(0.8))]
}

/// Copies the first caller's state to every caller, in the server itself: a request for each would take minutes.
fn fill(server: &Server, keys: usize) {
    const COPY: &str = "
        local value, ttl = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
        for caller = tonumber(ARGV[2]), tonumber(ARGV[3]) do
          redis.call('SET', ARGV[1] .. string.format('%d', caller), value, 'PX', ttl)
        end";
    let [first] = &server.keys()[..] else {
        panic!("a server with one key");
    };
    let (number, caller) = (0.to_string(), name(0));
    assert!(first.ends_with(&caller), "{first} doesn't name {caller}");
    let head = first.strip_suffix(&number).expect("a number");
    for from in (1..keys).step_by(50_000) {
        let to = (from + 50_000).min(keys) - 1;
        let (from, to) = (from.to_string(), to.to_string());
        let reply = server.command(&["EVAL", COPY, "1", first, head, &from, &to]);
        assert!(reply.is_nil(), "{reply:?}");
    }
    assert_eq!(count(server), keys as u64);
}

fn count(server: &Server) -> u64 {
    let count = Reply::int(server.command(&["DBSIZE"]));
    u64::try_from(count).expect("a count")
}

fn memory(server: &Server) -> i64 {
    let used = server.info("memory", "used_memory");
    used.and_then(|used| used.parse().ok()).expect("a number")
}
