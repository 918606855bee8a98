//! What is found out before the first request.

use std::time::UNIX_EPOCH;

use testkit::Clock;
use tollgate::store::{HealthIssue, HealthReport};

use crate::deployments::support::*;

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
    assert!(server.calls("evalsha") >= 10, "each policy is tried");
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
    let all = ["version", "eviction", "role", "blocks"];
    for (server, user, rights, unchecked) in [
        (&no_scan, "renamed", "", &all[3..]),
        (&server, "no-ping", "-ping", &[]),
        (&server, "few", "-info -ping -scan", &all),
    ] {
        let _case = Case(user.to_owned());
        server.acl(user, "pw", &format!("~tg:* +@all {rights}"));
        let limiter = at(&server.url_as(user, "pw"));
        let health = limiter.health_check().await;
        assert!(health.is_healthy(), "{health:?}");
        assert_eq!(health.unchecked(), unchecked);
        assert!(admitted_by_store(&limiter.admit(user).await));
    }
}

#[tokio::test]
async fn a_server_that_may_lose_counts_or_cannot_count_is_reported() {
    let server = Server::builder()
        .arg("maxmemory", "100mb")
        .arg("maxmemory-policy", "volatile-ttl")
        .start();
    let health = at(&server.url()).health_check().await;
    let [HealthIssue::EvictionEnabled { policy, .. }] = health.issues() else {
        panic!("{health:?}");
    };
    assert_eq!(&**policy, "volatile-ttl");

    let replica = Server::builder().replica_of(&server).start();
    let health = at(&replica.url()).health_check().await;
    let is_replica = |issue: &&HealthIssue| matches!(issue, HealthIssue::Replica { .. });
    assert_eq!(
        health.issues().iter().filter(is_replica).count(),
        1,
        "{health:?}"
    );

    let down = at("redis://gate:hush@127.0.0.1:1/1");
    let health = down.health_check().await;
    let [issue @ HealthIssue::Unreachable { .. }] = health.issues() else {
        panic!("{health:?}");
    };
    // It is named, in case there are several, and its password isn't.
    let text = issue.to_string();
    assert!(text.starts_with("127.0.0.1:1 can't be used:"), "{text}");
    assert!(!text.contains("hush"), "{text}");
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
async fn each_master_of_a_cluster_is_checked() {
    let cluster = Cluster::start(3, 1);
    let limiter = all(patient(RedisStore::builder().cluster(cluster.urls())));
    let health = limiter.health_check().await;
    assert!(health.is_healthy(), "{health:?}");
    let masters = &cluster.nodes()[..3];
    for master in masters {
        assert_eq!(master.keys(), [""; 0]);
        assert!(master.calls("evalsha") >= 10);
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
