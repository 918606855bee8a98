//! Rules that are replaced while requests are decided.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use tollgate_server::rules::{Rule, Rules, Unit};

use crate::{
    client::{Client, cost, descriptor, is_over},
    json::get,
    scene::{TEST_TIMEOUT, limit, rule, rules, served, with},
};

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_replaced_in_use_and_those_that_stay_keep_their_counts() {
    let client = served(rules([limit("user", "", 9, Unit::Hour)])).await;
    let user = || descriptor([("user", "a")]);
    assert!(client.passes(cost(user(), 4)).await);
    let more = rules([
        limit("user", "", 20, Unit::Hour),
        limit("path", "", 1, Unit::Hour),
    ]);
    client.server.engine().reload(&more).expect("rules");
    assert_eq!(client.left(user()).await, 16);
    assert!(client.passes(descriptor([("path", "/")])).await);
    assert!(!client.passes(descriptor([("path", "/")])).await);
    // Invalid rules leave those before them in force.
    let twice = rules([limit("a", "", 1, Unit::Hour), limit("a", "", 2, Unit::Hour)]);
    client
        .server
        .engine()
        .reload(&twice)
        .expect_err("a mistake");
    assert_eq!(client.left(user()).await, 16);
    let metrics = get(&client.server, "/metrics").await.1;
    for loads in ["error 1", "success 2"] {
        let loads = format!("ratelimit_service_config_load_{loads}");
        assert!(metrics.contains(&loads), "{metrics}");
    }
    client.server.engine().reload(&rules([])).expect("rules");
    let response = client.ask([user()]).await;
    assert_eq!(response.statuses[0].current_limit, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_rules_that_are_gone_are_removed_and_those_that_stay_go_on() {
    let detailed = Rule {
        detailed_metric: true,
        ..limit("gone", "", 9, Unit::Hour)
    };
    let stays = Rule {
        value: Some("\"a\\\nb\"".to_owned()),
        ..limit("stays", "", 9, Unit::Hour)
    };
    let client = served(rules([detailed, stays.clone()])).await;
    assert!(client.passes(descriptor([("gone", "1")])).await);
    assert!(client.passes(descriptor([("stays", "\"a\\\nb\"")])).await);
    let series = async || {
        let metrics = get(&client.server, "/metrics").await.1;
        let mut all = Vec::new();
        for line in metrics.lines() {
            let prefix = "ratelimit_service_rate_limit_total_hits{domain=\"test\",key1=\"";
            all.extend(line.strip_prefix(prefix).map(str::to_owned));
        }
        all
    };
    let kept = r#"stays_\"a\\\nb\""} 1"#;
    assert_eq!(series().await, [r#"gone"} 0"#, r#"gone_1"} 1"#, kept]);
    let next = rules([stays, limit("new", "", 9, Unit::Hour)]);
    let engine = client.server.engine();
    engine.reload(&next).expect("rules");
    assert_eq!(series().await, [r#"new"} 0"#, kept]);
    // Rules that can't be put in force add none.
    let twice = rules([limit("a", "", 1, Unit::Hour), limit("a", "", 2, Unit::Hour)]);
    engine.reload(&twice).expect_err("a mistake");
    assert_eq!(series().await, [r#"new"} 0"#, kept]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_request_is_decided_under_the_old_rules_or_under_the_new_ones() {
    // Each set has policies of its own, so that a request between the two would find none.
    let set = |name: &str, n: u64| -> Rules {
        let inner = ["a", "b"].map(|key| Rule {
            key: key.to_owned(),
            ..limit(&format!("{name}-{key}"), "", n, Unit::Hour)
        });
        rules([with(rule("set", ""), inner)])
    };
    let (one, two) = (set("one", 1_000_000), set("two", 2_000_000));
    let client = served(one.clone()).await;
    let done = Arc::new(AtomicBool::new(false));
    // How many requests were decided under each.
    let seen = Arc::new([const { AtomicU64::new(0) }; 2]);
    let ask = || {
        let (done, seen, client) = (done.clone(), seen.clone(), Client::clone(&client));
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let both = ["a", "b"].map(|key| descriptor([("set", "x"), (key, "y")]));
                let response = client.ask(both).await;
                assert!(!is_over(&response));
                let limits = response.statuses.iter().map(|status| {
                    let limit = status.current_limit.as_ref();
                    limit.expect("a limit").requests_per_unit
                });
                let limits: Vec<u32> = limits.collect();
                assert!(
                    limits == [1_000_000; 2] || limits == [2_000_000; 2],
                    "{limits:?}"
                );
                seen[usize::from(limits[0] == 2_000_000)].fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let tasks: Vec<_> = (0..4).map(|_| ask()).collect();
    let start = Instant::now();
    for turn in 0.. {
        if turn >= 200 && seen.iter().all(|seen| seen.load(Ordering::Relaxed) > 0) {
            break;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{seen:?}");
        let next = if turn % 2 == 0 { &two } else { &one };
        client.server.engine().reload(next).expect("rules");
        // Some requests come between two replacements.
        assert!(client.passes(descriptor([("set", "x"), ("a", "z")])).await);
    }
    done.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task");
    }
}
