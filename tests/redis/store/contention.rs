//! Limits hold with all that makes them fast at once: batches, merged requests, cached rejections; under 512 tasks,
//! and while connections are killed at random.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

use tollgate_tests::prelude::*;

use crate::store::support::*;

const TASKS: u64 = 512;

const LIMIT: u64 = 50;

/// A command that is lost with its connection ends by it.
const KILLED_TIMEOUT: Duration = secs(10);

/// So few that most of the requests of a batch are equal ones.
const KEYS: u64 = 30;

/// As many as there are processes: each has connections and a rejection cache of its own.
fn limiters(
    server: &Server,
    timeout: Duration,
    policies: impl Fn() -> Vec<Policy>,
) -> [Limiter; 2] {
    [(); 2].map(|()| {
        let store = RedisStore::builder().url(server.url());
        let store = store.timeout(timeout);
        let store = store.rejection_cache_staleness(secs(3_600));
        limiter(store.no_circuit_breaker().built(), policies())
    })
}

/// What the requests of one key came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    admitted: u64,
    rejected: u64,
    /// Of those, without a call.
    remembered: u64,
    failed: u64,
}

impl Sum {
    fn add(&mut self, more: Self) {
        self.admitted += more.admitted;
        self.rejected += more.rejected;
        self.remembered += more.remembered;
        self.failed += more.failed;
    }

    fn record(&mut self, decision: &Decision) {
        match (decision.source(), decision.is_admitted()) {
            (DecisionSource::Store, true) => self.admitted += 1,
            (DecisionSource::Store, false) => self.rejected += 1,
            (DecisionSource::RejectionCache, false) => {
                self.rejected += 1;
                self.remembered += 1;
            }
            (DecisionSource::Fallback, false) => self.failed += 1,
            _ => panic!("{decision:?}"),
        }
    }
}

/// Each task sends requests for each key in turn, `times` times, over one of the limiters.
async fn send_concurrently(limiters: &[Limiter], keys: fn(u64) -> Keys, rounds: u64) -> Vec<Sum> {
    let tasks = (0..TASKS).map(|task| {
        let limiter = limiters[task as usize % limiters.len()].clone();
        tokio::spawn(async move {
            let mut sums = [Sum::default(); KEYS as usize];
            for step in 0..rounds * KEYS {
                let key = (task + step) % KEYS;
                sums[key as usize].record(&limiter.check(keys(key)).await);
            }
            sums
        })
    });
    let mut sums = vec![Sum::default(); KEYS as usize];
    for more in all(tasks).await {
        sums.iter_mut()
            .zip(more)
            .for_each(|(sum, more)| sum.add(more));
    }
    sums
}

