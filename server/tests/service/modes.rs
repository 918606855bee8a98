//! Rules in shadow mode and in quota mode, and metadata.

use prost_types::value::Kind;
use tollgate_server::rules::{Rule, Unit};

use crate::{
    client::{cost, descriptor, is_over, over},
    json::get,
    scene::{limit, limit_together, quota, rules, served, served_with, shadow, unlimited},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_in_shadow_mode_is_charged_and_reported_and_refuses_nothing() {
    let client = served(rules([
        shadow(limit_together("user", "", 2, Unit::Hour)),
        limit("address", "", 4, Unit::Hour),
    ]))
    .await;
    let both = || {
        [
            descriptor([("user", "alice")]),
            descriptor([("address", "::1")]),
        ]
    };
    for _ in 0..4 {
        let response = client.ask(both()).await;
        assert_eq!(over(&response), [false, false]);
        assert!(!is_over(&response));
    }
    // Another descriptor refuses.
    let refused = client.ask(both()).await;
    assert_eq!(
        (over(&refused), is_over(&refused)),
        (vec![false, true], true)
    );
    let [user, _] = both();
    assert_eq!(
        client.ask([cost(user, 0)]).await.statuses[0].limit_remaining,
        0
    );
    let metrics = get(&client.server, "/metrics").await.1;
    for expected in [
        r#"ratelimit_service_rate_limit_total_hits{domain="test",key1="user"} 5"#,
        r#"ratelimit_service_rate_limit_within_limit{domain="test",key1="user"} 2"#,
        r#"ratelimit_service_rate_limit_over_limit{domain="test",key1="user"} 3"#,
        r#"ratelimit_service_rate_limit_shadow_mode{domain="test",key1="user"} 3"#,
        r#"ratelimit_service_rate_limit_near_limit{domain="test",key1="address"} 1"#,
        r#"ratelimit_service_rate_limit_over_limit{domain="test",key1="address"} 1"#,
        r#"ratelimit_service_rate_limit_shadow_mode{domain="test",key1="address"} 0"#,
    ] {
        assert!(metrics.contains(expected), "{expected} in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_shadow_mode_answers_ok_with_the_statuses_as_they_are() {
    let client = served_with(
        &["--shadow-mode"],
        rules([limit("user", "", 1, Unit::Hour)]),
    )
    .await;
    let mut last = client.ask([descriptor([("user", "alice")])]).await;
    for _ in 0..2 {
        last = client.ask([descriptor([("user", "alice")])]).await;
    }
    assert_eq!((over(&last), is_over(&last)), (vec![true], false));
    assert!(last.raw_body.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_in_quota_mode_refuse_if_all_of_them_are_over_and_each_with_room_is_charged() {
    let client = served(rules([
        quota(limit_together("daily", "", 1, Unit::Hour)),
        quota(limit_together("extra", "", 3, Unit::Hour)),
        limit("burst", "", 5, Unit::Hour),
        limit_together("together", "", 9, Unit::Hour),
    ]))
    .await;
    let [daily, extra, burst, together] =
        ["daily", "extra", "burst", "together"].map(|key| descriptor([(key, "x")]));
    let quotas = || [daily.clone(), extra.clone()];
    assert_eq!(over(&client.ask(quotas()).await), [false, false]);
    for _ in 0..2 {
        let response = client.ask(quotas()).await;
        assert_eq!(
            (over(&response), is_over(&response)),
            (vec![true, false], false)
        );
    }
    let all = client.ask(quotas()).await;
    assert_eq!((over(&all), is_over(&all)), (vec![true, true], true));
    // Beside an ordinary rule with room, a quota that is over refuses alone.
    let beside = client.ask([daily.clone(), burst.clone()]).await;
    assert_eq!((over(&beside), is_over(&beside)), (vec![true, false], true));
    // An ordinary rule refuses, whatever the quotas say.
    let fresh = descriptor([("extra", "y")]);
    let refused = client
        .ask([fresh.clone(), cost(burst, 9), together.clone()])
        .await;
    assert_eq!(
        (over(&refused), is_over(&refused)),
        (vec![false, true, false], true)
    );
    assert_eq!(client.left(fresh).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_quota_mode_a_server_refuses_if_no_descriptor_has_room() {
    let client = served_with(
        &["--quota-mode"],
        rules([
            limit("a", "", 1, Unit::Hour),
            limit("b", "", 2, Unit::Hour),
            unlimited("c", ""),
        ]),
    )
    .await;
    let [a, b, c, none] = ["a", "b", "c", "none"].map(|key| descriptor([(key, "")]));
    let both = || [a.clone(), b.clone(), c.clone()];
    assert!(!is_over(&client.ask(both()).await));
    assert!(!is_over(&client.ask(both()).await));
    assert!(is_over(&client.ask(both()).await));
    // A descriptor without a rule has room.
    assert!(!is_over(&client.ask([a, none]).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_that_of_the_rules_that_admitted() {
    let tagged = |rule: Rule, metadata: &str| Rule {
        metadata: Some(serde_json::from_str(metadata).expect("an object")),
        ..rule
    };
    let client = served_with(
        &["--dynamic-metadata"],
        rules([
            quota(tagged(
                limit("a", "", 1, Unit::Hour),
                r#"{"pool": {"a": 1}, "first": true}"#,
            )),
            quota(tagged(
                limit("b", "", 9, Unit::Hour),
                r#"{"pool": {"b": [1, "x", null]}, "first": false}"#,
            )),
        ]),
    )
    .await;
    let both = || [descriptor([("a", "v")]), cost(descriptor([("b", "")]), 2)];
    for expected in [vec!["a", "b"], vec!["b"]] {
        let response = client.ask(both()).await;
        let fields = response.dynamic_metadata.expect("metadata").fields;
        assert_eq!(
            fields["domain"].kind,
            Some(Kind::StringValue("test".to_owned()))
        );
        let Some(Kind::ListValue(descriptors)) = &fields["descriptors"].kind else {
            panic!("{fields:?}");
        };
        assert_eq!(descriptors.values.len(), 2);
        let Some(Kind::StructValue(metadata)) = &fields["metadata"].kind else {
            panic!("{fields:?}");
        };
        let Some(Kind::StructValue(pool)) = &metadata.fields["pool"].kind else {
            panic!("{metadata:?}");
        };
        assert_eq!(pool.fields.keys().collect::<Vec<_>>(), expected);
        let first = Kind::BoolValue(expected.len() == 2);
        assert_eq!(metadata.fields["first"].kind, Some(first));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_name_values_where_rules_say_so_and_have_a_bound() {
    let detailed = |rule: Rule| Rule {
        detailed_metric: true,
        ..rule
    };
    let client = served(rules([
        detailed(limit("d", "", 9, Unit::Hour)),
        Rule {
            value_to_metric: true,
            ..limit("v", "x*", 9, Unit::Hour)
        },
        limit("plain", "", 9, Unit::Hour),
        limit("wild", "a*", 9, Unit::Hour),
        detailed(Rule {
            share_threshold: true,
            ..limit("shared", "a*", 9, Unit::Hour)
        }),
    ]))
    .await;
    for (key, value) in [
        ("d", "1"),
        ("v", "x2"),
        ("plain", "3"),
        ("wild", "a4"),
        ("shared", "a5"),
    ] {
        assert!(client.passes(descriptor([(key, value)])).await);
    }
    let hits = |label: &str| {
        format!(r#"ratelimit_service_rate_limit_total_hits{{domain="test",key1="{label}"}} 1"#)
    };
    let metrics = get(&client.server, "/metrics").await.1;
    for label in ["d_1", "v_x2", "plain", "wild_a*", "shared_a*"] {
        assert!(metrics.contains(&hits(label)), "{label} in\n{metrics}");
    }
    assert!(metrics.contains(r#"limiter="ratelimit""#), "{metrics}");
    // Ever more values end in the series of the rule.
    for value in 0..2_100 {
        let engine = client.server.engine();
        let request = crate::client::request([cost(descriptor([("d", &*format!("n{value}"))]), 0)]);
        let _ = engine.decide(request, false).await.expect("a response");
    }
    let metrics = get(&client.server, "/metrics").await.1;
    let series = metrics
        .lines()
        .filter(|line| line.starts_with("ratelimit_service_rate_limit_"));
    let series = series.count();
    assert!((5_000..=5_100).contains(&series), "{series} series");
}
