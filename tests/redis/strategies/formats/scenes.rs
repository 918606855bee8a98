//! The policies and the store of each of the fixture's scenes, by its name.

use tollgate::{redis::RedisStoreBuilder, strategy::Strategy};
use tollgate_tests::prelude::*;

#[track_caller]
fn policy(name: &str, text: &str, strategy: impl Strategy) -> Policy {
    Policy::new(name, stores::quota(text)).strategy(strategy)
}

fn one(quota: &str, strategy: impl Strategy) -> Vec<Policy> {
    vec![policy("p", quota, strategy)]
}

/// One count for all tiers.
fn tiered(strategy: impl Strategy) -> Vec<Policy> {
    let tiers = ["20/min", "3/min"].map(stores::quota);
    vec![policy("p", "5/min", strategy).tier_quotas(tiers)]
}

/// Rejections counted, bans that grow, and bans by hand.
fn banning() -> Vec<Policy> {
    let ban = Ban::for_duration(secs(600)).max_duration(secs(1_800));
    vec![
        policy("once", "1/365days", FixedWindow),
        policy("abuse", "3/min", ban),
    ]
}

/// All or nothing.
fn several() -> Vec<Policy> {
    let permits = Concurrency::with_ttl(secs(3_600));
    vec![
        policy("second", "3/s", Gcra),
        policy("minute", "10/min", SlidingWindow::buckets(6)),
        policy("day", "50/day", CalendarWindow::utc()),
        policy("exports", "2 concurrent", permits),
    ]
}

fn charged_rejections() -> Vec<Policy> {
    let policies = [
        policy("window", "3/min", FixedWindow),
        policy("rate", "3/min", Gcra),
        policy("log", "3/min", SlidingLog),
    ];
    policies.map(|policy| policy.charge_rejected(true)).into()
}

fn shadows() -> Vec<Policy> {
    vec![
        policy("live", "3/min", Gcra),
        policy("beside", "2/min", FixedWindow).shadow(),
        policy("larger", "5/min", TokenBucket).shadow(),
    ]
}

/// Keys are readable and hashed, and tuples; policies and prefixes have other letters.
fn named(names: [&str; 2], second: impl Strategy) -> Vec<Policy> {
    vec![
        policy(names[0], "5/min", Gcra),
        policy(names[1], "5/min", second),
    ]
}

fn clustered() -> Vec<Policy> {
    vec![
        policy("a", "5/min", Gcra),
        policy("b", "3/min", FixedWindow),
        policy("shadow", "2/min", Gcra).shadow(),
    ]
}

/// Whether the scene is on a cluster.
pub(crate) fn is_clustered(scene: &str) -> bool {
    scene.starts_with("cluster")
}

/// The settings of a scene's store.
pub(crate) fn store(scene: &str, builder: RedisStoreBuilder) -> RedisStoreBuilder {
    // Rejections are cached by this process's clock, and the server's is frozen.
    let uncached = builder.rejection_cache_staleness(Duration::ZERO);
    match scene {
        "another prefix" => uncached.prefix("my-app.eu:"),
        "no prefix" => uncached.prefix(""),
        "cluster, 1024 hash tags" => uncached.hash_tags(1_024),
        _ => uncached,
    }
}

/// The policies of a scene.
pub(crate) fn policies(scene: &str) -> Vec<Policy> {
    let utc = CalendarWindow::utc;
    let from_epoch = CalendarWindow::from_epoch();
    let shanghai = CalendarWindow::zone("Asia/Shanghai");
    let sundays = CalendarWindow::west_of_utc(secs(5 * 3_600)).week_starts_on(Weekday::Sunday);
    let east = CalendarWindow::east_of_utc(secs(19_800));
    // Renewed three times in its TTL, so not while the test runs.
    let permits = Concurrency::with_ttl(secs(3_600));
    match scene {
        "gcra" => one("5/min", Gcra),
        "gcra, 7 per minute and a burst of 20" => one("7/min burst 20", Gcra),
        "gcra, 5 per month" => one("5/month", Gcra),
        "token bucket" => one("5/min", TokenBucket),
        "token bucket, 7 per minute and a burst of 20" => one("7/min burst 20", TokenBucket),
        "fixed window" => one("5/min", FixedWindow),
        "calendar window" => one("5/min", utc()),
        "list window" | "list window, with callers" => one("5/min", ListWindow),
        "sliding log" => one("5/min", SlidingLog),
        "sliding window, 1 bucket" => one("5/min", SlidingWindow::new()),
        "sliding window, 10 buckets" => one("5/min", SlidingWindow::buckets(10)),
        "calendar window, days in UTC" => one("5/day", utc()),
        "calendar window, months in Shanghai" => one("5/month", shanghai),
        "calendar window, years in UTC" => one("5/year", utc()),
        "calendar window, months from the epoch" => one("5/month", from_epoch),
        "calendar window, weeks from Sunday, west of UTC" => one("5/week", sundays),
        "calendar window, 90 minutes, east of UTC" => one("5/90min", east),
        "tiers of gcra" => tiered(Gcra),
        "tiers of a token bucket" => tiered(TokenBucket),
        "tiers of a fixed window" => tiered(FixedWindow),
        "tiers of a calendar window" => tiered(utc()),
        "tiers of a list window" => tiered(ListWindow),
        "tiers of a sliding log" => tiered(SlidingLog),
        "tiers of a sliding window" => tiered(SlidingWindow::buckets(6)),
        "concurrency" => one("5 concurrent", permits),
        "ban" | "ban by hand" => banning(),
        "several policies" => several(),
        "charged rejections" => charged_rejections(),
        "shadows" => shadows(),
        "keys" => named(["burst", "a policy: {100%}, v1"], FixedWindow),
        "another prefix" | "no prefix" => named(["p", "q"], TokenBucket),
        "cluster" | "cluster, 1024 hash tags" => clustered(),
        other => panic!("no policies of the scene {other:?}"),
    }
}