fn one(key: u64) -> Keys {
    Key::new(key.to_string()).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_admits_exactly_its_quota_to_512_tasks() {
    let (_clock, server) = on_a_clock();
    for strategy in EACH {
        let policies = || vec![strategy.policy("p", &format!("{LIMIT}/month"))];
        let sums = send_concurrently(&limiters(&server, TEST_TIMEOUT, policies), one, 2).await;
        for sum in &sums {
            assert_eq!((sum.admitted, sum.failed), (LIMIT, 0), "{strategy:?}");
            assert_eq!(sum.rejected, 2 * TASKS - LIMIT, "{strategy:?}");
            assert!(sum.remembered > 0, "{strategy:?}");
        }
        server.flush();
    }
}

/// Kills connections at random until `stop` is set, and one at least. Between two of them some calls come through: however
/// busy the machine is, it gets ahead.
fn kill_at_random(server: &Server, stop: &AtomicBool) {
    const CALLS: u64 = 3;
    let (mut killed, mut calls) = (false, 0);
    loop {
        let is_over = stop.load(Ordering::Relaxed);
        if killed && is_over {
            return;
        }
        let now = server.calls("evalsha");
        if now < calls + CALLS && !is_over {
            continue;
        }
        calls = now;
        let clients = server.command(&["CLIENT", "LIST", "TYPE", "normal"]).text();
        let ids = clients.lines().filter(|line| !line.contains(" cmd=client"));
        let ids = ids.filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
        let ids: Vec<_> = ids.collect();
        let random = RandomState::new().build_hasher().finish() as usize;
        if let Some(id) = random.checked_rem(ids.len()).map(|at| ids[at]) {
            // It may have gone by itself.
            let reply = server.command(&["CLIENT", "KILL", "ID", id]);
            killed |= reply == testkit::Reply::Int(1);
        }
    }
}

/// Sends concurrent requests while connections are killed, and again when none is: of the first, any part may have
/// failed.
async fn send_while_connections_are_killed(
    server: &Arc<Server>,
    limiters: &[Limiter],
    keys: fn(u64) -> Keys,
) -> Vec<Sum> {
    let stop = Arc::new(AtomicBool::new(false));
    let killer = tokio::task::spawn_blocking({
        let (server, stop) = (server.clone(), stop.clone());
        move || kill_at_random(&server, &stop)
    });
    let mut sums = send_concurrently(limiters, keys, 2).await;
    stop.store(true, Ordering::Relaxed);
    killer.await.expect("it ends well");
    for limiter in limiters {
        until_decided(limiter, keys(0)).await;
    }
    let more = send_concurrently(limiters, keys, 1).await;
    sums.iter_mut()
        .zip(more)
        .for_each(|(sum, more)| sum.add(more));
    sums
}

/// Waits until a limiter's store decides.
async fn until_decided(limiter: &Limiter, keys: Keys) {
    let answers = async || limiter.peek(keys.clone()).await.is_ok();
    until("it answers", answers).await;
}

/// What is used of each policy's quota.
async fn used(limiter: &Limiter, keys: Keys) -> Vec<u64> {
    until_decided(limiter, keys.clone()).await;
    crate::store::support::used(limiter, keys).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_keeps_its_limit_while_connections_are_killed_at_random() {
    let (_clock, server) = on_a_clock();
    let server = Arc::new(server);
    for strategy in EACH {
        let policies = || vec![strategy.policy("p", &format!("{LIMIT}/month"))];
        let limiters = limiters(&server, KILLED_TIMEOUT, policies);
        let sums = send_while_connections_are_killed(&server, &limiters, one).await;
        for (key, sum) in (0..).zip(&sums) {
            let used = used(&limiters[0], one(key)).await[0];
            // A charge whose reply was lost stays, and no request was admitted by it.
            let charged = sum.admitted..=sum.admitted + sum.failed;
            let is_kept = used == LIMIT && charged.contains(&LIMIT) && sum.rejected > 0;
            assert!(is_kept, "{strategy:?}: {used}, {sum:?}");
        }
        server.flush();
    }
    assert_eq!(server.immortal_keys(), [""; 0]);
}

/// Each user's, and the tenant's.
fn two(key: u64) -> Keys {
    let user = ("user", Key::new(key.to_string()));
    [("tenant", Key::new("acme")), user].into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_policies_are_charged_or_none_while_connections_are_killed_at_random() {
    let server = Arc::new(Server::start());
    for [tenant, user] in [
        [StrategyKind::Fixed, StrategyKind::Gcra],
        [StrategyKind::Gcra, StrategyKind::Fixed],
        [StrategyKind::List, StrategyKind::Log],
    ] {
        let policies = || {
            let tenant = tenant.policy("tenant", &format!("{}/month", 3 * LIMIT));
            vec![tenant, user.policy("user", &format!("{LIMIT}/month"))]
        };
        let limiters = limiters(&server, KILLED_TIMEOUT, policies);
        send_while_connections_are_killed(&server, &limiters, two).await;
        let (mut of_users, mut of_tenant) = (0, 0);
        for key in 0..KEYS {
            let used = used(&limiters[0], two(key)).await;
            (of_users, of_tenant) = (of_users + used[1], used[0]);
        }
        assert_eq!([of_users, of_tenant], [3 * LIMIT; 2], "{tenant:?} {user:?}");
        server.flush();
    }
}
