//! What is found out before the first request.

use std::time::UNIX_EPOCH;

use testkit::Clock;
use tollgate::store::{HealthIssue, HealthReport};

use crate::deployments::support::*;
use tollgate_tests::lateness::Lateness;

/// Every strategy.
fn all(store: RedisStore) -> Limiter {
    let week = |name| Policy::new(name, quota("9/week"));
    let builder = Limiter::builder()
        .store(store)
        .policy(week("gcra"))
        .policy(week("bucket").strategy(TokenBucket))
        .policy(week("window").strategy(FixedWindow))
        .policy(week("calendar").strategy(CalendarWindow::utc()))
        .policy(week("list").strategy(ListWindow))
        .policy(week("log").strategy(SlidingLog))
        .policy(week("sliding").strategy(SlidingWindow::new()))
        .policy(week("ban").strategy(Ban::for_duration(secs(60))))
        .policy(Policy::new("flight", Quota::concurrent(3)).strategy(Concurrency::default()))
        .policy(week("shadow").shadow());
    builder.built()
}

fn at(url: &str) -> Limiter {
    all(patient(RedisStore::builder().url(url)))
}

#[tokio::test]
async fn a_healthy_server_has_no_problems_and_is_left_without_a_key() {
    let server = Server::builder().arg("maxmemory-policy", "allkeys-lru");
    let server = server.start();
    let health = at(&server.url()).health_check().await;
    assert!(health.is_healthy(), "{health:?}");
    assert_eq!(health.unchecked(), [""; 0]);
    assert_eq!(server.keys(), [""; 0]);
    assert!(tried_all(&server));
}

/// Each policy was tried.
fn tried_all(server: &Server) -> bool {
    server.calls("evalsha") >= 10
}

/// Which policies lack a right to what this user may not run, and nothing else is wrong.
async fn lacking(server: &Server, command: &str) -> String {
    let rights = format!("~tg:* +@all -config -{command}");
    server.acl("lacks", "pw", &rights);
    without_a_right(&at(&server.url_as("lacks", "pw")).health_check().await)
}

/// The policies that lack a right. Not every version of the server names the command.
fn without_a_right(health: &HealthReport) -> String {
    let policies = health.issues().iter().map(|issue| match issue {
        HealthIssue::MissingPermission { policy, .. } => &**policy,
        other => panic!("{other}"),
    });
    let mut policies: Vec<_> = policies.collect();
    policies.sort_unstable();
    policies.join(" ")
}

#[tokio::test]
async fn a_right_that_is_missing_is_reported_for_each_policy_that_needs_it() {
    let server = Server::start();
    let all = "ban bucket calendar flight gcra list log shadow sliding window";
    for (command, policies) in [
        ("set", "ban bucket calendar gcra shadow sliding window"),
        ("time", all),
        ("del", all),
        ("rpush", "list log"),
        ("zadd", "flight"),
    ] {
        assert_eq!(lacking(&server, command).await, policies, "{command}");
    }
    server.acl("script", "pw", "~tg:* +@all -evalsha");
    let health = at(&server.url_as("script", "pw")).health_check().await;
    assert_eq!(health.issues().len(), 10);
    assert_contains(health.issues()[0].to_string(), ["evalsha"]);
}

/// An error reply is an answer: the limits hold, and the report says what could not be checked.
#[tokio::test]
async fn commands_that_counting_does_not_need_may_be_forbidden_or_unknown() {
    let no_scan = Server::builder().arg("rename-command", "SCAN \"\"");
    let (no_scan, server) = (no_scan.start(), Server::start());
    let info = ["version", "eviction", "role"];
    for (server, user, rights, unchecked) in [
        (&no_scan, "renamed", "", &["blocks"][..]),
        (&server, "no-scan", "-scan", &["blocks"]),
        (&server, "no-ping", "-ping", &[]),
        (&server, "no-info", "-info", &info),
        (
            &server,
            "few",
            "-info -ping -scan",
            &[&info[..], &["blocks"]].concat(),
        ),
    ] {
        let _case = Case(user.to_owned());
        server.acl(user, "pw", &format!("~tg:* +@all {rights}"));
        let limiter = at(&server.url_as(user, "pw"));
        let health = limiter.health_check().await;
        assert!(health.is_healthy(), "{health:?}");
        assert_eq!(health.unchecked(), unchecked);
        assert!(admitted_by_store(&limiter.check(user).await));
    }
}

#[tokio::test]
async fn a_fault_that_all_tiers_of_a_policy_share_is_listed_once() {
    let server = Server::start();
    server.acl("limits", "pw", "~tg:* +@all -rpush");
    let store = patient(RedisStore::builder().url(server.url_as("limits", "pw")));
    let quota = |amount| Quota::requests(amount).per_day();
    let tiered = |name| Policy::new(name, quota(5)).tier_quotas([quota(6), quota(7)]);
    let limiter = Limiter::builder()
        .store(store)
        .policy(tiered("list").strategy(ListWindow))
        .policy(tiered("gcra"))
        .policy(tiered("log").strategy(SlidingLog));
    let health = limiter.built().health_check().await;
    assert_eq!(without_a_right(&health), "list log");
    assert_eq!(health.unlisted_issues(), 0);
}

