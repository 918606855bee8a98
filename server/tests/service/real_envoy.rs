//! A real Envoy, which asks the service about each request.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tollgate_server::{
    document::{Options, Text, parse},
    rules::Unit,
    serve::Server,
};

use crate::{
    json::get,
    scene::{limit, redis, rules, server},
};

/// Sends requests through an Envoy that asks the service at `address`, and returns the responses.
async fn through_envoy(address: String, routes: Value, requests: Vec<Value>) -> Vec<Value> {
    let task = json!({"routes": routes, "requests": requests}).to_string();
    let run = move || testkit::python("envoy_proxy.py", &[&address], &task);
    let output = tokio::task::spawn_blocking(run).await.expect("a proxy");
    serde_json::from_str(&output).expect("responses")
}

/// What a proxy limits on a path: a descriptor of the values of these fields, each under its own name.
fn by_fields<const N: usize>(fields: [&str; N]) -> Value {
    let action =
        |field| json!({"request_headers": {"header_name": field, "descriptor_key": field}});
    json!({"actions": Vec::from(fields.map(action))})
}

/// A descriptor of one entry, whatever the request is. With a cost it is sent only when the response has ended, or else it peeks.
fn constant(key: &str, value: &str, cost: Option<u32>) -> Value {
    json!({
        "actions": [{"generic_key": {"descriptor_key": key, "descriptor_value": value}}],
        "hits_addend": {"number": cost.unwrap_or(0)},
        "apply_on_stream_done": cost.is_some(),
    })
}

fn route(cluster: &str, rate_limits: &[Value]) -> Value {
    json!({"cluster": cluster, "rate_limits": rate_limits})
}

fn request(path: &str, fields: &[(&str, &str)]) -> Value {
    let fields: BTreeMap<_, _> = fields.iter().copied().collect();
    json!({"path": path, "fields": fields})
}