#[tokio::test]
async fn a_server_that_may_lose_counts_is_reported() {
    let server = Server::builder()
        .arg("maxmemory", "100mb")
        .arg("maxmemory-policy", "volatile-ttl")
        .start();
    let health = at(&server.url()).health_check().await;
    let [HealthIssue::EvictionEnabled { policy, .. }] = health.issues() else {
        panic!("{health:?}");
    };
    assert_eq!(&**policy, "volatile-ttl");
}

#[tokio::test]
async fn a_replica_is_reported() {
    let master = Server::start();
    let replica = Server::builder().replica_of(&master).start();
    let health = at(&replica.url()).health_check().await;
    let is_replica = |issue: &&HealthIssue| matches!(issue, HealthIssue::Replica { .. });
    let (replicas, others): (Vec<_>, Vec<_>) = health.issues().iter().partition(is_replica);
    assert_eq!(replicas.len(), 1, "{health:?}");
    // Nothing can be counted there. After three such failures in a row, it isn't called any more.
    assert_eq!(others.len(), 10, "{others:?}");
    let says = |problem: &&HealthIssue, what| problem.to_string().contains(what);
    let readonly = &others[..3];
    assert!(readonly.iter().all(|problem| says(problem, "READONLY")));
    let unasked = |problem| says(problem, "READONLY") || says(problem, "circuit breaker is open");
    assert!(others.iter().skip(3).all(unasked), "{others:?}");
}

#[tokio::test]
async fn a_clock_that_is_far_off_is_reported() {
    let now = UNIX_EPOCH.elapsed().expect("after the epoch");
    let hour = secs(3_600);
    for (shown, later) in [(now + hour, true), (now - hour, false)] {
        // It stands still, so that the machine may take up to ten minutes until it's read.
        let clock = Clock::at(shown.as_micros() as u64);
        let server = Server::builder().clock(&clock).start();
        let health = at(&server.url()).health_check().await;
        let [HealthIssue::ClockSkew { by, ahead, .. }] = health.issues() else {
            panic!("{health:?}");
        };
        assert_eq!(*ahead, later);
        assert!((secs(3_000)..secs(4_200)).contains(by), "{by:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_reported() {
    let limiter = at("redis://gate:hush@127.0.0.1:1/1");
    let health = limiter.health_check().await;
    let [issue @ HealthIssue::Unreachable { .. }] = health.issues() else {
        panic!("{health:?}");
    };
    // It is named, in case there are several, and its password isn't.
    let text = issue.to_string();
    assert!(text.starts_with("127.0.0.1:1 can't be used:"), "{text}");
    assert!(!text.contains("hush"), "{text}");
}

#[tokio::test]
async fn each_master_of_a_cluster_is_checked() {
    let cluster = Cluster::start(3, 1);
    let limiter = all(patient(RedisStore::builder().cluster(cluster.urls())));
    let health = limiter.health_check().await;
    assert!(health.is_healthy(), "{health:?}");
    let masters = &cluster.nodes()[..3];
    for master in masters {
        assert_eq!(master.keys(), [""; 0]);
        assert!(tried_all(master));
    }
    for (setting, value) in [("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lfu")] {
        let set = ["CONFIG", "SET", setting, value];
        masters[1].command(&set).ok();
    }
    let health = limiter.health_check().await;
    let [HealthIssue::EvictionEnabled { server, .. }] = health.issues() else {
        panic!("{health:?}");
    };
    assert_eq!(**server, format!("127.0.0.1:{}", masters[1].port()));
}

/// A ping waits for longer than requests do. None of them is to wait for it.
#[tokio::test]
async fn a_ping_that_waits_for_a_silent_server_delays_no_request() {
    const TIMEOUT: Duration = ms(200);
    let server = Server::start();
    // By now the server has the script, which is all that this user may run that writes.
    let known = crate::deployments::support::at(&server.url());
    assert!(known.check(key()).await.is_admitted());
    server.acl("asks", "pw", "~tg:* +@all -eval");
    let store = RedisStore::builder()
        .url(server.url_as("asks", "pw"))
        .timeout(TIMEOUT)
        .no_circuit_breaker();
    let limiter = limiter(store.built(), 3);
    until("it's connected", async || limiter.peek(key()).await.is_ok()).await;
    server.command(&["CLIENT", "PAUSE", "600000", "WRITE"]).ok();
    let is_over = Arc::new(AtomicBool::new(false));
    let pinging = tokio::spawn({
        let (limiter, is_over) = (limiter.clone(), is_over.clone());
        // One that waits for long is given up.
        async move {
            while !is_over.load(Ordering::Relaxed) {
                drop(limiter.health_check().await);
            }
        }
    });
    until("the ping is being held", async || {
        let clients = server.command(&["CLIENT", "LIST"]).text();
        clients.contains(" cmd=evalsha ") && clients.contains(" flags=b ")
    })
    .await;
    let lateness = Lateness::measure();
    for _ in 0..3 {
        let check = limiter.check(Key::new("other")).into_future();
        let decision = lateness.within(TIMEOUT, check).await;
        assert_eq!(decision.source(), DecisionSource::Fallback);
    }
    is_over.store(true, Ordering::Relaxed);
    server.command(&["CLIENT", "UNPAUSE"]).ok();
    pinging.await.expect("it ends");
}

#[tokio::test]
async fn a_store_in_process_has_no_problems() {
    let policy = Policy::new("p", quota("9/week"));
    let limiter = Limiter::builder().policy(policy).built();
    assert!(limiter.health_check().await.is_healthy());
}