fn statuses(responses: &[Value]) -> Vec<u64> {
    let statuses = responses.iter();
    let statuses = statuses.map(|response| response["status"].as_u64().expect("a status"));
    statuses.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_passes_what_the_limit_admits_and_its_rejections_say_why() {
    let (_clock, redis) = redis();
    let server = server(&redis, &rules([limit("user", "", 2, Unit::Hour)]), &[]).await;
    let routes = json!({"/": route("app", &[by_fields(["user"])])});
    let users = ["alice", "alice", "alice", "bob"].map(|user| request("/", &[("user", user)]));
    let responses = through_envoy(server.grpc().to_string(), routes, users.into()).await;
    assert_eq!(statuses(&responses), [200, 200, 429, 200]);
    let [_, second, rejected, _] = &responses[..] else {
        panic!("four responses")
    };
    assert_eq!(second["body"], "one");
    assert_eq!(second["fields"]["x-ratelimit-remaining"], "0");
    // The store's clock stands still, 400.1 seconds after a full hour.
    let fields = &rejected["fields"];
    assert_eq!(fields["retry-after"], "3200");
    assert_eq!(fields["x-ratelimit-reset"], "3200");
    assert_eq!(fields["content-type"], "application/problem+json");
    assert_eq!(fields["x-envoy-ratelimited"], "true");
    let problem: Value =
        serde_json::from_str(rejected["body"].as_str().expect("a body")).expect("JSON");
    assert_eq!(problem["status"], 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_denies_requests_while_the_service_is_gone_if_it_is_told_to() {
    let routes = json!({"/": route("app", &[by_fields(["user"])])});
    let requests = vec![request("/", &[("user", "alice")])];
    let responses = through_envoy("127.0.0.1:1".to_owned(), routes, requests).await;
    assert_eq!(responses[0]["status"], 500);
}

/// In the reference format. What the reference server's own tests behind Envoy need has a rule here.
const RULES: &str = "
domain: test
descriptors:
  - key: user
    descriptors:
      - key: method
        value: write
        rate_limit: { unit: minute, requests_per_unit: 3 }
      - key: method
        value: watched
        rate_limit: { unit: minute, requests_per_unit: 3 }
        shadow_mode: true
      - key: tier
        value: small
        rate_limit: { name: small, unit: minute, requests_per_unit: 1 }
      - key: tier
        value: blocked
        rate_limit: { name: blocked, unit: minute, requests_per_unit: 0 }
  - key: from
    value: web
    descriptors:
      - key: to
        value: small
        rate_limit: { unit: minute, requests_per_unit: 2, replaces: [{ name: small }] }
      - key: to
        value: blocked
        rate_limit: { unit: minute, requests_per_unit: 2, replaces: [{ name: blocked }] }
      - key: to
        value: named
        rate_limit: { name: named, unit: minute, requests_per_unit: 2 }
  - key: plan
    value: paid
    rate_limit: { unit: minute, requests_per_unit: 4, replaces: [{ name: small }, { name: named }] }
  - key: page
    detailed_metric: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
  - { key: share, value: one, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: share, value: two, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: tokens, value: all, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - key: pool
    value: one
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
    metadata: { pool: { name: one } }
  - key: pool
    value: two
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
    metadata: { pool: { name: two } }
";

fn routes() -> Value {
    let (tier, method) = (by_fields(["user", "tier"]), by_fields(["user", "method"]));
    let (way, plan) = (by_fields(["from", "to"]), by_fields(["plan"]));
    let shares = ["one", "two"].map(|share| {
        json!({"actions": [{"generic_key": {"descriptor_key": "share", "descriptor_value": share}}]})
    });
    // That of the server which has answered.
    let of_pool = json!({"metadata": {
        "descriptor_key": "pool",
        "source": "CLUSTER_LOCALITY_ENTRY",
        "metadata_key": {"key": "pool", "path": [{"key": "name"}]},
    }});
    let pools = [
        constant("pool", "one", None),
        constant("pool", "two", None),
        json!({"actions": [of_pool], "hits_addend": {"number": 1}, "apply_on_stream_done": true}),
    ];
    let tokens = [
        constant("tokens", "all", None),
        constant("tokens", "all", Some(1)),
    ];
    json!({
        "/two": route("app", &[tier.clone(), method]),
        "/four": route("app", &[tier.clone(), way.clone()]),
        "/five": route("app", &[tier, way, plan]),
        "/page": route("app", &[by_fields(["page"])]),
        "/share": route("app", &shares),
        "/tokens": route("app", &tokens),
        "/pools": route("pools", &pools),
    })
}

/// The scripts of the reference server's, by what they test: the path and fields of a request, and the status of each of its responses
/// in a row. Counts are the scripts' own: names and values are not.
const CASES: &str = "\
simple-get
  /two user=a method=watched: 200
trigger-ratelimit
  /two user=b method=write: 200 200 200 429 429
trigger-shadow-mode-key
  /two user=b method=watched: 200 200 200 200 200
value-included-in-stats-key-when-unspecified
  /page page=start: 200 200 429
replaces: a limit of 0 by one of 2
  /two user=c tier=blocked: 429
  /four user=c tier=blocked from=web to=other: 429
  /four user=c tier=blocked from=web to=blocked: 200 200 429
replaces: the limit that is replaced is not charged
  /four user=d tier=small from=web to=small: 200 200 429
  /four user=d tier=small from=web to=other: 200 429
  /four user=d tier=small from=web to=small: 429
replaces: two limits by one
  /five user=e tier=small from=web to=named plan=paid: 200 200 200 200 429
  /two user=f tier=small: 200 429
  /four user=g tier=none from=web to=named: 200 200 429
  /five user=e tier=small from=web to=named plan=paid: 429
quota: rejected once all are over
  /share: 200 200 429";

/// The script, request and expected status of each case.
fn cases() -> Vec<(&'static str, Value, u64)> {
    let (mut script, mut cases) = ("", Vec::new());
    for line in CASES.lines() {
        let Some(row) = line.strip_prefix("  ") else {
            script = line;
            continue;
        };
        let (sent, statuses) = row.split_once(": ").expect("statuses");
        let mut words = sent.split(' ');
        let path = words.next().expect("a path");
        let fields: Vec<_> = words.filter_map(|word| word.split_once('=')).collect();
        for status in statuses.split(' ') {
            let status = status.parse().expect("a status");
            cases.push((script, request(path, &fields), status));
        }
    }
    cases
}

/// Scripts whose requests are charged after the response: what has to be counted before the next request, and the server that
/// answers.
type Charged = (&'static str, &'static str, Option<&'static str>);

const CHARGED_AFTERWARDS: &[(&str, &[Charged])] = &[
    (
        "token-quota",
        &[
            ("/tokens", r#"key1="tokens_all"} 1"#, Some("one")),
            ("/tokens", r#"key1="tokens_all"} 2"#, Some("one")),
            ("/tokens", r#"key1="tokens_all"} 3"#, Some("one")),
            ("/tokens", "", None),
        ],
    ),
    (
        "multiservice-tokenquota",
        &[
            ("/pools", r#"key1="pool_one"} 1"#, Some("one")),
            ("/pools", r#"key1="pool_one"} 2"#, Some("one")),
            ("/pools", r#"key1="pool_two"} 1"#, Some("two")),
            ("/pools", r#"key1="pool_two"} 2"#, Some("two")),
            ("/pools", r#"key1="pool_two"} 3"#, Some("two")),
            ("/pools", "", None),
        ],
    ),
];

/// A request after whose response the server's metrics have to have this text.
fn charged(server: &Server, path: &str, text: &str) -> Value {
    let mut request = request(path, &[]);
    if !text.is_empty() {
        let (host, port) = (server.http().ip().to_string(), server.http().port());
        let text = format!(r#"ratelimit_service_rate_limit_total_hits{{domain="test",{text}"#);
        request["until"] = json!([host, port, "/metrics", format!("{text}\n")]);
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_reference_server_tests_behind_envoy_holds_here() {
    let (clock, redis) = redis();
    let text = Text {
        file: "rules",
        text: RULES,
    };
    let rules = parse(&[text], Options::default()).expect("rules");
    let server = server(&redis, &rules, &["--dynamic-metadata"]).await;
    let cases = cases();
    let now = cases.iter().map(|(_, request, _)| request.clone());
    let later = CHARGED_AFTERWARDS.iter().flat_map(|(_, rows)| *rows);
    let later = later.map(|(path, text, _)| charged(&server, path, text));
    let requests: Vec<Value> = now.chain(later).collect();
    let responses = through_envoy(server.grpc().to_string(), routes(), requests).await;
    let (mut responses, mut watched) = (responses.iter(), Vec::new());
    for (script, request, status) in &cases {
        let response = responses.next().expect("a response");
        assert_eq!(response["status"], *status, "{script} {request} {response}");
        if script.contains("shadow") {
            watched.push(&response["fields"]["x-ratelimit-remaining"]);
        }
    }
    assert_eq!(watched, ["2", "1", "0", "0", "0"]);
    for (script, rows) in CHARGED_AFTERWARDS {
        for (row, (_, _, expected)) in rows.iter().enumerate() {
            let response = responses.next().expect("a response");
            let served = (response["status"] == 200).then(|| response["body"].as_str());
            assert_eq!(served.flatten(), *expected, "{script}, {row}: {response}");
        }
    }
    let metrics = get(&server, "/metrics").await.1;
    let of_value = r#"ratelimit_service_rate_limit_over_limit{domain="test",key1="page_start"} 1"#;
    assert!(metrics.contains(of_value), "{metrics}");

    // The next minute has budgets of its own.
    clock.advance(Duration::from_secs(60));
    let requests = ["/share", "/tokens", "/pools"].map(|path| request(path, &[]));
    let responses = through_envoy(server.grpc().to_string(), routes(), requests.into()).await;
    assert_eq!(statuses(&responses), [200, 200, 200]);
    assert_eq!(responses[2]["body"], "one");
}
